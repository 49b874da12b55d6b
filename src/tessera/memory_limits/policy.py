"""Finds pods that take more memory of a shared card than agreed, and decides the action on them. Pure.

A pod's use of a card is the sum over its processes there: two processes of one pod share one limit. A pod is *over* its
limit if it exceeded the limit in a number of samples in a row, and is also far over (``headroom``) or the card has so
little left that its neighbours suffer (``reserve``). When almost no memory is left (``critical``), the pod that is
farthest over its own limit counts as over at once.

The mode sets the action: ``observe`` records an event, ``warn`` also warns the pod's owner early, ``evict`` requests
the pod's eviction, ``kill`` ends its largest process on the card, with SIGTERM first. The policy acts on at most one
pod per card and sample, and then pauses for that card. It never acts on a process without a pod that the kernel
proves, on a pod that was not given the card, in a protected namespace, on a pod that opted out, or on a card whose
numbers cannot be true. A pod in its first seconds is spared unless memory is critical. Without the API server no pod is
evicted.

This module does not act; :mod:`tessera.memory_limits.enforcement` acts, and reads every value again first.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from tessera.agent.base.host import ProcessId
from tessera.agent.base.settings import EnforcementMode
from tessera.api.names import SYSTEM_NAMESPACES, PodUid
from tessera.replay.recorder import Decider

#: The sum that processes report may exceed the card's size by this factor before it counts as impossible.
_PLAUSIBLE = 1.02
#: Bytes that no card has. NVML reports far more if it knows no number (2 to the 64th less one).
_NO_CARD = 2**44


class MemoryRules(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of the policy.

    Attributes:
        mode: the allowed actions.
        samples: samples in a row over the limit.
        near: part of the limit from which the owner is warned.
        headroom: part of the limit; a pod that exceeds its limit by more is far over.
        reserve: part of the card that must be free; below it neighbours suffer.
        critical: part of the card; if less is free, the policy acts at once.
        start_grace: seconds after a pod was first seen on the card in which it may exceed its limit.
        term_grace: seconds between SIGTERM and SIGKILL.
        cool_down: seconds without a further action on a card after one.
        protected: namespaces that are only observed, beside :data:`tessera.api.names.SYSTEM_NAMESPACES`.
    """

    mode: EnforcementMode = EnforcementMode.OBSERVE
    samples: int = 3
    near: float = 0.9
    headroom: float = 0.1
    reserve: float = 0.05
    critical: float = 0.01
    start_grace: float = 30.0
    term_grace: float = 10.0
    cool_down: float = 30.0
    protected: frozenset[str] = frozenset()


class ProcessUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that one process holds on a card.

    Attributes:
        process: the process.
        bytes: its memory on the card.
        pod: the pod that the kernel proves for it; ``None`` if it proves none.
    """

    process: ProcessId
    bytes: int
    pod: PodUid | None


class CardUse(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a shared card or MIG device: its bytes, the used ones, and the processes that use them."""

    device: str
    total: int
    used: int
    uses: tuple[ProcessUse, ...]


class MemoryGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that was given parts of cards.

    Attributes:
        pod: UID of the pod; of a static pod the hash by which its cgroup names it.
        namespace: namespace of the pod.
        name: name of the pod.
        limits: bytes by card or MIG device.
        opted_out: true if the pod only gets events of excess.
        leaving: true if the pod is being deleted already, so that it is not evicted.
    """

    pod: PodUid
    namespace: str
    name: str
    limits: Mapping[str, int]
    opted_out: bool = False
    leaving: bool = False


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """All values of one sample.

    Attributes:
        now: monotonic seconds.
        cards: the cards that could be read; the counts of a missing card begin anew with its next sample.
        grants: every pod that was given a part of a card.
        api_reachable: true if the API server answers.
    """

    now: float
    cards: tuple[CardUse, ...]
    grants: tuple[MemoryGrant, ...]
    api_reachable: bool = True


class MemoryAction(Enum):
    """The action on a pod."""

    #: Record that the limit is near.
    NEAR = "near"
    #: Record that the limit is exceeded.
    EXCEEDED = "exceeded"
    EVICT = "evict"
    #: Send SIGTERM.
    TERMINATE = "terminate"
    #: Send SIGKILL.
    KILL = "kill"
    #: Record that a pod uses a card that it was not given.
    STRANGER = "stranger"


class MemoryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One action to take. ``process`` is set for ``TERMINATE`` and ``KILL``; ``limit`` is 0 for ``STRANGER``."""

    action: MemoryAction
    device: str
    pod: PodUid
    used: int
    limit: int
    process: ProcessId | None = None


