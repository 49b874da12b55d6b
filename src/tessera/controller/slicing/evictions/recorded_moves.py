"""Keeps the moves of the last hour: takes over those that an earlier process recorded, and forgets older ones."""

from collections.abc import Iterator, Sequence

from tessera.controller.base.settings import MoveSettings
from tessera.controller.slicing.planning.proposals import Proposal, Proposer
from tessera.controller.slicing.state.move_record import MOVE_COUNTS, MOVES_ANNOTATION, RecordedMove, read_moves
from tessera.controller.slicing.state.slicer_state import SlicerState

#: Most entries of failed updates that a new controller takes over from one node.
FAILED_UPDATES = 64


class RecordedMoves(Proposer):
    """The moves of the last hour. They count where no further moves are made too.

    Args:
        state: the slicer's state, of which this class changes the moves.
        settings: say how many moves an hour has at most.
        others: proposers that may know owners of failed updates.
    """

    def __init__(self, state: SlicerState, settings: MoveSettings, others: Sequence[Proposer]) -> None:
        self.next_due = 0.0
        self._state = state
        self._settings = settings
        self._others = others
        #: True once the recorded moves have been taken over; this happens once, as soon as the time is known.
        self._adopted = False

    def propose(self) -> Iterator[Proposal]:
        """Brings the moves of the last hour up to date, and proposes nothing."""
        if self._state.now:
            self._adopt()
            self._forget()
            ends = (each.date + MOVE_COUNTS for found in self._state.moves.values() for each in found)
            self.next_due = min((each for each in ends if each > self._state.now), default=None)
        yield from ()

    def _adopt(self) -> None:
        if self._adopted:
            return
        self._adopted = True
        for node, item in self._state.cluster.objects.items():
            if MOVES_ANNOTATION in item.metadata.annotations:
                found = sorted(read_moves(item), key=lambda each: not each.revision)
                self._state.moves[node] = tuple(found[: max(FAILED_UPDATES, self._settings.per_hour)])
                self._state.dirty_nodes.add(node)

    def _forget(self) -> None:
        for node, found in list(self._state.moves.items()):
            left = tuple(each for each in found if each.is_recent(self._state.now) or self._has_failed(each))
            if len(left) < len(found):
                self._state.dirty_nodes.add(node)
                if left:
                    self._state.moves[node] = left
                else:
                    del self._state.moves[node]

    def _has_failed(self, one: RecordedMove) -> bool:
        """True for an update that failed, while its ReplicaSet has pods."""
        return bool(one.revision) and any(each.has_pods_of(one.owner) for each in self._others)
