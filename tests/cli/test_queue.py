"""``tessera queue``: its table, and what it shows with fewer rights."""

import re

import msgspec
import pytest

from tessera.cli.base.live_picture import answer_picture
from tessera.cli.queue import Queues, lines_of, queue_lines, stale_note, starts_in
from tessera.explain.kueue_rows import KueueRows
from tessera.forecast.queue_page import ExpectedStart, QueuedPod, QueuePage, aged
from tessera.kube.resources import Pod
from tessera.observe.queue_reading import QueueReading, told_rows
from tessera.reasons.reason import Blocker, Full, Reserved

NOW = 1_700_000_000.0
FIRST = QueuedPod(
    namespace="team",
    name="train",
    profiles=("3g.20gb", "3g.20gb"),
    since=NOW - 300,
    position=1,
    of=2,
    reason="full",
    why=Full(
        ("3g.20gb", "3g.20gb"), frees=(Blocker("other/web", "n1", "7g.40gb"), Blocker("other/api", "n1", "1g.5gb"))
    ),
    start=ExpectedStart(p50=NOW + 250, p90=NOW + 570, basis="history", starts=4),
)
LAST = QueuedPod(
    namespace="lab",
    name="\x1b[31mnotebook",
    profiles=("1g.5gb",),
    since=NOW - 10,
    position=2,
    of=2,
    reason="reserved",
    why=Reserved(("1g.5gb",), ("team/train",)),
    start=ExpectedStart(starts=3),
)


def _lines(*rows: QueuedPod, namespace: str | None = None, width: int = 0, omitted: int = 0) -> list[str]:
    page = QueuePage(leads=True, taken=NOW, pods=rows, omitted=omitted)
    return list(queue_lines(QueueReading(page=page), namespace, width=width))


def test_a_row_has_position_start_reason_and_what_is_before_it() -> None:
    header, first, last, more = _lines(FIRST, LAST, omitted=7)
    titles = [*["NAMESPACE", "POD", "SLICES", "WAITS", "POSITION"], "STARTS IN", "BASIS", "REASON", "BEFORE IT", "WHY"]
    assert re.split("  +", header) == titles
    before = "other/web on n1 and 1 more"
    assert re.split("  +", first) == [*["team", "train", "2x3g.20gb", "5m", "1/2", "4m-9m", "history", "full"], before]
    assert last.endswith("2/2       ?          unknown, 3 in the last hour  reserved  team/train (reserved)")
    assert "\x1b" not in last
    assert more == "7 further pods not listed"


def test_the_namespace_is_left_out_when_there_is_one() -> None:
    assert _lines(FIRST, namespace="team")[0].split()[0] == "POD"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_rows_fit_the_terminal(width: int) -> None:
    assert all(len(line) <= width for line in _lines(FIRST, LAST, width=width))


def test_a_narrow_terminal_shortens_long_names_before_position_and_reason_are_lost() -> None:
    """Names of a Job's pods are often longer than half a terminal."""
    long = msgspec.structs.replace(FIRST, name="train-with-a-rather-long-name-of-a-run-10")
    header, first, _ = _lines(long, LAST, width=60)
    assert re.split("  +", header) == ["NAMESPACE", "POD", "POSITION", "STARTS IN", "REASON"]
    assert re.split("  +", first) == ["team", "train-with-a-rath…", "1/2", "4m-9m", "full"]
    assert all(len(line) <= 60 for line in (header, first))


def test_notes_stay_below_a_queue_that_is_longer_than_the_screen() -> None:
    page = QueuePage(leads=True, taken=NOW, pods=(FIRST,) * 50, omitted=0)
    found = Queues(QueueReading(page=page, note="no controller leads at this moment"), KueueRows())
    lines = list(answer_picture(lambda width: lines_of(found, width=width), list(found.notes))(80, 12))
    assert len(lines) == 12
    assert lines[-2:] == ["... 41 more lines", "note: no controller leads at this moment"]


def test_an_old_answer_is_called_old() -> None:
    made = QueuePage(leads=True, taken=NOW)
    assert stale_note(aged(made, NOW + 20).age) == "", "whatever the user's own clock says"
    assert stale_note(aged(made, NOW + 150).age) == "the controller made this 2m ago"


def test_pods_have_waited_until_the_answer_not_until_the_page_was_made() -> None:
    page = aged(QueuePage(leads=True, taken=NOW, pods=(FIRST,)), NOW + 60)
    (row,) = list(queue_lines(QueueReading(page=page), None))[1:]
    assert re.split("  +", row)[3:6] == ["6m", "1/2", "3m-8m"]


def test_an_empty_queue_is_said_in_words() -> None:
    assert _lines() == ["No pod waits for slices."]
    assert _lines(namespace="team") == ["No pod of namespace team waits for slices."]


def test_of_a_pod_that_does_not_wait_nothing_is_said_about_others() -> None:
    nothing = QueueReading(page=QueuePage(leads=True, taken=NOW, pods=(), omitted=0))
    assert list(queue_lines(nothing, "team", "x")) == ['No pod "x" of namespace team waits for slices.']
    rest = QueueReading(page=QueuePage(leads=True, taken=NOW, pods=(), omitted=2_000))
    assert list(queue_lines(rest, None, "x")) == ['No pod "x" waits for slices among the first; 2,000 more wait.']


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (ExpectedStart(), "?"),
        (ExpectedStart(p50=NOW + 60), ">60s"),
        (ExpectedStart(p50=NOW + 600, p90=NOW + 600), "10m"),
        (ExpectedStart(p50=NOW - 5, p90=NOW + 600), "0s-10m"),
    ],
)
def test_a_start_is_a_range_from_now(start: ExpectedStart, text: str) -> None:
    assert starts_in(start, NOW) == text


def _pod(name: str, *, gate: bool, conditions: list[dict[str, str]]) -> Pod:
    gates = [{"name": "instaslice.redhat.com/accelerator"}] if gate else []
    container = {"name": "c", "resources": {"limits": {"nvidia.com/mig-3g.20gb": "1"}}}
    body = {
        "metadata": {"name": name, "namespace": "team", "uid": name, "creationTimestamp": "2023-11-14T22:10:00Z"},
        "spec": {"containers": [container], "schedulingGates": gates},
        "status": {"conditions": conditions},
    }
    return msgspec.convert(body, Pod)


def test_without_the_controllers_page_pods_show_what_they_were_told() -> None:
    told = {"type": "tessera.dev/SlicePromised", "status": "False", "reason": "CardHeldBack", "message": "Position 2"}
    pods = [
        _pod("told", gate=True, conditions=[told]),
        _pod("new", gate=True, conditions=[]),
        _pod("runs", gate=False, conditions=[{**told, "status": "True"}]),
    ]
    rows = told_rows(pods)
    assert [(row.name, row.reason, row.detail) for row in rows] == [
        ("new", "", ""),
        ("told", "card-held-back", "Position 2"),
    ]
    reading = QueueReading(page=QueuePage(taken=NOW, pods=rows), told=True)
    header, _, last = queue_lines(reading, "team")
    assert header.split() == ["POD", "SLICES", "WAITS", "REASON", "WHAT", "IT", "WAS", "TOLD"]
    assert last.split() == ["told", "3g.20gb", "3m", "card-held-back", "Position", "2"]
