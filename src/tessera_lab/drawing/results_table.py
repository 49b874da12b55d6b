"""The results of experiments as text for a terminal. Pure."""

from collections.abc import Iterator, Sequence

from tessera.provisioning.report.table import seconds
from tessera_lab.experiments.results import Samples


def result_lines(results: Sequence[Samples]) -> Iterator[str]:
    """A line for each scenario."""
    named = [(f"{each.scenario} ({each.operator}{', simulated' if each.simulated else ''})", each) for each in results]
    wide = max(len(scenario) for scenario, _ in named) + 2
    yield f"  {'experiment':<14}{'scenario':<{wide}}{'n':>4}{'mean':>9}{'median':>9}   95 % interval of the mean"
    for scenario, each in named:
        start = f"  {each.experiment:<14}{scenario:<{wide}}"
        if not each.samples:
            yield f"{start}{0:>4}"
            continue
        found = each.summary
        within = f"{seconds(found.low)} to {seconds(found.high)}" if found.low is not None else "needs two values"
        yield f"{start}{found.n:>4}{seconds(found.mean):>9}{seconds(found.median):>9}   {within}"
