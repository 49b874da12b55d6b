"""Start-up of the command line: CPU milliseconds from the start of the process to its end.

    python bench/cli.py
    python bench/cli.py --runs 50 --json cli.json

Each row is one command line, run as often as asked after one run that warms the caches. CPU is user and system time
of the process, as the kernel counts it; the bar is 150 ms for the command line. ``modules`` is how many modules are
imported, ``of ours`` how many of them are Tessera's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: The most CPU that starting the command line may cost, milliseconds.
BAR = 150.0

_COUNT = (
    "import sys; from tessera.cli.main import main; sys.argv = ['tessera', *{arguments!r}]; sys.stdout = sys.stderr;"
    " main(); print(len(sys.modules), sum(n.startswith('tessera') for n in sys.modules), file=sys.__stdout__)"
)

ROWS: dict[str, list[str]] = {
    "bare python": ["-c", "pass"],
    "python, click": ["-c", "import click"],
    "tessera --version": ["-m", "tessera", "--version"],
    "tessera --help": ["-m", "tessera", "--help"],
    "tessera map --help": ["-m", "tessera", "map", "--help"],
    "tessera why --help": ["-m", "tessera", "why", "--help"],
    "tessera lab status": ["-m", "tessera", "lab", "status", "--dir", "/nonexistent"],
    "tessera agent --help": ["-m", "tessera", "agent", "--help"],
}


def main() -> None:
    """Measures each row and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="runs of each command line")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    rows = [measured(name, arguments, given.runs) for name, arguments in ROWS.items()]
    print(f"start-up of the command line, CPU ms of {given.runs} runs each; the bar is {BAR:.0f} ms")
    print(f"{'command':<22}{'p50':>8}{'p90':>8}{'max':>8}{'wall p50':>10}{'modules':>9}{'of ours':>9}")
    for row in rows:
        modules = "".join(f"{row[name] if row[name] is not None else '-':>9}" for name in ("modules", "ours"))
        print(
            f"{row['command']:<22}{row['p50']:>8.1f}{row['p90']:>8.1f}{row['max']:>8.1f}{row['wall']:>10.1f}{modules}"
        )
    figures = {"bar_ms": BAR, "runs": given.runs, "rows": rows}
    if given.json is None:
        print(json.dumps(figures))
    else:
        given.json.write_text(json.dumps(figures, indent=2))


def measured(name: str, arguments: list[str], runs: int) -> dict[str, Any]:
    """One row: CPU and wall time in milliseconds."""
    command = [sys.executable, *arguments]
    _run(command)
    times = [_run(command) for _ in range(runs)]
    cpu = sorted(each[0] for each in times)
    modules, ours = _modules(arguments)
    return {
        "command": name,
        "p50": statistics.median(cpu),
        "p90": cpu[int(0.9 * (len(cpu) - 1))],
        "max": cpu[-1],
        "wall": statistics.median(each[1] for each in times),
        "modules": modules,
        "ours": ours,
    }


def _run(command: list[str]) -> tuple[float, float]:
    """CPU and wall milliseconds of one run."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        _, _, used = os.wait4(child.pid, 0)
        child.returncode = 0
    return 1000 * (used.ru_utime + used.ru_stime), 1000 * (time.perf_counter() - began)


def _modules(arguments: list[str]) -> tuple[int | None, int | None]:
    """The number of modules that a command line of ours imports, and the number of ours among them."""
    if arguments[:2] != ["-m", "tessera"]:
        return None, None
    code = _COUNT.format(arguments=arguments[2:])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    total, ours = done.stdout.split()
    return int(total), int(ours)


if __name__ == "__main__":
    main()
