"""``tessera autoscaler simulate``: the timeline, and that it says that it is simulated."""

import json

import pytest

from tessera.cli.main import main

Told = pytest.CaptureFixture[str]


def simulated(*arguments: str, told: Told) -> str:
    """Runs the command; returns its output."""
    assert main(["autoscaler", "simulate", "--hours", "0.3", *arguments]) == 0
    return told.readouterr().out


def test_a_loop_is_told_line_by_line(capsys: Told) -> None:
    lines = simulated("--timer", "5m", "--drivers", "built", "--no-accelerator-label", told=capsys).splitlines()
    assert lines[:3] == [
        "simulated, nothing is measured",
        "drivers built on the node, reference operator, nodes without the accelerator label",
        "maxNodeProvisionTime 5m, unneededTime 5m, delayAfterAdd 5m, maxNodeStartupTime 15m",
    ]
    assert "     30s  scale-up  +1: 1 pod waits" in lines
    assert any("removal" in line and line.endswith(": unneeded") for line in lines)
    assert "1 pod did not run within 0.3 h" in lines


def test_each_timer_may_be_given_by_itself(capsys: Told) -> None:
    told = json.loads(
        simulated("--drivers", "precompiled", "--max-node-provision-time", "4m", "-o", "json", told=capsys)
    )
    assert told["simulated"] is True
    assert (told["timed_out"], len(told["ran"])) == (1, 1)


def test_tesseras_order_of_steps_may_be_played(capsys: Told) -> None:
    """Under timers of five minutes, which the reference operator's order does not keep."""
    options = ("--timer", "5m", "--drivers", "precompiled", "--operator", "tessera", "--max-nodes", "4")
    told = simulated(*options, told=capsys)
    assert "Tessera's order of steps" in told
    assert "1 pod ran, " in told
    assert "1 node made, 0 of them removed before the cards could be used; 0 time-outs" in told


def test_hours_are_a_number(capsys: Told) -> None:
    assert main(["autoscaler", "simulate", "--hours", "nan"]) == 1
    assert "'--hours': nan is not a finite number" in capsys.readouterr().err
