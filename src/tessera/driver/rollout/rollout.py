"""The rollout as the controller uses it: takes node views, writes, and gives a note for every node that waits.

Its metrics are the five counts of NVIDIA's operator, with Tessera's prefix.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from tessera.api.driver.driver_policy import UpgradePolicy
from tessera.driver.rollout.executor import RolloutExecutor
from tessera.driver.rollout.fleet import RolloutDecision, RolloutSnapshot, decide_rollout
from tessera.driver.rollout.in_flight import InFlight
from tessera.driver.rollout.instructions import Instruction
from tessera.driver.rollout.node_view import NodeView
from tessera.kube.runtime import KubeRuntime


class RolloutMetrics:
    """Gauges of the latest decision.

    Args:
        registry: the process's metrics registry.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._nodes = Gauge(
            "tessera_driver_upgrades",
            "Nodes by state of their driver's upgrade: in_progress, done, failed, pending, and available: another "
            "driver is there, and somebody has to allow it.",
            ["policy", "state"],
            registry=registry,
        )
        self._stopped = Gauge(
            "tessera_driver_rollout_stopped",
            "1 while the failure budget is used up and no node is begun.",
            ["policy"],
            registry=registry,
        )

    def show(self, decision: RolloutDecision) -> None:
        """Replaces all values by these; policies that are gone disappear."""
        self._nodes.clear()
        self._stopped.clear()
        for policy, counts in decision.counts.items():
            for state in counts.__struct_fields__:
                self._nodes.labels(policy, state).set(getattr(counts, state))
            self._stopped.labels(policy).set(policy in decision.stopped)


class Rollout:
    """Brings nodes to the driver sets that they should have.

    Args:
        runtime: see :class:`~tessera.kube.runtime.KubeRuntime`.
        executor: the executor that writes.
        metrics: the gauges; None for no metrics.
        wake: called when something may be due that no watch shows.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        executor: RolloutExecutor,
        *,
        metrics: RolloutMetrics | None = None,
        wake: Callable[[], None],
    ) -> None:
        self._executor = executor
        self._metrics = metrics
        self._notes: dict[str, str] = {}
        self._clock = runtime.clock
        self._recorders = runtime.recorders
        self._wake = wake
        self._in_flight = InFlight(runtime.rng)

    async def load(self) -> None:
        """Reads the records of earlier rollouts; call it before the first :meth:`advance`.

        Raises:
            ApiError: the server refused.
            ConnectionError: the server gave no answer.
            TimeoutError: the server did not answer in time.
        """
        await self._executor.load_failures()

    @property
    def busy(self) -> frozenset[str]:
        """Nodes with a write that no watch has shown yet; another write now would make the rollout's next one fail."""
        return self._in_flight.busy

    def failures_of(self, driver_set: str) -> Mapping[str, str]:
        """The nodes on which a set failed, with the causes; the planner should give new nodes another set."""
        known = self._executor.failures.get(driver_set)
        return {node: each.cause for node, each in known.nodes.items()} if known is not None else {}

    def advance(
        self, views: Sequence[NodeView], policies: Mapping[str, UpgradePolicy], group: asyncio.TaskGroup
    ) -> RolloutDecision:
        """Decides, and starts the instructions.

        Args:
            views: all nodes with GPUs, as the watches show them now.
            policies: upgrade settings by the object that nodes' ``desired.policy`` names.
            group: owns the tasks that write.

        Returns:
            The decision. ``until`` is when this has to be called again even if no watch shows a change.
        """
        now = self._clock.now()
        self._in_flight.update(views, now)
        busy = self._in_flight.busy
        self._executor.forget_refusals({pod.uid for view in views for pod in view.pods})
        snapshot = RolloutSnapshot(
            views=tuple(views),
            policies=policies,
            failures=self._executor.failures,
            now=now,
            busy=busy,
            eviction_refusals=self._executor.refusals,
        )
        decision = self._recorders.call("driver-rollout", decide_rollout, snapshot)
        if self._metrics is not None:
            self._metrics.show(decision)
        for instruction in decision.instructions:
            if self._in_flight.start(instruction):
                group.create_task(self._execute(instruction))
        times = [each for each in (decision.until, self._in_flight.until) if each is not None]
        # A node's note stays until a watch shows its write. Removing the note would be another write of the node. The
        # rollout's write would then conflict with it, and the two would repeat for ever.
        self._notes = {name: note for name, note in self._notes.items() if name in busy} | dict(decision.notes)
        return msgspec.structs.replace(decision, notes=self._notes, until=min(times, default=None))

    async def _execute(self, instruction: Instruction) -> None:
        answer = await self._executor.execute(instruction)
        self._in_flight.finish(instruction, answer, self._clock.now())
        self._wake()
