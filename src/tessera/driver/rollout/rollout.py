"""The rollout as the controller composes it: views in, writes out, and a note for every node that waits.

Between two rounds it remembers only what is under way: writes that were sent and whose outcome was not seen yet.
Nothing is asked of a node or a pod meanwhile, and such nodes count as under way, so that an old view never lets one
node too many begin. All of it may be lost: a new leader lists everything first.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tessera.api.driver.policy import UpgradePolicy
from tessera.clock import Clock
from tessera.driver.rollout.acting import Answer, Hands
from tessera.driver.rollout.fleet import Decision, decide
from tessera.driver.rollout.instructions import (
    DeletePull,
    EvictPod,
    Forget,
    Instruction,
    PatchNode,
    PullImage,
    Remember,
)
from tessera.driver.rollout.metrics import RolloutMetrics
from tessera.driver.rollout.views import NodeView
from tessera.kube.backoff import Backoff

#: Seconds until an eviction that was refused is asked for again; kubectl drain's.
EVICTION_PAUSE = 5.0
#: Seconds in which a pod that was made is seen.
SEEN_SECONDS = 5.0


class Rollout:
    """Brings nodes to the driver sets that they should have.

    Args:
        hands: what writes.
        metrics: where numbers are shown.
        clock: the time.
        wake: called when something may be due that no watch will tell.
        rng: for jitter.
    """

    def __init__(
        self, hands: Hands, *, metrics: RolloutMetrics, clock: Clock, wake: Callable[[], None], rng: random.Random
    ) -> None:
        self._hands = hands
        self._metrics = metrics
        self._clock = clock
        self._wake = wake
        self._rng = rng
        self._running: set[str] = set()  # keys of instructions that were not answered yet
        self._unseen: dict[str, str] = {}  # node -> the version that a patch replaced, until another one is seen
        self._ending: set[str] = set()  # pods that will end, until they are seen to
        self._pauses: dict[str, float] = {}  # key -> when it may be tried again, seconds since 1970
        self._backoffs: dict[str, Backoff] = {}

    async def recall(self) -> None:
        """Reads what earlier rollouts left behind; to be awaited before the first :meth:`see`.

        Raises:
            ApiError: the server refused.
            ConnectionError: no answer.
            TimeoutError: likewise.
        """
        await self._hands.recall()

    def failed_on(self, set_: str) -> Mapping[str, str]:
        """The nodes on which a set failed, with the causes; fresh nodes are better given another."""
        known = self._hands.failures.get(set_)
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
        self._absorb(views, now)
        busy = frozenset(self._unseen) | frozenset(key[5:] for key in self._running if key.startswith("node/"))
        decision = decide(views, policies, self._hands.failures, now, busy=busy, blocked=dict(self._hands.refusals))
        self._metrics.show(decision)
        for instruction in decision.instructions:
            self._start(instruction, busy, now, group)
        pauses = [until for until in self._pauses.values() if until > now]
        times = [*pauses, *([decision.until] if decision.until is not None else [])]
        return msgspec.structs.replace(decision, until=min(times, default=None))

    def _absorb(self, views: Sequence[NodeView], now: float) -> None:
        """Forgets what was seen to have happened."""
        versions = {view.name: view.version for view in views}
        self._unseen = {name: old for name, old in self._unseen.items() if versions.get(name) == old}
        alive = {pod.uid for view in views for pod in view.pods}
        pulls = {pod.uid for view in views for pod in view.pulls if not pod.terminating}
        self._ending &= pulls | {pod.uid for view in views for pod in view.pods if not pod.terminating}
        for uid in self._hands.refusals.keys() - alive:
            del self._hands.refusals[uid]
        self._pauses = {key: until for key, until in self._pauses.items() if until > now}

    def _start(self, instruction: Instruction, busy: frozenset[str], now: float, group: asyncio.TaskGroup) -> None:
        key = _key(instruction)
        if key in self._running or self._pauses.get(key, now) > now:
            return
        if isinstance(instruction, PatchNode) and instruction.node in busy:
            return
        if isinstance(instruction, EvictPod | DeletePull) and instruction.uid in self._ending:
            return
        if isinstance(instruction, EvictPod) and instruction.node in busy:
            return
        self._running.add(key)
        group.create_task(self._do(instruction, key))

    async def _do(self, instruction: Instruction, key: str) -> None:
        answer = await self._hands.do(instruction)
        self._running.discard(key)
        if answer is Answer.REFUSED:
            self._pause(instruction, key)
        else:
            self._backoffs.pop(key, None)
            if isinstance(instruction, PatchNode):
                self._unseen[instruction.node] = instruction.version
            elif isinstance(instruction, EvictPod | DeletePull):
                self._ending.add(instruction.uid)
            elif isinstance(instruction, PullImage):
                self._pauses[key] = self._clock.now() + SEEN_SECONDS
        self._wake()

    def _pause(self, instruction: Instruction, key: str) -> None:
        steady = isinstance(instruction, EvictPod)
        pause = EVICTION_PAUSE if steady else self._backoffs.setdefault(key, Backoff(self._rng)).next()
        self._pauses[key] = self._clock.now() + pause


def _key(instruction: Instruction) -> str:
    """What is never written twice at a time."""
    match instruction:
        case PatchNode(node=node):
            return f"node/{node}"
        case EvictPod(uid=uid) | DeletePull(uid=uid):
            return f"pod/{uid}"
        case PullImage(node=node, set=set_):
            return f"pull/{node}/{set_}"
        case Remember() | Forget():
            return "failures"
