"""State of the screen of ``tessera top``: events go in, requests to the cluster come out. Pure.

Events are a key (:class:`Pressed`), a new reading of the cluster (:class:`Read`), and the lines (:class:`Told`) or the
failure (:class:`Failed`) of a request. A request (:class:`Ask`) is made by a key: Enter asks why, ``l`` for the log,
``d`` for the description of the pod under the cursor, ``o`` for the address of the live page. Its answer is a text over
the table, until Escape; what comes for a text that was closed meanwhile is dropped.

The cursor stays on its pod or card when rows come, go or change their order. When its pod ends, the cursor stays at its
place, and the message names the pod.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tessera.observe.reading import Usage
from tessera.observe.usage_rows import CARD_ORDERS, LEASE_ORDERS, TEAM_ORDERS, CardRow, LeaseRow, TeamRow

if TYPE_CHECKING:  # only the view of services needs them
    from tessera.observe.service_rows import ServiceRow

    Rows = Sequence[CardRow | LeaseRow | ServiceRow | TeamRow]

Row = TypeVar("Row")


class View(Enum):
    """Subject of a row of the screen."""

    CARDS = "cards"
    PODS = "pods"
    SERVICES = "services"
    TEAMS = "teams"


class Question(Enum):
    """What a key asks about the row under the cursor."""

    WHY = "why"
    LOG = "log"
    DESCRIBE = "describe"
    PAGE = "page"


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the cluster.

    Attributes:
        question: what is asked.
        namespace: of the pod; empty for a card.
        pod: its name; empty for a card.
        container: the container that holds the card; empty if it is not known.
        node: the node of the row.
    """

    question: Question
    namespace: str = ""
    pod: str = ""
    container: str = ""
    node: str = ""

    @property
    def title(self) -> str:
        """The question in words: ``why pod team/web``."""
        about = f"pod {self.namespace}/{self.pod}" if self.pod else f"node {self.node}"
        return f"{self.question.value} {about}"


class Pressed(msgspec.Struct, frozen=True):
    """A key.

    Attributes:
        key: a character, or ``up``, ``down``, ``page-up``, ``page-down``, ``home``, ``end``, ``enter``, ``escape``,
            ``backspace``.
        page: how many rows a page has.
    """

    key: str
    page: int = 10


class Read(msgspec.Struct, frozen=True):
    """A new reading of the cluster."""

    usage: Usage


class Told(msgspec.Struct, frozen=True):
    """Lines of an answer; further ones of the same request follow those before."""

    ask: Ask
    lines: Sequence[str]


class Failed(msgspec.Struct, frozen=True):
    """A request failed, or its answer ended, with the reason and the next step."""

    ask: Ask
    text: str


Event = Pressed | Read | Told | Failed


class Pane(msgspec.Struct):
    """A text over the table.

    Attributes:
        ask: the request that it answers; None for the help.
        lines: the text so far.
        offset: first line that is shown; one behind ``last`` follows the end.
        last: the offset at which the end is shown, as the screen was drawn last.
        answered: False until the first lines have come.
    """

    ask: Ask | None
    lines: list[str]
    offset: int = 0
    last: int = 0
    answered: bool = False


#: An offset behind every row; what is shown keeps it in range.
_LAST = 1 << 30
#: Lines of a log that a text keeps.
_KEPT = 2_000
#: Begins the alias of another team's namespace.
_HIDDEN = "~"
#: Order by the place of a row: node and card, or namespace and pod.
PLACE = "name"
_QUESTIONS = {"enter": Question.WHY, "l": Question.LOG, "d": Question.DESCRIBE, "o": Question.PAGE}
HELP = (
    "Enter    why the pod or node is as it is, and what would help",
    "l        log of the pod, as it grows",
    "d        describe the pod: conditions, containers, events",
    "o        address of the live page, filtered to the row",
    "c p v t  cards, pods, services, teams",
    "s . ,    next order, order before; r reverses it",
    "/        filter rows; Escape clears the filter",
    "j k      down, up, as the arrows; Page Up, Page Down, Home, End",
    "h ?      this help; Escape closes it",
    "q        quit",
)


