"""Results of experiments: a table on the terminal, and a file for the report.

Samples cost minutes and machines, so none is lost: if an experiment fails, the samples measured before are still
printed and written, and samples that cannot be written to the file are printed. The reason of the failure comes last.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

from tessera.cli.base.connection import CommandError
from tessera.cli.base.console import say, say_json_text
from tessera.provisioning.start_times import CONFIDENCE
from tessera_lab.experiments.results import POLICY_RESET, Samples, contrast, write_results

TITLES = {
    "policy-reset": "policy reset: ClusterPolicy applied until the node counts its cards, seconds",
    "autoscale": "autoscaling: new node Ready until the GPU workload runs, seconds",
}
_ORDERS = {"reference": "reference operator", "tessera": "Tessera"}


def progress_printer(scenario: str) -> Callable[[str], None]:
    """A function that prints the progress of a scenario on standard error."""
    return lambda text: say(f"{scenario}: {text}", err=True)


def sample_collector(samples: list[float], report: Callable[[str], None]) -> Callable[[float], None]:
    """A function that adds a measured time to ``samples`` and reports it."""

    def add(seconds: float) -> None:
        samples.append(seconds)
        report(f"{seconds:.1f} s")

    return add


@contextmanager
def collect_results(file: Path | None) -> Iterator[list[Samples]]:
    """Prints the results of a live cluster and writes them to a file, also if the block fails.

    Args:
        file: the file; None to write none.

    Yields:
        The list to which the block adds the results of scenarios.

    Raises:
        CommandError: the file could not be written.
    """
    results: list[Samples] = []
    try:
        yield results
    except BaseException:  # also at an interrupt: the samples before it cost minutes and machines
        try:
            _print_and_save(results, file)
        except CommandError as unwritten:
            say(unwritten.message, err=True)
        raise
    _print_and_save(results, file)


def _print_and_save(results: Sequence[Samples], file: Path | None) -> None:
    measured = [each for each in results if each.samples or each.first is not None]
    if measured:
        say(*lines(measured, {}, {}))
        save_results(measured, file)


def save_results(results: Sequence[Samples], file: Path | None) -> None:
    """Writes results to a file; prints them if the file cannot be written.

    Raises:
        CommandError: the file could not be written.
    """
    if file is None:
        return
    written = write_results(results)
    try:
        file.write_bytes(written)
    except OSError as error:
        say_json_text(written.decode().removesuffix("\n"))
        raise CommandError(
            f"error: {file} could not be written ({error.strerror}); its content was printed instead"
        ) from error


def lines(
    results: Sequence[Samples], titles: Mapping[str, str], published: Mapping[tuple[str, str], float]
) -> Iterator[str]:
    """The report of one experiment: a line for each scenario, the differences, and the source of the numbers.

    Args:
        results: the scenarios.
        titles: titles of scenarios by name.
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
        pulls = "pulls images" if published else "may pull images that later ones find on the node"
        yield f"  the first sample {pulls}; it is shown and not counted"
    yield from _contrasts(results)
    if published:
        yield "  Red Hat's means were measured by Red Hat: OpenShift 4.13, AWS g4dn.xlarge, Tesla T4."
        yield "  The cost model (tessera bench costs) was calibrated so that the reference operator's order of steps"
        yield "  gives these means; the other lines are the same costs in Tessera's order. No card was measured."


def _line(each: Samples, titles: Mapping[str, str], published: Mapping[tuple[str, str], float], *, shown: bool) -> str:
    row = f"  {titles.get(each.scenario, each.scenario):<34}{_ORDERS.get(each.operator, each.operator):<20}"
    row += f"{len(each.samples):>4}"
    if shown:
        row += f"{'' if each.first is None else f'{each.first:.0f}':>8}"
    if not each.samples:
        return row.rstrip()
    summary = each.summary
    interval = "" if summary.low is None else f"{summary.low:.1f} to {summary.high:.1f}"
    row += f"{summary.mean:>8.1f}{summary.median:>8.1f}   {interval:<16}"
    reference_mean = published.get((each.experiment, each.scenario))
    if reference_mean is not None:
        row += f"{reference_mean:.0f}"
        row += f" ({summary.mean / reference_mean - 1:+.1%})" if each.operator == "reference" else ""
    return row.rstrip()


def _contrasts(results: Sequence[Samples]) -> Iterator[str]:
    for first, second in combinations([each for each in results if each.samples], 2):
        if first.operator == second.operator or first.scenario == second.scenario:
            contrasted = contrast(first, second)
            compared = contrasted.comparison
            low, high = compared.low, compared.high
            interval = "" if low is None or high is None else f", {CONFIDENCE:.0%} interval {-high:+.1f} to {-low:+.1f}"
            effect = "" if compared.effect is None else f", Hedges' g {compared.effect:.1f}"
            share = "" if compared.ratio is None else f" ({compared.ratio - 1:+.0%})"
            names = f"{contrasted.slower} -> {contrasted.faster}"
            yield f"  {names}: {-compared.difference:+.1f} s{share}{interval}{effect}"
