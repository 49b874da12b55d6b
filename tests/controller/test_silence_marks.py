"""When the conditions of a silent agent are due, and how often at most."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.controller.silent_agents import (
    GRACE,
    LONGEST,
    AgentObserved,
    MarkFailed,
    MarkWritten,
    SilenceMarks,
)


def silent(at: float, node: str = "n1", *, marked: bool = False) -> AgentObserved:
    return AgentObserved(node, silent=True, marked=marked, at=at)


def speaks(at: float, node: str = "n1") -> AgentObserved:
    return AgentObserved(node, silent=False, marked=False, at=at)


def test_an_agent_that_is_silent_for_the_grace_is_marked_once() -> None:
    marks = SilenceMarks()
    marks.handle(silent(0.0))
    assert (marks.next_due, marks.take_due(GRACE - 0.1)) == (GRACE, None)
    marks.handle(silent(10.0))  # another event of the node
    assert (marks.take_due(GRACE), marks.take_due(GRACE)) == ("n1", None)
    marks.handle(silent(GRACE))  # the watch is late
    marks.handle(MarkWritten("n1"))
    marks.handle(silent(GRACE + 1, marked=True))
    assert marks.next_due is None


def test_an_agent_that_is_away_for_seconds_is_not_marked() -> None:
    marks = SilenceMarks()
    for second in range(0, 300, 30):
        marks.handle(silent(float(second)))
        marks.handle(speaks(second + 20.0))
        assert marks.take_due(second + 29.0) is None
    assert marks.next_due is None


def test_a_new_leader_writes_nothing_about_what_is_marked() -> None:
    marks = SilenceMarks()
    marks.handle(silent(0.0, marked=True))
    assert marks.next_due is None


def test_a_failed_write_is_tried_again_when_its_caller_says() -> None:
    marks = SilenceMarks()
    marks.handle(silent(0.0))
    assert marks.take_due(GRACE) == "n1"
    marks.handle(MarkFailed("n1", GRACE + 5))
    marks.handle(silent(GRACE + 1))
    assert marks.next_due == GRACE + 5


def test_who_overwrites_the_mark_waits_longer_each_time_up_to_an_hour() -> None:
    marks = SilenceMarks()
    now, pauses = 0.0, []
    for _ in range(10):
        marks.handle(silent(now))  # it has written, and Kubernetes says that it does not run
        due = marks.next_due
        assert due is not None
        pauses.append(due - now)
        now = due
        assert marks.take_due(now) == "n1"
        marks.handle(MarkWritten("n1"))
        marks.handle(silent(now, marked=True))
    assert pauses[:4] == [GRACE, 2 * GRACE, 4 * GRACE, 8 * GRACE]
    assert pauses[-1] == LONGEST
    marks.handle(speaks(now))
    marks.handle(silent(now))
    assert marks.next_due == now + GRACE  # the next silence begins anew


_EVENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["silent", "marked", "speaks", "written", "failed", "take"]),
              st.floats(0.0, 100.0)),
    max_size=60,
)  # fmt: skip


@given(_EVENTS)
def test_a_node_is_due_only_while_it_is_silent_and_unmarked_and_never_before_the_grace(
    events: list[tuple[str, str, float]],
) -> None:
    marks, now = SilenceMarks(), 0.0
    begun: dict[str, float] = {}  # since when each node is silent
    unmarked: dict[str, bool] = {}
    for node, kind, pause in events:
        now += pause
        if kind in {"silent", "marked"}:
            begun.setdefault(node, now)
            unmarked[node] = kind == "silent"
            marks.handle(silent(now, node, marked=kind == "marked"))
        elif kind == "speaks":
            begun.pop(node, None)
            marks.handle(speaks(now, node))
        elif kind == "written":
            marks.handle(MarkWritten(node))
        elif kind == "failed" and unmarked.get(node) and node in begun:
            marks.handle(MarkFailed(node, max(now, begun[node] + GRACE)))
        while (due := marks.take_due(now)) is not None:
            assert due in begun
            assert now >= begun[due] + GRACE
            assert unmarked[due]
