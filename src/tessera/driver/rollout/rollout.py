"""The rollout as the controller uses it: node views in, writes out, and a note for every node that waits.

Its metrics are the five counts of NVIDIA's operator under our prefix.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from tessera.api.driver.driver_policy import UpgradePolicy
from tessera.clock import Clock
from tessera.driver.rollout.executor import RolloutExecutor
from tessera.driver.rollout.fleet import RolloutDecision, decide_rollout
from tessera.driver.rollout.in_flight import InFlight
from tessera.driver.rollout.instructions import Instruction
from tessera.driver.rollout.node_view import NodeView


class RolloutMetrics:
    """Gauges that follow the latest decision.

    Args:
        registry: what ``/metrics`` shows.
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
        """Shows these numbers from now on; policies that are gone are no longer shown."""
        self._nodes.clear()
        self._stopped.clear()
        for policy, counts in decision.counts.items():
            for state in counts.__struct_fields__:
                self._nodes.labels(policy, state).set(getattr(counts, state))
            self._stopped.labels(policy).set(policy in decision.stopped)


__all__ = ["Rollout", "RolloutDecision"]


class Rollout:
    """Brings nodes to the driver sets that they should have.

    Args:
        hands: what writes.
        metrics: where numbers are shown; None for nowhere.
        clock: the time.
        wake: called when something may be due that no watch will tell.
        rng: for jitter.
    """

    def __init__(
        self,
        executor: RolloutExecutor,
        *,
        metrics: RolloutMetrics | None = None,
        clock: Clock,
        wake: Callable[[], None],
        rng: random.Random,
    ) -> None:
        self._executor = executor
        self._metrics = metrics
        self._notes: dict[str, str] = {}
        self._clock = clock
        self._wake = wake
        self._in_flight = InFlight(rng)

    async def load(self) -> None:
        """Reads what earlier rollouts left behind; to be awaited before the first :meth:`advance`.

        Raises:
            ApiError: the server refused.
            ConnectionError: no answer.
            TimeoutError: likewise.
        """
        await self._executor.load_failures()

    @property
    def busy(self) -> frozenset[str]:
        """Nodes with a write whose outcome was not seen yet: whoever writes them now makes the next one fail."""
        return self._in_flight.busy

    def failures_of(self, driver_set: str) -> Mapping[str, str]:
        """The nodes on which a set failed, with the causes; fresh nodes are better given another."""
        known = self._executor.failures.get(driver_set)
        return {node: each.cause for node, each in known.nodes.items()} if known is not None else {}

    def advance(
        self, views: Sequence[NodeView], policies: Mapping[str, UpgradePolicy], group: asyncio.TaskGroup
    ) -> RolloutDecision:
        """Decides, and begins what was decided.

        Args:
            views: all nodes with cards, as they are seen now.
            policies: by the object that nodes' ``wanted.policy`` names.
            group: owns the tasks that write.

        Returns:
            What was decided. ``until`` is when this has to be called again even if nothing is seen to change.
        """
        now = self._clock.now()
        self._in_flight.update(views, now)
        busy = self._in_flight.busy
        self._executor.forget_refusals({pod.uid for view in views for pod in view.pods})
        decision = decide_rollout(
            views,
            policies,
            self._executor.failures,
            now,
            busy=busy,
            eviction_refusals=self._executor.refusals,
        )
        if self._metrics is not None:
            self._metrics.show(decision)
        for instruction in decision.instructions:
            if self._in_flight.start(instruction):
                group.create_task(self._execute(instruction))
        times = [each for each in (decision.until, self._in_flight.until) if each is not None]
        # What was said of a node stands until its write is seen: to take it back would be a write of its own, which
        # the rollout's then meets, and neither would come to an end.
        self._notes = {name: note for name, note in self._notes.items() if name in busy} | dict(decision.notes)
        return msgspec.structs.replace(decision, notes=self._notes, until=min(times, default=None))

    async def _execute(self, instruction: Instruction) -> None:
        answer = await self._executor.execute(instruction)
        self._in_flight.finish(instruction, answer, self._clock.now())
        self._wake()
