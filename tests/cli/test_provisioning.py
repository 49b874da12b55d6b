"""``tessera provisioning report`` as a command."""

import json
from pathlib import Path

import pytest

from tessera.cli.main import main
from tessera.cli.provisioning import parse_moment
from tessera.clock import parse_rfc3339

START = 1_800_000_000
LINES = "".join(
    json.dumps(
        {
            "node": f"n{number}",
            "uid": f"u{number}",
            "at": {"registered": START + number * 86400, "ready": START + number * 86400 + 20 + number},
            "strategy": "built" if number < 3 else "precompiled",
            "group": "a" if number % 2 else "b",
        }
    )
    + "\n"
    for number in range(5)
)
RESULTS = (
    '{"results":[{"experiment":"autoscale","scenario":"built","operator":"tessera",'
    '"samples":[368.0,370.0],"simulated":true}]}'
)


@pytest.fixture
def records(tmp_path: Path) -> str:
    path = tmp_path / "records.jsonl"
    path.write_text(LINES)
    return str(path)


@pytest.fixture
def results(tmp_path: Path) -> str:
    path = tmp_path / "results.json"
    path.write_text(RESULTS)
    return str(path)


def test_a_table_of_a_files_records(records: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["provisioning", "report", "--file", records]) == 0
    told = capsys.readouterr().out
    assert told.startswith("built (3 nodes)\n")
    assert "precompiled (2 nodes)" in told


def test_groups_and_ages_choose_records(records: str, capsys: pytest.CaptureFixture[str]) -> None:
    since = "2027-01-17"  # the third day
    assert main(["provisioning", "report", "--file", records, "--since", since, "--group", "b", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["node"] for each in told["records"]] == ["n2", "n4"]
    assert [each["records"] for each in told["summaries"]] == [1, 1]


def test_json_can_be_given_back(records: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["provisioning", "report", "--file", records, "-o", "json"]) == 0
    first = capsys.readouterr().out
    (tmp_path / "again.json").write_text(first)
    assert main(["provisioning", "report", "--file", str(tmp_path / "again.json"), "-o", "json"]) == 0
    assert capsys.readouterr().out == first


def test_experiments_need_no_cluster(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["provisioning", "report", "--experiment", results]) == 0
    assert "built (tessera, simulated)" in capsys.readouterr().out
    assert main(["provisioning", "report", "--experiment", results, "-o", "svg"]) == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith("<svg")
    assert "simulated" in drawn


def test_a_page_has_the_charts_of_both(records: str, results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["provisioning", "report", "--file", records, "--experiment", results, "-o", "html"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("<!doctype html>")
    assert told.count('<figure class="scroll wide"><svg') == 1  # the records know no whole part of the way


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--since", "yesterday"], ('--since "yesterday" is neither', "an age (90m, 24h, 7d)", "a date (2026-01-31)")),
        (["-o", "svg"], ("there is nothing to draw",)),
        (["--by", "colour"], ("'colour' is not one of",)),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    records: str, arguments: list[str], facts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["provisioning", "report", "--file", records, *arguments]) == 1
    told = capsys.readouterr().err
    for fact in facts:
        assert fact in told
    assert told.count("\n") == 1


def test_a_broken_file_names_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text('{"node":"a"}\n{"node":\n')
    assert main(["provisioning", "report", "--file", str(tmp_path / "x")]) == 1
    assert "line 2" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--file", "--experiment"])
def test_a_file_that_is_no_text_is_named(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(b"\x00\xff\xfe")
    assert main(["provisioning", "report", option, str(tmp_path / "x")]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: {tmp_path / 'x'}: ")
    assert told.count("\n") == 1
    for fact in ("not UTF-8", "byte 1 is 0xff", "save the file as text in UTF-8"):
        assert fact in told


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", START - 90),
        ("24h", START - 86400),
        ("7d", START - 7 * 86400),
        ("2026-01-31", parse_rfc3339("2026-01-31T00:00:00Z")),
    ],
)
def test_ages_and_dates(text: str, seconds: float) -> None:
    assert parse_moment(text, START) == seconds
