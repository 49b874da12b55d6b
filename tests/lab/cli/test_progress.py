"""Steps on a terminal, and in a log."""

import pytest

from tessera.clock import SystemClock
from tessera_lab.cli.demo import Progress


def show(capsys: pytest.CaptureFixture[str], *, live: bool) -> str:
    progress = Progress(SystemClock())
    progress.live = live
    with progress.step("starting", "started"):
        pass
    return capsys.readouterr().out


def test_a_terminal_shows_the_running_step_and_clears_it(capsys: pytest.CaptureFixture[str]) -> None:
    shown = show(capsys, live=True)
    assert "starting" in shown
    assert shown.rindex("\r\x1b[K") < shown.index("started ")


def test_a_log_has_finished_steps_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shown = show(capsys, live=False)
    assert "\x1b" not in shown
    assert "starting" not in shown
    assert "✓ started" in shown


def test_a_failed_step_leaves_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(SystemClock())
    with pytest.raises(RuntimeError), progress.step("starting", "started"):
        raise RuntimeError
    assert "✗ starting" in capsys.readouterr().out
