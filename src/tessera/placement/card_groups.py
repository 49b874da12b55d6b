"""The groups of alike cards of one geometry."""

from collections.abc import Sequence

from tessera.placement.card_table import CardTable, Pending
from tessera.placement.cards import AlikeCards


class CardGroups:
    """All cards of one geometry by their states; no group is empty.

    Args:
        table: costs and arrangements of the geometry.

    Attributes:
        settled: groups of cards without pending slices, by occupancy.
        started: the other groups, by occupancy and pending slices.
    """

    __slots__ = ("settled", "started", "table")

    def __init__(self, table: CardTable) -> None:
        self.table = table
        self.settled: dict[int, AlikeCards] = {}
        self.started: dict[tuple[int, Pending], AlikeCards] = {}

    def __bool__(self) -> bool:
        return bool(self.settled or self.started)

    def group(self, occupancy: int, pending: Pending) -> AlikeCards:
        """Returns the group of a state; a new one counts from now on."""
        if pending:
            group = self.started.get((occupancy, pending))
            if group is None:
                self.table.add_state(occupancy)
                group = self.started[occupancy, pending] = AlikeCards(ranked=True)
            return group
        group = self.settled.get(occupancy)
        if group is None:
            self.table.add_state(occupancy)
            group = self.settled[occupancy] = AlikeCards(ranked=self.table.usable_slots(occupancy) > 0)
        return group

    def drop(self, occupancy: int, pending: Pending) -> None:
        """Removes the group of a state, which has become empty."""
        if pending:
            del self.started[occupancy, pending]
        else:
            del self.settled[occupancy]

    def find(self, occupancy: int, pending: Pending) -> AlikeCards | None:
        """Returns the group of a state; None if no card has it."""
        return self.started.get((occupancy, pending)) if pending else self.settled.get(occupancy)

    def first(self, ranked: Sequence[int]) -> AlikeCards | None:
        """Returns the first group without pending slices whose occupancy is in a ranking."""
        settled = self.settled
        occupancy = next(filter(settled.__contains__, ranked), None)
        return None if occupancy is None else settled[occupancy]
