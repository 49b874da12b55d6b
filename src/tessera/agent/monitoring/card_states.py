"""Adds to a card's health what a sample shows: its measured errors, and who holds a card that is withheld.

The errors (:mod:`tessera.agent.monitoring.measured_errors`) are passed on to the faults of the card. A process without
a pod that the kernel proves is listed by PID and name, since it too keeps the card from being reset.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from tessera.agent.monitoring.measured_errors import find_errors
from tessera.agent.monitoring.sample import GpuSample, NodeSample
from tessera.api.nodes.health import TAKEN, CardHealth, CardState, Holder
from tessera.limits.nodes import CARD_HOLDERS
from tessera.nvml.measurements import Quantity
from tessera.text import one_line

#: States of cards that have to be empty.
_TO_EMPTY = frozenset({CardState.NEEDS_RESET, CardState.NEEDS_REBOOT, CardState.LOST})


class HealthSource(Protocol):
    """Knows the health of cards; see :class:`tessera.agent.health.monitor.HealthMonitor`."""

    def describe(self, gpu: str) -> CardHealth:
        """The health of a card by its faults."""
        ...

    def note_measured(self, gpu: str, errors: Mapping[str, str]) -> None:
        """Takes in the measured errors of a card, see :func:`.find_errors`."""
        ...

    def note_unmeasured(self, gpu: str) -> None:
        """Takes in that a card could not be measured."""
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
        #: The measurements of each card of the last sample, and the monotonic seconds of that sample.
        self._last: dict[str, tuple[Mapping[Quantity, float], float]] = {}

    def handle(self, sample: NodeSample) -> dict[str, CardHealth]:
        """Takes a sample in; returns the health of each of its cards by UUID."""
        found: dict[str, CardHealth] = {}
        last, self._last = self._last, {}
        for gpu in sample.gpus:
            measured = gpu.card.measured
            before, taken = last.get(gpu.info.uuid, ({}, sample.taken))
            self._health.note_measured(gpu.info.uuid, find_errors(measured, before, sample.taken - taken))
            self._last[gpu.info.uuid] = measured.values, sample.taken
            devices = {device.uuid for device in gpu.devices}
            pods = [(each.namespace, each.pod) for each in sample.leases if each.device in devices]
            found[gpu.info.uuid] = _add_holders(self._health.describe(gpu.info.uuid), pods, list(_host_processes(gpu)))
        for silent in sample.silent:
            self._health.note_unmeasured(silent.info.uuid)
            pods = [(each.namespace, each.pod) for each in silent.leases]
            found[silent.info.uuid] = _add_holders(self._health.describe(silent.info.uuid), pods, [])
        return found


def _host_processes(gpu: GpuSample) -> Iterator[Holder]:
    """The processes on a card that the kernel proves for no pod."""
    for pid, name in sorted(
        {(each.pid, each.name) for device in gpu.devices for each in device.processes if each.pod is None}
    ):
        yield Holder(pid=pid, process=one_line(name))


def _add_holders(health: CardHealth, pods: Sequence[tuple[str, str]], processes: Sequence[Holder]) -> CardHealth:
    """Adds who holds a card that is allocated to nobody else; processes without a pod to one that has to be empty."""
    if health.state not in TAKEN:
        return health
    to_empty = health.state in _TO_EMPTY
    names = sorted(set(pods))
    holders = [*(Holder(namespace=namespace, pod=pod) for namespace, pod in names), *(processes if to_empty else ())]
    waiting = "; nobody holds it" if to_empty and not holders else ""
    return msgspec.structs.replace(
        health,
        holders=tuple(holders[:CARD_HOLDERS]),
        next=f"{health.next}{waiting}",
        cut=health.cut + max(0, len(holders) - CARD_HOLDERS),
    )
