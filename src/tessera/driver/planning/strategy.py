"""Chooses the driver strategy of one node: the best possible now, with the reasons against each better one.

Best first: pre-installed, precompiled for exactly the version, precompiled for its branch, the same from a mirror,
built, blocked. With ``usePrecompiled: false`` building comes before the three precompiled strategies.

Rules:

1. Only an image that a registry has confirmed is chosen. Not found, unauthorized and wrong architecture never lead to a
   DaemonSet.
2. An unreachable registry says nothing. Its last answer counts; without one the node waits, up to the caller's limit,
   rather than take a strategy that is slower by minutes.
3. A pool whose policy names a build repository waits for its one build, until that build fails or is overdue.
4. An image that kubelet could not pull counts as missing.

The driver set that the node has now is not considered here; :mod:`tessera.driver.planning.node_plan` does that.

A :class:`BuildRequests` has the builds that nodes wait for, and reads their progress for the strategy.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from tessera.api.nodes.node_marks import BUILD_TIMEOUT, DriverStrategy, RejectedStrategy
from tessera.clock import Clock
from tessera.driver.build.builds import BuildJobs
from tessera.driver.build.job import job_name
from tessera.driver.build.orders import BuildOrder, BuildSettings, UnbuildableError, order_for
from tessera.driver.build.states import BuildPhase
from tessera.driver.build.states import BuildState as Found
from tessera.driver.driver_sets import NAMESPACE, DriverChoice, PoolKey, make_set
from tessera.driver.images import ImageKind, ImageQuery, Outcome, Resolution, TriedReference, list_mirror_sources
from tessera.driver.node_facts import DriverNodeFacts
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource

#: Returns what registries answered about an image; None if there is no answer yet.
Answers = Callable[[ImageQuery], Resolution | None]


class PoolBuildState(Enum):
    """States of the one build of a pool's image."""

    NONE = "none"
    RUNNING = "running"
    FAILED = "failed"
    OVERDUE = "overdue"


class PoolBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The one build of a pool's image, and a sentence about it."""

    state: PoolBuildState = PoolBuildState.NONE
    reason: str = ""


class StrategyInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Further inputs of the choice.

    Attributes:
        build: the build of the pool's image.
        unpullable: why an image cannot be pulled, by image.
        foreign: why the driver counts as somebody else's; empty if nothing indicates that.
        toolkit: the Driver Toolkit's image for the pool's RHCOS; empty if there is none.
        may_wait: the node may still wait for a registry that does not answer.
    """

    build: PoolBuild = PoolBuild()
    unpullable: Mapping[str, str] = {}
    foreign: str = ""
    toolkit: str = ""
    may_wait: bool = True


class StrategyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen strategy, or what it waits for.

    Attributes:
        choice: the driver that the node should have; None while that is not known.
        waiting: what the node waits for, in one sentence; empty with a choice.
        lookups: the image lookups that the choice needs.
        build_wanted: an image for the pool should be built.
        registry_silent: a registry that may have a better image, or any image, does not answer.
    """

    choice: DriverChoice | None = None
    waiting: str = ""
    lookups: tuple[ImageQuery, ...] = ()
    build_wanted: bool = False
    registry_silent: bool = False


class _Option(msgspec.Struct, frozen=True):
    """One strategy with its image query, in the sequence of preference."""

    strategy: DriverStrategy
    query: ImageQuery


def choose_strategy(
    facts: DriverNodeFacts, policy: DriverPolicy, answers: Answers, situation: StrategyInputs | None = None
) -> StrategyResult:
    """Chooses the strategy for a node.

    Args:
        facts: the node.
        policy: the policy that selects it.
        answers: the registries' answers.
        situation: further inputs.

    Returns:
        A choice, or the reason why the node waits.
    """
    situation = situation or StrategyInputs()
    host = facts.preinstalled or situation.foreign
    if host:
        reason = f"The host has its driver: {host}."
        return StrategyResult(choice=DriverChoice(strategy=DriverStrategy.PREINSTALLED, set=None, reason=reason))
    if facts.pool is None:
        reason = f"Which image fits is not known: {'; '.join(facts.missing)}."
        return StrategyResult(choice=DriverChoice(strategy=DriverStrategy.BLOCKED, set=None, reason=reason))
    return _StrategySearch(policy, facts.pool, answers, situation).result()


def image_queries(policy: DriverPolicy, pool: PoolKey) -> list[ImageQuery]:
    """All lookups that a pool may need under a policy, best first."""
    return [step.query for step in _options(policy, pool)]


