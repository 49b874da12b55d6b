"""The picture of ``tessera top`` on terminals of several sizes: what it shows, and what it leaves out."""

import re

import msgspec
import pytest
from tests.observe.conftest import GIB, card, lease

from tessera.access.agent_pages import FleetUsage
from tessera.api.nodes.health import CardHealth, Finding
from tessera.api.nodes.usage import NodeUsage
from tessera.cli.base.console import COLOUR
from tessera.cli.top.columns import table, warnings
from tessera.cli.top.screen import Look, bar, draw
from tessera.cli.top.terminal import split_keys
from tessera.observe.reading import Usage
from tessera.observe.service_rows import ServiceFinding, ServiceRow
from tessera.observe.top_view import Failed, Pressed, Read, Told, TopView, View
from tessera.observe.usage_rows import card_rows, lease_rows

LONG = "train-large-language-model-with-a-long-name-7d9f8c6b5-x2x4z"
PAGE = NodeUsage(
    node="n1",
    simulated=True,
    cards=(card(power=10.0, power_limit=700.0, gpu_utilization=0.5), card("GPU-2", 1)),
    leases=(lease("a", memory=1 * GIB, busy=0.5), lease(LONG, "GPU-2", state="idle")),
)
THROTTLED = ServiceFinding(kind="throttled", pods=3, pod="vllm-1", node="n1", text="throttled for 25m: slow. Ask.")
SERVICE = ServiceRow(
    namespace="team",
    kind="Deployment",
    name="vllm",
    ready=1,
    wanted=2,
    requests=12.34,
    waiting=3.0,
    room=64,
    starts=1,
    start=240.0,
    busy=0.5,
    power=410.0,
    joules=33_225.0,
    unknown=1,
    findings=(THROTTLED,),
)
USAGE = Usage(
    fleet=FleetUsage(nodes=(PAGE,)),
    cards=card_rows([PAGE]),
    leases=lease_rows([PAGE]),
    agents=1,
    services=[SERVICE],
)
COLOURED = Look(colours=True, blocks=True)


def shown(view: TopView, width: int, height: int = 20, *, look: Look = COLOURED, usage: Usage = USAGE) -> list[str]:
    """The picture as a terminal shows it, without its colours."""
    view.handle(Read(usage))
    return [COLOUR.sub("", line).rstrip() for line in draw(view, width, height, look)]


def usage_with(*leases: object) -> Usage:
    page = msgspec.structs.replace(PAGE, leases=leases)
    return msgspec.structs.replace(USAGE, leases=lease_rows([page]))


