"""The picture of ``tessera top`` on terminals of several widths: what it shows, and what it leaves out."""

import pytest
from tests.observe.conftest import GIB, card, lease

from tessera.api.nodes.usage import NodeUsage
from tessera.cli.top import TopScreen, split_keys
from tessera.observe.reading import Usage
from tessera.observe.top_view import TopView, View
from tessera.observe.usage_rows import card_rows, lease_rows
from tessera.usage.agent_pages import FleetUsage

LONG = "train-large-language-model-with-a-long-name-7d9f8c6b5-x2x4z"
PAGE = NodeUsage(
    node="n1",
    simulated=True,
    cards=(card(power=10.0, power_limit=700.0, gpu_utilization=0.5), card("GPU-2", 1)),
    leases=(lease("a", memory=1 * GIB, busy=0.5), lease(LONG, "GPU-2", state="idle")),
)
USAGE = Usage(fleet=FleetUsage(nodes=(PAGE,)), cards=card_rows([PAGE]), leases=lease_rows([PAGE]), agents=1)


def frame(view: View, width: int, *, shows_help: bool = False) -> list[str]:
    screen = TopScreen(TopView(view=view, shows_help=shows_help), None, ())
    return list(screen.frame(USAGE, width, 20))


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("view", View)
def test_every_line_fits_and_says_that_the_cards_are_simulated(view: View, width: int) -> None:
    lines = frame(view, width, shows_help=True)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("simulated cards   1 node, 2 cards, 2 pods")
    assert not any(line.endswith(">") for line in lines)


def test_a_narrow_terminal_shows_what_a_pod_does_and_shortens_its_name() -> None:
    header, *rows = frame(View.PODS, 60)[2:]
    assert {"POD", "BUSY", "MEM", "STATE"} <= set(header.split())
    assert any("busy" in row and "50%" in row for row in rows)
    assert any(row.startswith("team/train-") and "…" in row and row.endswith("idle") for row in rows)


def test_a_narrow_terminal_shows_load_memory_and_power_of_cards() -> None:
    header, *rows = frame(View.CARDS, 60)[2:]
    assert {"BUSY", "POWER"} <= set(header.split())
    assert "10/700" in rows[0]


def test_a_wide_terminal_shows_all_columns_and_whole_names() -> None:
    text = "\n".join(frame(View.PODS, 200))
    assert f"team/{LONG}" in text
    assert "CONTAINER" in text


def test_the_mean_of_few_measured_cards_says_so() -> None:
    assert "busy 50%, measured on 1 of 2 cards" in frame(View.CARDS, 200)[0]


@pytest.mark.parametrize(
    ("sent", "keys"),
    [("\x1b[H", ["home"]), ("\x1b[4~", ["end"]), ("\x1b[5~j", ["page-up", "j"]), ("\x1b[99;5u.", ["."])],
)
def test_keys_of_terminals(sent: str, keys: list[str]) -> None:
    assert list(split_keys(sent)) == keys