def version_branch(version: str) -> str:
    """``525`` of ``525.125.06``; empty if the text is not an exact version: a branch, a digest, a text with an OS."""
    first, _, rest = version.partition(".")
    exact = first.isascii() and first.isdigit() and rest and all(part.isdigit() for part in rest.split("."))
    return first if exact else ""


def _options(policy: DriverPolicy, pool: PoolKey) -> list[_Option]:
    if policy.source.verbatim:
        first = DriverStrategy.PRECOMPILED if policy.use_precompiled else DriverStrategy.BUILT
        other = DriverStrategy.MIRROR if policy.use_precompiled else DriverStrategy.BUILT
        sources = [
            (first, policy.source),
            *((other, each) for each in list_mirror_sources(policy.source, policy.mirrors)),
        ]
        return [
            _Option(strategy, ImageQuery(source=source, pool=pool, kind=ImageKind.VERBATIM))
            for strategy, source in sources
        ]
    ready, built = list(_precompiled_options(policy, pool)), list(_build_options(policy, pool))
    return ready + built if policy.use_precompiled else built + ready


def _precompiled_options(policy: DriverPolicy, pool: PoolKey) -> Iterator[_Option]:
    kinds = [ImageKind.PRECOMPILED] + [ImageKind.PRECOMPILED_BRANCH] * bool(version_branch(policy.source.version))
    named = {
        ImageKind.PRECOMPILED: DriverStrategy.PRECOMPILED,
        ImageKind.PRECOMPILED_BRANCH: DriverStrategy.PRECOMPILED_BRANCH,
    }
    for kind in kinds:
        yield _Option(named[kind], ImageQuery(source=policy.source, pool=pool, kind=kind))
    for source in _other_sources(policy):
        for kind in kinds:
            yield _Option(DriverStrategy.MIRROR, ImageQuery(source=source, pool=pool, kind=kind))


def _build_options(policy: DriverPolicy, pool: PoolKey) -> Iterator[_Option]:
    for source in (policy.source, *list_mirror_sources(policy.source, policy.mirrors)):
        yield _Option(DriverStrategy.BUILT, ImageQuery(source=source, pool=pool, kind=ImageKind.BUILDER))


def _other_sources(policy: DriverPolicy) -> tuple[ImageSource, ...]:
    """The mirrors, and the repository of images built in this cluster."""
    places = dict.fromkeys([*policy.mirrors, *([policy.build_repository] if policy.build_repository else [])])
    return list_mirror_sources(policy.source, [place for place in places if place != policy.source.repository])