class _Watched(msgspec.Struct):
    """A pod on one card that it was given a part of.

    Attributes:
        first_seen: time at which the pod was first seen there, monotonic seconds.
        over: samples in a row in which it exceeded its limit.
        reported: the worst state that was reported since the pod was last within its limit.
        terminated: the process that got SIGTERM, and the time.
    """

    first_seen: float
    over: int = 0
    reported: MemoryAction | None = None
    terminated: tuple[ProcessId, float] | None = None


Key = tuple[str, PodUid]


class MemoryPolicy(Decider[[MemorySample], tuple[MemoryDecision, ...]]):
    """Decides sample by sample.

    Args:
        rules: the numbers of the policy.
    """

    def __init__(self, rules: MemoryRules) -> None:
        self.rules = rules
        #: By device and pod; exactly the pods with a grant that the last sample showed on a readable card.
        self._watched: dict[Key, _Watched] = {}
        #: Time of the last action on each device, monotonic seconds.
        self._acted: dict[str, float] = {}
        #: Samples in a row in which a pod used a card that it was not given; only pods without a grant.
        self._strangers: dict[Key, int] = {}

    def handle(self, sample: MemorySample) -> tuple[MemoryDecision, ...]:
        """Takes a sample in and returns the actions, in the order of cards; per card at most one eviction or signal."""
        if self.rules.mode is EnforcementMode.OFF:
            return ()
        grants = {(device, grant.pod): grant for grant in sample.grants for device in grant.limits}
        readable = [card for card in sample.cards if is_plausible(card)]
        used = {card.device: sum_by_pod(card.uses) for card in readable}
        present = {(device, pod) for device, pods in used.items() for pod in pods}
        self._watched = {key: each for key, each in self._watched.items() if key in present and key in grants}
        self._strangers = {key: count for key, count in self._strangers.items() if key in present and key not in grants}
        decisions: list[MemoryDecision] = []
        for card in readable:
            decisions += self._decide_for_card(card, used[card.device], grants, sample)
        return tuple(decisions)

    def _decide_for_card(
        self, card: CardUse, used: Mapping[PodUid, int], grants: Mapping[Key, MemoryGrant], sample: MemorySample
    ) -> list[MemoryDecision]:
        decisions: list[MemoryDecision] = []
        for pod, amount in sorted(used.items()):
            grant = grants.get((card.device, pod))
            if grant is None:
                decisions += self._report_stranger(card.device, pod, amount)
            else:
                limit = grant.limits[card.device]
                decisions += self._report(self._watch(card.device, pod, sample.now), card.device, pod, amount, limit)
        victim = self._act_on_worst(card, used, grants, sample)
        return decisions if victim is None else [*decisions, victim]

    def _report_stranger(self, device: str, pod: PodUid, amount: int) -> Iterable[MemoryDecision]:
        count = self._strangers[device, pod] = self._strangers.get((device, pod), 0) + 1
        if count == self.rules.samples:
            yield MemoryDecision(action=MemoryAction.STRANGER, device=device, pod=pod, used=amount, limit=0)

    def _watch(self, device: str, pod: PodUid, now: float) -> _Watched:
        return self._watched.setdefault((device, pod), _Watched(first_seen=now))

    def _report(self, watched: _Watched, device: str, pod: PodUid, used: int, limit: int) -> Iterable[MemoryDecision]:
        """Counts, and reports each state once that is worse than the last reported one."""
        watched.over = watched.over + 1 if used > limit else 0
        state = None
        if watched.over >= self.rules.samples:
            state = MemoryAction.EXCEEDED
        elif used >= limit * self.rules.near:
            state = MemoryAction.NEAR
        if state is None:
            watched.reported = None
        elif watched.reported is not MemoryAction.EXCEEDED and state is not watched.reported:
            watched.reported = state
            yield MemoryDecision(action=state, device=device, pod=pod, used=used, limit=limit)

    def _act_on_worst(
        self, card: CardUse, used: Mapping[PodUid, int], grants: Mapping[Key, MemoryGrant], sample: MemorySample
    ) -> MemoryDecision | None:
        """The action on the pod that is farthest over its limit, of those on which the policy may act."""
        if self.rules.mode not in {EnforcementMode.EVICT, EnforcementMode.KILL}:
            return None
        if self.rules.mode is EnforcementMode.EVICT and not sample.api_reachable:
            return None
        over = [
            (used[pod] / max(limit, 1), pod, limit)
            for pod in used
            if (grant := grants.get((card.device, pod))) is not None
            and (limit := grant.limits[card.device]) < used[pod]
            and self._may_act(grant)
            and self._is_over(card, self._watched[card.device, pod], used[pod], limit, sample.now)
        ]
        if not over:
            return None
        # A pod with a process that got SIGTERM comes first, before another pod.
        _, pod, limit = max(over, key=lambda each: (self._watched[card.device, each[1]].terminated is not None, each))
        return self._act_on(card, pod, used[pod], limit, sample.now)

    def _may_act(self, grant: MemoryGrant) -> bool:
        if grant.leaving and self.rules.mode is EnforcementMode.EVICT:
            return False
        return not grant.opted_out and grant.namespace not in SYSTEM_NAMESPACES | self.rules.protected

    def _is_over(self, card: CardUse, watched: _Watched, used: int, limit: int, now: float) -> bool:
        free = card.total - card.used
        if free < card.total * self.rules.critical:
            return True
        if watched.over < self.rules.samples or now - watched.first_seen < self.rules.start_grace:
            return False
        return used > limit * (1 + self.rules.headroom) or free < card.total * self.rules.reserve

    def _act_on(self, card: CardUse, pod: PodUid, used: int, limit: int, now: float) -> MemoryDecision | None:
        watched = self._watched[card.device, pod]
        decision = MemoryDecision(action=MemoryAction.EVICT, device=card.device, pod=pod, used=used, limit=limit)
        if self.rules.mode is EnforcementMode.KILL:
            own = [each for each in card.uses if each.pod == pod]
            if watched.terminated is not None and any(each.process == watched.terminated[0] for each in own):
                process, terminated_at = watched.terminated
                if now - terminated_at < self.rules.term_grace:
                    return None
                self._acted[card.device] = now
                watched.terminated = (process, now)
                return msgspec.structs.replace(decision, action=MemoryAction.KILL, process=process)
            largest = max(own, key=lambda each: (each.bytes, each.process))
            decision = msgspec.structs.replace(decision, action=MemoryAction.TERMINATE, process=largest.process)
        if now - self._acted.get(card.device, float("-inf")) < self.rules.cool_down:
            return None
        self._acted[card.device] = now
        watched.terminated = (decision.process, now) if decision.process is not None else None
        return decision


def sum_by_pod(uses: Iterable[ProcessUse]) -> dict[PodUid, int]:
    """Bytes by pod, over all its processes. Processes without a proven pod are left out."""
    used: dict[PodUid, int] = {}
    for use in uses:
        if use.pod is not None:
            used[use.pod] = used.get(use.pod, 0) + use.bytes
    return used


def is_plausible(card: CardUse) -> bool:
    """True if the numbers can be true; NVML's answers had the wrong layout in some drivers (535)."""
    each = all(use.process.pid > 0 and 0 <= use.bytes <= card.total for use in card.uses)
    together = sum(use.bytes for use in card.uses) <= card.total * _PLAUSIBLE
    return is_plausible_total(card.total) and 0 <= card.used <= card.total and each and together


def is_plausible_total(total: int) -> bool:
    """True if a card can have so many bytes."""
    return 0 < total < _NO_CARD
