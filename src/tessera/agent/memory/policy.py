"""Who takes more memory of a shared card than agreed, and what is done about it. Decisions only.

A pod's use of a card is the sum over its processes there: two processes of one pod share one limit. A pod is *over* its
limit when it was in so many samples in a row, and then only if it is far over (``headroom``), or if the card has so
little left that its neighbours suffer (``reserve``). When almost nothing is left (``critical``) nobody waits: the pod
that is farthest over its own limit is over at once.

What follows depends on the mode: ``observe`` tells, ``warn`` tells the pod's owner, ``evict`` asks for the pod's
eviction, ``kill`` ends its largest process on the card, politely first. At most one pod per card and sample is acted
on, and after that the card is left alone for a while. Never acted on are processes that no pod is proven for, pods that
were not given the card, protected namespaces, owners who opted out, and anything on a card whose numbers cannot be
true. A pod in its first seconds is spared unless memory is critical. Without the API server nothing is evicted.

This module does not act: between the decision and the deed everything is looked at again (``actions.py``).
"""

from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from tessera.agent.base.options import EnforcementMode
from tessera.agent.base.processes import ProcessId
from tessera.api.names import PodUid

#: Namespaces in which nothing is ever evicted or killed.
SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease"})
#: What processes report may exceed the card's size by so much before it is held to be nonsense.
_PLAUSIBLE = 1.02
#: Bytes that no card has; what NVML says where it knows no number lies far above (2 to the 64th less one).
_NO_CARD = 2**44


