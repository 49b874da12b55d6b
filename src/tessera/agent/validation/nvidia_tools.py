"""NVIDIA's own tests, where the image of the process has them: DCGM's diagnostics and the NCCL tests.

``dcgmi diag`` needs DCGM's host engine, ``nv-hostengine``, in reach. Its JSON has no published form that is stable
(DCGM, diagnostic errors), so only its exit status decides, and the names of failed tests are looked for as text.
``all_reduce_perf`` of nccl-tests prints the mean rate as ``# Avg bus bandwidth``; it is a number beside Tessera's own.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tessera.limits.nodes import PREFLIGHT_RESULT
from tessera.nvml.interface import GpuInfo
from tessera.text import list_names, one_line

#: DCGM's level: 2 is "medium", some two minutes (DCGM, dcgmi diag).
DCGM_LEVEL = 2
#: Seconds that a tool may take.
_SECONDS = 600.0
#: Bytes of the buffers that NCCL reduces, as its option has them.
_NCCL_SIZE = "256M"
_TEST = re.compile(r'"name"\s*:\s*"([^"]{1,60})"|"status"\s*:\s*"(\w{1,20})"')
_BANDWIDTH = re.compile(rb"Avg bus bandwidth\s*:\s*(\d+(?:\.\d+)?)")


class Output(NamedTuple):
    """What a tool said: its exit status, and all its text."""

    status: int
    text: bytes


#: Runs a command; the texts of both streams together.
Run = Callable[[Sequence[str]], Output]


def run_tool(command: Sequence[str]) -> Output:
    """Runs a tool; a status of 124 is one that took too long, as of ``timeout``."""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Output(124, f"no answer within {_SECONDS:g} s".encode())
    except OSError as error:
        return Output(127, str(error.strerror).encode())
    return Output(done.returncode, done.stdout[:PREFLIGHT_RESULT])


def has_tool(name: str) -> bool:
    """Whether the image has a program."""
    return shutil.which(name) is not None


def diagnose_card(card: GpuInfo, run: Run = run_tool) -> str:
    """DCGM's diagnostics of a card: the error, empty if all tests passed."""
    output = run(["dcgmi", "diag", "-r", str(DCGM_LEVEL), "-i", str(card.index), "-j"])
    if not output.status:
        return ""
    text = output.text.decode(errors="replace")
    failed = list(_failed_tests(text))
    why = f"failed {list_names(failed)}" if failed else one_line(text.strip()[-200:])
    return f"dcgmi diag -r {DCGM_LEVEL} ended with status {output.status}: {why}"


def _failed_tests(text: str) -> list[str]:
    """Names before a status ``Fail``."""
    found, name = [], ""
    for match in _TEST.finditer(text):
        if match[1] is not None:
            name = match[1]
        elif match[2].casefold() == "fail" and name not in found:
            found.append(name)
    return found


def time_all_reduce(cards: int, run: Run = run_tool) -> float | str:
    """Bytes per second of each card while all reduce together (NCCL's bus bandwidth), or why it is not known."""
    output = run(["all_reduce_perf", "-b", _NCCL_SIZE, "-e", _NCCL_SIZE, "-g", str(cards)])
    match = _BANDWIDTH.search(output.text)
    if output.status or match is None:
        words = one_line(output.text.decode(errors="replace").strip()[-200:])
        return f"all_reduce_perf ended with status {output.status}: {words}"
    return float(match[1]) * 1e9
