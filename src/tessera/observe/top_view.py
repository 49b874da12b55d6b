"""State of the screen of ``tessera top``: order, filter and scrolling, changed by keys. Pure.

Keys: ``c`` cards, ``p`` pods; ``s`` or ``.`` next order, ``,`` the one before (as in nvitop), ``r`` reverse; ``/``
filter, Enter keeps it, Escape clears it; arrows, ``j`` and ``k``, Page Up, Page Down, Home and End scroll; ``h`` or
``?`` help; ``q`` quits.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec

from tessera.observe.reading import Usage
from tessera.observe.usage_rows import CARD_ORDERS, LEASE_ORDERS, CardRow, LeaseRow

Row = TypeVar("Row")


class View(Enum):
    """Subject of a row of the screen."""

    CARDS = "cards"
    PODS = "pods"


#: An offset behind every row; what is shown keeps it in range.
_LAST = 1 << 30
#: Order by the place of a row: node and card, or namespace and pod.
PLACE = "name"
HELP = (
    "c cards   s or .  next order    /  filter, Escape clears it",
    "p pods    ,  order before       r  reverse the order",
    "h help    q  quit    arrows, Page Up/Down, Home, End  scroll",
)


class TopView(msgspec.Struct, kw_only=True):
    """The state of the screen.

    Attributes:
        view: cards or pods.
        order: name of an order of the view.
        reverse: True to show the smallest first.
        filter: rows are shown whose text contains it.
        editing: True while the user types the filter.
        offset: first row that is shown.
        shows_help: True while the help is shown.
        ended: True once the user has quit.
    """

    view: View = View.PODS
    order: str = PLACE
    reverse: bool = False
    filter: str = ""
    editing: bool = False
    offset: int = 0
    shows_help: bool = False
    ended: bool = False

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders of the view."""
        return (PLACE, *(CARD_ORDERS if self.view is View.CARDS else LEASE_ORDERS))

    def press(self, key: str, *, page: int = 10) -> None:
        """Takes a key press in.

        Args:
            key: a character, or ``up``, ``down``, ``page-up``, ``page-down``, ``home``, ``end``, ``enter``, ``escape``,
                ``backspace``.
            page: rows of a page.
        """
        if self.editing:
            self._edit(key)
            return
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -page, "page-down": page}
        if key in moves:
            self.offset = max(0, self.offset + moves[key])
            return
        match key:
            case "q":
                self.ended = True
            case "c" | "p":
                self.view = View.CARDS if key == "c" else View.PODS
                self.offset = 0
                if self.order not in self.orders:
                    self.order = PLACE
            case "s" | "." | ",":
                step = -1 if key == "," else 1
                self.order = self.orders[(self.orders.index(self.order) + step) % len(self.orders)]
            case "home" | "end":
                self.offset = 0 if key == "home" else _LAST
            case "r":
                self.reverse = not self.reverse
            case "/":
                self.editing = True
            case "escape":
                self.filter, self.shows_help = "", False
            case "h" | "?":
                self.shows_help = not self.shows_help
            case _:
                pass

    def _edit(self, key: str) -> None:
        match key:
            case "enter":
                self.editing = False
            case "escape":
                self.editing, self.filter = False, ""
            case "backspace":
                self.filter = self.filter[:-1]
            case _ if len(key) == 1 and key.isprintable():
                self.filter += key
            case _:
                pass
        self.offset = 0

    def select_cards(self, usage: Usage) -> list[CardRow]:
        """The cards to show, in order."""
        rows = [
            row
            for row in usage.cards
            if self.filter.lower() in f"{row.node} {row.model} {row.state} {row.uuid}".lower()
        ]
        order = CARD_ORDERS.get(self.order)
        return _arrange(rows, order, lambda row: (row.node, row.index), reverse=self.reverse)

    def select_leases(self, usage: Usage) -> list[LeaseRow]:
        """The leases to show, in order."""
        rows = [
            row
            for row in usage.leases
            if self.filter.lower() in f"{row.key} {row.node} {row.owner} {row.model} {row.lease.state}".lower()
        ]
        order = LEASE_ORDERS.get(self.order)
        return _arrange(rows, order, lambda row: (row.key, row.lease.container, row.node), reverse=self.reverse)


def _arrange(
    rows: Sequence[Row], order: Callable[[Row], float] | None, place: Callable[[Row], Any], *, reverse: bool
) -> list[Row]:
    """Sorts by the order, largest first, and by the place among equals; ``reverse`` turns the list."""
    placed = sorted(rows, key=place)
    found = placed if order is None else sorted(placed, key=order, reverse=True)
    return found[::-1] if reverse else found


def visible_rows(rows: Sequence[Row], view: TopView, room: int) -> Sequence[Row]:
    """The rows that fit ``room`` lines, from the view's offset on; keeps the offset in range."""
    view.offset = min(view.offset, max(0, len(rows) - room))
    return rows[view.offset : view.offset + room]
