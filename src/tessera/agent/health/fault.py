"""Faults of cards, the health of a device that follows from them, and the events that begin and end them. Pure.

Which error becomes a fault, and when it ends, :mod:`tessera.agent.health.faults` decides by the numbers of
:class:`Hysteresis`.

:class:`FaultTable` has the faults that are not over, and answers what they mean for cards and devices. Only
:class:`~tessera.agent.health.faults.HealthStateMachine` changes it; all others read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum

import msgspec

from tessera.agent.health.policy import RecoveryAction
from tessera.agent.inventory.device_state import DeviceHealth, DeviceScope, Reaction
from tessera.api.nodes.card_faults import CardRule
from tessera.api.nodes.health import FELL_TOO_OFTEN, MEASURED_ERRORS, REPLACE_ERRORS, UNREADABLE
from tessera.api.nodes.node_marks import Cordon
from tessera.api.nodes.repairs import Repairs
from tessera.nvml.interface import GpuEvent

#: Number of returns that double the quiet time; further ones would make it overflow.
MOST_DOUBLED = 64


class Hysteresis(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that decide when a fault begins and ends.

    Attributes:
        clean_probes: clean probes in a row that end a fault.
        quiet: seconds without the error that must have passed as well.
        longest_quiet: upper limit in seconds of ``quiet``, which grows with each return of the error.
        memory: seconds after its end in which a fault that comes again counts as returned.
        failed_probes: failed probes in a row that withhold a card.
    """

    clean_probes: int = 3
    quiet: float = 30.0
    longest_quiet: float = 960.0
    memory: float = 3600.0
    failed_probes: int = 3

    def quiet_time(self, returns: int) -> float:
        """Seconds without the error that must have passed, for a fault that came back ``returns`` times."""
        return min(self.quiet * 2.0 ** min(returns, MOST_DOUBLED), self.longest_quiet)


#: The numbers of all cards.
HYSTERESIS = Hysteresis()


#: The source of the faults of cards that a person has cordoned.
CORDON = "cordon"
#: The source of the faults of cards that were repaired and not tested since.
PREFLIGHT = "preflight"
#: The source of the faults of cards that failed the test before a pod's first container. Such a card needs a reset,
#: also if the driver asks for nothing: the driver did not see the error.
FAILED_POD_PREFLIGHT = "pod-preflight"
#: The source of the faults that failed probes show.
PROBE = "probe"
#: The source of the faults of cards whose errors cannot be heard. They concern the driver's reports, not the hardware,
#: and are not kept on disk.
EVENT_WATCH = "events"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A hardware error that is not over.

    Attributes:
        scope: the card or instance.
        source: its origin: ``XID 48``, ``probe``, ``driver``, ``events``.
        reaction: the reaction that it requires.
        text: description for people.
        since: time of the first error, seconds of the caller's clock.
        last: time of the last error.
        count: number of errors.
        returns: number of times that the fault had ended and come back before.
        clean: clean probes in a row since the last error, counted up to the number that ends the fault; of a measured
            error, 1 once it is not measured any more.
        reset: true if the card was reset since.
    """

    scope: DeviceScope
    source: str
    reaction: Reaction
    text: str
    since: float
    last: float
    count: int = 1
    returns: int = 0
    clean: int = 0
    reset: bool = False

    @property
    def lost(self) -> bool:
        """True if the driver cannot reach the card."""
        return self.source == PROBE and self.reaction is Reaction.REBOOT

    @property
    def unreadable(self) -> bool:
        """True if the card, or its MIG instances, cannot be read."""
        return self.lost or self.source == UNREADABLE

    @property
    def by_hand(self) -> bool:
        """True if a person has taken the card out of service; nothing is wrong with the hardware."""
        return self.source == CORDON

    @property
    def to_replace(self) -> bool:
        """True if the card has to be replaced."""
        return self.source in REPLACE_ERRORS

    @property
    def of_hardware(self) -> bool:
        """True if the hardware shows the error now: no cordon, count of falls, missing test, or broken event watch."""
        return self.source not in {CORDON, FELL_TOO_OFTEN, PREFLIGHT, EVENT_WATCH}

    def severity(self, *, spared: bool) -> tuple[int, bool, bool, bool, float, str]:
        """Sorts faults, the worst first: that one describes the card. A spared fault takes no card away."""
        effect = Reaction.DEGRADE if spared else self.reaction
        return -effect, self.by_hand, not self.lost, not self.to_replace, self.since, self.source

    @property
    def rule(self) -> CardRule:
        """Card and source, as the breaker knows the fault."""
        return CardRule(self.scope.gpu, self.source)


def is_spared(fault: Fault, spared: Collection[CardRule]) -> bool:
    """True if the fault would take its card away, and the breaker prevents it; ``spared`` are the breaker's faults."""
    may_be = fault.of_hardware and not fault.unreadable
    return fault.reaction >= Reaction.WITHHOLD and may_be and fault.rule in spared


