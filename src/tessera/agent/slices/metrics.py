"""The metric ``tessera_slices``: the slices of the node by state."""

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tessera.agent.slices.events import SliceState
from tessera.agent.slices.slice_table import SliceTable


class SlicesCollector(Collector):
    """Counts the slices at every scrape, so no counter has to follow their changes."""

    def __init__(self, slices: SliceTable) -> None:
        self._slices = slices

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The slices by state; ``foreign`` for instances that Tessera did not make."""
        tally = Tally(dict.fromkeys(SliceState, 0))
        foreign = 0
        for made, pod in self._slices.observed_instances():
            if pod is None:
                foreign += 1
            else:
                tally[self._slices.slice_state(made.position, pod)] += 1
        for pod, promise in self._slices.promises.items():
            states = [self._slices.slice_state(wanted.position, pod) for wanted in promise.slices]
            tally[SliceState.PROMISED] += states.count(SliceState.PROMISED)
        family = GaugeMetricFamily("tessera_slices", "Slices of this node by state.", labels=["state"])
        for state, count in tally.items():
            family.add_metric([state.value], count)
        family.add_metric(["foreign"], foreign)
        yield family
