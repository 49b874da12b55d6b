"""Has the images of a pod pulled to the node of its reserved slots, so that it starts when the slots are free.

Rules:

- Only while the slots are held by others: a pod that starts now pulls its images itself. Only within :data:`AHEAD`
  seconds of the expected start, since a reservation may move and a node throws unused images away.
- At most :data:`PODS` pods, half of what pulls at a time (:mod:`tessera.handover.image_pulls`), since updates wait for
  their images: those that start first, of each namespace in turn.
- Once for each pod and node. Nobody waits for the images: the pod gets its slots when they are free.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from heapq import nsmallest

from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.proposals import Proposal, Proposer
from tessera.controller.slicing.state.node_records import Reservation
from tessera.controller.slicing.state.reservation_rules import holders_of
from tessera.controller.slicing.state.slicer_state import SlicerState

#: Seconds, as long as a pull may take; and pods.
AHEAD, PODS = 600.0, 8


class ReservedImages(Proposer):
    """Says which images should come to which node; it proposes no change.

    Args:
        state: the slicer's state.
    """

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self._pulls: dict[PodUid, NodeName] = {}
        self._pulled: set[tuple[PodUid, NodeName]] = set()

    @property
    def pulls(self) -> Mapping[PodUid, NodeName]:
        """By pod with reserved slots, their node."""
        return self._pulls

    def note_images(self, uid: PodUid, node: NodeName, _refusal: str) -> None:
        """Takes in that images are on a node, or do not come."""
        if self._pulls.get(uid) == node:
            del self._pulls[uid]
            self._pulled.add((uid, node))
            self.asks = bool(self._pulls)

    def review(self, _nodes: AbstractSet[NodeName]) -> Iterator[Proposal]:
        """Looks at the reservations; proposes nothing."""
        state = self._state
        reserved = [
            each
            for uid, each in state.reservations.items()
            if each.number and uid in state.waiting and holders_of(state, each)
        ]
        self._pulled &= {(each.uid, each.node) for each in reserved}
        lacking = [each for each in reserved if (each.uid, each.node) not in self._pulled]
        dues = (each.until - AHEAD for each in lacking)
        self.next_due = min((each for each in dues if each > state.now), default=None)
        ahead = [each for each in lacking if each.until <= state.now + AHEAD]
        self._pulls = {each.uid: each.node for each in _first_of_namespaces(ahead)}
        self.asks = bool(self._pulls)
        return iter(())


def _first_of_namespaces(reserved: Iterable[Reservation]) -> list[Reservation]:
    """Returns the first reservations, at most :data:`PODS`: of each namespace one before any gets a second."""
    counts = Counter[str]()
    turns: list[tuple[int, Reservation]] = []
    for one in sorted(reserved, key=lambda each: (each.until, each.rank)):
        namespace = one.key.partition("/")[0]
        turns.append((counts[namespace], one))
        counts[namespace] += 1
    return [one for _, one in nsmallest(PODS, turns, key=lambda each: (each[0], each[1].until, each[1].rank))]
