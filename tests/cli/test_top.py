"""The picture of ``tessera top`` on terminals of several widths: what it shows, and what it leaves out."""

import msgspec
import pytest
from tests.observe.conftest import GIB, card, lease

from tessera.api.nodes.health import CardHealth, Finding
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


@pytest.mark.parametrize("width", [60, 200])
def test_each_card_says_its_state(width: int) -> None:
    sick = msgspec.structs.replace(PAGE.cards[1], health=CardHealth(state="cordoned"))
    page = msgspec.structs.replace(PAGE, cards=(PAGE.cards[0], sick))
    usage = msgspec.structs.replace(USAGE, cards=card_rows([page]), blocked=("node n1: pods hold",))
    lines = list(TopScreen(TopView(view=View.CARDS, filter="cordoned"), None, ()).frame(usage, width, 20))
    assert lines[2] == "! node n1: pods hold"
    assert "STATE" in lines[3].split()
    assert [line.split()[0] for line in lines[4:] if "cordoned" in line] == ["n1/1"]


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


def test_a_fault_and_an_excess_of_memory_stand_above_the_pods_with_the_part_that_is_theirs() -> None:
    excess = Finding(
        kind="memory_over_limit", text="holds 6.0 GiB, its part is 4.0 GiB", advice="Make batches smaller."
    )
    hog = msgspec.structs.replace(lease("hog", memory=6 * GIB), limit=4.0 * GIB, findings=(excess,))
    sick = msgspec.structs.replace(lease("sick", "GPU-2"), fault="XID 48, memory lost data")
    page = msgspec.structs.replace(PAGE, leases=(hog, sick))
    usage = msgspec.structs.replace(USAGE, leases=lease_rows([page]))
    lines = list(TopScreen(TopView(view=View.PODS), None, ()).frame(usage, 200, 20))
    assert "! team/sick on n1/1: XID 48, memory lost data" in lines
    assert "! team/hog on n1/0: holds 6.0 GiB, its part is 4.0 GiB. Make batches smaller." in lines
    assert any("team/hog" in line and "6.0/4" in line for line in lines)


def test_on_a_low_terminal_pods_are_shown_before_their_faults() -> None:
    sick = msgspec.structs.replace(lease("sick", "GPU-2"), fault="XID 48, memory lost data")
    usage = msgspec.structs.replace(USAGE, leases=lease_rows([msgspec.structs.replace(PAGE, leases=(sick,))]))
    lines = list(TopScreen(TopView(view=View.PODS), None, ()).frame(usage, 200, 6))
    assert len(lines) <= 6
    assert any(line.startswith("team/sick") for line in lines)
