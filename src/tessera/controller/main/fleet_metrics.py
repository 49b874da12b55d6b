"""Metrics of the fleet and its queue: slots, room by profile, fragmentation, and waiting pods by reason.

They are computed at each scrape from what the slicer holds in memory. Cards of the same state count as one, so the cost
grows with the number of different states and of waiting pods, not with the number of cards.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tessera.clock import Clock, parse_time_or_zero
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.slicer_state import SlicerState
from tessera.mig.occupancy import free_slots, free_starts
from tessera.placement.demand import Fragmented, Full, NeverFits, NoNode, UnknownProfile

#: Values of the label ``reason`` by class; ``not_decided`` for a pod that no decision has refused yet.
REASONS = {
    UnknownProfile: "unknown_profile",
    NeverFits: "never_fits",
    NoNode: "no_node",
    Full: "full",
    Fragmented: "fragmented",
    type(None): "not_decided",
}


class FleetCollector(Collector):
    """Shows the fleet of the leading replica; another replica shows nothing of it.

    Args:
        slicer: returns the state machine, None while another replica leads.
        clock: the time, for ages.
    """

    def __init__(self, slicer: Callable[[], Slicer | None], clock: Clock) -> None:
        self._slicer = slicer
        self._clock = clock

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the families."""
        slicer = self._slicer()
        if slicer is not None:
            yield from self._waiting(slicer.state)
            yield from _cards(slicer.state)

    def _waiting(self, state: SlicerState) -> Iterator[GaugeMetricFamily]:
        waiting = GaugeMetricFamily(
            "tessera_pods_waiting", "Pods that wait for a slice, by the reason of the last decision.", labels=["reason"]
        )
        counts = Counter(REASONS[type(reason)] for reason in state.waiting.values())
        for reason in REASONS.values():
            waiting.add_metric([reason], counts[reason])
        yield waiting
        times = [
            parse_time_or_zero(state.cluster.pods[pod].created) for pod in state.waiting if pod in state.cluster.pods
        ]
        oldest = self._clock.now() - min(times) if times else 0.0
        yield GaugeMetricFamily(
            "tessera_oldest_wait_seconds", "Age of the oldest pod that waits for a slice; 0 if none waits.", oldest
        )


def _cards(state: SlicerState) -> Iterator[GaugeMetricFamily]:
    slots = GaugeMetricFamily(
        "tessera_slots", "Memory slots of cards that are cut on demand, by model and state.", labels=["model", "state"]
    )
    room = GaugeMetricFamily(
        "tessera_free_slices",
        "Cards on which one more slice of a profile can be made now, by model.",
        labels=["model", "profile"],
    )
    fragmentation = GaugeMetricFamily(
        "tessera_fragmentation_ratio",
        "Share of a model's slots that are free and that a random profile could not use, mean of its profiles.",
        labels=["model"],
    )
    fleet = state.inventory.fleet
    cut: Counter[tuple[str, str]] = Counter()
    fitting: Counter[tuple[str, str]] = Counter()
    cards: Counter[str] = Counter()
    lost: dict[str, float] = {}
    # Nodes may report different tables for one model, so that several geometries share a label.
    for geometry, states in fleet.histogram().items():
        model, count = geometry.family, states.total()
        free = sum(free_slots(geometry, occupancy) * alike for occupancy, alike in states.items())
        cut[model, "free"] += free
        cut[model, "held"] += geometry.slots * count - free
        for profile in geometry.profiles:
            fits = (alike for occupancy, alike in states.items() if free_starts(geometry, profile, occupancy))
            fitting[model, profile.name] += sum(fits)
        cards[model] += count
        lost[model] = lost.get(model, 0.0) + count * fleet.fragmentation(geometry, states)
    for labels, number in cut.items():
        slots.add_metric(labels, number)
    for labels, number in fitting.items():
        room.add_metric(labels, number)
    for model, share in lost.items():
        fragmentation.add_metric([model], share / cards[model])
    yield from (slots, room, fragmentation)
