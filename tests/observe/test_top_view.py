"""The screen of ``tessera top``: keys, orders, filter, the cursor, and the texts that keys ask for."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe.conftest import GIB, card, lease

from tessera.access.agent_pages import FleetUsage
from tessera.api.nodes.usage import LeaseUsage, NodeUsage
from tessera.observe.reading import Usage
from tessera.observe.top_view import Ask, Failed, Pressed, Question, Read, Told, TopView, View, visible
from tessera.observe.usage_rows import LeaseRow, card_rows, lease_rows

LEASES = (lease("b", memory=1 * GIB), lease("a", "GPU-2", memory=5 * GIB, state="idle"), lease("c", memory=3 * GIB))


def usage_of(*leases: LeaseUsage) -> Usage:
    cards = (card(power=10.0), card("GPU-2", 1, power=90.0, gpu_utilization=0.1))
    page = NodeUsage(node="n1", cards=cards, leases=leases)
    return Usage(fleet=FleetUsage(nodes=(page,)), cards=card_rows([page]), leases=lease_rows([page]), agents=1)


USAGE = usage_of(*LEASES)


def pressed(*keys: str, view: TopView | None = None) -> TopView:
    if view is None:
        view = TopView()
        view.handle(Read(USAGE))
    for key in keys:
        view.handle(Pressed(key))
    return view


def pods(view: TopView) -> Sequence[str]:
    return [row.lease.pod for row in view.select_leases(USAGE)]


def under_cursor(view: TopView) -> str:
    row = view.rows[view.cursor]
    return row.lease.pod if isinstance(row, LeaseRow) else getattr(row, "uuid", "")


def asked(view: TopView, key: str) -> Ask:
    (ask,) = view.handle(Pressed(key))
    return ask


def test_pods_are_sorted_by_name_then_by_each_order_in_turn() -> None:
    assert pods(pressed()) == ["a", "b", "c"]
    assert pressed("s", "s").order == "memory"
    assert pods(pressed("s", "s")) == ["a", "c", "b"]
    assert pods(pressed("s", "s", "r")) == ["b", "c", "a"]
    assert pressed(*"sssss").order == "name"


def test_a_dot_and_a_comma_go_through_the_orders_as_in_nvitop() -> None:
    assert pressed(".").order == "busy"
    assert pressed(",").order == "wasted"
    assert pressed(".", ",").order == "name"


def test_cards_have_orders_of_their_own() -> None:
    view = pressed("c")
    assert [row.index for row in view.select_cards(USAGE)] == [0, 1]
    view.order = "power"
    assert [row.index for row in view.select_cards(USAGE)] == [1, 0]
    assert pressed("p", view=view).order == "name"


def test_a_filter_is_typed_kept_and_cleared() -> None:
    view = pressed("/", *"idle")
    assert view.editing
    assert pods(view) == ["a"]
    assert pods(pressed("enter", view=view)) == ["a"]
    assert not view.editing
    assert pods(pressed("escape", view=view)) == ["a", "b", "c"]
    assert pressed("/", "q", "backspace").filter == ""
    assert not pressed("/", "q").ended


def test_q_quits_and_closes_a_text_first() -> None:
    assert pressed("q").ended
    helped = pressed("?")
    assert helped.pane is not None
    assert not pressed("q", view=helped).ended
    assert helped.pane is None
    assert pressed("h", "?").pane is None


# The cursor


@pytest.mark.parametrize(
    ("keys", "pod"),
    [("", "a"), (["down"], "b"), ("jj", "c"), ("jjjj", "c"), ("jk", "a"), (["end"], "c"), (["end", "home"], "a")],
)
def test_the_cursor_moves_within_the_rows(keys: Sequence[str], pod: str) -> None:
    assert under_cursor(pressed(*keys)) == pod


def test_the_cursor_stays_on_its_pod_when_the_order_or_the_rows_change() -> None:
    view = pressed("j", "s", "s")
    assert under_cursor(view) == "b"
    view.handle(Read(usage_of(lease("0"), *LEASES)))
    assert (under_cursor(view), view.message) == ("b", "")
    assert under_cursor(pressed("/", *"state", "escape", view=view)) == under_cursor(view)


def test_of_a_pod_that_ends_under_the_cursor_the_name_is_said_and_the_place_stays() -> None:
    view = pressed("j")
    view.handle(Read(usage_of(LEASES[1], LEASES[2])))
    assert under_cursor(view) == "c"
    assert view.message == "team/b has ended, or holds no card any more"
    view.handle(Read(usage_of()))
    assert asked_nothing(view, "enter").startswith("no pod is selected")


def asked_nothing(view: TopView, key: str) -> str:
    assert not view.handle(Pressed(key))
    assert view.pane is None
    return view.message


@pytest.mark.parametrize(
    ("count", "offset", "cursor", "shown"), [(20, 0, 7, (3, 8)), (20, 9, 2, (2, 7)), (3, 2, 0, (0, 3))]
)
def test_the_row_of_the_cursor_is_among_those_that_are_shown(
    count: int, offset: int, cursor: int, shown: tuple[int, int]
) -> None:
    assert visible(count, offset, 5, cursor) == range(*shown)


# Questions


@pytest.mark.parametrize(
    ("key", "question"),
    [("enter", Question.WHY), ("l", Question.LOG), ("d", Question.DESCRIBE), ("o", Question.PAGE)],
)
def test_a_key_asks_about_the_pod_under_the_cursor(key: str, question: Question) -> None:
    view = pressed("j")
    ask = asked(view, key)
    assert ask == Ask(question=question, namespace="team", pod="b", container="main", node="n1")
    assert view.pane is not None
    assert not view.pane.answered
    view.handle(Told(ask, ["one"]))
    view.handle(Told(ask, ["two"]))
    assert view.pane.lines == ["one", "two"]


def test_a_question_in_an_open_text_is_about_its_pod_and_the_old_answer_is_dropped() -> None:
    view = pressed("j")
    why = asked(view, "enter")
    view.handle(Read(usage_of(LEASES[1])))
    log = asked(view, "l")
    assert (log.question, log.pod) == (Question.LOG, "b")
    view.handle(Told(why, ["late"]))
    view.handle(Failed(why, "late"))
    assert view.pane is not None
    assert (view.pane.lines, view.message) == ([], "")


def test_a_failure_is_the_message_and_closes_an_empty_text() -> None:
    view = pressed()
    log = asked(view, "l")
    view.handle(Failed(log, "you may not read logs"))
    assert (view.pane, view.message) == (None, "you may not read logs")
    assert pressed("j", view=view).message == ""
    log = asked(view, "l")
    view.handle(Told(log, ["line"]))
    view.handle(Failed(log, "connection lost"))
    assert view.pane is not None
    assert (view.pane.lines, view.message) == (["line"], "connection lost")


def test_of_a_card_its_node_is_explained_and_a_log_needs_a_pod() -> None:
    view = pressed("c")
    assert asked(view, "enter") == Ask(question=Question.WHY, node="n1")
    pressed("escape", view=view)
    assert asked_nothing(view, "l") == "log is of a pod: press p for the pods"


def test_another_teams_pod_is_not_asked_about() -> None:
    view = TopView()
    view.handle(Read(usage_of(msgspec.structs.replace(LEASES[0], namespace="~", pod="~d12fa237"))))
    assert "another team's" in asked_nothing(view, "d")


def test_a_log_follows_its_end_until_the_user_scrolls_up_and_again_at_the_end() -> None:
    view = pressed()
    log = asked(view, "l")
    view.handle(Told(log, [str(number) for number in range(5_000)]))
    assert view.pane is not None
    assert len(view.pane.lines) == 2_000
    view.pane.last = 90
    assert view.pane.offset > 90
    pressed("k", view=view)
    assert view.pane.offset == 89
    pressed("j", view=view)
    assert view.pane.offset > 90


KEYS = ["up", "down", "c", "p", "s", "r", "/", "x", "escape", "enter", "h", "page-down", "l", "d", "o", "end", "q"]


@given(st.lists(st.one_of(st.sampled_from(KEYS), st.integers(0, 3), st.just("tell"))))
def test_no_events_leave_a_view_without_its_order_or_its_cursor(events: list[str | int]) -> None:
    view, asks = pressed(), list[Ask]()
    for event in events:
        if isinstance(event, int):
            view.handle(Read(usage_of(*LEASES[:event])))
        elif event == "tell" and asks:
            view.handle(Told(asks[-1], ["line"]))
        else:
            asks += view.handle(Pressed(event))
        assert view.order in view.orders
        assert 0 <= view.cursor < max(1, len(view.rows))
        assert (view.selected is None) == (not view.rows)
        assert len(visible(len(view.rows), view.offset, 2, view.cursor if view.rows else None)) <= 2
        assert view.view in View
