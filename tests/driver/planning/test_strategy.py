"""The strategy of a node, and the reasons against each better one."""

import pytest

from tessera.api.nodes.node_marks import DriverStrategy
from tessera.driver.driver_sets import PoolKey, make_set
from tessera.driver.images import ImageKind, ImageQuery, Outcome, Resolution, TriedReference, candidates
from tessera.driver.node_facts import DriverNodeFacts
from tessera.driver.planning.strategy import (
    PoolBuild,
    PoolBuildState,
    StrategyInputs,
    StrategyResult,
    choose_strategy,
    image_queries,
)
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource

POOL = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
NODE = DriverNodeFacts(name="n1", uid="u1", is_gpu=True, pool=POOL)
SOURCE = ImageSource(repository="nvcr.io/nvidia", image="driver", version="525.125.06")
EXACT, BRANCH, BUILDER = ImageKind.PRECOMPILED, ImageKind.PRECOMPILED_BRANCH, ImageKind.BUILDER
DIGEST = "sha256:" + "a" * 64
BUILDS = "registry.local/built"


def policy(**fields: object) -> DriverPolicy:
    made = {"kind": "ClusterPolicy", "name": "p", "use_precompiled": True, "source": SOURCE, **fields}
    return DriverPolicy(**made)  # type: ignore[arg-type]


class Registries:
    """Answers of registries by repository and kind; everything else is not found."""

    def __init__(self) -> None:
        self.said: dict[tuple[str, ImageKind], Resolution] = {}
        self.silent: set[str] = set()

    def has(self, kind: ImageKind, repository: str = SOURCE.repository, *, stale: bool = False) -> "Registries":
        tag = f"{kind.value}-tag"
        self.said[repository, kind] = Resolution(
            outcome=Outcome.FOUND,
            reference=f"{repository}/driver:{tag}",
            tag=tag,
            digest=DIGEST,
            stale=stale,
        )
        return self

    def says(self, outcome: Outcome, kind: ImageKind, repository: str = SOURCE.repository) -> "Registries":
        reference = f"{repository}/driver:{kind.value}"
        tried = TriedReference(reference=reference, outcome=outcome, text=f"{reference}: {outcome.value}")
        self.said[repository, kind] = Resolution(outcome=outcome, tried=(tried,))
        return self

    def __call__(self, query: ImageQuery) -> Resolution | None:
        if query.source.repository in self.silent:
            return None
        return self.said.get((query.source.repository, query.kind), Resolution(outcome=Outcome.NOT_FOUND))


def chosen(verdict: StrategyResult) -> DriverStrategy | None:
    return verdict.choice.strategy if verdict.choice is not None else None


def rejected(verdict: StrategyResult) -> dict[DriverStrategy, str]:
    assert verdict.choice is not None
    return {each.strategy: each.reason for each in verdict.choice.rejected}


@pytest.mark.parametrize(
    ("registries", "strategy"),
    [
        (Registries().has(EXACT).has(BRANCH).has(EXACT, "mirror").has(BUILDER), DriverStrategy.PRECOMPILED),
        (Registries().has(BRANCH).has(EXACT, "mirror").has(BUILDER), DriverStrategy.PRECOMPILED_BRANCH),
        (Registries().has(EXACT, "mirror").has(BUILDER), DriverStrategy.MIRROR),
        (Registries().has(BRANCH, "mirror").has(BUILDER), DriverStrategy.MIRROR),
        (Registries().has(BUILDER), DriverStrategy.BUILT),
        (Registries().has(BUILDER, "mirror"), DriverStrategy.BUILT),
        (Registries(), DriverStrategy.BLOCKED),
    ],
)
def test_the_best_strategy_that_is_possible_is_taken(registries: Registries, strategy: DriverStrategy) -> None:
    assert chosen(choose_strategy(NODE, policy(mirrors=("mirror",)), registries)) is strategy


def test_a_choice_is_pinned_to_its_digest_and_says_what_was_not_possible() -> None:
    verdict = choose_strategy(NODE, policy(), Registries().says(Outcome.NOT_FOUND, EXACT).has(BRANCH))
    assert verdict.choice is not None
    assert verdict.choice.set is not None
    assert verdict.choice.set.image == f"nvcr.io/nvidia/driver@{DIGEST}"
    assert verdict.choice.set.pool == POOL
    assert list(rejected(verdict)) == [DriverStrategy.PREINSTALLED, DriverStrategy.PRECOMPILED]
    assert "nvcr.io/nvidia/driver:precompiled: not found" in rejected(verdict)[DriverStrategy.PRECOMPILED]