SIZES = [(60, 12), (80, 24), (120, 40), (200, 50), (20, 5)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("keys", ["", "c", "v", "t", "?", "\r", "l", "/xyz"])
def test_every_picture_fills_its_terminal_and_no_line_is_longer(size: tuple[int, int], keys: str) -> None:
    view = TopView()
    view.handle(Read(USAGE))
    for key in split_keys(keys):
        for ask in view.handle(Pressed(key)):
            view.handle(Told(ask, ["a long line of an answer " * 20, *map(str, range(100))]))
    lines = shown(view, *size)
    assert len(lines) == size[1]
    assert max(map(len, lines)) <= size[0]
    assert lines[0].startswith("simulated cards")


@pytest.mark.parametrize("view", View)
def test_colours_and_block_characters_change_no_word(view: View) -> None:
    plain = list(draw(read(view), 120, 20, Look()))
    coloured = list(draw(read(view), 120, 20, COLOURED))
    assert not re.search(r"\x1b\[[34]", "".join(plain)), "no colour"
    assert "\x1b[7m" in "".join(plain), "the cursor is reversed without colours too"
    assert re.search(r"\x1b\[3[0-7]m", "".join(coloured))
    words = [re.sub(r"[ #▏▎▍▌▋▊▉█]+", " ", COLOUR.sub("", line)) for line in plain]
    assert words == [re.sub(r"[ #▏▎▍▌▋▊▉█]+", " ", COLOUR.sub("", line)) for line in coloured]
    assert all(line.isascii() for line in plain if LONG[:8] not in line)


def read(view: View) -> TopView:
    found = TopView(view=view)
    found.handle(Read(USAGE))
    return found


@pytest.mark.parametrize(
    ("part", "text"),
    [(0.0, ""), (0.5, "████"), (1.0, "████████"), (7.0, "████████"), (0.02, "▏"), (0.4, "███▎"), (None, "")],
)
def test_a_bar_is_as_long_as_its_value(part: float | None, text: str) -> None:
    assert bar(part, 8, COLOURED) == text.ljust(8)
    assert set(bar(part, 8, Look())) <= {" ", "#"}


def test_the_row_under_the_cursor_is_marked() -> None:
    view = read(View.PODS)
    marked = [line for line in shown(view, 80) if line.startswith(">")]
    assert [line.split()[1] for line in marked] == ["team/a"]
    view.handle(Pressed("down"))
    marked = [line for line in shown(view, 80) if line.startswith(">")]
    assert [line.split()[1][:10] for line in marked] == ["team/train"]


def test_the_cursor_is_seen_on_a_list_that_is_longer_than_the_screen() -> None:
    usage = usage_with(*(lease(f"pod-{number:04}") for number in range(1_000)))
    view = TopView()
    for keys, seen in (([], "pod-0000"), (["end"], "pod-0999"), (["up"] * 3, "pod-0996"), (["home"], "pod-0000")):
        view.handle(Read(usage))
        for key in keys:
            view.handle(Pressed(key))
        (line,) = (each for each in shown(view, 80, 24, usage=usage) if each.startswith(">"))
        assert f"team/{seen}" in line


def test_a_narrow_terminal_shows_what_a_pod_does_and_shortens_its_name() -> None:
    lines = shown(TopView(), 60)
    (header,) = (line for line in lines if "STATE" in line)
    assert {"POD", "BUSY", "MEM", "STATE"} <= set(header.split())
    assert any("busy" in line and "50%" in line for line in lines)
    assert any(line.startswith("  team/train-") and "…" in line and line.endswith("idle") for line in lines)


def test_a_terminal_of_80_columns_shows_the_bar_the_state_and_how_to_quit() -> None:
    lines = shown(TopView(), 80, 24)
    assert any("50%  ███" in line and line.endswith("busy") for line in lines)
    assert {"q quit", "? help", "Enter why", "l log", "d describe"} <= set(lines[-1].split("  "))
    assert sum("help" in line for line in lines) == 1


def test_a_narrow_terminal_shows_load_memory_and_power_of_cards() -> None:
    lines = shown(TopView(view=View.CARDS), 60)
    assert any({"BUSY", "POWER"} <= set(line.split()) for line in lines)
    assert any("10/700" in line for line in lines)


@pytest.mark.parametrize("width", [60, 200])
def test_each_card_says_its_state(width: int) -> None:
    sick = msgspec.structs.replace(PAGE.cards[1], health=CardHealth(state="cordoned"))
    page = msgspec.structs.replace(PAGE, cards=(PAGE.cards[0], sick))
    usage = msgspec.structs.replace(USAGE, cards=card_rows([page]), blocked=("node n1: pods hold",))
    lines = shown(TopView(view=View.CARDS, filter="cordoned"), width, usage=usage)
    at = lines.index("! node n1: pods hold")
    assert "STATE" in lines[at + 1].split()
    assert [line.split()[1] for line in lines[at:] if "cordoned" in line] == ["n1/1"]


def test_a_wide_terminal_shows_all_columns_and_whole_names() -> None:
    text = "\n".join(shown(TopView(), 200))
    assert f"team/{LONG}" in text
    assert "CONTAINER" in text


def test_the_mean_of_few_measured_cards_says_so() -> None:
    assert "busy 50%, measured on 1 of 2 cards" in shown(TopView(view=View.CARDS), 200)[0]


def test_printed_once_it_has_every_column_and_no_cursor() -> None:
    lines = table(TopView(), USAGE)
    assert lines[1].replace("MEM GIB", "MEM").split()[-5:] == ["SHARE", "BUSY", "MEM", "STATE", "HELD"]
    assert lines[2].startswith("team/a ")


def test_a_message_takes_the_place_of_the_keys_and_is_wrapped() -> None:
    view = read(View.PODS)
    (ask,) = view.handle(Pressed("l"))
    view.handle(Failed(ask, "log pod team/a: you may not read logs in namespace team: ask an administrator for it"))
    lines = shown(view, 60, 24)
    assert " ".join(" ".join(lines[-2:]).split()).endswith("ask an administrator for it")
    assert not [line for line in lines if "q quit" in line]


def test_text_of_others_is_escaped_in_table_and_text() -> None:
    evil = "\x1b[2J\x1b[31m\u202e\n"
    usage = usage_with(lease(f"a{evil}"))
    view = TopView()
    view.handle(Read(usage))
    raw = "".join(draw(view, 120, 24, Look()))
    (ask,) = view.handle(Pressed("l"))
    view.handle(Told(ask, [f"line{evil}"]))
    raw += "".join(draw(view, 120, 24, Look()))
    assert "line\\x1b[2J" in raw
    assert not re.search("\x1b(?!\\[[0127]m)|\u202e|\n", raw)


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("\x1b[H", ["home"]),
        ("\x1b[4~", ["end"]),
        ("\x1b[5~j", ["page-up", "j"]),
        ("\x1b[99;5u.", ["."]),
        ("\x1bOA\r", ["up", "enter"]),
    ],
)
def test_keys_of_terminals(sent: str, keys: list[str]) -> None:
    assert list(split_keys(sent)) == keys


