"""The command line: what its start costs, and what a command costs on a large cluster, beside kubectl.

    python bench/cli.py                                  about ten minutes; 20,000 pods
    python bench/cli.py --runs 50 --pods 0 --json cli.json

The first table is the start. Each row is one command line, run as often as asked after one run that warms the caches.
CPU is user and system time of the process, as the kernel counts it; the bar is 150 ms. ``modules`` is how many modules
are imported, ``of ours`` how many of them are Tessera's.

The second table is a lab with two simulated nodes and the given number of other teams' pods on nodes without cards;
``kubectl get pods -A`` is the measure: a command may take twice its time, and twice its CPU. All commands run in turn,
round by round, so that a busy machine slows all alike. The server is the lab's, in
Python, so the times compare commands and say little about a real cluster. ``why`` is asked about a pod that runs and
about one that waits. Without kubectl on the PATH there is no such row.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tessera.cli.base.connection import connect
from tessera.kube.resources import NAMESPACES, PODS

#: The most CPU that starting the command line may cost, milliseconds.
BAR = 150.0
#: How many times as long as ``kubectl get pods -A`` a command may take.
FACTOR = 2.0
#: Pods below which more rounds are run.
_FEW = 1_000
#: Namespaces and nodes of the other teams' pods, and how many are made at the same time.
_TEAMS, _NODES, _PARALLEL = 20, 200, 32

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


#: Commands on a cluster with the pods ``runs`` and ``waits``.
ON_CLUSTER = (
    *("why runs", "why waits", "map", "queue", "queue -A", "top --once", "health", "idle", "usage"),
    *("topo node-1", "why node/node-1", "version", "doctor"),
)


def main() -> None:
    """Measures each row and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="runs of each command line")
    parser.add_argument("--pods", type=int, default=20_000, help="pods of other teams in the cluster")
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
    with lab() as environment:
        asyncio.run(fill(environment["KUBECONFIG"], given.pods))
        commands = timed(("kubectl", *ON_CLUSTER), environment, min(given.runs, 15 if given.pods < _FEW else 5))
    kubectl = commands[0]
    print(f"\non a lab with {given.pods:,} pods of other teams, ms; the bar is {FACTOR:.0f} x kubectl get pods -A")
    print(f"{'command':<22}{'wall p50':>10}{'CPU p50':>9}{'x wall':>9}{'x CPU':>9}")
    for row in commands:
        times = [f"{row[name] / kubectl[name]:.2f}" if kubectl[name] else "-" for name in ("wall", "cpu")]
        print(f"{row['command']:<22}{row['wall'] or 0:>10.0f}{row['cpu'] or 0:>9.0f}{times[0]:>9}{times[1]:>9}")
    figures = {"bar_ms": BAR, "runs": given.runs, "rows": rows, "pods": given.pods, "commands": commands}
    if given.json is None:
        print(json.dumps(figures))
    else:
        given.json.write_text(json.dumps(figures, indent=2))


@contextmanager
def lab() -> Iterator[dict[str, str]]:
    """A lab with two nodes, a pod that runs and one that waits; yields the environment of its commands."""
    with tempfile.TemporaryDirectory(prefix="tl-", dir="/tmp") as top:
        folder = ["--dir", str(Path(top, "lab"))]
        command = [sys.executable, "-m", "tessera", "lab"]
        subprocess.run([*command, "up", "--nodes", "4xA100-40GB,4xH100-80GB", *folder], check=True, capture_output=True)
        try:
            yield {**os.environ, "KUBECONFIG": str(Path(top, "lab", "kubeconfig"))}
        finally:
            subprocess.run([*command, "down", *folder], check=True, capture_output=True)


async def fill(kubeconfig: str, pods: int) -> None:
    """Makes the pods that are asked about, and those of other teams."""
    limits: dict[str, dict[str, Any]] = {
        "runs": {"nvidia.com/mig-3g.20gb": 1},
        "waits": {"nvidia.com/mig-3g.20gb": 1, "cpu": "500"},
    }
    free = asyncio.Semaphore(_PARALLEL)
    async with connect("tessera-bench", Path(kubeconfig)) as client:

        async def add(name: str, namespace: str, limits: dict[str, Any], node: str = "") -> None:
            spec: dict[str, Any] = {
                "containers": [{"name": "main", "image": "registry.example.com/app:1", "resources": {"limits": limits}}]
            }
            if node:
                spec["nodeName"] = node
            async with free:
                await client.create(PODS.as_dicts(), {"metadata": {"name": name}, "spec": spec}, namespace=namespace)

        for number in range(_TEAMS):
            await client.create(NAMESPACES.as_dicts(), {"metadata": {"name": f"team-{number:02d}"}})
        await asyncio.gather(
            *(add(name, "default", each) for name, each in limits.items()),
            *(
                add(f"batch-{number:05d}", f"team-{number % _TEAMS:02d}", {"cpu": "1"}, f"other-{number % _NODES:03d}")
                for number in range(pods)
            ),
        )


def timed(lines: Sequence[str], environment: dict[str, str], runs: int) -> list[dict[str, Any]]:
    """A row for each line: wall and CPU time in milliseconds; None without the program."""
    commands = {line: [sys.executable, "-m", "tessera", *line.split()] for line in lines if line != "kubectl"}
    if shutil.which("kubectl") is not None:
        commands["kubectl"] = ["kubectl", "get", "pods", "-A"]
    times: dict[str, list[tuple[float, float]]] = {line: [] for line in commands}
    for number in range(runs + 1):
        for line, command in commands.items():
            found = _run(command, environment)
            if number:  # the first round warms the caches
                times[line].append(found)
    rows = []
    for line in lines:
        medians = [statistics.median(column) for column in zip(*times.get(line, ()), strict=True)] or [None, None]
        rows.append({"command": " ".join(commands[line]) if line == "kubectl" and line in commands else line})
        rows[-1] |= dict(zip(("cpu", "wall"), medians, strict=True))
    return rows


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


def _run(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, float]:
    """CPU and wall milliseconds of one run."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as child:
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
