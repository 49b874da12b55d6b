"""Plays the scenarios of ``tessera bench … --lab``."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tessera.cli.base.console import say
from tessera_lab.cli.bench.experiment import Trial
from tessera_lab.cli.bench.results import lines, save_results
from tessera_lab.experiments import runs
from tessera_lab.experiments.results import RED_HAT, Samples
from tessera_lab.experiments.runs import PERIOD, UNEXPLAINED, Attribution, attribute
from tessera_lab.experiments.scenarios import SCENARIOS
from tessera_lab.reference_operator.manifests import REFERENCE, ReferenceWaits

_EXPERIMENTS = {"policy-reset": runs.policy_reset, "autoscale": runs.autoscale}


def run_experiment(experiment: str, scenarios: Sequence[str], trial: Trial) -> None:
    """Plays an experiment, and prints and writes its results.

    Args:
        experiment: its name.
        scenarios: names of all its scenarios.
        trial: values of the options.
    """
    one = _measure(experiment, trial.repeat or 30, trial.seed)
    results: list[Samples] = []
    breakdowns: list[str] = []
    for name in trial.scenarios or scenarios:
        if trial.breakdown:
            found = attribute(partial(one, name), built=not SCENARIOS[name].precompiled, report=_print_result(name))
            results += [found.reference, found.ours]
            breakdowns += format_attribution(found)
            continue
        for order in trial.orders:
            _print_result(name)(order)
            results.append(one(name, order, REFERENCE))
    titles = {name: scenario.title for name, scenario in SCENARIOS.items()}
    say(*lines(results, titles, RED_HAT), *breakdowns)
    save_results(results, trial.json_file)


def _measure(experiment: str, repeats: int, seed: int) -> Callable[[str, str, ReferenceWaits], Samples]:
    from tessera_lab.cli.own_commands import own_commands
    from tessera_lab.installation.install import build_entrypoint

    make = build_entrypoint(own_commands())
    played = _EXPERIMENTS[experiment]
    return lambda name, order, waits: played(
        SCENARIOS[name], repeats, operator=order, make=make, waits=waits, seed=seed
    )


def _print_result(scenario: str) -> Callable[[str], None]:
    return lambda step: say(f"{scenario}: {step} ...", err=True)


def format_attribution(attribution: Attribution) -> Iterator[str]:
    """The seconds that each wait adds to the difference between two means."""
    yield f"  {attribution.reference.scenario}: where {attribution.total_saving:.1f} s come from (simulated)"
    for each in attribution.savings:
        yield f"    {round(each.seconds, 1) + 0.0:>7.1f} s  {each.wait}"  # no minus before a zero
    yield f"    {attribution.total_saving:>7.1f} s  together"
    if any(round(each.seconds, 1) < 0 for each in attribution.savings if each.wait not in {UNEXPLAINED, PERIOD}):
        yield "  below 0: without that wait, a periodic check came later by chance; more samples reduce this"
