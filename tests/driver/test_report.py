"""The coverage report: covered kernels, policies with an open gate, and the sentence about both."""

import msgspec
import pytest

from tessera.driver.coverage import (
    CoverageReport,
    ExpectedKernel,
    KernelCoverage,
    covering_queries,
    expected_kernels,
    judge_coverage,
    unlisted_groups,
)
from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, Outcome, Resolution, TriedReference
from tessera.driver.kernels import NextKernel
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource

POLICY = DriverPolicy(
    kind="ClusterPolicy",
    name="cluster-policy",
    use_precompiled=True,
    source=ImageSource(repository="nvcr.io/nvidia", image="driver", version="535.183.06"),
)
NODE = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-118-generic", architecture="amd64")
NEXT = NextKernel(os_id="ubuntu", os_version="22.04", kernel="5.15.0-119-generic")
EXPECTED = ExpectedKernel(pool=NEXT.pool("amd64"), policy=POLICY)


def said(outcome: Outcome, text: str = "the registry has no such tag") -> Resolution:
    found = "nvcr.io/nvidia/driver:535-x" if outcome is Outcome.FOUND else ""
    tried = (TriedReference(reference="nvcr.io/nvidia/driver:535-x", outcome=outcome, text=text),)
    return Resolution(outcome=outcome, reference=found, tried=tried)


def row(covered: bool, architecture: str = "amd64", kernel: str = NEXT.kernel) -> KernelCoverage:
    pool = msgspec.structs.replace(NEXT.pool(architecture), kernel=kernel)
    return KernelCoverage(pool=pool, policy="ClusterPolicy/p", covered=covered, reason="no such tag")


def test_a_kernel_comes_under_the_policy_of_the_nodes_that_run_its_system() -> None:
    found, idle = expected_kernels([NEXT], [(NODE, POLICY), (NODE, POLICY)])
    assert found == (EXPECTED,)
    assert idle == ()


def test_a_kernel_of_no_architecture_is_for_all_that_there_are() -> None:
    arm = msgspec.structs.replace(NODE, architecture="arm64")
    found, _ = expected_kernels([NEXT], [(NODE, POLICY), (arm, POLICY)])
    assert [each.pool.architecture for each in found] == ["amd64", "arm64"]
    named, _ = expected_kernels([msgspec.structs.replace(NEXT, architecture="arm64")], [(NODE, POLICY), (arm, POLICY)])
    assert [each.pool.architecture for each in named] == ["arm64"]


def test_two_policies_for_one_system_are_two_questions() -> None:
    other = msgspec.structs.replace(POLICY, kind="NVIDIADriver", name="b")
    found, _ = expected_kernels([NEXT], [(NODE, POLICY), (NODE, other)])
    assert [each.policy.name for each in found] == ["cluster-policy", "b"]


def test_where_no_node_runs_the_system_every_policy_is_for_it() -> None:
    found, _ = expected_kernels([NEXT], [], [POLICY])
    assert found == (EXPECTED,)
    assert expected_kernels([NEXT], []) == ((), (NEXT,))


def test_nodes_are_unlisted_until_a_kernel_comes_for_their_kind() -> None:
    arm, later = (
        msgspec.structs.replace(NODE, **each) for each in ({"architecture": "arm64"}, {"os_version": "24.04"})
    )
    assert unlisted_groups([NODE, arm], []) == ("ubuntu22.04 amd64", "ubuntu22.04 arm64")
    assert unlisted_groups([NODE, arm], [row(covered=False)]) == ("ubuntu22.04 arm64",)
    assert unlisted_groups([NODE, later], [row(covered=True)]) == ("ubuntu24.04 amd64",)


def test_a_kernel_of_a_version_that_no_node_runs_yet_is_that_of_an_upgrade() -> None:
    older = msgspec.structs.replace(NODE, os_version="20.04")
    other = msgspec.structs.replace(NODE, os_id="rhel", os_version="9.4")
    assert unlisted_groups([older, other], [row(covered=True)]) == ("rhel9.4 amd64",)


def test_a_kernel_is_no_upgrade_for_nodes_of_another_architecture_or_page_size() -> None:
    assert unlisted_groups([NODE], [row(covered=True, architecture="arm64")]) == ("ubuntu22.04 amd64",)
    arm = msgspec.structs.replace(NODE, architecture="arm64", os_version="20.04")
    pages = row(covered=True, architecture="arm64")
    large = msgspec.structs.replace(pages, pool=msgspec.structs.replace(pages.pool, page_kib=64))
    assert unlisted_groups([arm], [large]) == ("ubuntu20.04 arm64",)
    assert unlisted_groups([arm], [pages]) == ()


def test_a_gate_is_open_on_knowledge_only_where_nothing_is_missing() -> None:
    assert not CoverageReport().complete
    assert CoverageReport(rows=(row(covered=True),)).complete
    assert not CoverageReport(rows=(row(covered=True),), problems=("x",)).complete
    assert not CoverageReport(rows=(row(covered=True),), unknown=("rhel9.4 amd64",)).complete


def test_where_precompiled_images_are_wanted_only_those_cover() -> None:
    assert {query.kind for query in covering_queries(EXPECTED)} == {ImageKind.PRECOMPILED, ImageKind.PRECOMPILED_BRANCH}
    building = msgspec.structs.replace(EXPECTED, policy=msgspec.structs.replace(POLICY, use_precompiled=False))
    assert ImageKind.BUILDER in {query.kind for query in covering_queries(building)}


def test_what_is_found_covers_also_by_a_branch_and_from_memory() -> None:
    answers = [said(Outcome.NOT_FOUND), msgspec.structs.replace(said(Outcome.FOUND), stale=True)]
    found = judge_coverage(EXPECTED, answers)
    assert found.covered
    assert found.image == "nvcr.io/nvidia/driver:535-x"
    assert found.reason.endswith("(the registry does not answer now)")


@pytest.mark.parametrize(
    ("outcome", "missing"),
    [
        (Outcome.NOT_FOUND, True),
        (Outcome.WRONG_ARCHITECTURE, True),
        (Outcome.UNAUTHORIZED, False),
        (Outcome.UNREACHABLE, False),
    ],
)
def test_a_build_helps_only_where_registries_have_answered(outcome: Outcome, missing: bool) -> None:
    found = judge_coverage(EXPECTED, [said(Outcome.NOT_FOUND), said(outcome, "why")])
    assert not found.covered
    assert found.missing is missing
    if not missing:
        assert found.reason == "nvcr.io/nvidia/driver:535-x: why"


def test_the_gate_is_open_where_every_kernel_is_covered() -> None:
    report = CoverageReport(rows=(row(True), row(False, "arm64"), row(True, kernel="5.15.0-120-generic")))
    assert report.summary == "2/3 covered"
    assert not report.open
    assert report.gates == {"ubuntu22.04 amd64": True, "ubuntu22.04 arm64": False}


def test_without_kernels_the_gate_is_open() -> None:
    assert CoverageReport().open
    assert CoverageReport().summary == "0/0 covered"


def test_a_condition_names_what_is_missing_and_not_everything() -> None:
    report = CoverageReport(rows=tuple(row(False, kernel=f"5.15.0-{number}-generic") for number in range(5)))
    for fact in ("0/5 covered.", "ubuntu22.04 5.15.0-0-generic amd64: no such tag; "):
        assert fact in report.sentence
    assert report.sentence.endswith("; and 2 more.")
    assert CoverageReport(rows=(row(True),)).sentence == "1/1 covered. 1 next kernels known."
