"""Back-tests the expected starts of waiting pods: on Alibaba's openb trace and on synthetic ones.

    python -m bench.eta ../shared/data/openb           five traces, with and without reservations
    python -m bench.eta --traces teams --json eta.json

The real slicer runs the trace. Each pod that has to wait is forecast once, with what was known then, and compared with
its start. *before p90* is the share of the forecast pods that started before the end of their range; the bar is 80 %.
*loss* is the pinball loss of the two ends of the range (0.5 and 0.9), in seconds a pod; *mean 20* is that of the mean
wait of the last 20 pods of the same size, *quantiles 20* that of the quantiles of those 20 waits; less is better.
*reason* is the share of waiting pods for which the removal of the named blockers makes the pod fit; the bar is 95 %.
*known* is the share of the waiting pods with a forecast that does not say "unknown".

openb has GPU shares, which are rounded up to MIG profiles, arrivals and lives; its cluster was so large that hardly
anything waited. So the trace runs on as many cards as its demand fills to 95 %, its idle first two thirds left out.
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from bench.eta.scores import Figures, measure
from bench.eta.traces import SYNTHETIC


def main() -> None:
    """Runs the traces and prints a line for each."""
    parser = argparse.ArgumentParser(prog="python -m bench.eta", description=__doc__.partition("\n")[0])
    parser.add_argument("openb", nargs="?", type=Path, help="folder with openb_pod_list_default.csv")
    parser.add_argument("--traces", nargs="*", choices=["openb", *SYNTHETIC], default=["openb", *SYNTHETIC])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    print(
        f"{'trace':<13}{'reserves':>9}{'cards':>6}{'pods':>6}{'waited':>7}{'known':>7}{'<=p50':>7}{'<=p90':>7}"
        f"{'loss s':>9}{'mean 20':>9}{'quant. 20':>10}{'reason':>8}  bases"
    )
    lines = []
    with ProcessPoolExecutor(given.processes) as pool:
        for line in pool.map(measure, *zip(*_runs(given), strict=True)):
            lines.append(line)
            print(_text(line), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n", encoding="utf-8")


def _runs(given: argparse.Namespace) -> Iterator[tuple[str, int, Path | None, float | None]]:
    for trace in given.traces:
        if trace != "openb" or given.openb is not None:
            for after in (60.0, None):
                yield trace, given.seed, given.openb if trace == "openb" else None, after


def _text(line: Figures) -> str:
    bases = ", ".join(f"{name} {count}" for name, count in sorted(line.bases.items()))
    return (
        f"{line.trace:<13}{'yes' if line.reservations else 'no':>9}{line.cards:>6}{line.pods:>6}{line.waited:>7}"
        f"{line.known:>7.1%}{line.before_p50:>7.1%}{line.before_p90:>7.1%}{line.loss:>9,.0f}{line.loss_mean:>9,.0f}"
        f"{line.loss_quantiles:>10,.0f}{line.reason:>8.1%}  {bases}"
    )


if __name__ == "__main__":
    main()
