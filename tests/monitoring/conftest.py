"""Runs promtool."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.manifests import rules
from monitoring.recordings import RECORDINGS

Obj = Mapping[str, Any]


class Promtool:
    """Checks rules and expressions.

    Args:
        folder: for its files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules()), encoding="utf-8")

    def run(self, *arguments: str) -> None:
        """Runs promtool; fails with its output."""
        program = shutil.which("promtool")
        assert program, "promtool is needed: scripts/need-debian .venv/tools promtool"
        done = subprocess.run([program, *arguments], capture_output=True, text=True, cwd=self._folder)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_rules(self, *tests: Obj, interval: str = "5m") -> None:
        """Runs groups of unit tests on the rules that they name, which are evaluated at an interval."""
        (self._folder / "tested.yaml").write_text(yaml.safe_dump({"groups": _tested(tests)}), encoding="utf-8")
        groups = [{"interval": "1m", **each} for each in tests]
        text = yaml.safe_dump({"rule_files": ["tested.yaml"], "evaluation_interval": interval, "tests": groups})
        (self._folder / "tests.yaml").write_text(text, encoding="utf-8")
        self.run("test", "rules", "tests.yaml")


def _tested(tests: Sequence[Obj]) -> Sequence[Obj]:
    """The groups with only the alerts and recordings of the tests, and the recordings that those need.

    promtool evaluates each rule of its files for each group of tests, which is most of its work.
    """
    wanted = {each["alertname"] for test in tests for each in test.get("alert_rule_test", ())}
    wanted |= {each["expr"] for test in tests for each in test.get("promql_expr_test", ())}
    expressions = {each.name: each.expr for group in RECORDINGS.values() for each in group}
    alerts = {each["alert"]: each["expr"] for group in rules()["groups"] for each in group["rules"] if "alert" in each}
    needed: set[str] = set()
    pending = [each for text in wanted for each in (text, *_recorded(text))]
    while pending:
        name = pending.pop()
        if name not in needed and name in {**expressions, **alerts}:
            needed.add(name)
            pending += _recorded({**expressions, **alerts}[name])
    kept = [
        {**group, "rules": [rule for rule in group["rules"] if rule.get("record", rule.get("alert")) in needed]}
        for group in rules()["groups"]
    ]
    return [group for group in kept if group["rules"]]


def _recorded(text: str) -> Sequence[str]:
    return re.findall(r"tessera:[\w:]+", text)


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> Promtool:
    """Promtool in a folder that has the rules as ``rules.yaml``."""
    return Promtool(tmp_path_factory.mktemp("promtool"))


def series(values: Mapping[str, str | float], minutes: int = 10) -> Sequence[Obj]:
    """Input series of a unit test; a number stands for a series that has it all the time."""
    return [
        {"series": name, "values": value if isinstance(value, str) else f"{value!r}+0x{minutes}"}
        for name, value in values.items()
    ]
