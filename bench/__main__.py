"""Runs benchmarks one after the other, each in a process of its own.

    python -m bench                                 all of them, at their usual size: hours
    python -m bench churn openb --openb DIRECTORY   two of them; openb and eta read FGD's traces
    python -m bench --smallest                      all, at the smallest size that means anything: a minute or two
    python -m bench --check                         a bar that is missed counts as a failure

One that fails is named at the end, and the others still run. A bar that is missed is printed by the benchmark; it makes
the exit code only with ``--check``. The exit code is 1 if a benchmark failed.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Benchmark(NamedTuple):
    """How to run a module of this folder.

    Attributes:
        smallest: the options of the smallest size that means anything.
        traces: True if it reads FGD's traces.
        needs_traces: True if it cannot run without them.
        bars: True if it has bars and takes ``--check``.
    """

    smallest: str = ""
    traces: bool = False
    needs_traces: bool = False
    bars: bool = False


BENCHMARKS = {
    "autoscale_services": Benchmark("--hours 2 --seeds 1"),
    "churn": Benchmark("--cards 8 --arrivals 200 --seeds 1 --mixes uniform --processes 1"),
    "claims": Benchmark("--nodes 1 --pods 4"),
    "cli": Benchmark("--runs 1"),
    "decisions": Benchmark("--nodes 10 --cases labels"),
    "eta": Benchmark("--traces teams", traces=True),
    "experiments": Benchmark("--repeat 1", bars=True),
    "handover": Benchmark("--seeds 1 --cases 0", bars=True),
    "large": Benchmark("--nodes 2 --pods 2"),
    "new_nodes": Benchmark("--sets 1 --steps 10"),
    "openb": Benchmark("--seeds 1 --processes 1", traces=True, needs_traces=True, bars=True),
    "page": Benchmark("--nodes 2 --rounds 2 --readers 1 --tiles 2 --seconds 0.5"),
    "placement": Benchmark("--cards 100 --decisions 100"),
    "pod_notices": Benchmark("--cards 1", bars=True),
    "ports": Benchmark("--ports page,reviews --clients 4 --seconds 0.2"),
    "preferences": Benchmark("--cards 8 --arrivals 200 --seeds 1 --mixes small --processes 1"),
    "preferred": Benchmark(),
    "readiness": Benchmark("--runs 1"),
    "replay": Benchmark("--nodes 2 --pods 4 --rounds 1"),
    "reservations": Benchmark("--cards 4 --pods 100"),
    "reviews": Benchmark("--nodes 10 --runs 1"),
    "scrape": Benchmark("--samples 2 --scrapes 2"),
    "server": Benchmark(),
    "spares": Benchmark("--replicas 20 --spares 0,1", bars=True),
    "sharing": Benchmark("--cards 1 --changes 1"),
    "slices": Benchmark("--nodes 2 --cards 1 --pods 4 --runs 1"),
    "state_values": Benchmark("--units 2 --mixes 2 --steps 2 --tested 2 --processes 1"),
    "top": Benchmark("--nodes 2 --others 2 --seconds 0.5"),
    "two_cards": Benchmark("--mixes uniform"),
    "waiting": Benchmark("--pods 20 --nodes 2"),
    "watch": Benchmark("--pods 100 --events 100 --runs 1", bars=True),
}


def main() -> None:
    """Runs what is named, and says at the end what failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(BENCHMARKS)}")
    parser.add_argument("--smallest", action="store_true", help="each at its smallest size")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--openb", type=Path, metavar="DIRECTORY", help="FGD's traces")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - BENCHMARKS.keys())
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    failed = [name for name in given.names or BENCHMARKS if not _run(name, given)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _run(name: str, given: argparse.Namespace) -> bool:
    """Runs one; false if it failed."""
    benchmark = BENCHMARKS[name]
    if benchmark.needs_traces and given.openb is None:
        print(f"== {name}: not run, it reads FGD's traces (--openb DIRECTORY)", flush=True)
        return True
    options = [
        *([str(given.openb)] if benchmark.traces and given.openb is not None else []),
        *(benchmark.smallest.split() if given.smallest else []),
        *(["--check"] if benchmark.bars and given.check else []),
    ]
    print(f"== {' '.join((name, *options))}", flush=True)
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", f"bench.{name}", *options], cwd=ROOT, check=False)
    print(f"== {name}: exit code {done.returncode}, {time.perf_counter() - began:.1f} s\n", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    main()