def worst_of(faults: Iterable[Fault], scope: DeviceScope, spared: Collection[CardRule]) -> Fault | None:
    """The worst fault that covers a scope; None without one."""
    found = [fault for fault in faults if fault.scope.covers(scope)]
    return min(found, key=lambda each: each.severity(spared=is_spared(each, spared)), default=None)


def health_by(worst: Fault | None, spared: Collection[CardRule]) -> DeviceHealth:
    """The health of a device whose worst fault this is."""
    if worst is None:
        return DeviceHealth()
    spares = is_spared(worst, spared)
    text = f"{worst.text}, spared by the breaker of the cluster" if spares else worst.text
    effect = Reaction.DEGRADE if spares else worst.reaction
    return DeviceHealth(effect, text, worst.since, by_hand=worst.by_hand)


class CardsListed(msgspec.Struct, frozen=True):
    """NVML listed the node's cards: these UUIDs and no others; ``unreadable`` has the error of each it cannot read."""

    gpus: frozenset[str]
    unreadable: Mapping[str, str] = {}


class ProbeResult(Enum):
    """Answer of a card to a probe."""

    CLEAN = "clean"
    FAILED = "failed"
    LOST = "lost"


class CardProbed(msgspec.Struct, frozen=True, kw_only=True):
    """A card was probed.

    Attributes:
        gpu: the card's UUID.
        result: the card's answer.
        recovery: the recovery action that the driver asks for; ``None`` if the driver gives none.
        instances: ids of its GPU instances; ``None`` if they were not read.
        text: NVML's error; empty if there was none.
    """

    gpu: str
    result: ProbeResult
    recovery: RecoveryAction | None = None
    instances: frozenset[int] | None = None
    text: str = ""


class HardwareEventReported(msgspec.Struct, frozen=True):
    """The driver reported a hardware event."""

    event: GpuEvent


class ErrorsMeasured(msgspec.Struct, frozen=True):
    """A card was measured.

    Attributes:
        gpu: the card's UUID.
        errors: what is wrong, in words by source; empty words for a source that shows nothing. A source that is
            missing was not measured.
    """

    gpu: str
    errors: Mapping[str, str]


class CardsUnheard(msgspec.Struct, frozen=True):
    """NVML reports no hardware events of these cards, each with its error, and those of all others."""

    errors: Mapping[str, str]


class CardReset(msgspec.Struct, frozen=True):
    """A card was reset."""

    gpu: str


class NodeRebooted(msgspec.Struct, frozen=True):
    """The node was booted, and all its cards with it."""


class FaultsSpared(msgspec.Struct, frozen=True):
    """The breaker of the cluster spares these faults, and no others: they take no card away."""

    faults: frozenset[CardRule]


class PreflightEnded(msgspec.Struct, frozen=True):
    """A new or repaired card was tested.

    Attributes:
        gpu: the card's UUID.
        since: beginning of its wait for the test.
        text: what is not well; empty if it may take work.
    """

    gpu: str
    since: float
    text: str


class PodPreflightFailed(msgspec.Struct, frozen=True):
    """A card, or a part of it, failed the test before a pod's first container; ``text`` is the finding."""

    gpu: str
    text: str


class CardsCordoned(msgspec.Struct, frozen=True):
    """A person has taken these cards out of service, and no others."""

    cordons: tuple[Cordon, ...]


class RepairsSet(msgspec.Struct, frozen=True):
    """The administrator's settings for cards with faults were read, or have changed."""

    repairs: Repairs


class InstanceDestroyed(msgspec.Struct, frozen=True):
    """A GPU instance was destroyed; a later one of the same id is another instance."""

    gpu: str
    gi_id: int


HealthEvent = (
    CardsListed
    | CardProbed
    | HardwareEventReported
    | CardsUnheard
    | CardReset
    | NodeRebooted
    | InstanceDestroyed
    | ErrorsMeasured
    | FaultsSpared
    | CardsCordoned
    | PreflightEnded
    | RepairsSet
    | PodPreflightFailed
)


#: What is done to a cordoned card.
_HANDS_OFF = Repairs()


