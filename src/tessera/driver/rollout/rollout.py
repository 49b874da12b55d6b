"""The rollout as the controller uses it: takes node views, writes, and gives a note for every node that waits.

Its metrics are the five counts of NVIDIA's operator, with Tessera's prefix.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from tessera.driver.rollout.executor import RolloutExecutor
from tessera.driver.rollout.fleet import RolloutDecision, RolloutSnapshot, decide_rollout
from tessera.driver.rollout.instructions import (
    DeletePull,
    EvictPod,
    ForgetFailures,
    Instruction,
    InstructionOutcome,
    PatchNode,
    PullImage,
    RecordFailure,
)
from tessera.driver.rollout.node_view import NodeView
from tessera.gpu_operator.driver_policy import UpgradePolicy
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.retries import Backoff


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


#: Seconds until a refused eviction is repeated; the value of kubectl drain.
EVICTION_PAUSE = 5.0
#: Seconds within which the watch shows a created pod.
SEEN_SECONDS = 5.0


class InFlight:
    """Instructions from their start until a watch shows their outcome, without I/O.

    A watch shows a write some time after the server answered. Until then that node or pod gets no other instruction,
    and the node counts as in progress. So an old view never lets one node too many begin, and never evicts a pod twice.
    All of this may be lost with the process, since the next one lists everything before it decides.

    Other parts use :mod:`tessera.kube.retries` for this. The rollout does not, for two reasons. First, the busy nodes
    are an input of its decision, so they must follow from the same node views as the decision; the executor frees a key
    as soon as an event arrives, before the views have it. Second, the property tests of the rollout run thousands of
    process lives with this class in them; they need a class that has no tasks and no timers, and takes the time as an
    argument.

    Args:
        rng: for jitter of pauses after refusals.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        #: Keys of instructions that were started and not answered.
        self._running: set[str] = set()
        #: The resourceVersion that an answered patch replaced, by node, until a view shows another one.
        self._unseen: dict[str, str] = {}
        #: UIDs of pods whose eviction was accepted, until a view shows them terminating or gone.
        self._ending: set[str] = set()
        #: When a key may be tried again, seconds since 1970. No key in it is in ``_running``.
        self._pauses: dict[str, float] = {}
        #: Consecutive refusals by key; a key without an entry has none.
        self._backoffs: dict[str, Backoff] = {}

    @property
    def busy(self) -> frozenset[str]:
        """Nodes with a write that no watch has shown yet."""
        running = {key.removeprefix("node/") for key in self._running if key.startswith("node/")}
        return frozenset(running | self._unseen.keys())

    @property
    def until(self) -> float | None:
        """The end of the next pause; None if there is none."""
        return min(self._pauses.values(), default=None)

    def update(self, views: Sequence[NodeView], now: float) -> None:
        """Removes instructions whose outcome the views show."""
        versions = {view.name: view.version for view in views}
        self._unseen = {name: old for name, old in self._unseen.items() if versions.get(name) == old}
        pulls = {pod.uid for view in views for pod in view.pulls if not pod.terminating}
        self._ending &= pulls | {pod.uid for view in views for pod in view.pods if not pod.terminating}
        self._pauses = {key: until for key, until in self._pauses.items() if until > now}

    def start(self, instruction: Instruction) -> bool:
        """Registers an instruction; returns False if it must not be carried out now."""
        key = _key(instruction)
        if key in self._running or key in self._pauses:
            return False
        match instruction:
            case PatchNode(node=node) if node in self._unseen:
                return False
            case EvictPod(node=node) if node in self.busy:
                return False
            case EvictPod(uid=uid) | DeletePull(uid=uid) if uid in self._ending:
                return False
        self._running.add(key)
        return True

    def finish(self, instruction: Instruction, answer: InstructionOutcome, now: float) -> None:
        """Records how an instruction ended."""
        key = _key(instruction)
        self._running.discard(key)
        if answer is InstructionOutcome.REFUSED:
            self._pauses[key] = now + self._pause(instruction, key)
            return
        self._backoffs.pop(key, None)
        match instruction:
            case PatchNode(node=node, version=version):
                self._unseen[node] = version
            case EvictPod(uid=uid) | DeletePull(uid=uid):
                self._ending.add(uid)
            case PullImage():
                self._pauses[key] = now + SEEN_SECONDS

    def _pause(self, instruction: Instruction, key: str) -> float:
        if isinstance(instruction, EvictPod):
            return EVICTION_PAUSE
        return self._backoffs.setdefault(key, Backoff(self._rng)).next()


def _key(instruction: Instruction) -> str:
    """The object that has at most one write in flight."""
    match instruction:
        case PatchNode(node=node):
            return f"node/{node}"
        case EvictPod(uid=uid) | DeletePull(uid=uid):
            return f"pod/{uid}"
        case PullImage(node=node, set=set_):
            return f"pull/{node}/{set_}"
        case RecordFailure() | ForgetFailures():
            return "failures"


class Rollout:
    """Brings nodes to the driver sets that they should have.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        executor: the executor that writes.
        metrics: the gauges.
        wake: called when something may be due that no watch shows.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        executor: RolloutExecutor,
        *,
        metrics: RolloutMetrics,
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
