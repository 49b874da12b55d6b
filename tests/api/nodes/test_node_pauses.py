"""The pause after new nodes of no use: its length, and its record in an event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.nodes.node_groups import LONGEST_PAUSE, Pause, next_pause, pause_text, read_pause

NOW = 1_893_456_000.0


def test_each_pause_is_as_long_as_the_search_has_lasted_so_far() -> None:
    now, pause, ends = NOW, None, []
    for _ in range(12):
        pause = next_pause(pause, now, "why")
        ends.append((pause.until - now) / 60)
        now = pause.until + 600
    assert ends == [5, 15, 40, 90, 190, 390, 790, 1440, 1440, 1440, 1440, 1440]
    assert pause is not None
    assert pause.since == NOW


@given(
    st.integers(1, 10**6),
    st.integers(1, int(LONGEST_PAUSE)),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=80),
)
def test_a_pause_is_read_as_it_was_told(since: int, left: int, why: str) -> None:
    pause = Pause(NOW - since, NOW + left, why.replace("; other", ""))
    assert read_pause(pause_text("a100", pause), NOW) == ("a100", pause)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "asked the autoscaler for 3 new nodes of group a100",
        pause_text("a", Pause(NOW, NOW + LONGEST_PAUSE + 1, "longer than any")),
        pause_text("a", Pause(NOW + 1, NOW + 2, "begins later")),
        pause_text("a", Pause(NOW, NOW, "no time")).replace("2030-01-01", "then"),
    ],
)
def test_what_the_controller_never_says_is_no_pause(text: str) -> None:
    assert read_pause(text, NOW) is None
