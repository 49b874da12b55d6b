"""Times as autoscalers write them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.cli.base.connection import CommandError
from tessera.cli.base.durations import parse_duration
from tessera.cli.base.inputs import read_text
from tessera.provisioning.timer_advice import span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("45s", 45),
        ("90", 90),
        ("20m0s", 1200),
        ("1.5h", 5400),
        ("500ms", 0.5),
        ("0", 0),
        ("1w", 604_800),
        ("1d12h", 129_600),
    ],
)
def test_what_go_reads_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 m", "-5m", "5m3", "5x", "1e3s", "\u0665m", "9" * 40 + "s", "400h" * 30])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|is more than a year"):
        parse_duration(text)


@given(st.integers(0, 100_000))
def test_what_is_written_can_be_read(seconds: int) -> None:
    assert parse_duration(span(seconds)) == seconds


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"missing\.yaml: No such file or directory"):
        read_text(tmp_path / "missing.yaml")
    with pytest.raises(CommandError, match=r": Is a directory"):
        read_text(tmp_path)
