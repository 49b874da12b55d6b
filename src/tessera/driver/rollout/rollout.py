"""The rollout as the controller composes it: views in, writes out, and a note for every node that waits."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tessera.api.driver.policy import UpgradePolicy
from tessera.clock import Clock
from tessera.driver.rollout.executor import Hands
from tessera.driver.rollout.fleet import Decision, decide
from tessera.driver.rollout.in_flight import UnderWay
from tessera.driver.rollout.instructions import Instruction
from tessera.driver.rollout.metrics import RolloutMetrics
from tessera.driver.rollout.node_view import NodeView

__all__ = ["Decision", "Rollout"]


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
        hands: Hands,
        *,
        metrics: RolloutMetrics | None = None,
        clock: Clock,
        wake: Callable[[], None],
        rng: random.Random,
    ) -> None:
        self._hands = hands
        self._metrics = metrics
        self._notes: dict[str, str] = {}
        self._clock = clock
        self._wake = wake
        self._under_way = UnderWay(rng)

    async def recall(self) -> None:
        """Reads what earlier rollouts left behind; to be awaited before the first :meth:`see`.

        Raises:
            ApiError: the server refused.
            ConnectionError: no answer.
            TimeoutError: likewise.
        """
        await self._hands.recall()

    @property
    def busy(self) -> frozenset[str]:
        """Nodes with a write whose outcome was not seen yet: whoever writes them now makes the next one fail."""
        return self._under_way.busy

    def failed_on(self, driver_set: str) -> Mapping[str, str]:
        """The nodes on which a set failed, with the causes; fresh nodes are better given another."""
        known = self._hands.failures.get(driver_set)
        return {node: each.cause for node, each in known.nodes.items()} if known is not None else {}

    def see(
        self, views: Sequence[NodeView], policies: Mapping[str, UpgradePolicy], group: asyncio.TaskGroup
    ) -> Decision:
        """Decides, and begins what was decided.

        Args:
            views: all nodes with cards, as they are seen now.
            policies: by the object that nodes' ``wanted.policy`` names.
            group: owns the tasks that write.

        Returns:
            What was decided. ``until`` is when this has to be called again even if nothing is seen to change.
        """
        now = self._clock.now()
        self._under_way.absorb(views, now)
        busy = self._under_way.busy
        self._hands.forget_refusals({pod.uid for view in views for pod in view.pods})
        decision = decide(
            views,
            policies,
            self._hands.failures,
            now,
            busy=busy,
            blocked=self._hands.refusals,
        )
        if self._metrics is not None:
            self._metrics.show(decision)
        for instruction in decision.instructions:
            if self._under_way.start(instruction):
                group.create_task(self._do(instruction))
        times = [each for each in (decision.until, self._under_way.until) if each is not None]
        # What was said of a node stands until its write is seen: to take it back would be a write of its own, which
        # the rollout's then meets, and neither would come to an end.
        self._notes = {name: note for name, note in self._notes.items() if name in busy} | dict(decision.notes)
        return msgspec.structs.replace(decision, notes=self._notes, until=min(times, default=None))

    async def _do(self, instruction: Instruction) -> None:
        answer = await self._hands.do(instruction)
        self._under_way.answered(instruction, answer, self._clock.now())
        self._wake()
