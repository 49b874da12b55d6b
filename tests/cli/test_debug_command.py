"""``tessera debug`` with files that hold no records, or damaged ones, and with wrong arguments."""

import json
from pathlib import Path
from typing import Any

import pytest

from tessera.cli.main import main

FUNCTION: dict[str, Any] = {"decider": "driver-plan", "state": None}


def record(**fields: Any) -> str:
    """A record of a decider without state."""
    return json.dumps({**FUNCTION, "decisions": [], **fields})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no records"),
        (record(decisions=[{"arguments": 5}]), "not a pair"),
        (record(decisions=[{"arguments": [1, 2, 3]}]), "not a pair"),
        (record(decisions=[{"arguments": [1, 2]}]), "another form"),
        (record(decisions=[{"arguments": [[1] * 99, {"$": "d", "v": []}]}]), "not readable by this version"),
        (record(skipped=-5), "line 1 is no record"),
        (record(version=2, decisions="new"), "replay it with the version that recorded it"),
        (record()[:-1], "line 1 is no record"),
        ('{"decider":"slicer","decisions":[],"state":' + "[" * 100_000, "line 1 is no record"),
    ],
)
def test_a_file_without_readable_records_gives_one_line_that_names_it(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(text)
    assert main(["debug", "replay", str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {file}")
    assert said in line


@pytest.mark.parametrize("command", [["debug", "replay"], ["config", "check"]])
def test_a_file_that_cannot_be_read_gives_one_line(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "/proc/self/mem"]) == 1
    assert "Input/output error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"), [(["/nosuch/dir/x"], "/nosuch/dir does not exist"), (["--node", "", "x"], "--node needs")]
)
def test_wrong_arguments_are_refused_before_a_cluster_is_asked(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["debug", "record", *arguments]) == 1
    assert said in capsys.readouterr().err
