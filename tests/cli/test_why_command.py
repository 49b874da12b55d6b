"""``tessera why`` as a command: what it refuses before it asks any cluster, and how it answers when there is none."""

from pathlib import Path

import pytest

from tessera.cli.main import main


def test_a_kind_that_is_not_known_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "secret/n1"]) == 1
    told = capsys.readouterr().err
    for fact in (
        'error: "secret/n1": ',
        'kind "secret" is not supported',
        "supported are pod, node, claim, deployment",
    ):
        assert fact in told
    assert told.count("\n") == 1


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "a", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err


def test_help_shows_what_may_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "tessera why deployment/web -n team" in shown
    assert "tessera why claim/training-slice -n team" in shown
    assert "statefulset" in shown