class _StrategySearch:
    """Tries the strategies for one node in sequence, and records why each is not possible."""

    def __init__(self, policy: DriverPolicy, pool: PoolKey, answers: Answers, situation: StrategyInputs) -> None:
        self._policy = policy
        self._pool = pool
        self._answers = answers
        self._inputs = situation
        self._rejected = [
            RejectedStrategy(strategy=DriverStrategy.PREINSTALLED, reason="Nothing says that the host has a driver.")
        ]
        self._silent: list[str] = []
        #: Every name that was asked for and gave no image, in the policy's order.
        self._tried: dict[str, TriedReference] = {}
        self._build_wanted = False

    def result(self) -> StrategyResult:
        steps = _options(self._policy, self._pool)
        ready = [step for step in steps if step.strategy is not DriverStrategy.BUILT]
        built = [step for step in steps if step.strategy is DriverStrategy.BUILT]
        if not self._policy.use_precompiled:
            return self._try(built) or self._try(ready) or self._wait_for_answer() or self._blocked_result()
        return (
            self._try(ready)
            or (self._wait_for_answer() if self._inputs.may_wait else None)
            or self._wait_for_build()
            or self._try(built)
            or self._wait_for_answer()
            or self._blocked_result()
        )

    def _try(self, steps: Sequence[_Option]) -> StrategyResult | None:
        """The first possible strategy; the lookups for all of them start at once."""
        ask = tuple(step.query for step in steps if self._answers(step.query) is None)
        for step in steps:
            answer = self._answers(step.query)
            if answer is None:
                return StrategyResult(waiting=f"Asks {_place(step.query.source)} for an image.", lookups=ask)
            self._tried |= {each.reference: each for each in answer.tried if each.outcome is not Outcome.FOUND}
            if answer.outcome is Outcome.UNREACHABLE:
                self._silent.append(_failure_text(answer))
            if answer.outcome is not Outcome.FOUND:
                self._reject(step.strategy, _failure_text(answer))
            elif self._inputs.unpullable.get(answer.pinned or answer.reference):
                image = answer.pinned or answer.reference
                self._reject(step.strategy, f"{image} cannot be pulled: {self._inputs.unpullable[image]}.")
            else:
                return self._take(step, answer, ask)
        return None

    def _take(self, step: _Option, answer: Resolution, ask: tuple[ImageQuery, ...]) -> StrategyResult:
        if step.strategy is DriverStrategy.BUILT and not self._policy.use_precompiled:
            self._reject(DriverStrategy.PRECOMPILED, "The policy says usePrecompiled: false.")
        toolkit = self._inputs.toolkit if step.strategy is DriverStrategy.BUILT else ""
        made = make_set(
            self._policy,
            self._pool,
            step.strategy,
            answer.pinned or answer.reference,
            tag=answer.tag,
            toolkit=toolkit,
        )
        stale = " The registry does not answer now; this is its last answer." if answer.stale else ""
        choice = DriverChoice(
            strategy=step.strategy,
            set=made,
            reason=_WHY[step.strategy].format(reference=answer.reference) + stale,
            rejected=self._merge_rejected(),
        )
        return StrategyResult(
            choice=choice, lookups=ask, build_wanted=self._build_wanted, registry_silent=bool(self._silent)
        )

    def _wait_for_build(self) -> StrategyResult | None:
        """Waits for the one build of the pool, if the policy names a build repository."""
        build = self._inputs.build
        if not self._policy.build_repository or self._policy.source.verbatim:
            return None
        if build.state in {PoolBuildState.FAILED, PoolBuildState.OVERDUE}:
            self._reject(DriverStrategy.MIRROR, build.reason)
            self._build_wanted = build.state is PoolBuildState.OVERDUE
            return None
        where = f"{self._policy.build_repository}/{self._policy.source.image}"
        return StrategyResult(
            waiting=build.reason or f"Waits for the one build of this kernel into {where}.", build_wanted=True
        )

    def _wait_for_answer(self) -> StrategyResult | None:
        if not self._silent:
            return None
        return StrategyResult(
            waiting=f"Waits for a registry: {self._silent[0]}", build_wanted=self._build_wanted, registry_silent=True
        )

    def _blocked_result(self) -> StrategyResult:
        last = _describe_tried(self._tried.values()) or self._rejected[-1].reason
        reason = f"No image fits {self._pool.text}. {last}"
        choice = DriverChoice(strategy=DriverStrategy.BLOCKED, set=None, reason=reason, rejected=self._merge_rejected())
        return StrategyResult(choice=choice, build_wanted=self._build_wanted)

    def _reject(self, strategy: DriverStrategy, reason: str) -> None:
        self._rejected.append(RejectedStrategy(strategy=strategy, reason=reason))

    def _merge_rejected(self) -> tuple[RejectedStrategy, ...]:
        """One reason for each strategy, the first; reasons of mirrors are kept together."""
        by_strategy: dict[DriverStrategy, list[str]] = {}
        for each in self._rejected:
            by_strategy.setdefault(each.strategy, []).append(each.reason)
        return tuple(
            RejectedStrategy(strategy=strategy, reason=" ".join(texts)) for strategy, texts in by_strategy.items()
        )


_WHY: Mapping[DriverStrategy, str] = {
    DriverStrategy.PRECOMPILED: "{reference} has modules for this kernel.",
    DriverStrategy.PRECOMPILED_BRANCH: "{reference} has modules of the version's branch for this kernel.",
    DriverStrategy.MIRROR: "{reference} has modules for this kernel, in another repository than the policy's own.",
    DriverStrategy.BUILT: "{reference} compiles its modules on the node.",
}


def _failure_text(answer: Resolution) -> str:
    """Reason that an answer has no image, with the decisive reference."""
    counted = [each for each in answer.tried if each.outcome is answer.outcome]
    if not counted:
        return f"{answer.outcome.value.capitalize()}."
    more = len(answer.tried) - 1
    reference, text = counted[0].reference, counted[0].text.rstrip(".") or answer.outcome.value
    if reference not in text:
        text = f"{reference}: {text}"
    return f"{text}{f' ({more} more tried)' if more else ''}."


