"""Runs promtool."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.manifests import rules

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

    def test_rules(self, *tests: Obj, interval: str = "1m") -> None:
        """Runs groups of unit tests on all rules, which are evaluated at an interval."""
        groups = [{"interval": "1m", **each} for each in tests]
        text = yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": interval, "tests": groups})
        (self._folder / "tests.yaml").write_text(text, encoding="utf-8")
        self.run("test", "rules", "tests.yaml")


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