@pytest.mark.parametrize("outcome", [Outcome.NOT_FOUND, Outcome.UNAUTHORIZED, Outcome.WRONG_ARCHITECTURE])
def test_what_is_not_there_leads_to_no_set_and_is_called_by_its_name(outcome: Outcome) -> None:
    registries = Registries()
    for kind in (EXACT, BRANCH, BUILDER):
        registries.says(outcome, kind)
    verdict = choose_strategy(NODE, policy(), registries)
    assert chosen(verdict) is DriverStrategy.BLOCKED
    assert verdict.choice is not None
    assert verdict.choice.set is None
    assert outcome.value in rejected(verdict)[DriverStrategy.PRECOMPILED]
    assert outcome.value in verdict.choice.reason


@pytest.mark.parametrize(
    ("use_precompiled", "first"),
    [(False, "525.125.06-ubuntu22.04"), (True, "525.125.06-5.15.0-69-generic-ubuntu22.04")],
)
def test_a_blocked_driver_names_every_tag_that_was_tried_and_first_the_one_that_is_asked_for(
    use_precompiled: bool, first: str
) -> None:
    def answer(query: ImageQuery) -> Resolution:
        names = [each.reference for each in candidates(query)]
        tried = [
            TriedReference(reference=each, outcome=Outcome.NOT_FOUND, text=f"{each}: no such tag") for each in names
        ]
        return Resolution(outcome=Outcome.NOT_FOUND, tried=tuple(tried))

    asked = policy(use_precompiled=use_precompiled, mirrors=("registry.local/nvidia",))
    verdict = choose_strategy(NODE, asked, answer)
    assert verdict.choice is not None
    reason = verdict.choice.reason
    every = {each.tag for query in image_queries(asked, POOL) for each in candidates(query)}
    assert len(every) == 3
    assert all(each in reason for each in every)
    assert f"nvcr.io/nvidia/driver: {first}, " in reason
    assert "registry.local/nvidia/driver: " in reason


def test_a_registry_that_does_not_answer_is_waited_for() -> None:
    registries = Registries().says(Outcome.UNREACHABLE, EXACT).has(BUILDER)
    verdict = choose_strategy(NODE, policy(), registries)
    assert verdict.choice is None
    assert "unreachable" in verdict.waiting


def test_the_wait_for_a_silent_registry_ends() -> None:
    registries = Registries().says(Outcome.UNREACHABLE, EXACT).has(BUILDER)
    assert chosen(choose_strategy(NODE, policy(), registries, StrategyInputs(may_wait=False))) is DriverStrategy.BUILT


def test_without_any_way_a_silent_registry_is_waited_for_longer_and_never_blocks() -> None:
    registries = Registries().says(Outcome.UNREACHABLE, EXACT)
    verdict = choose_strategy(NODE, policy(), registries, StrategyInputs(may_wait=False))
    assert verdict.choice is None
    assert verdict.waiting


def test_a_mirror_is_taken_while_the_public_registry_does_not_answer() -> None:
    registries = Registries().says(Outcome.UNREACHABLE, EXACT).has(EXACT, "mirror")
    verdict = choose_strategy(NODE, policy(mirrors=("mirror",)), registries)
    assert chosen(verdict) is DriverStrategy.MIRROR
    assert "unreachable" in rejected(verdict)[DriverStrategy.PRECOMPILED]


def test_what_a_registry_said_last_counts_while_it_does_not_answer() -> None:
    verdict = choose_strategy(NODE, policy(), Registries().has(EXACT, stale=True))
    assert chosen(verdict) is DriverStrategy.PRECOMPILED
    assert verdict.choice is not None
    assert "its last answer" in verdict.choice.reason


def test_finished_images_are_asked_for_together_and_the_builder_only_if_there_is_none() -> None:
    registries = Registries()
    registries.silent = {SOURCE.repository}
    assert [query.kind for query in choose_strategy(NODE, policy(), registries).lookups] == [EXACT, BRANCH]
    registries.silent = set()
    asked: list[ImageKind] = []

    def answers(query: ImageQuery) -> Resolution | None:
        asked.append(query.kind)
        return Resolution(outcome=Outcome.NOT_FOUND) if query.kind is not BUILDER else None

    assert [query.kind for query in choose_strategy(NODE, policy(), answers).lookups] == [BUILDER]


def test_a_branch_is_not_asked_for_twice() -> None:
    source = ImageSource(repository="nvcr.io/nvidia", image="driver", version="525")
    assert [each.kind for each in image_queries(policy(source=source), POOL)] == [EXACT, BUILDER]