class TopView(msgspec.Struct, kw_only=True):
    """The state of the screen.

    Attributes:
        view: cards, pods, services or teams.
        order: name of an order of the view.
        reverse: True to show the smallest first.
        filter: rows are shown whose text contains it.
        editing: True while the user types the filter.
        cursor: number of the row under the cursor; in range while there are rows.
        selected: that row's key, by which the cursor follows it; None without rows.
        offset: first row that is shown.
        pane: the text over the table; None for the table alone.
        message: of the status line; empty for none. The next key clears it.
        usage: the last reading; None before the first one.
        ended: True once the user has quit.
        arranged: the rows, and what they were arranged by: a large cluster's are not sorted for each key.
    """

    view: View = View.PODS
    order: str = PLACE
    reverse: bool = False
    filter: str = ""
    editing: bool = False
    cursor: int = 0
    selected: tuple[str, ...] | None = None
    offset: int = 0
    pane: Pane | None = None
    message: str = ""
    usage: Usage | None = None
    ended: bool = False
    arranged: "tuple[Any, Rows]" = (None, ())

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders of the view."""
        if self.view is View.SERVICES:
            from tessera.observe.service_rows import SERVICE_ORDERS

            return (PLACE, *SERVICE_ORDERS)
        return (PLACE, *{View.CARDS: CARD_ORDERS, View.PODS: LEASE_ORDERS, View.TEAMS: TEAM_ORDERS}[self.view])

    @property
    def rows(self) -> "Rows":
        """The rows that the filter keeps, in order."""
        if self.usage is None:
            return ()
        by = (id(self.usage), self.view, self.order, self.reverse, self.filter)
        if self.arranged[0] != by:
            self.arranged = (by, self.select(self.usage))
        return self.arranged[1]

    def select(self, usage: Usage) -> "Rows":
        """The rows of the view to show, in order."""
        match self.view:
            case View.CARDS:
                return self.select_cards(usage)
            case View.SERVICES:
                return self.select_services(usage)
            case View.TEAMS:
                return self.select_teams(usage)
            case View.PODS:
                return self.select_leases(usage)

    def handle(self, event: Event) -> Sequence[Ask]:
        """Takes an event in; returns the requests to make now."""
        match event:
            case Pressed(key, page):
                self.message = ""
                return self._press(key, page)
            case Read(usage):
                self.usage = usage
                self._follow(named=True)
            case Told(ask, lines):
                self._tell(ask, lines)
            case Failed(ask, text):
                if self.pane is not None and self.pane.ask == ask:
                    self.message = text
                    self.pane = self.pane if self.pane.lines else None
        return ()

    def _press(self, key: str, page: int) -> Sequence[Ask]:
        if self.editing:
            self._edit(key)
        elif self.pane is not None and self._scroll(self.pane, key, page):
            pass
        elif key in _QUESTIONS:
            return self._ask(_QUESTIONS[key])
        elif self.pane is None:
            self._move(key, page)
            self._choose(key)
            self._follow()
        return ()

    def _ask(self, question: Question) -> Sequence[Ask]:
        """The request about the row under the cursor, or about that of the open text."""
        ask = self.pane.ask if self.pane is not None and self.pane.ask is not None else self._subject()
        if ask is None:
            self.message = f"no {self.view.value.removesuffix('s')} is selected: nothing is shown"
        elif isinstance(ask, str):
            self.message = ask
        elif ask.namespace.startswith(_HIDDEN):
            self.message = "this pod is another team's: you may not see more of it"
        elif not ask.pod and question in {Question.LOG, Question.DESCRIBE}:
            self.message = f"{question.value} is of a pod: press p for the pods"
        else:
            ask = msgspec.structs.replace(ask, question=question)
            self.pane = Pane(ask=ask, lines=[], offset=_LAST if question is Question.LOG else 0)
            return (ask,)
        return ()

    def _subject(self) -> Ask | str | None:
        """What the row under the cursor is about; a sentence for a row of which nothing can be asked."""
        rows = self.rows
        if not rows:
            return None
        row = rows[self.cursor]
        if isinstance(row, CardRow):
            return Ask(question=Question.WHY, node=row.node)
        if isinstance(row, TeamRow):
            return f"a team is no object of the cluster: press p for the pods, and filter by {row.namespaces[0]}/"
        if isinstance(row, LeaseRow):
            lease = row.lease
            return Ask(
                question=Question.WHY,
                namespace=lease.namespace,
                pod=lease.pod,
                container=lease.container,
                node=row.node,
            )
        if not row.findings:
            return "no finding of this service names a pod: press p for its pods"
        worst = row.findings[0]
        return Ask(question=Question.WHY, namespace=row.namespace, pod=worst.pod, node=worst.node)

    def _tell(self, ask: Ask, lines: Sequence[str]) -> None:
        if self.pane is not None and self.pane.ask == ask:
            self.pane.lines = [*self.pane.lines, *lines][-_KEPT:]
            self.pane.answered = True

    def _scroll(self, pane: Pane, key: str, page: int) -> bool:
        """Scrolls or closes the text; returns False for a key that it does not know."""
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -page, "page-down": page}
        if key in steps:
            to = min(pane.offset, pane.last) + steps[key]
            pane.offset = _LAST if to >= pane.last and steps[key] > 0 else max(0, to)
        elif key in {"home", "end"}:
            pane.offset = 0 if key == "home" else _LAST
        elif key in {"escape", "q"} or (key in {"h", "?"} and pane.ask is None):
            self.pane = None
        else:
            return False
        return True

    def _move(self, key: str, page: int) -> None:
        last = len(self.rows) - 1
        steps = {
            "up": -1,
            "k": -1,
            "down": 1,
            "j": 1,
            "page-up": -page,
            "page-down": page,
            "home": -_LAST,
            "end": _LAST,
        }
        if key in steps and last >= 0:
            self.cursor = min(last, max(0, self.cursor + steps[key]))
            self.selected = _key_of(self.rows[self.cursor])

    def _choose(self, key: str) -> None:
        match key:
            case "q":
                self.ended = True
            case "c" | "p" | "v" | "t":
                self.view = {"c": View.CARDS, "p": View.PODS, "v": View.SERVICES, "t": View.TEAMS}[key]
                self.cursor, self.selected = 0, None
                if self.order not in self.orders:
                    self.order = PLACE
            case "s" | "." | ",":
                step = -1 if key == "," else 1
                self.order = self.orders[(self.orders.index(self.order) + step) % len(self.orders)]
            case "r":
                self.reverse = not self.reverse
            case "/":
                self.editing = True
            case "escape":
                self.filter = ""
            case "h" | "?":
                self.pane = Pane(ask=None, lines=list(HELP), answered=True)
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
        self._follow()

    def _follow(self, *, named: bool = False) -> None:
        """Puts the cursor on the selected row, or on the one at its place; with ``named`` says that a row has gone."""
        keys = [_key_of(row) for row in self.rows]
        if self.selected in keys:
            self.cursor = keys.index(self.selected)
            return
        if named and self.selected is not None and self.usage is not None:
            usage = self.usage
            views: dict[View, Rows] = {View.CARDS: usage.cards, View.SERVICES: usage.services}
            whole = usage.team_rows if self.view is View.TEAMS else views.get(self.view, usage.leases)
            if self.selected not in map(_key_of, whole):
                ended = "has ended, or holds no card any more"
                what = ended if self.view is View.PODS else "is not reported any more"
                self.message = f"{self.selected[0]} {what}"
        self.cursor = min(self.cursor, max(0, len(keys) - 1))
        self.selected = keys[self.cursor] if keys else None

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

    def select_services(self, usage: Usage) -> "list[ServiceRow]":
        """The services to show, in order."""
        from tessera.observe.service_rows import SERVICE_ORDERS

        words = self.filter.lower()
        rows = [
            row
            for row in usage.services
            if words in f"{row.key} {' '.join(each.kind for each in row.findings)}".lower()
        ]
        return _arrange(rows, SERVICE_ORDERS.get(self.order), lambda row: row.key, reverse=self.reverse)

    def select_teams(self, usage: Usage) -> list[TeamRow]:
        """The teams to show, in order."""
        words = self.filter.lower()
        rows = [row for row in usage.team_rows if words in f"{row.team} {' '.join(row.namespaces)}".lower()]
        return _arrange(rows, TEAM_ORDERS.get(self.order), lambda row: row.team, reverse=self.reverse)


def _key_of(row: "CardRow | LeaseRow | ServiceRow | TeamRow") -> tuple[str, ...]:
    """What makes a row itself; its first part is its name for a person."""
    if isinstance(row, TeamRow):
        return (row.team,)
    if isinstance(row, LeaseRow):
        return (row.key, row.lease.uid, row.lease.container, row.lease.device)
    return (f"{row.node}/{row.index}", row.uuid) if isinstance(row, CardRow) else (row.key,)


def _arrange(
    rows: Sequence[Row], order: Callable[[Row], float] | None, place: Callable[[Row], Any], *, reverse: bool
) -> list[Row]:
    """Sorts by the order, largest first, and by the place among equals; ``reverse`` turns the list."""
    placed = sorted(rows, key=place)
    found = placed if order is None else sorted(placed, key=order, reverse=True)
    return found[::-1] if reverse else found


def visible(count: int, offset: int, room: int, cursor: int | None = None) -> range:
    """Numbers of the rows that fit ``room`` lines, from the offset on; with the cursor's row among them."""
    if cursor is not None:
        offset = min(max(offset, cursor - room + 1), cursor)
    first = min(offset, max(0, count - room))
    return range(first, min(count, first + room))
