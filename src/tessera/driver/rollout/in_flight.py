"""Instructions in flight: started, but without a visible outcome. The rollout keeps nothing else between rounds. Pure.

A watch shows a write some time after the server answered. Until then that node or pod gets no other instruction, and
the node counts as in progress. So an old view never lets one node too many begin, and never evicts a pod twice. All of
this may be lost with the process, since the next one lists everything before it decides.

Other parts use :mod:`tessera.kube.executor` for this. The rollout does not, for two reasons. First, the busy nodes are
an input of its decision, so they must follow from the same node views as the decision; the executor frees a key as soon
as an event arrives, before the views have it. Second, the property tests of the rollout run thousands of process lives
with this class in them; they need a class that has no tasks and no timers, and takes the time as an argument.
"""

import random
from collections.abc import Sequence

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
from tessera.kube.backoff import Backoff

#: Seconds until a refused eviction is repeated; the value of kubectl drain.
EVICTION_PAUSE = 5.0
#: Seconds within which the watch shows a created pod.
SEEN_SECONDS = 5.0


class InFlight:
    """Instructions from their start until a watch shows their outcome.

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
