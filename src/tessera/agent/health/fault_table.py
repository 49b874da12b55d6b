"""The faults of a node's cards that are not over, and what they mean for cards and devices. Pure.

:class:`FaultTable` answers questions. Only :class:`~tessera.agent.health.faults.HealthStateMachine` changes it; all
others read.
"""

from collections.abc import Iterable, Iterator

from tessera.agent.health.fault import (
    CORDON,
    FAILED_POD_PREFLIGHT,
    PREFLIGHT,
    Fault,
    Hysteresis,
    health_by,
    is_spared,
    worst_of,
)
from tessera.agent.inventory.device_health import DeviceHealth, DeviceScope, Reaction
from tessera.api.nodes.card_faults import CardRule
from tessera.api.nodes.health import FELL_TOO_OFTEN, MEASURED_ERRORS
from tessera.api.nodes.repairs import Repairs

#: What is done to a cordoned card.
_HANDS_OFF = Repairs()


class FaultTable:
    """The faults of one node's cards.

    Args:
        hysteresis: the numbers that decide when a fault begins and ends.
        faults: the faults that an earlier process of the same boot found.
        repairs: what is done about faults.
    """

    def __init__(self, hysteresis: Hysteresis, faults: Iterable[Fault], repairs: Repairs) -> None:
        self._hysteresis = hysteresis
        #: The faults that are not over, at most one for each scope and source.
        self._faults = {(fault.scope, fault.source): fault for fault in faults}
        self._repairs = repairs
        #: The faults that the breaker spares, whether or not they are there now.
        self._spared: frozenset[CardRule] = frozenset()
        #: Failed probes in a row, by card; a card whose last probe succeeded has no entry.
        self._failures: dict[str, int] = {}

    @property
    def repairs(self) -> Repairs:
        """What is done about faults."""
        return self._repairs

    @property
    def hysteresis(self) -> Hysteresis:
        """The numbers that decide when a fault ends."""
        return self._hysteresis

    def repairs_of(self, gpu: str) -> Repairs:
        """What is done about the faults of a card: nothing while a person has cordoned it."""
        return _HANDS_OFF if (DeviceScope(gpu), CORDON) in self._faults else self._repairs

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

    def _on_card(self, gpu: str) -> Iterator[Fault]:
        return (fault for fault in self._faults.values() if fault.scope.gpu == gpu)

    def _acted_on(self, gpu: str) -> list[Fault]:
        """The faults of a card for which something is done: none that is spared, none of a cordoned card."""
        faults = [fault for fault in self._on_card(gpu) if not self.spares(fault)]
        return [] if any(fault.by_hand for fault in faults) else faults
