"""Results of experiments as text: one line a scenario, then what differs, then whose numbers are whose."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from tessera.provisioning.experiments.results import POLICY_RESET, Samples, contrast
from tessera.provisioning.statistics import CONFIDENCE

TITLES = {
    "policy-reset": "policy reset: ClusterPolicy applied until the node counts its cards, seconds",
    "autoscale": "autoscaling: new node Ready until the GPU workload runs, seconds",
}
_ORDERS = {"reference": "reference operator", "tessera": "Tessera"}


def lines(
    results: Sequence[Samples], titles: Mapping[str, str], published: Mapping[tuple[str, str], float]
) -> Iterator[str]:
    """The report of one experiment.

    Args:
        results: its scenarios.
        titles: of scenarios, by name.
        published: Red Hat's means by experiment and scenario; empty outside of the lab.
    """
    first, simulated = results[0], any(each.simulated for each in results)
    yield TITLES[first.experiment] + ("   (simulated)" if simulated else "")
    shown = first.experiment == POLICY_RESET
    head = f"  {'scenario':<34}{'order of steps':<20}{'n':>4}" + (f"{'first':>8}" if shown else "")
    head += f"{'mean':>8}{'median':>8}   {f'{CONFIDENCE:.0%} interval':<16}"
    yield (head + ("Red Hat's mean" if published else "")).rstrip()
    for each in results:
        yield _line(each, titles, published, shown=shown)
    if any(each.first is not None for each in results):
        pulls = "pulls images" if published else "may pull images that later ones find"
        yield f"  the first sample {pulls}; it is shown and not counted"
    yield from _contrasts(results)
    if published:
        yield "  Red Hat's means were measured by Red Hat: OpenShift 4.13, AWS g4dn.xlarge, Tesla T4."
        yield "  The cost model (tessera bench costs) was calibrated so that the reference operator's order of steps"
        yield "  comes to them; the same costs under Tessera's order give the other lines. No card was measured."


def _line(each: Samples, titles: Mapping[str, str], published: Mapping[tuple[str, str], float], *, shown: bool) -> str:
    row = f"  {titles.get(each.scenario, each.scenario):<34}{_ORDERS.get(each.operator, each.operator):<20}"
    row += f"{len(each.samples):>4}"
    if shown:
        row += f"{'' if each.first is None else f'{each.first:.0f}':>8}"
    if not each.samples:
        return row.rstrip()
    told = each.summary
    interval = "" if told.low is None else f"{told.low:.1f} to {told.high:.1f}"
    row += f"{told.mean:>8.1f}{told.median:>8.1f}   {interval:<16}"
    theirs = published.get((each.experiment, each.scenario))
    if theirs is not None:
        row += f"{theirs:.0f}" + (f" ({told.mean / theirs - 1:+.1%})" if each.operator == "reference" else "")
    return row.rstrip()


def _contrasts(results: Sequence[Samples]) -> Iterator[str]:
    for first, second in combinations([each for each in results if each.samples], 2):
        if first.operator == second.operator or first.scenario == second.scenario:
            told = contrast(first, second)
            compared = told.comparison
            low, high = compared.low, compared.high
            sure = "" if low is None or high is None else f", {CONFIDENCE:.0%} interval {-high:+.1f} to {-low:+.1f}"
            effect = "" if compared.effect is None else f", Hedges' g {compared.effect:.1f}"
            share = "" if compared.ratio is None else f" ({compared.ratio - 1:+.0%})"
            yield f"  {told.slower} -> {told.faster}: {-compared.difference:+.1f} s{share}{sure}{effect}"
