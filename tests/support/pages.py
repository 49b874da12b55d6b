"""Pages whose commands are typed into a shell: what they show, and whether that is what was printed.

Each block that begins with ``$`` is typed into one shell on this machine. ``...`` on a line of its own stands for any
lines, within a line for any text. Names that are made up anew each time, UUIDs, ages and addresses may differ. What
only looks is repeated until it shows what the page does.
"""

import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from pathlib import Path
from string import Template

from tests.support.command_line import run_tessera

ROOT = Path(__file__).parents[2]
#: Seconds that a look at the cluster may take until it shows what the page does, on a loaded machine.
TIMEOUT = 180.0
#: First and longest seconds between two looks. They leave the core to the lab, and let virtual time leap.
PAUSES = 0.1, 1.0
#: Commands that only look; `get` of one field prints no end of line.
_LOOKS = re.compile(
    r"kubectl (get|describe|logs)"
    r"|tessera (why|map|health|top|idle|queue|lab smi|driver (coverage|status)|provisioning report$)"
)
#: Exit statuses that are no failure, besides 0: a card is not allocated; a kernel has no driver image.
_MAY_EXIT = {"tessera health": 2, "tessera driver coverage": 3}
#: Commands of ours alone, whose words any shell would pass on as they are: they need no new interpreter.
_OURS = re.compile(r"tessera( ([\w./:=@,+-]+|'[^']*'))*")
#: A block; in a list it is indented.
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
#: What differs from run to run, and what stands for it.
_MADE_UP = (
    (re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}\b"), r"\1-UUID"),
    (re.compile(r"\b(nvidia-test-[a-z0-9-]+)-[a-z0-9]{5}\b"), r"\1-NAME"),
    (re.compile(r"\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{10}\b"), "SET"),
    (re.compile(r"@sha256:[0-9a-f]{12,64}"), "@DIGEST"),
    (re.compile(r"(?:(?<=[ (])|^)((\d+h)?(\d+m)?\d+s|\d+m)(?= |$)"), "AGE"),
    (re.compile(r"\bGPU \d\b"), "GPU N"),  # of equal empty cards any is right
    (re.compile(r"\b127(\.\d+){3}\b"), "ADDRESS"),
    (re.compile(r"https://127\.0\.0\.1:\d+|https://ADDRESS:\d+"), "SERVER"),
    (re.compile(r"(?<=KUBECONFIG=)/\S+"), "FILE"),
    (re.compile(r"\s+"), " "),
)


class Page:
    """One page.

    Args:
        path: where it is.
        stands_for: text of the page's commands and what it is on this machine, such as the address of a registry.
    """

    def __init__(self, path: Path, stands_for: Mapping[str, str] | None = None) -> None:
        self._text = path.read_text(encoding="utf-8")
        self._stands_for = dict(stands_for or {})

    def parted(self, heading: str) -> tuple["Page", "Page"]:
        """The page before the line with a heading, and from there on."""
        before, found, after = self._text.partition(f"\n{heading}\n")
        assert found, f"the page has no line {heading!r}"
        parts = copy(self), copy(self)
        parts[0]._text, parts[1]._text = before, found + after
        return parts

    @property
    def languages(self) -> set[str]:
        """Of its blocks."""
        return {match[2] for match in _FENCE.finditer(self._text)}

    def blocks(self, language: str) -> Iterator[str]:
        """The page's blocks of a language, in their order."""
        for match in _FENCE.finditer(self._text):
            if match[2] == language:
                yield textwrap.dedent(match[3])

    def steps(self) -> Iterator[tuple[str, list[str]]]:
        """Every command of the page, and the lines that it shows for it. A backslash continues a command."""
        for block in self.blocks("console"):
            parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
            assert parts[0] == "", f"a block of the page begins without a command: {block}"
            for part in parts[1:]:
                command, *shown = part.splitlines()
                while command.endswith("\\"):
                    command = command[:-1] + shown.pop(0)
                yield command, shown

    def play(self, shell: "Shell", wait: Callable[[float], None] = time.sleep) -> None:
        """Types all commands into the shell, in their order.

        Args:
            shell: the reader's shell.
            wait: waits so many seconds between two looks.

        Raises:
            AssertionError: something else was printed than the page shows.
        """
        for command, shown in self.steps():
            deadline, pause = time.monotonic() + TIMEOUT, PAUSES[0]
            status, printed = self._typed(shell, command)
            while not shows(shown, printed) and _LOOKS.match(command) and time.monotonic() < deadline:
                wait(pause)
                pause = min(2 * pause, PAUSES[1])
                status, printed = self._typed(shell, command)
            expected = "\n".join(shown)
            assert shows(shown, printed), f"$ {command}\n--- printed:\n{printed}\n--- the page shows:\n{expected}"
            may_fail = expected.lower().startswith(("error", "the request is invalid")) or "wrong" in expected
            allowed = {0, *(code for words, code in _MAY_EXIT.items() if command.startswith(words))}
            assert status in allowed or may_fail, f"$ {command}: exit status {status}\n{printed}"

    def _typed(self, shell: "Shell", command: str) -> tuple[int, str]:
        for written, meant in self._stands_for.items():
            command = command.replace(written, meant)
        status, printed = shell.run(command)
        for written, meant in self._stands_for.items():
            printed = printed.replace(meant, written)
        return status, printed


def shows(shown: list[str], printed: str) -> bool:
    """True if the printed text is as on the page; a line ``...`` there stands for any lines."""
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
    """A reader's shell: what was exported stays so.

    Args:
        lab_folder: the folder of the lab that the reader starts, or that runs.
        exported: variables that the reader has set before.
    """

    def __init__(self, lab_folder: Path, exported: Mapping[str, str] | None = None) -> None:
        programs = Path(sys.executable).parent
        path = f"{programs}:{programs.parent / 'tools' / 'bin'}:{os.environ['PATH']}"
        self._env = {**os.environ, "PATH": path, "TESSERA_LAB": str(lab_folder), "PYTHONUTF8": "1"}
        self._env.pop("KUBECONFIG", None)
        self._env |= exported or {}

    def run(self, command: str) -> tuple[int, str]:
        """The exit status, and what was printed on both outputs."""
        exported = re.match(r"export (\w+)=(.*)$", command)
        if exported:
            status, printed = self.run(f"echo {exported[2]}")
            self._env[exported[1]] = printed.strip()
            return status, ""
        plain = Template(command).safe_substitute(self._env)
        if _OURS.fullmatch(plain):
            words = shlex.split(plain)[1:]
            ours = run_tessera(*words, env=self._env, cwd=ROOT, timeout=TIMEOUT, merged=True)
            return ours.returncode, ours.stdout
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=self._env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
        return done.returncode, done.stdout
