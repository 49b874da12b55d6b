"""A configuration of Kueue that charges nothing or twice is found; a right one has no finding but that."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.doctor.test_checks import FORBIDDEN, HEALTHY, MISSING, node

from tessera.api.names import QUOTA_RESOURCE
from tessera.doctor.facts import ClusterFacts, Finding, KueueFacts, Verdict
from tessera.doctor.queue_checks import check_queues
from tessera.kueue.configuration import make_configuration
from tessera.kueue.objects import CHARGED_RESOURCE, CHECK_CONTROLLER

PROFILES = ("1g.5gb", "3g.20gb", "7g.40gb")
NODES = [
    msgspec.structs.replace(
        node(),
        status=msgspec.structs.replace(node().status, allocatable={f"nvidia.com/mig-{each}": "4" for each in PROFILES}),
    )
]


def queue(*covered: str, checks: Sequence[str] = (), old: bool = False) -> Mapping[str, Any]:
    """A ClusterQueue."""
    strategy = (
        {"admissionChecks": list(checks)}
        if old
        else {"admissionChecksStrategy": {"admissionChecks": [{"name": each} for each in checks]}}
    )
    return {
        "metadata": {"name": "team-a"},
        "spec": {"resourceGroups": [{"coveredResources": list(covered)}], **strategy},
    }


def check(active: str = "True") -> Mapping[str, Any]:
    """Tessera's AdmissionCheck."""
    return {
        "metadata": {"name": "packable"},
        "spec": {"controllerName": CHECK_CONTROLLER},
        "status": {"conditions": [{"type": "Active", "status": active}]},
    }


def configuration(*, frameworks: Sequence[str] = ("batch/job", "pod"), **resources: Any) -> dict[str, Any]:
    """A site's Configuration; without resources, ours."""
    made = make_configuration(PROFILES, "v1beta2")
    return {**made, "resources": resources or made["resources"], "integrations": {"frameworks": list(frameworks)}}


GOOD = KueueFacts(
    configuration=configuration(),
    cluster_queues=[queue("cpu", CHARGED_RESOURCE, checks=["packable"])],
    admission_checks=[check()],
)


def examine(**changes: Any) -> list[Finding]:
    """The findings about a good Kueue with changes."""
    facts = msgspec.structs.replace(HEALTHY, nodes=NODES, kueue=msgspec.structs.replace(GOOD, **changes))
    return list(check_queues(facts))


def test_what_tessera_writes_is_right() -> None:
    (finding,) = examine()
    assert (finding.check, finding.verdict) == ("kueue-charges", Verdict.OK)
    assert finding.text == "1 ClusterQueue: each slice is charged its memory once"


def rules(output: str, amount: str = "20Gi", strategy: str = "Replace") -> list[dict[str, Any]]:
    return [{"input": "nvidia.com/mig-3g.20gb", "strategy": strategy, "outputs": {output: amount}}]


@pytest.mark.parametrize(
    ("resources", "covered", "words"),
    [
        (
            {"excludeResourcePrefixes": ["instaslice.redhat.com/", "nvidia.com/mig-"]},
            [CHARGED_RESOURCE],
            "Kueue charges nothing for slices, so its quota does not hold: 1g.5gb, 3g.20gb",
        ),
        (
            {"quotaCheckStrategy": "IgnoreUndeclared"},
            [CHARGED_RESOURCE],
            "Kueue charges nothing for slices",
        ),
        (
            {"transformations": rules(QUOTA_RESOURCE), "quotaCheckStrategy": "IgnoreUndeclared"},
            [QUOTA_RESOURCE],
            "Kueue charges slices double, 3g.20gb for example 40Gi of instaslice.redhat.com/accelerator-memory-quota",
        ),
        (
            {
                "excludeResourcePrefixes": ["instaslice.redhat.com/"],
                "transformations": rules(CHARGED_RESOURCE, "2Gi"),
                "quotaCheckStrategy": "IgnoreUndeclared",
            },
            [CHARGED_RESOURCE, "nvidia.com/mig-1g.5gb", "nvidia.com/mig-7g.40gb"],
            "Kueue charges slices another amount than their memory, 3g.20gb 2Gi of tessera.dev/gpu-memory",
        ),
        (
            {"transformations": []},
            [QUOTA_RESOURCE],
            "Kueue admits no pod with these slices, since the queue does not cover nvidia.com/mig-1g.5gb",
        ),
    ],
)
def test_a_wrong_charge_is_an_error_with_the_remedy(resources: dict[str, Any], covered: list[str], words: str) -> None:
    found = examine(configuration=configuration(**resources), cluster_queues=[queue(*covered, checks=["packable"])])
    (finding,) = [each for each in found if each.check == "kueue-charges"]
    assert finding.verdict is Verdict.ERROR
    assert finding.text.startswith(words)
    assert "tessera kueue config --extend FILE" in finding.advice
    assert finding.objects == ("clusterqueue/team-a",)


@pytest.mark.parametrize(
    ("resources", "covered"),
    [
        ({"excludeResourcePrefixes": ["nvidia.com/mig-"]}, [QUOTA_RESOURCE]),
        ({"excludeResourcePrefixes": ["instaslice.redhat.com/"]}, [f"nvidia.com/mig-{each}" for each in PROFILES]),
        ({"quotaCheckStrategy": "IgnoreUndeclared"}, [QUOTA_RESOURCE]),
    ],
)
def test_other_ways_that_charge_once_are_right(resources: dict[str, Any], covered: list[str]) -> None:
    found = examine(configuration=configuration(**resources), cluster_queues=[queue(*covered, checks=["packable"])])
    assert [each.verdict for each in found] == [Verdict.OK]


