"""Keeps the moves of the last hour: takes over those that an earlier process recorded, and forgets older ones."""

from collections.abc import Iterator

from tessera.controller.base.settings import MoveSettings
from tessera.controller.slicing.planning.proposals import Proposal, Proposer
from tessera.controller.slicing.state.move_record import MOVE_COUNTS, MOVES_ANNOTATION, read_moves
from tessera.controller.slicing.state.slicer_state import SlicerState


class RecordedMoves(Proposer):
    """The moves of the last hour. They count where no further moves are made too.

    Args:
        state: the slicer's state, of which this class changes the moves.
        settings: say how many moves an hour has at most.
    """

    def __init__(self, state: SlicerState, settings: MoveSettings) -> None:
        self.next_due = 0.0
        self._state = state
        self._settings = settings
        #: True once the recorded moves have been taken over; this happens once, as soon as the time is known.
        self._adopted = False

    def propose(self) -> Iterator[Proposal]:
        """Brings the moves of the last hour up to date, and proposes nothing."""
        if self._state.now:
            self._adopt()
            self._forget()
            dates = (each.date for found in self._state.moves.values() for each in found)
            self.next_due = min((each + MOVE_COUNTS for each in dates), default=None)
        yield from ()

    def _adopt(self) -> None:
        if self._adopted:
            return
        self._adopted = True
        for node, item in self._state.cluster.objects.items():
            if MOVES_ANNOTATION in item.metadata.annotations:
                self._state.moves[node] = tuple(read_moves(item))[: self._settings.per_hour]
                self._state.dirty_nodes.add(node)

    def _forget(self) -> None:
        for node, found in list(self._state.moves.items()):
            left = tuple(each for each in found if each.counts(self._state.now))
            if len(left) < len(found):
                self._state.dirty_nodes.add(node)
                if left:
                    self._state.moves[node] = left
                else:
                    del self._state.moves[node]
