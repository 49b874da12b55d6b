"""The article's experiments in the lab: what a run costs this machine, for each scenario and order of steps.

    python bench/experiments.py
    python bench/experiments.py --repeat 5 --json experiments.json

A run is what ``tessera bench policy-reset --lab`` and ``tessera bench autoscale --lab`` play once per line of their
table: a fresh simulated cluster, and so many repetitions in it on virtual time. Real are the API server's code, the
controller and the agents, all in one process. CPU seconds say what a run needs; wall seconds grow with what else the
machine does. A run of 30 repetitions is to take under 20 s.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from tessera_lab.cli.own_commands import own_commands
from tessera_lab.experiments.clusters import BUILT, INTERNAL, PUBLIC
from tessera_lab.experiments.runs import OURS, UPSTREAM, autoscale, policy_reset
from tessera_lab.installation.install import build_entrypoint

RUNS = ((policy_reset, BUILT), (policy_reset, PUBLIC), (autoscale, BUILT), (autoscale, PUBLIC), (autoscale, INTERNAL))
#: Seconds that a run of 30 repetitions may take.
LIMIT = 20.0


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=30, help="repetitions of each run")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the bar is missed")
    given = parser.parse_args()
    make = build_entrypoint(own_commands())
    print(f"one run of {given.repeat} repetitions in the lab, seconds of this machine; the experiments are simulated")
    print(f"{'experiment':<14}{'scenario':<22}{'order of steps':<16}{'CPU':>7}{'wall':>7}{'simulated mean':>16}")
    rows: list[dict[str, Any]] = []
    for measure, scenario in RUNS:
        for order in (UPSTREAM, OURS):
            cpu, wall = time.process_time(), time.perf_counter()
            told = measure(scenario, given.repeat, operator=order, make=make)
            row = {
                "experiment": told.experiment,
                "scenario": scenario.name,
                "order": order,
                "cpu_seconds": time.process_time() - cpu,
                "wall_seconds": time.perf_counter() - wall,
                "simulated_mean_seconds": told.summary.mean,
            }
            rows.append(row)
            print(
                f"{told.experiment:<14}{scenario.name:<22}{order:<16}{row['cpu_seconds']:>7.1f}{row['wall_seconds']:>7.1f}"
                f"{told.summary.mean:>16.1f}",
                flush=True,
            )
    slowest = max(rows, key=lambda row: row["wall_seconds"])
    missed = slowest["wall_seconds"] > LIMIT
    verdict = f"bar for 30 repetitions: {LIMIT:.0f} s, {'MISSED' if missed else 'met'}"
    print(f"slowest: {slowest['wall_seconds']:.1f} s; {verdict}")
    figures = {"repeat": given.repeat, "limit_seconds": LIMIT, "rows": rows}
    if given.json is None:
        print(json.dumps(figures))
    else:
        given.json.write_text(json.dumps(figures, indent=2))
    if missed and given.check:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
