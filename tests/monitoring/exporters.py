"""What Prometheus scrapes in a small cluster of simulated cards: two agents, a controller, a webhook.

The text is that of the real exposition; its values are measured on simulated cards, or are plain values of the test.
Each scrape is a minute later on the cards, so counters grow.
"""

import time
from collections.abc import Mapping, Sequence

from prometheus_client import generate_latest
from tests.support.slicer_cluster import SlicerCluster

from tessera.agent.base.runtime import MemoryUsage, Metrics
from tessera.agent.monitoring.exposition import ExpositionOptions, render
from tessera.agent.monitoring.lease_states import LeaseStates
from tessera.agent.monitoring.sample import (
    DeviceSample,
    GpuSample,
    Lease,
    NodeSample,
    ProcessUse,
    measure_memory,
)
from tessera.agent.slices.events import SliceJournal
from tessera.agent.slices.slice_table import SlicesCollector
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import QUOTA_RESOURCE, PodUid
from tessera.clock import LoopClock
from tessera.controller.base import ControllerMetrics
from tessera.controller.main import FleetCollector
from tessera.driver.coverage import CoverageReport, KernelCoverage
from tessera.driver.driver_sets import PoolKey
from tessera.driver.next_kernels import CoverageMetrics
from tessera.driver.rollout.fleet import RolloutDecision, UpgradeCounts
from tessera.driver.rollout.rollout import RolloutMetrics
from tessera.nvml.interface import GpuInfo
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera.provisioning.milestones import Milestone, ProvisioningRecord, WorkloadRecord, WorkloadStep
from tessera.provisioning.recording import ProvisioningMetrics
from tessera.provisioning.startup_deadline import BLOCKING
from tessera.webhook.base import VERDICTS, WebhookMetrics

GIB = 1 << 30
MINUTE = 60.0
#: Minutes that the agents have run before the first scrape, so that leases have their states.
HISTORY = 35


class Agent:
    """The agent of a node: what its exporter and its own metrics show.

    Args:
        node: name of the node.
        cards: the simulated cards, such as ``2xH100-80GB``. The first one is cut if ``slices`` are given.
        slices: profile and start of each slice of the first card.
        shares: pods that share the last card.
    """

    def __init__(
        self, node: str, cards: str, *, slices: Sequence[tuple[str, int]] = (), shares: Sequence[str] = ()
    ) -> None:
        self._now = 0.0
        self._node = node
        self._states = LeaseStates()
        self._machine = SimulatedMachine(cards, seed=node, now=lambda: self._now)
        first, last = self._machine.uuids()[0], self._machine.uuids()[-1]
        self._leases: list[Lease] = []
        if slices:
            self._machine.set_mig_mode(first, enabled=True)
        for number, (profile, start) in enumerate(slices):
            gi_id = self._machine.create_gpu_instance(first, profile, start)
            rows = {row.name: row.index for row in self._machine.gi_profiles(first)}
            device = self._machine.create_compute_instance(first, gi_id, rows[profile]).mig_uuid
            self._machine.start_process(device, GIB, activity=0.75 - 0.5 * number)
            self._leases.append(_lease("team-a", f"train-{number}", device, "slice"))
        self._pods = [PodUid(f"uid-{name}") for name in shares]
        for name in shares:
            self._machine.start_process(last, 2 * GIB, activity=0.25)
            self._leases.append(_lease("team-b", name, last, "time-slicing", 1 / len(shares)))
        if not slices and not shares:
            self._leases.append(_lease("team-c", "notebook", first, "whole"))
        self.metrics = Metrics()
        self.metrics.registry.register(SlicesCollector(SliceStateMachine(SliceJournal()).table))
        self.metrics.show_health(self.reactions)
        self.metrics.show_memory(self.memory_usage, self.unattributed_bytes)
        for _ in range(HISTORY):
            self.text()

    def reactions(self) -> Mapping[str, int]:
        """All cards are healthy."""
        return dict.fromkeys(self._machine.uuids(), 0)

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """Memory of the pods that share a card."""
        gpu = self._machine.uuids()[-1]
        return [
            MemoryUsage(namespace=each.namespace, pod=each.pod, gpu=gpu, used=2 * GIB, limit=8 * GIB)
            for each in self._leases
            if each.ratio < 1
        ]

    def unattributed_bytes(self) -> Mapping[str, int]:
        """Every byte belongs to a pod."""
        return dict.fromkeys(self._machine.uuids(), 0)

    def text(self) -> bytes:
        """A scrape."""
        self._now += MINUTE
        self.metrics.calls.labels("create_gpu_instance").observe(0.2)
        self.metrics.claims.labels("ready").observe(0.5)
        sample = self._sample()
        options = ExpositionOptions(node=self._node)
        shown = render(sample, options, unix_time=time.time(), judged=self._states.handle(sample))
        return shown + generate_latest(self.metrics.registry)

    def _sample(self) -> NodeSample:
        gpus = tuple(self._gpu(info) for info in self._machine.devices())
        return NodeSample(
            taken=self._now,
            driver_version=self._machine.driver_version(),
            gpus=gpus,
            leases=tuple(self._leases),
        )

    def _gpu(self, info: GpuInfo) -> GpuSample:
        machine = self._machine
        devices = [
            DeviceSample(
                uuid=compute.mig_uuid,
                gi_id=instance.gi_id,
                profile=instance.profile,
                share=instance.size / 8,
                measured=measure_memory(
                    machine.memory(compute.mig_uuid), machine.measure_instance(info.uuid, instance.gi_id)
                ),
                processes=tuple(ProcessUse(None, each.memory_bytes) for each in machine.processes(compute.mig_uuid)),
            )
            for instance in (machine.instances(info.uuid) if info.mig_enabled else ())
            for compute in instance.compute_instances
        ]
        pods = self._pods if info.uuid == machine.uuids()[-1] else []
        card = DeviceSample(
            uuid=info.uuid,
            measured=machine.measure(info.uuid),
            processes=tuple(
                ProcessUse(pod, each.memory_bytes, 0.25)
                for pod, each in zip(pods, machine.processes(info.uuid), strict=False)
            ),
        )
        return GpuSample(info=info, card=card, mig_devices=tuple(devices))