def test_a_fault_and_an_excess_of_memory_stand_above_the_pods_with_the_part_that_is_theirs() -> None:
    excess = Finding(
        kind="memory_over_limit", text="holds 6.0 GiB, its part is 4.0 GiB", advice="Make batches smaller."
    )
    hog = msgspec.structs.replace(lease("hog", memory=6 * GIB), limit=4.0 * GIB, findings=(excess,))
    sick = msgspec.structs.replace(lease("sick", "GPU-2"), fault="XID 48, memory lost data")
    lines = shown(TopView(), 200, usage=usage_with(hog, sick))
    assert "! team/sick on n1/1: XID 48, memory lost data" in lines
    assert "! team/hog on n1/0: memory over limit: holds 6.0 GiB, its part is 4.0 GiB. Make batches smaller." in lines
    assert any("team/hog" in line and "6.0/4" in line for line in lines)


def test_a_service_stands_in_one_line_with_its_evidence_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    view = TopView(view=View.SERVICES)
    _, header, line = table(view, USAGE, wide=False)
    found = dict(zip(re.split("  +", header), re.split("  +", line), strict=True))
    assert found == {
        "SERVICE": "team/Deployment/vllm",
        "READY": "1/2",
        "REQ/S": "12.3",
        "WAITING": "3",
        "ROOM": "64+",
        "NEXT START": "in 4m",
        "BUSY": "50%",
        "POWER W": "410",
        "J/1000 REQ": "33,225",
        "FINDINGS": "throttled 3, unknown 1",
    }
    assert "TTFT P90 S" in table(view, USAGE)[1]
    assert warnings(view, USAGE) == ["! team/vllm-1 on n1: throttled for 25m: slow. Ask. (2 more of Deployment/vllm)"]


def test_a_team_adds_up_the_pods_of_its_namespaces() -> None:
    page = msgspec.structs.replace(
        PAGE,
        leases=(
            lease("a", namespace="red-dev", share=0.5, busy=0.8, power=100.0),
            lease("b", "GPU-2", namespace="red-prod", state="idle", wasted=5400.0, busy=0.0),
            lease("c", namespace="blue", share=0.25, power=50.0),
        ),
    )
    usage = msgspec.structs.replace(USAGE, leases=lease_rows([page]), teams={"red-dev": "red", "red-prod": "red"})
    _, header, *rows = table(TopView(view=View.TEAMS), usage)
    assert header.split() == ["TEAM", "NAMESPACES", "PODS", "CARDS", "BUSY", "UNUSED", "WASTED", "GPU-H", "POWER", "W"]
    assert [row.split() for row in rows] == [
        ["blue", "blue", "1", "0.25", "n/a", "0.00", "0.00", "50"],
        ["red", "red-dev,", "red-prod", "2", "1.50", "27%", "1.00", "1.50", "100"],
    ]
    view = TopView(view=View.TEAMS, order="held", filter="red-dev")
    assert [row.team for row in view.select_teams(usage)] == ["red"]
    view.handle(Read(usage))
    assert view.handle(Pressed("enter")) == ()
    assert view.message == "a team is no object of the cluster: press p for the pods, and filter by red-dev/"
    unknown = msgspec.structs.replace(usage, teams_note="each namespace is shown as a team, since x")
    assert warnings(view, unknown) == ["! each namespace is shown as a team, since x"]


def test_what_is_not_known_of_a_service_is_said_so() -> None:
    view = TopView(view=View.SERVICES)
    bare = ServiceRow(namespace="team", kind="Deployment", name="vllm", ready=0, wanted=1)
    usage = msgspec.structs.replace(USAGE, services=[bare])
    assert re.split("  +", table(view, usage, wide=False)[2])[2:] == [*["n/a"] * 3, "-", *["n/a"] * 3, "-"]
    silent = msgspec.structs.replace(USAGE, services=[], services_note="services are not known: no controller leads")
    assert table(view, silent)[1:] == ["services are not known: no controller leads"]
    assert "no service to show" in table(view, msgspec.structs.replace(USAGE, services=[]))[1]


def test_of_many_findings_the_rest_is_counted() -> None:
    view, usage = TopView(view=View.SERVICES), msgspec.structs.replace(USAGE, services=[SERVICE] * 1000)
    assert warnings(view, usage)[-1] == "! 995 more; see -o wide"
    assert len(warnings(view, usage, wide=True)) == 501


def test_enter_on_a_service_asks_about_the_pod_of_its_first_finding() -> None:
    view = TopView(view=View.SERVICES)
    view.handle(Read(USAGE))
    (ask,) = view.handle(Pressed("enter"))
    assert ask.title == "why pod team/vllm-1"
    well = msgspec.structs.replace(SERVICE, findings=())
    view = TopView(view=View.SERVICES)
    view.handle(Read(msgspec.structs.replace(USAGE, services=[well])))
    assert view.handle(Pressed("enter")) == ()
    assert "press p for its pods" in view.message


def test_on_a_low_terminal_pods_are_shown_before_their_faults() -> None:
    sick = msgspec.structs.replace(lease("sick", "GPU-2"), fault="XID 48, memory lost data")
    lines = shown(TopView(), 200, 6, usage=usage_with(sick))
    assert len(lines) <= 6
    assert any(line.startswith("> team/sick") for line in lines)