def test_a_policy_that_wants_no_precompiled_images_gets_built_ones_first() -> None:
    verdict = choose_strategy(NODE, policy(use_precompiled=False), Registries().has(EXACT).has(BUILDER))
    assert chosen(verdict) is DriverStrategy.BUILT
    assert "usePrecompiled" in rejected(verdict)[DriverStrategy.PRECOMPILED]


def test_without_a_builder_image_even_such_a_policy_falls_back_to_a_precompiled_one() -> None:
    registries = Registries().has(EXACT).says(Outcome.NOT_FOUND, BUILDER)
    verdict = choose_strategy(NODE, policy(use_precompiled=False), registries)
    assert chosen(verdict) is DriverStrategy.PRECOMPILED
    assert "not found" in rejected(verdict)[DriverStrategy.BUILT]


def test_a_whole_reference_is_taken_as_it_is() -> None:
    source = ImageSource(image="registry.local/driver:mine")
    registries = Registries().has(ImageKind.VERBATIM, "")
    assert chosen(choose_strategy(NODE, policy(source=source), registries)) is DriverStrategy.PRECOMPILED


def test_an_uncovered_kernel_waits_for_the_one_build_where_a_repository_is_named() -> None:
    verdict = choose_strategy(NODE, policy(build_repository=BUILDS), Registries().has(BUILDER))
    assert verdict.choice is None
    assert verdict.build_wanted
    assert BUILDS in verdict.waiting


def test_what_was_built_is_taken_like_an_image_of_a_mirror() -> None:
    verdict = choose_strategy(NODE, policy(build_repository=BUILDS), Registries().has(BUILDER).has(EXACT, BUILDS))
    assert chosen(verdict) is DriverStrategy.MIRROR
    assert not verdict.build_wanted


@pytest.mark.parametrize("state", [PoolBuildState.FAILED, PoolBuildState.OVERDUE])
def test_a_build_that_fails_or_takes_too_long_holds_nobody_up(state: PoolBuildState) -> None:
    situation = StrategyInputs(build=PoolBuild(state=state, reason="The build took longer than 30 min."))
    verdict = choose_strategy(NODE, policy(build_repository=BUILDS), Registries().has(BUILDER), situation)
    assert chosen(verdict) is DriverStrategy.BUILT
    assert "30 min" in rejected(verdict)[DriverStrategy.MIRROR]


def test_an_image_that_cannot_be_pulled_counts_as_not_there() -> None:
    registries = Registries().has(EXACT).has(BUILDER)
    broken = StrategyInputs(unpullable={f"nvcr.io/nvidia/driver@{DIGEST}": "ErrImagePull"})
    registries.said[SOURCE.repository, BUILDER] = Resolution(outcome=Outcome.FOUND, reference="b/driver:x", digest="")
    verdict = choose_strategy(NODE, policy(), registries, broken)
    assert chosen(verdict) is DriverStrategy.BUILT
    assert "ErrImagePull" in rejected(verdict)[DriverStrategy.PRECOMPILED]


def test_a_host_with_a_driver_gets_none() -> None:
    verdict = choose_strategy(
        NODE, policy(), Registries().has(EXACT), StrategyInputs(foreign="pod gpu-operator/x runs one")
    )
    assert chosen(verdict) is DriverStrategy.PREINSTALLED
    assert verdict.choice is not None
    assert "gpu-operator/x" in verdict.choice.reason


def test_a_node_that_lacks_a_fact_is_blocked_with_that_fact() -> None:
    node = DriverNodeFacts(name="n1", uid="u1", is_gpu=True, pool=None, missing=("the kernel is missing",))
    verdict = choose_strategy(node, policy(), Registries().has(EXACT))
    assert chosen(verdict) is DriverStrategy.BLOCKED
    assert verdict.choice is not None
    assert "the kernel is missing" in verdict.choice.reason


def test_a_set_is_named_by_what_runs_and_not_by_who_asks_for_it() -> None:
    first = make_set(policy(), POOL, DriverStrategy.PRECOMPILED, "i@sha256:1")
    assert make_set(policy(name="other"), POOL, DriverStrategy.PRECOMPILED, "i@sha256:1").id == first.id
    assert make_set(policy(rdma=True), POOL, DriverStrategy.PRECOMPILED, "i@sha256:1").id != first.id
    assert make_set(policy(), POOL, DriverStrategy.PRECOMPILED, "i@sha256:2").id != first.id


def test_the_same_image_in_a_mirror_is_the_same_driver() -> None:
    first = make_set(policy(), POOL, DriverStrategy.PRECOMPILED, "nvcr.io/nvidia/driver@sha256:1")
    second = make_set(policy(), POOL, DriverStrategy.MIRROR, "registry.local/driver@sha256:1")
    assert first.id != second.id
    assert first.same_driver(second)
