"""`tessera plan mig` and `tessera config check` from the command line: what they print and their exit codes."""

import json
from pathlib import Path

import pytest

from tessera.cli.main import main
from tessera.mig.models import MODELS


def test_a_plan_is_drawn_as_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "mig", "A100-40GB", "2g.10gb=2", "1g.5gb=3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "A100-40GB   7 of 8 memory slots used",
        "  [2g.10gb         ][2g.10gb         ][1g.5gb ][1g.5gb ][1g.5gb ][       ]",
        "  3 x 1g.5gb       nvidia.com/mig-1g.5gb      starts 4, 5, 6",
        "  2 x 2g.10gb      nvidia.com/mig-2g.10gb     starts 0, 2",
        "  nothing more fits",
    ]


def test_what_still_fits_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "mig", "RTX-PRO-6000", "1g.24gb+me", "2g.48gb"]) == 0
    assert "still fits, one of: 1g.24gb, 1g.24gb+gfx, 1g.24gb-me" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["A100-40GB", "3g.20gb=2", "1g.5gb=1"], "need 9 memory slots"),
        (["A100-40GB", "3g.20g"], 'did you mean "3g.20gb"?'),
        (["A101", "1g.5gb"], "the models are A100-40GB"),
        (["Thor", "1g.0gb"], "are not published"),
        (["A100-40GB", "1g.5gb=many"], '"1g.5gb=many" is not PROFILE=COUNT'),
    ],
)
def test_what_stands_in_the_way_is_one_line_and_exit_code_1(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "mig", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error
    assert error.count("\n") == 1


def test_without_arguments_every_model_is_listed_with_its_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "mig"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()] == [each.short_name for each in MODELS]
    assert "3g.40gb" in next(line for line in printed.splitlines() if line.startswith("H100-80GB "))
    assert main(["plan", "mig", "-o", "json"]) == 0
    assert [each["model"] for each in json.loads(capsys.readouterr().out)] == [each.short_name for each in MODELS]


def test_a_model_alone_lists_its_profiles_by_the_name_on_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "mig", "NVIDIA-A30-SHARED"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("A30   NVIDIA A30, NVIDIA A30X")
    assert "2g.12gb      nvidia.com/mig-2g.12gb     at most 2, 2 slots, starts 0, 2" in printed
    assert main(["plan", "mig", "T4"]) == 1
    assert "the card has no MIG" in capsys.readouterr().err
    assert main(["plan", "mig", "Thor", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["profiles"]


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "mig", "A30", "2g.12gb=1", "1g.6gb", "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["resources"] == {"nvidia.com/mig-1g.6gb": 1, "nvidia.com/mig-2g.12gb": 1}
    assert {each["profile"]: each["size"] for each in plan["layout"]} == {"1g.6gb": 1, "2g.12gb": 2}
    assert main(["plan", "mig", "A30", "4g.24gb=1", "1g.6gb=1", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["infeasible"]["rule"] == "slots"


def test_a_file_that_is_right_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n")
    assert main(["config", "check", str(file), "--model", "4xA100-40GB"]) == 0
    heading, sharing, total = capsys.readouterr().out.splitlines()
    assert heading == "file: sharing profile, right"
    assert sharing.startswith("  time slices: ")
    assert sharing.endswith("each nvidia.com/gpu becomes 4 of nvidia.com/gpu")
    assert total == "  on 4 x A100-40GB without MIG: nvidia.com/gpu 16"


def test_a_file_that_is_wrong_gives_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text("sharing: {timeSlicing: {resources: [{name: gpu, replica: 4}]}}\n")
    assert main(["config", "check", str(file)]) == 1
    assert "  wrong: sharing.timeSlicing.resources[0].replica: unknown" in capsys.readouterr().out
    assert main(["config", "check", str(file), "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["parts"][0]["kind"] == "sharing profile"


def test_a_file_that_is_not_there_and_an_unknown_model_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "check", str(tmp_path / "none.yaml")]) == 1
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "empty.yaml").touch()
    assert main(["config", "check", str(tmp_path / "empty.yaml"), "--model", "A101"]) == 1
    assert 'no GPU model "A101"' in capsys.readouterr().err


@pytest.mark.parametrize("command", [["config", "check"], ["install", "-o", "yaml", "--values"]])
def test_a_file_that_is_no_text_is_named(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "values.yaml"
    file.write_bytes("mig: {strategy: mixed}".encode("utf-16"))
    assert main([*command, str(file)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"error: {file}: ")
    assert told.err.count("\n") == 1
    for fact in ("not UTF-8", "byte 0 is 0xff", "save the file as text in UTF-8"):
        assert fact in told.err