class FaultTable:
    """The faults of one node's cards.

    Args:
        faults: the faults that an earlier process of the same boot found.
        repairs: what is done about faults.

    Attributes:
        repairs: what is done about faults.
        faulty_gpus: UUIDs of the cards with faults, of their own or of a part; the same set, always of now.
        unhealthy_gpus: UUIDs of those of which no device may be allocated; the same set, always of now.
    """

    def __init__(self, faults: Iterable[Fault], repairs: Repairs) -> None:
        self.faulty_gpus: set[str] = set()
        self.unhealthy_gpus: set[str] = set()
        #: The faults that are not over, at most one for each scope and source.
        self._faults = {(fault.scope, fault.source): fault for fault in faults}
        self.repairs = repairs
        #: The faults that the breaker spares, whether or not they are there now.
        self._spared: frozenset[CardRule] = frozenset()
        #: Failed probes in a row, by card; a card whose last probe succeeded has no entry.
        self._failures: dict[str, int] = {}
        self._list_gpus()

    def repairs_of(self, gpu: str) -> Repairs:
        """What is done about the faults of a card: nothing while a person has cordoned it."""
        return _HANDS_OFF if (DeviceScope(gpu), CORDON) in self._faults else self.repairs

    def faults(self) -> tuple[Fault, ...]:
        """Every fault that is not over, sorted."""
        return tuple(sorted(self._faults.values(), key=lambda fault: (fault.scope, fault.source)))

    def faulty_instances(self, gpu: str) -> frozenset[int]:
        """Ids of the card's GPU instances that have faults of their own."""
        return frozenset(fault.scope.gi_id for fault in self._on_card(gpu)) - {-1}

    def is_suspect(self, gpu: str) -> bool:
        """True if the card or an instance of it has a fault that a probe may end, or its last probe failed."""
        unprobed = {CORDON, FELL_TOO_OFTEN, *MEASURED_ERRORS}
        return gpu in self._failures or any(fault.source not in unprobed for fault in self._on_card(gpu))

    def failing_gpus(self) -> frozenset[str]:
        """UUIDs of the cards whose last probe failed."""
        return frozenset(self._failures)

    def awaits_end(self, gpu: str) -> bool:
        """True if an error that the card measures itself is not measured any more, and ends after the quiet time."""
        return any(fault.source in MEASURED_ERRORS and fault.clean for fault in self._on_card(gpu))

    def needs_reset(self, gpu: str) -> bool:
        """True if the worst fault requires a reset, and the card was neither reset since nor is cordoned."""
        faults = self._acted_on(gpu)
        worst = max((fault.reaction for fault in faults), default=Reaction.IGNORE)
        return worst is Reaction.RESET and any(fault.reaction is worst and not fault.reset for fault in faults)

    def needs_reboot(self, gpu: str) -> float | None:
        """Since when the card needs a reboot of its node; None if it does not, or a person has cordoned it."""
        return min((fault.since for fault in self._acted_on(gpu) if fault.reaction is Reaction.REBOOT), default=None)

    def awaits_preflight(self, gpu: str) -> float | None:
        """Since when the card waits for a test; None if it waits for none, or is withheld for something else too."""
        faults = (fault for fault in self._on_card(gpu) if not self.spares(fault))
        withheld = [fault for fault in faults if fault.reaction >= Reaction.WITHHOLD]
        return withheld[0].since if [fault.source for fault in withheld] == [PREFLIGHT] else None

    def failed_pod_preflight(self, gpu: str) -> bool:
        """True if the card failed the test before a pod's first container, and was not reset since."""
        fault = self._faults.get((DeviceScope(gpu), FAILED_POD_PREFLIGHT))
        return fault is not None and not fault.reset

    def spares(self, fault: Fault) -> bool:
        """True if the fault would take its card away, and the breaker prevents it."""
        return is_spared(fault, self._spared)

    def health_of(self, scope: DeviceScope) -> DeviceHealth:
        """The health of a device: the worst fault on it or on the card that it is a part of."""
        return health_by(self.worst_fault(scope), self._spared)

    def worst_fault(self, scope: DeviceScope) -> Fault | None:
        """The worst fault on a device or on the card that it is a part of; None without one."""
        return worst_of(self._faults.values(), scope, self._spared)

    def _list_gpus(self) -> None:
        """Brings the sets of cards up to date with the faults."""
        self.faulty_gpus.clear()
        self.faulty_gpus.update(fault.scope.gpu for fault in self._faults.values())
        self.unhealthy_gpus.clear()
        self.unhealthy_gpus.update(gpu for gpu in self.faulty_gpus if not self.health_of(DeviceScope(gpu)).healthy)

    def _on_card(self, gpu: str) -> Iterator[Fault]:
        return (fault for fault in self._faults.values() if fault.scope.gpu == gpu)

    def _acted_on(self, gpu: str) -> list[Fault]:
        """The faults of a card for which something is done: none that is spared, none of a cordoned card."""
        faults = [fault for fault in self._on_card(gpu) if not self.spares(fault)]
        return [] if any(fault.by_hand for fault in faults) else faults