def verdicts(found: Sequence[Finding]) -> dict[str, Verdict]:
    return {each.check: each.verdict for each in found}


def test_pods_that_are_not_queued_are_told() -> None:
    found = examine(configuration=configuration(frameworks=["batch/job"]))
    assert verdicts(found)["kueue-pods"] is Verdict.WARNING


@pytest.mark.parametrize("old", [False, True])
def test_evictions_at_the_gate_are_foreseen_unless_the_check_is_there(old: bool) -> None:
    waiting = {**configuration(), "waitForPodsReady": {"timeout": "5m"}}
    found = examine(configuration=waiting, cluster_queues=[queue(CHARGED_RESOURCE)])
    assert verdicts(found)["kueue-ready-timeout"] is Verdict.WARNING
    checked = [queue(CHARGED_RESOURCE, checks=["packable"], old=old)]
    assert "kueue-ready-timeout" not in verdicts(examine(configuration=waiting, cluster_queues=checked))
    off = {**waiting, "waitForPodsReady": {"enable": False}}
    assert "kueue-ready-timeout" not in verdicts(examine(configuration=off, cluster_queues=[queue(CHARGED_RESOURCE)]))


@pytest.mark.parametrize(
    ("version", "more", "release", "says"),
    [
        ("v1beta2", {"waitForPodsReady": {}}, (0, 18), "waitForPodsReady evicts"),
        ("v1beta2", {}, (0, 20), "waitForPodsReady, on by default since Kueue 0.19, evicts"),
        ("v1beta2", {}, (0, 19), "waitForPodsReady, on by default since Kueue 0.19, evicts"),
        ("v1beta2", {}, None, "if this Kueue is 0.19 or newer, waitForPodsReady is on by default and evicts"),
        ("v1beta2", {}, (0, 18), None),
        ("v1beta2", {"featureGates": {"DisableWaitForPodsReady": True}}, (0, 19), None),
        ("v1beta1", {"waitForPodsReady": {"enable": True}}, (0, 14), "waitForPodsReady evicts"),
        ("v1beta1", {"waitForPodsReady": {"timeout": "5m"}}, (0, 14), None),
        ("v1beta1", {}, (0, 19), None),
    ],
)
def test_evictions_are_foreseen_where_the_release_has_them(
    version: str, more: Any, release: Any, says: str | None
) -> None:
    """Kueue 0.19 has ``waitForPodsReady`` on if a Configuration of v1beta2 does not have the field."""
    stored = {**configuration(), "apiVersion": f"config.kueue.x-k8s.io/{version}", **more}
    found = examine(configuration=stored, cluster_queues=[queue(CHARGED_RESOURCE)], release=release)
    texts = [each.text for each in found if each.check == "kueue-ready-timeout"]
    rest = " admitted pods that wait for room on the cards, a single pod for good"
    assert texts == ([f"{says}{rest}"] if says else [])


def test_a_check_that_nobody_answers_is_an_error() -> None:
    found = examine(admission_checks=[check("False")])
    assert verdicts(found)["kueue-check"] is Verdict.ERROR


def test_what_cannot_be_read_is_told() -> None:
    assert verdicts(examine(configuration=FORBIDDEN)) == {"kueue-charges": Verdict.UNKNOWN}
    assert verdicts(list(check_queues(facts(FORBIDDEN)))) == {"kueue": Verdict.UNKNOWN}


def facts(kueue: Any) -> ClusterFacts:
    return msgspec.structs.replace(HEALTHY, kueue=kueue)


def test_without_kueue_or_without_a_quota_on_slices_there_is_no_finding() -> None:
    assert list(check_queues(HEALTHY)) == []
    assert list(check_queues(facts(MISSING))) == []
    assert examine(cluster_queues=[queue("cpu", "memory")]) == []


@pytest.mark.parametrize("document", [None, [], "text", {"resources": []}, {"resources": {"transformations": [1, {}]}}])
def test_any_document_is_read(document: Any) -> None:
    assert examine(configuration=document)


HIDDEN = {"excludeResourcePrefixes": ["instaslice.redhat.com/"]}


def charges(kueue: KueueFacts) -> Finding:
    facts = msgspec.structs.replace(HEALTHY, nodes=NODES, kueue=kueue)
    (found,) = (each for each in check_queues(facts) if each.check == "kueue-charges")
    return found


def test_a_queue_that_counts_slices_by_name_is_told_the_one_setting_that_it_needs() -> None:
    by_name = queue("nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb", "nvidia.com/mig-7g.40gb", "cpu")
    found = charges(KueueFacts(configuration=configuration(transformations=[]), cluster_queues=[by_name]))
    assert (found.verdict, QUOTA_RESOURCE in found.text) == (Verdict.ERROR, True)
    assert "tessera kueue config --count-slices --extend FILE" in found.advice


@pytest.mark.parametrize("names", [("1g.5gb", "3g.20gb", "7g.40gb"), ("1g.5gb",)], ids=["all", "one"])
def test_a_queue_that_counts_slices_by_name_is_right_with_it(names: Sequence[str]) -> None:
    by_name = queue(*(f"nvidia.com/mig-{each}" for each in names), "cpu")
    found = charges(KueueFacts(configuration=configuration(**HIDDEN), cluster_queues=[by_name]))
    assert found.verdict is Verdict.OK
