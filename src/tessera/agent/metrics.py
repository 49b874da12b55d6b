"""What an agent counts. One registry an agent, so that many can live in one process."""

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tessera.agent.ondemand.facts import State
from tessera.agent.ondemand.slices import Book

#: Seconds; a MIG call takes from some tens of milliseconds to a few seconds.
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Metrics:
    """The agent's metrics.

    Attributes:
        registry: what ``/metrics`` shows.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._calls = Histogram(
            "tessera_mig_call_seconds",
            "Duration of NVML calls that changed a card.",
            ["call"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._failures = Counter(
            "tessera_mig_call_failures", "NVML calls that failed.", ["call", "error"], registry=self.registry
        )
        self._claims = Histogram(
            "tessera_claim_seconds",
            "How long PreStartContainer waited for a container's slices.",
            ["outcome"],
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def show(self, book: Book) -> None:
        """Shows the slices of a book by state from now on."""
        self.registry.register(_Slices(book))

    def call_done(self, call: str, seconds: float) -> None:
        """A call changed a card."""
        self._calls.labels(call).observe(seconds)

    def call_failed(self, call: str, error: str) -> None:
        """A call was refused."""
        self._failures.labels(call, error).inc()

    def claimed(self, outcome: str, seconds: float) -> None:
        """A container got its slices (``ready``) or did not (``refused``)."""
        self._claims.labels(outcome).observe(seconds)


class _Slices(Collector):
    """Counts slices when asked, so that nothing has to be kept up to date."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def collect(self) -> Iterator[GaugeMetricFamily]:
        tally = Tally(dict.fromkeys(State, 0))
        foreign = 0
        for made, pod in self._book.instances():
            if pod is None:
                foreign += 1
            else:
                tally[self._book.state(made.position, pod)] += 1
        for pod, promise in self._book.promises.items():
            states = [self._book.state(wanted.position, pod) for wanted in promise.slices]
            tally[State.PROMISED] += states.count(State.PROMISED)
        family = GaugeMetricFamily("tessera_slices", "Slices of this node by state.", labels=["state"])
        for state, count in tally.items():
            family.add_metric([state.value], count)
        family.add_metric(["foreign"], foreign)
        yield family
