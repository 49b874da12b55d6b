"""How far an update is: which images of new pods are on the nodes, and which new pods are ready or have failed."""

from tessera.api.names import NodeName, PodUid
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.pod_info import PodInfo, Workload
from tessera.controller.slicing.evictions.mover import EVICTION_SECONDS, MOVES_AFTER
from tessera.controller.slicing.state.reservation_rules import holders_of
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.handover.old_slots import ends
from tessera.handover.updates import Update
from tessera.reasons.reason import Fragmented, UpdateStep
from tessera.text import one_line

#: Restarts of a container after which a new pod has failed.
RESTARTS = 3
#: Most seconds for which images are waited for that may still come.
PULL_SECONDS = 600.0
#: Steps in which a pod waits for its images.
_PULL_STEPS = frozenset({UpdateStep.PULL, UpdateStep.IMAGE})


class Progress:
    """What is known of the new pods of updates.

    Args:
        state: the slicer's state.
        moves: True if pods are moved, which goes first.

    Attributes:
        pulls: by waiting pod, the node to which somebody should bring its images.
        refusals: by waiting pod, what kubelet says there of an image that it does not get.
        dues: when time alone changes an answer given since the list was emptied, seconds since 1970.
    """

    def __init__(self, state: SlicerState, *, moves: bool) -> None:
        self._state = state
        self._moves = moves
        self.pulls: dict[PodUid, NodeName] = {}
        self.refusals: dict[PodUid, str] = {}
        self.dues: list[float] = []
        #: By waiting pod, the node on which its images are, and when they were asked for.
        self._pulled: dict[PodUid, NodeName] = {}
        self._pull_began: dict[PodUid, float] = {}

    # Images

    def note_images(self, uid: PodUid, node: NodeName, refusal: str) -> bool:
        """Takes in what has become of the images of a waiting pod; False if nobody waits for them there."""
        if self.pulls.get(uid) != node:
            return False
        if refusal:
            self.refusals[uid] = one_line(refusal, 200)
        else:
            self.refusals.pop(uid, None)
            self._pulled[uid] = node
        return True

    def has_images(self, pod: PodInfo, node: NodeName) -> bool:
        """True if a pod's images are on a node, or were waited for long enough; has them brought there otherwise."""
        if self._pulled.get(pod.uid) == node:
            return True
        if self.pulls.get(pod.uid) != node:
            self.pulls[pod.uid] = node
            self._pull_began[pod.uid] = self._state.now
            self.refusals.pop(pod.uid, None)
        if pod.uid in self.refusals:
            return False
        due = self._pull_began[pod.uid] + PULL_SECONDS
        self.dues.append(due)
        return self._state.now >= due

    def forget(self) -> None:
        """Forgets pods that wait for no images any more."""
        updates = self._state.updates
        waits = {uid for uid, each in updates.items() if each.step in _PULL_STEPS}
        self.pulls = {uid: node for uid, node in self.pulls.items() if uid in waits}
        self.refusals = {uid: said for uid, said in self.refusals.items() if uid in waits}
        self._pull_began = {uid: began for uid, began in self._pull_began.items() if uid in waits}
        self._pulled = {uid: node for uid, node in self._pulled.items() if uid in updates}

    # Pods

    def are_ready(self, update: Update) -> bool:
        """True if all new pods with slots are ready for as long as the Deployment asks for."""
        for pod in update.new:
            if self._state.allocations.current_of(pod.uid) is None:
                continue
            if not pod.ready_since:
                if pod.started:
                    self.dues.append(pod.started + update.newest.deadline)
                return False
            if self._state.now < pod.ready_since + update.newest.ready_for:
                self.dues.append(pod.ready_since + update.newest.ready_for)
                return False
        return True

    def may_end(self, update: Update, old: PodInfo, pod: PodInfo) -> bool:
        """False for a ready old pod while fewer pods are ready than wanted, until the deadline of the new pod.

        So an update that follows another at once does not end the last ready pod while those of the other one start.
        """
        if not old.ready_since or _count_ready(update) >= update.newest.wanted:
            return True
        due = parse_time_or_zero(pod.created) + update.newest.deadline
        self.dues.append(due)
        return self._state.now >= due

    def may_get_room(self, pod: PodInfo) -> bool:
        """True if slots come without the service's loss: those reserved for it are about to be free, or pods move."""
        own = self._state.reservations.get(pod.uid)
        if own is not None and all(ends(self._state, each.uid) for each in holders_of(self._state, own)):
            return True
        until = parse_time_or_zero(pod.created) + MOVES_AFTER + EVICTION_SECONDS
        may_move = self._moves and isinstance(self._state.pods.reason_of(pod.uid), Fragmented)
        if may_move and self._state.now < until:
            self.dues.append(until)
            return True
        return False

    def has_failed(self, update: Update, pod: PodInfo) -> bool:
        """True if a new pod with slots is not ready, and will hardly be."""
        if not pod.hands_over or pod.ready_since or self._state.allocations.current_of(pod.uid) is None:
            return False
        end = pod.started + update.newest.deadline
        if pod.started and pod.restarts < RESTARTS and self._state.now < end:
            self.dues.append(end)
        return pod.restarts >= RESTARTS or pod.lacks_image or bool(pod.started and self._state.now >= end)

    def is_marked(self, pod: PodInfo, newest: Workload) -> bool:
        """True if a pod of the same ReplicaSet and revision has failed before."""
        marks = (each for found in self._state.moves.values() for each in found if each.revision)
        return any((each.owner, each.revision) == (pod.owner, newest.revision) for each in marks)


def _count_ready(update: Update) -> int:
    return sum(bool(pod.ready_since) for pod in (*update.new, *update.old))
