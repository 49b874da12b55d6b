"""The values of an agent's process and its metrics, which most of its parts share.

Each agent has a registry of metrics of its own, so that many agents can run in one process.
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tessera.agent.base.host import ProcessTable, RunOnHost
from tessera.agent.base.node_objects import ApiMirror, NodeMirror, ObjectEvents
from tessera.agent.base.settings import AgentOptions
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.asynchronous import AsyncNvml
from tessera.replay.recorder import Recorders
from tessera.status_pages import JsonDocuments

#: Seconds; a MIG call takes from some tens of milliseconds to a few seconds.
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class MemoryUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that one pod holds on one shared card or MIG device, bytes; ``limit`` is 0 for a pod without a share."""

    namespace: str
    pod: str
    gpu: str
    used: int
    limit: int


class Metrics:
    """The agent's metrics.

    Attributes:
        registry: the metrics that ``/metrics`` shows.
        calls: seconds of the calls that changed a card.
        failures: refused calls.
        claims: seconds until a container got its slices (``ready``) or did not (``refused``).
        gpu_events: events of cards that the driver reported.
        probes: probes of cards.
        fault_save_failures: failed saves of the faults of cards.
        memory: decisions about pods' memory: ``reported`` by an Event, ``counted``, or the action's result.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.calls = Histogram(
            "tessera_mig_call_seconds",
            "Duration of NVML calls that changed a card.",
            ["call"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.failures = Counter(
            "tessera_mig_call_failures", "NVML calls that failed.", ["call", "error"], registry=self.registry
        )
        self.claims = Histogram(
            "tessera_claim_seconds",
            "Time that PreStartContainer waited for a container's slices.",
            ["outcome"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        for outcome in ("ready", "refused"):
            self.claims.labels(outcome)  # a rate has no value for a series that begins with 1

        self.gpu_events = Counter(
            "tessera_gpu_events", "Hardware events by card and kind.", ["gpu", "event"], registry=self.registry
        )
        self.probes = Counter("tessera_gpu_probes", "Results of probes of cards.", ["result"], registry=self.registry)
        self.fault_save_failures = Counter(
            "tessera_gpu_fault_save_failures",
            "Times that the known faults of cards could not be saved.",
            registry=self.registry,
        )
        self.memory = Counter(
            "tessera_memory_decisions",
            "Decisions about pods on shared cards, and their results.",
            ["action", "outcome"],
            registry=self.registry,
        )

    def show_health(self, reactions: Callable[[], Mapping[str, int]]) -> None:
        """Shows from now on the worst reaction that each card or one of its instances needs, 0 to 4."""
        self.registry.register(_Health(reactions))

    def show_memory(
        self, usage: Callable[[], Sequence[MemoryUsage]], unattributed: Callable[[], Mapping[str, int]]
    ) -> None:
        """Shows from now on the memory of shared cards by pod, and the bytes of a card that no pod provably holds."""
        self.registry.register(_Memory(usage, unattributed))


class _Health(Collector):
    """The worst reaction that a card or one of its instances needs."""

    def __init__(self, reactions: Callable[[], Mapping[str, int]]) -> None:
        self._reactions = reactions

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "tessera_gpu_health",
            "Need of a card or of an instance on it: 0 nothing, 1 attention, 2 withheld, 3 a reset, 4 a reboot.",
            labels=["gpu"],
        )
        for gpu, reaction in self._reactions().items():
            family.add_metric([gpu], reaction)
        yield family


class _Memory(Collector):
    """Memory of shared cards as it was last read."""

    def __init__(
        self, usage: Callable[[], Sequence[MemoryUsage]], unattributed: Callable[[], Mapping[str, int]]
    ) -> None:
        self._usage, self._unattributed = usage, unattributed

    def collect(self) -> Iterator[GaugeMetricFamily]:
        labels = ["pod", "namespace", "gpu"]
        used = GaugeMetricFamily(
            "tessera_memory_used_bytes", "Memory that a pod holds of a shared card.", labels=labels
        )
        limit = GaugeMetricFamily("tessera_memory_limit_bytes", "Memory that a pod may hold of it.", labels=labels)
        for each in self._usage():
            used.add_metric([each.pod, each.namespace, each.gpu], each.used)
            limit.add_metric([each.pod, each.namespace, each.gpu], each.limit)
        unattributed = GaugeMetricFamily(
            "tessera_memory_unattributed_bytes",
            "Used memory of a shared card that no pod is proven to hold.",
            labels=["gpu"],
        )
        for gpu, amount in self._unattributed().items():
            unattributed.add_metric([gpu], amount)
        yield from (used, limit, unattributed)


#: Reboots the node, or asks for that; returns or raises OSError soon, and the machine goes down after that.
RebootNode = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class AgentEnvironment:
    """One node's agent for the life of its process, whatever driver is there.

    Attributes:
        options: the node's name, folders and settings.
        client: the API server; its identity needs the rights that ``deploy/`` grants to the agent.
        clock: the time.
        rng: for jitter; seeded in tests.
        host: runs commands on the host, which reboot it; ``None`` if nothing can.
        recorders: record the decisions of the deciders, if the options ask for it.
        processes: the machine's processes.
        publish: takes the agent's own pages where no port serves them; ``None`` for nobody.
    """

    options: AgentOptions
    client: Client
    clock: Clock
    rng: random.Random
    host: RunOnHost | None
    recorders: Recorders
    processes: ProcessTable = field(default_factory=ProcessTable)
    publish: Callable[[JsonDocuments], None] | None = None


@dataclass(frozen=True, kw_only=True)
class AgentRuntime(AgentEnvironment):
    """One node's agent while one driver is there: what every part of it may need.

    Attributes:
        changes: tells the parts what has changed.
        metrics: the agent's metrics.
        hardware: the node's cards.
        kubelet: the node's kubelet.
        mirror: the node's objects on the API server.
        events: records Kubernetes Events.
        object_events: records Events about the node and its pods.
    """

    changes: ChangeNotifier
    metrics: Metrics
    hardware: AsyncNvml
    kubelet: Kubelet
    mirror: ApiMirror
    events: EventRecorder
    object_events: ObjectEvents

    def state_file(self, name: str) -> Path:
        """The path of a file that outlives the process."""
        return self.options.state_dir / name


def make_runtime(
    environment: AgentEnvironment,
    hardware: AsyncNvml,
    kubelet: Kubelet,
    *,
    node: NodeMirror | None = None,
    changes: ChangeNotifier | None = None,
) -> AgentRuntime:
    """What all components share; ``node`` and ``changes`` outlive the driver, if they are given."""
    options, client, clock, rng = environment.options, environment.client, environment.clock, environment.rng
    mirror = ApiMirror(
        client, node_name=options.node_name, namespace=options.namespace, clock=clock, rng=rng, node=node
    )
    events = EventRecorder(client, component="tessera-agent", instance=options.node_name, clock=clock, rng=rng)
    return AgentRuntime(
        **vars(environment),
        changes=changes or ChangeNotifier(),
        metrics=Metrics(),
        hardware=hardware,
        kubelet=kubelet,
        mirror=mirror,
        events=events,
        object_events=ObjectEvents(events, mirror),
    )