def _describe_tried(tried: Iterable[TriedReference]) -> str:
    """Every tag that was tried, by repository and answer: ``nvcr.io/nvidia/driver: 565.57.01-ubuntu22.04, …: no …``."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in tried:
        start = max(each.reference.rfind(":"), each.reference.rfind("@"))
        place, tag = each.reference[:start], each.reference[start + 1 :]
        if start <= each.reference.rfind("/"):
            place, tag = each.reference, "latest"
        why = each.text.replace(each.reference, "").strip(" :.") or each.outcome.value
        groups.setdefault((place, why), []).append(tag)
    return " ".join(f"{place}: {', '.join(tags)}: {why}." for (place, why), tags in groups.items())


def _place(source: ImageSource) -> str:
    return f"{source.repository}/{source.image}".strip("/")


#: Seconds after a push during which a registry may not show the image yet.
PUSH_TIMEOUT = 120.0
#: Seconds after which it is checked again if the wait for a build is over.
_LOOK_AGAIN = 60.0


class BuildRequests:
    """Builds that nodes wait for.

    Args:
        builds: makes the builds.
        settings: the administrator's settings for builds.
        clock: the time.
    """

    def __init__(self, builds: BuildJobs, settings: BuildSettings, clock: Clock) -> None:
        self._builds = builds
        self._settings = settings
        self._clock = clock
        self._since: dict[tuple[str, PoolKey], float] = {}  # version and pool -> since when a node waits for the build

    def progress(self, policy: DriverPolicy, pool: PoolKey) -> PoolBuild:
        """The state of the build of a pool's image under a policy."""
        return self._progress(policy, pool)[0] if policy.build_repository else PoolBuild()

    def request(self, pools: Collection[tuple[DriverPolicy, PoolKey]]) -> None:
        """Requests builds for these pools, and for no others."""
        now = self._clock.now()
        waiting = {(policy.source.version, pool) for policy, pool in pools}
        self._since = {key: self._since.get(key, now) for key in waiting}
        orders = [made for policy, pool in pools if (made := self._progress(policy, pool)[1]) is not None]
        self._builds.set_orders(orders, by="nodes")

    def seconds_until_due(self) -> float | None:
        """Seconds until the wait for a build may be over; None if no node waits."""
        return _LOOK_AGAIN if self._since else None

    def _progress(self, policy: DriverPolicy, pool: PoolKey) -> tuple[PoolBuild, BuildOrder | None]:
        now = self._clock.now()
        since = self._since.get((policy.source.version, pool), now)
        return build_progress(policy, pool, self._settings, self._builds.state, wanted_since=since, now=now)


def build_progress(
    policy: DriverPolicy,
    pool: PoolKey,
    settings: BuildSettings,
    state: Callable[[BuildOrder], Found],
    *,
    wanted_since: float,
    now: float,
) -> tuple[PoolBuild, BuildOrder | None]:
    """The state of the build of a pool's image, and its order if one is possible.

    Args:
        policy: the policy that asks for it.
        pool: the nodes that need it.
        settings: the administrator's settings for builds.
        state: returns the state of an order.
        wanted_since: seconds since 1970 from which on a node waits for it.
        now: seconds since 1970.
    """
    try:
        made = order_for(policy, pool, settings=settings)
    except UnbuildableError as error:
        return PoolBuild(state=PoolBuildState.FAILED, reason=f"Nothing can be built in the cluster: {error}."), None
    return _judge_build(made, state(made), wanted_since, now), made


def _judge_build(made: BuildOrder, found: Found, wanted_since: float, now: float) -> PoolBuild:
    words = f" {found.text.rstrip('.')}." if found.text else ""
    if found.phase is BuildPhase.FAILED:
        return PoolBuild(state=PoolBuildState.FAILED, reason=f"The build of {made.target} failed.{words}")
    if found.phase is BuildPhase.DONE and now - found.since > PUSH_TIMEOUT:
        reason = f"The build of {made.target} is done, but the registry does not show it."
        return PoolBuild(state=PoolBuildState.FAILED, reason=reason)
    since = min(wanted_since, found.since or now)
    if now - since > BUILD_TIMEOUT:
        reason = f"The build of {made.target} takes more than {BUILD_TIMEOUT / 60:.0f} min."
        return PoolBuild(state=PoolBuildState.OVERDUE, reason=reason)
    job = f", Job {NAMESPACE}/{job_name(made, found.attempts)}" if found.attempts else ""
    return PoolBuild(state=PoolBuildState.RUNNING, reason=f"Waits for the one build of {made.target}{job}.{words}")
