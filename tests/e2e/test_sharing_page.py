"""The page docs/sharing.md, run from top to bottom as its reader would.

Each block that begins with ``$`` is typed into one shell on this machine, and what is printed has to be what the page
shows. ``...`` on a line of its own stands for any lines, within a line for any text. Names that are made up anew each
time, UUIDs, ages and addresses may differ. What only looks is repeated until it shows what the page does.
"""

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "sharing.md"
EXAMPLES = ROOT / "examples" / "sharing"
#: Seconds that a look at the cluster may take until it shows what the page does, on a loaded machine.
PATIENCE = 60.0
#: Commands that only look; `get` of one field prints no end of line.
_LOOKS = re.compile(r"kubectl (get|describe|logs)|tessera (why|map|lab smi)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What differs from run to run, and what stands for it.
_MADE_UP = (
    (re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}\b"), r"\1-UUID"),
    (re.compile(r"\b(nvidia-test-[a-z0-9-]+)-[a-z0-9]{5}\b"), r"\1-NAME"),
    (re.compile(r"(?<=[ (])(\d+h)?(\d+m)?\d+s(?= |$)|(?<=[ (])\d+m(?= |$)"), "AGE"),
    (re.compile(r"\b127(\.\d+){3}\b"), "ADDRESS"),
    (re.compile(r"https://127\.0\.0\.1:\d+|https://ADDRESS:\d+"), "SERVER"),
    (re.compile(r"(?<=KUBECONFIG=)/\S+"), "FILE"),
    (re.compile(r"\s+"), " "),
)


def blocks(language: str) -> Iterator[str]:
    """The page's blocks of a language, in their order."""
    for match in _FENCE.finditer(PAGE.read_text(encoding="utf-8")):
        if match[1] == language:
            yield match[2]


def steps() -> Iterator[tuple[str, list[str]]]:
    """Every command of the page, and the lines that it shows for it."""
    for block in blocks("console"):
        parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
        assert parts[0] == "", f"a block of the page begins without a command: {block}"
        for part in parts[1:]:
            command, *shown = part.splitlines()
            yield command, shown


def shows(shown: list[str], printed: str) -> bool:
    """Whether the printed text is what the page shows of it."""
    pattern = "".join("(?:[^\n]*\n)*" if line == "..." else _line(line) for line in shown)
    text = "".join(f"{_plain(line)}\n" for line in printed.splitlines())
    return re.fullmatch(pattern, text, re.DOTALL) is not None


def _line(shown: str) -> str:
    return "[^\n]*".join(re.escape(part) for part in _plain(shown).split("...")) + "\n"


def _plain(line: str) -> str:
    for pattern, instead in _MADE_UP:
        line = pattern.sub(instead, line)
    return line.strip()


class Shell:
    """A reader's shell: what was exported stays so."""

    def __init__(self, lab_folder: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._env = {**os.environ, "PATH": path, "TESSERA_LAB": str(lab_folder), "PYTHONUTF8": "1"}
        self._env.pop("KUBECONFIG", None)
        self._exports: list[str] = []

    def run(self, command: str) -> tuple[int, str]:
        """The exit status, and what was printed on both outputs."""
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", "; ".join([*self._exports, command])],
            env=self._env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        if command.startswith("export "):
            self._exports.append(command)
        return done.returncode, done.stdout


def test_every_command_prints_what_the_page_shows(lab_folder: Path) -> None:
    shell = Shell(lab_folder)
    for command, shown in steps():
        deadline = time.monotonic() + PATIENCE
        status, printed = shell.run(command)
        while not shows(shown, printed) and _LOOKS.match(command) and time.monotonic() < deadline:
            status, printed = shell.run(command)
        expected = "\n".join(shown)
        assert shows(shown, printed), f"$ {command}\n--- printed:\n{printed}\n--- the page shows:\n{expected}"
        may_fail = expected.lower().startswith("error") or "wrong" in expected
        assert status == 0 or may_fail, f"$ {command}: exit status {status}\n{printed}"
    assert not lab_folder.exists()


def test_every_setting_that_the_page_shows_stands_in_an_example() -> None:
    files = [_indented(path.read_text(encoding="utf-8")) for path in sorted(EXAMPLES.glob("*.yaml"))]
    for block in blocks("yaml"):
        assert any(block in text for file in files for text in file), f"in no file of {EXAMPLES.name}:\n{block}"


def _indented(text: str) -> list[str]:
    """The text, and what it holds below each depth of indentation, as it would stand alone."""
    return [re.sub(rf"^ {{{depth}}}", "", text, flags=re.MULTILINE) for depth in (0, 2, 4, 6)]


def test_it_has_no_blocks_but_commands_settings_and_what_is_for_a_real_cluster() -> None:
    kinds = {match[1] for match in _FENCE.finditer(PAGE.read_text(encoding="utf-8"))}
    assert kinds == {"console", "yaml", "sh"}


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["node/a labeled"], "node/a labeled\n", True),
        (["node/a labeled"], "node/a labeled\nmore\n", False),
        (["a", "...", "z"], "a\nb\nc\nz\n", True),
        (["a", "...", "z"], "a\nz\n", True),
        (["a", "..."], "b\n", False),
        (["a ... d"], "a b c d\n", True),
        (["a ... d"], "a b\nc d\n", False),
        (["NAME   AGE", "x      3s"], "NAME        AGE\nx           12m3s\n", True),
        (["nvidia-test-a100-2jxt2 Running"], "nvidia-test-a100-zzzz9 Running\n", True),
    ],
)
def test_what_counts_as_the_same(shown: list[str], printed: str, same: bool) -> None:
    assert shows(shown, textwrap.dedent(printed)) is same