class MemoryRules(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the watch is.

    Attributes:
        mode: how far it goes.
        samples: samples in a row over the limit.
        near: part of the limit from which its owner is warned.
        headroom: part of the limit by which exceeding it is far over.
        reserve: part of the card that has to be free; below it neighbours suffer.
        critical: part of the card below which nobody waits.
        start_grace: seconds after a pod was first seen on the card in which it may peak.
        term_grace: seconds between asking a process to end and ending it.
        cool_down: seconds for which a card is left alone after a deed.
        protected: namespaces that are only observed, beside :data:`SYSTEM_NAMESPACES`.
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
        process: which.
        bytes: how much.
        pod: the pod that it is proven to be of, or ``None``.
    """

    process: ProcessId
    bytes: int
    pod: PodUid | None


class CardUse(msgspec.Struct, frozen=True, kw_only=True):
    """A card, or a MIG device that is shared, at one moment: all bytes, the used ones, and who uses them."""

    device: str
    total: int
    used: int
    uses: tuple[ProcessUse, ...]


class MemoryGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that was given a part of cards.

    Attributes:
        pod: its UID; of a static pod the hash by which its cgroup names it.
        namespace: where.
        name: what it is called.
        limits: bytes by card or MIG device.
        opted_out: its owner is to be told at most.
        leaving: it is being deleted already, so it is not evicted.
    """

    pod: PodUid
    namespace: str
    name: str
    limits: Mapping[str, int]
    opted_out: bool = False
    leaving: bool = False


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """What was read together.

    Attributes:
        now: seconds that only go forwards.
        cards: those that could be read; one that is missing is judged anew from its next sample on.
        tenants: every pod that was given a part of a card.
        api_reachable: the API server answers.
    """

    now: float
    cards: tuple[CardUse, ...]
    tenants: tuple[MemoryGrant, ...]
    api_reachable: bool = True


class MemoryAction(Enum):
    """What to do."""

    #: Tell that the limit is near.
    NEAR = "near"
    #: Tell that it is exceeded.
    EXCEEDED = "exceeded"
    EVICT = "evict"
    #: Ask the process to end.
    TERMINATE = "terminate"
    #: End it.
    KILL = "kill"
    #: Tell that a pod uses a card that it was not given.
    STRANGER = "stranger"


class MemoryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do. ``process`` is set for ``TERMINATE`` and ``KILL``; ``limit`` is 0 for ``STRANGER``."""

    action: MemoryAction
    device: str
    pod: PodUid
    used: int
    limit: int
    process: ProcessId | None = None


class _Watched(msgspec.Struct):
    """A tenant on one card. ``asked`` is the process that was asked to end, and when."""

    first_seen: float
    over: int = 0
    told: MemoryAction | None = None
    asked: tuple[ProcessId, float] | None = None


Key = tuple[str, PodUid]


class MemoryPolicy:
    """Decides sample by sample."""

    def __init__(self, rules: MemoryRules) -> None:
        self.rules = rules
        self._watched: dict[Key, _Watched] = {}
        self._acted: dict[str, float] = {}
        #: Samples in a row in which a pod used a card that it was not given.
        self._strangers: dict[Key, int] = {}

    def decide(self, sample: MemorySample) -> tuple[MemoryDecision, ...]:
        """What to do after this sample, in the order of cards; per card at most one eviction or signal."""
        if self.rules.mode is EnforcementMode.OFF:
            return ()
        tenants = {(device, tenant.pod): tenant for tenant in sample.tenants for device in tenant.limits}
        readable = [card for card in sample.cards if is_plausible(card)]
        used = {card.device: sum_by_pod(card.uses) for card in readable}
        seen = {(device, pod) for device, pods in used.items() for pod in pods}
        self._watched = {key: each for key, each in self._watched.items() if key in seen and key in tenants}
        self._strangers = {key: count for key, count in self._strangers.items() if key in seen and key not in tenants}
        decisions: list[MemoryDecision] = []
        for card in readable:
            decisions += self._of_card(card, used[card.device], tenants, sample)
        return tuple(decisions)

    def _of_card(
        self, card: CardUse, used: Mapping[PodUid, int], tenants: Mapping[Key, MemoryGrant], sample: MemorySample
    ) -> list[MemoryDecision]:
        decisions: list[MemoryDecision] = []
        for pod, amount in sorted(used.items()):
            tenant = tenants.get((card.device, pod))
            if tenant is None:
                decisions += self._stranger(card.device, pod, amount)
            else:
                limit = tenant.limits[card.device]
                decisions += self._tell(self._watch(card.device, pod, sample.now), card.device, pod, amount, limit)
        victim = self._victim(card, used, tenants, sample)
        return decisions if victim is None else [*decisions, victim]

    def _stranger(self, device: str, pod: PodUid, amount: int) -> Iterable[MemoryDecision]:
        count = self._strangers[device, pod] = self._strangers.get((device, pod), 0) + 1
        if count == self.rules.samples:
            yield MemoryDecision(action=MemoryAction.STRANGER, device=device, pod=pod, used=amount, limit=0)

    def _watch(self, device: str, pod: PodUid, now: float) -> _Watched:
        return self._watched.setdefault((device, pod), _Watched(first_seen=now))

    def _tell(self, watched: _Watched, device: str, pod: PodUid, used: int, limit: int) -> Iterable[MemoryDecision]:
        """Counts, and tells once per state that is worse than the last that was told."""
        watched.over = watched.over + 1 if used > limit else 0
        state = None
        if watched.over >= self.rules.samples:
            state = MemoryAction.EXCEEDED
        elif used >= limit * self.rules.near:
            state = MemoryAction.NEAR
        if state is None:
            watched.told = None
        elif watched.told is not MemoryAction.EXCEEDED and state is not watched.told:
            watched.told = state
            yield MemoryDecision(action=state, device=device, pod=pod, used=used, limit=limit)

    def _victim(
        self, card: CardUse, used: Mapping[PodUid, int], tenants: Mapping[Key, MemoryGrant], sample: MemorySample
    ) -> MemoryDecision | None:
        """What is done to the pod that is farthest over its limit of those that may be acted on."""
        if self.rules.mode not in {EnforcementMode.EVICT, EnforcementMode.KILL}:
            return None
        if self.rules.mode is EnforcementMode.EVICT and not sample.api_reachable:
            return None
        over = [
            (used[pod] / max(limit, 1), pod, limit)
            for pod in used
            if (tenant := tenants.get((card.device, pod))) is not None
            and (limit := tenant.limits[card.device]) < used[pod]
            and self._may_act(tenant)
            and self._is_over(card, self._watched[card.device, pod], used[pod], limit, sample.now)
        ]
        if not over:
            return None
        # One that was asked to end is seen through before another is begun with.
        _, pod, limit = max(over, key=lambda each: (self._watched[card.device, each[1]].asked is not None, each))
        return self._deed(card, pod, used[pod], limit, sample.now)

    def _may_act(self, tenant: MemoryGrant) -> bool:
        if tenant.leaving and self.rules.mode is EnforcementMode.EVICT:
            return False
        return not tenant.opted_out and tenant.namespace not in SYSTEM_NAMESPACES | self.rules.protected

    def _is_over(self, card: CardUse, watched: _Watched, used: int, limit: int, now: float) -> bool:
        free = card.total - card.used
        if free < card.total * self.rules.critical:
            return True
        if watched.over < self.rules.samples or now - watched.first_seen < self.rules.start_grace:
            return False
        return used > limit * (1 + self.rules.headroom) or free < card.total * self.rules.reserve

    def _deed(self, card: CardUse, pod: PodUid, used: int, limit: int, now: float) -> MemoryDecision | None:
        watched = self._watched[card.device, pod]
        decision = MemoryDecision(action=MemoryAction.EVICT, device=card.device, pod=pod, used=used, limit=limit)
        if self.rules.mode is EnforcementMode.KILL:
            own = [each for each in card.uses if each.pod == pod]
            if watched.asked is not None and any(each.process == watched.asked[0] for each in own):
                process, asked = watched.asked
                if now - asked < self.rules.term_grace:
                    return None
                self._acted[card.device] = now
                watched.asked = (process, now)
                return msgspec.structs.replace(decision, action=MemoryAction.KILL, process=process)
            largest = max(own, key=lambda each: (each.bytes, each.process))
            decision = msgspec.structs.replace(decision, action=MemoryAction.TERMINATE, process=largest.process)
        if now - self._acted.get(card.device, float("-inf")) < self.rules.cool_down:
            return None
        self._acted[card.device] = now
        watched.asked = (decision.process, now) if decision.process is not None else None
        return decision


def default_share(total: int, replicas: int, *, reserved: int = 0, overcommit: float = 1.0) -> int:
    """Bytes that one share of a card may hold, where nothing else is agreed.

    Args:
        total: bytes of the card.
        replicas: how many shares it has.
        reserved: bytes that nobody may hold (the driver's own).
        overcommit: how much more is promised than there is, 1 for nothing.
    """
    return int(max(0, total - reserved) * overcommit) // replicas


def sum_by_pod(uses: Iterable[ProcessUse]) -> dict[PodUid, int]:
    """Bytes by pod: all its processes together. What no pod is proven for is left out."""
    used: dict[PodUid, int] = {}
    for use in uses:
        if use.pod is not None:
            used[use.pod] = used.get(use.pod, 0) + use.bytes
    return used


def is_plausible(card: CardUse) -> bool:
    """Whether the numbers can be true; NVML's answers have had the wrong layout in some drivers (535)."""
    each = all(use.process.pid > 0 and 0 <= use.bytes <= card.total for use in card.uses)
    together = sum(use.bytes for use in card.uses) <= card.total * _PLAUSIBLE
    return is_plausible_total(card.total) and 0 <= card.used <= card.total and each and together


def is_plausible_total(total: int) -> bool:
    """Whether a card can have so many bytes."""
    return 0 < total < _NO_CARD
