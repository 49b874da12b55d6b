"""The screen of ``tessera top``: keys, orders, filter, and scrolling."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe.conftest import GIB, card, lease

from tessera.api.nodes.usage import NodeUsage
from tessera.observe.reading import Usage
from tessera.observe.top_view import TopView, View, visible_rows
from tessera.observe.usage_rows import card_rows, lease_rows
from tessera.usage.agent_pages import FleetUsage

PAGE = NodeUsage(
    node="n1",
    cards=(card(power=10.0), card("GPU-2", 1, power=90.0, gpu_utilization=0.1)),
    leases=(lease("b", memory=1 * GIB), lease("a", "GPU-2", memory=5 * GIB, state="idle"), lease("c", memory=3 * GIB)),
)
USAGE = Usage(fleet=FleetUsage(nodes=(PAGE,)), cards=card_rows([PAGE]), leases=lease_rows([PAGE]), agents=1)


def pressed(*keys: str, view: TopView | None = None) -> TopView:
    view = view or TopView()
    for key in keys:
        view.press(key)
    return view


def pods(view: TopView) -> Sequence[str]:
    return [row.lease.pod for row in view.select_leases(USAGE)]


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


def test_home_and_end_show_the_first_and_the_last_rows() -> None:
    view = pressed("end")
    assert visible_rows(range(20), view, 5) == range(15, 20)
    assert visible_rows(range(20), pressed("home", view=view), 5) == range(5)


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


def test_q_quits_and_h_shows_help() -> None:
    assert pressed("q").ended
    assert pressed("h").shows_help
    assert not pressed("h", "?").shows_help


@pytest.mark.parametrize(("keys", "first"), [((), 0), (("down",) * 3, 3), (("page-down",) * 5, 15), (("k",), 0)])
def test_scrolling_stays_within_the_rows(keys: tuple[str, ...], first: int) -> None:
    view = pressed(*keys)
    assert visible_rows(range(20), view, 5) == range(first, first + 5)


@given(st.lists(st.sampled_from(["up", "down", "c", "p", "s", "r", "/", "x", "escape", "enter", "h", "page-down"])))
def test_no_sequence_of_keys_leaves_a_view_without_its_order(keys: list[str]) -> None:
    view = pressed(*keys)
    assert view.order in view.orders
    rows = view.select_cards(USAGE) if view.view is View.CARDS else view.select_leases(USAGE)
    assert len(visible_rows(rows, view, 2)) <= 2
