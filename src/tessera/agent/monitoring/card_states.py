"""Adds to a card's health what a sample shows: who holds a card that must be reset, and slow-downs.

A card that is slowed down by its own protection (:data:`HARDWARE_THROTTLES`) is degraded as long as that lasts. The cap
of its power is no error: every card under load reaches it. The state of the row remapper, which lasts, is passed on to
the faults of the card. A process without a pod that the kernel proves is listed by PID and name, since it too keeps the
card from being reset.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from tessera.agent.monitoring.sample import GpuSample, NodeSample
from tessera.api.nodes.health import CardHealth, CardState, Evidence, Holder
from tessera.limits.nodes import CARD_HOLDERS
from tessera.nvml.measurements import THROTTLE_REASONS, Quantity
from tessera.text import one_line

#: Throttle reasons of a card that is too hot or lacks power (nvml.h, ``nvmlClocksEventReasons``), in words.
HARDWARE_THROTTLES: Mapping[str, str] = {
    "hw_slowdown": "the hardware slows the card down: heat, or a power brake",
    "sw_thermal": "the driver slows the card down to keep it below its temperature limit",
    "hw_thermal": "the card is too hot, and the hardware slows it down",
    "hw_power_brake": "the server's power supply slows the card down",
}
#: The driver reports ``hw_slowdown`` beside each of these.
_CAUSES_OF_SLOWDOWN = frozenset({"hw_thermal", "hw_power_brake"})
#: What the state of the row remapper means, by its flag.
_ROWS: Mapping[Quantity, str] = {
    Quantity.ROW_REMAP_FAILED: "memory has no spare row left for a bad one: replace the card",
    Quantity.ROW_REMAP_PENDING: "a spare row of memory is used from the next reset on: reset the card when it is free",
}
#: States in which it matters who holds a card.
HELD_STATES = frozenset({CardState.NEEDS_RESET, CardState.NEEDS_REBOOT, CardState.LOST})


class HealthSource(Protocol):
    """Knows the health of cards; see :class:`tessera.agent.health.monitor.HealthMonitor`."""

    def describe(self, gpu: str) -> CardHealth:
        """The health of a card by its faults."""
        ...

    def note_rows(self, gpu: str, text: str) -> None:
        """Takes in what is wrong with the row remapper of a card; empty for nothing."""
        ...

    def gpus_to_empty(self) -> frozenset[str]:
        """UUIDs of the cards that must be reset or booted."""
        ...


class CardStates:
    """Describes the cards of one node, sample by sample.

    Args:
        health: the faults of the cards.
    """

    def __init__(self, health: HealthSource) -> None:
        self._health = health
        #: By card, source and text, Unix time since which it lasts; exactly those of the last sample.
        self._measured: dict[tuple[str, str, str], float] = {}

    def handle(self, sample: NodeSample, unix_time: float) -> dict[str, CardHealth]:
        """Takes a sample in; returns the health of each of its cards by UUID.

        Args:
            sample: the sample.
            unix_time: when it was taken.
        """
        keys = [(gpu.info.uuid, source, text) for gpu in sample.gpus for source, text in _measured_errors(gpu)]
        self._measured = {key: self._measured.get(key, unix_time) for key in keys}
        found: dict[str, CardHealth] = {}
        for gpu in sample.gpus:
            values = gpu.card.measured.values
            if Quantity.ROW_REMAP_FAILED in values:
                self._health.note_rows(
                    gpu.info.uuid, next((text for flag, text in _ROWS.items() if values.get(flag)), "")
                )
            health = self._add_measured(gpu.info.uuid, self._health.describe(gpu.info.uuid), unix_time)
            devices = {device.uuid for device in gpu.devices}
            pods = [(each.namespace, each.pod) for each in sample.leases if each.device in devices]
            found[gpu.info.uuid] = _add_holders(health, pods, list(_host_processes(gpu)))
        for silent in sample.silent:
            pods = [(each.namespace, each.pod) for each in silent.leases]
            found[silent.info.uuid] = _add_holders(self._health.describe(silent.info.uuid), pods, [])
        return found

    def _add_measured(self, gpu: str, health: CardHealth, now: float) -> CardHealth:
        measured = [
            Evidence(source=source, text=text, since=since, last=now)
            for (card, source, text), since in self._measured.items()
            if card == gpu
        ]
        if not measured:
            return health
        health = msgspec.structs.replace(health, evidence=(*health.evidence, *measured))
        if health.state != CardState.HEALTHY:
            return health
        return msgspec.structs.replace(
            health,
            state=CardState.DEGRADED,
            since=min(each.since for each in measured),
            next="still allocated; ends once the card no longer reports it",
        )


def _measured_errors(gpu: GpuSample) -> Iterator[tuple[str, str]]:
    """Source and text of each error that the measurements of a card show."""
    values = gpu.card.measured.values
    bits = int(values.get(Quantity.THROTTLE_REASONS, 0))
    reasons = {reason for bit, reason in THROTTLE_REASONS.items() if bits & bit and reason in HARDWARE_THROTTLES}
    if reasons & _CAUSES_OF_SLOWDOWN:
        reasons.discard("hw_slowdown")
    for reason in sorted(reasons):
        yield reason, HARDWARE_THROTTLES[reason]


def _host_processes(gpu: GpuSample) -> Iterator[Holder]:
    """The processes on a card that the kernel proves for no pod."""
    for pid, name in sorted(
        {(each.pid, each.name) for device in gpu.devices for each in device.processes if each.pod is None}
    ):
        yield Holder(pid=pid, process=one_line(name))


def _add_holders(health: CardHealth, pods: Sequence[tuple[str, str]], processes: Sequence[Holder]) -> CardHealth:
    """Adds who holds the card, if that matters in its state."""
    if health.state not in HELD_STATES:
        return health
    names = sorted(set(pods))
    holders = [*(Holder(namespace=namespace, pod=pod) for namespace, pod in names), *processes]
    waiting = "" if holders else "; nobody holds it"
    return msgspec.structs.replace(
        health,
        holders=tuple(holders[:CARD_HOLDERS]),
        next=f"{health.next}{waiting}",
        cut=health.cut + max(0, len(holders) - CARD_HOLDERS),
    )