def _lease(namespace: str, pod: str, device: str, kind: str, ratio: float = 1.0) -> Lease:
    return Lease(
        namespace=namespace, pod=pod, uid=PodUid(f"uid-{pod}"), container="main", device=device, kind=kind, ratio=ratio
    )


class WallClock(LoopClock):
    """The time without an event loop."""

    def __init__(self) -> None:
        pass

    def now(self) -> float:
        return time.time()


class Controller:
    """A controller that leads: one pod waits, nodes start, a driver changes."""

    def __init__(self) -> None:
        self._scrapes = 0
        self._metrics = ControllerMetrics()
        registry = self._metrics.registry
        self._provisioning = ProvisioningMetrics(registry)
        self._metrics.leading.set(1)
        cluster = SlicerCluster()
        allocatable = {QUOTA_RESOURCE: 40 * GIB, "cpu": 64_000, "pods": 110, "nvidia.com/mig-3g.20gb": 2}
        cluster.node("n1", count=1, allocatable=allocatable)
        cluster.pod("web", "3g.20gb", amounts={QUOTA_RESOURCE: 20 * GIB})
        cluster.run()
        cluster.pod("large", "7g.40gb", created="2026-01-01T00:00:00Z")
        cluster.run()
        self._metrics.registry.register(FleetCollector(lambda: cluster.slicer, WallClock()))
        counts = UpgradeCounts(in_progress=1, done=2)
        RolloutMetrics(registry).show(RolloutDecision(counts={"gpus": counts}))
        pool = PoolKey(os_id="rhel", os_version="9.6", kernel="5.14.0-570", architecture="amd64")
        covered = KernelCoverage(pool=pool, policy="ClusterPolicy gpus", covered=True)
        CoverageMetrics(registry).show(CoverageReport(rows=(covered,)))
        self._provisioning.set_nodes_in_progress(1)
        self._provisioning.expect_reasons(reason for reason, _ in BLOCKING.values())

    def text(self) -> bytes:
        """A scrape."""
        self._scrapes += 1
        metrics = self._metrics
        metrics.decisions.inc()
        metrics.decision_seconds.observe(0.002)
        metrics.hand_overs.observe(0.2)
        metrics.waits.observe(2.0)
        metrics.writes.labels("Instaslice").inc()
        at = {milestone: 20.0 * number for number, milestone in enumerate(Milestone)}
        name = f"gpu-{self._scrapes}"
        record = ProvisioningRecord(node=name, uid=name, at=at, pool="rhel9", strategy="precompiled", image="driver@a")
        self._provisioning.observe_record(record, None)
        steps = {step: 10.0 * number for number, step in enumerate(WorkloadStep)}
        self._provisioning.observe_workload(
            WorkloadRecord(namespace="a", name=name, uid=name, node=name, fresh=True, at=steps, strategy="precompiled")
        )
        return generate_latest(metrics.registry)


class Webhook:
    """A webhook that reviews pods."""

    def __init__(self) -> None:
        self._metrics = WebhookMetrics()

    def text(self) -> bytes:
        """A scrape."""
        self._metrics.count(VERDICTS[0])
        self._metrics.observe(0.001)
        return generate_latest(self._metrics.registry)
