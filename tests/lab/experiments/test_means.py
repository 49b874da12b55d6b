"""The reference operator's order of steps comes to Red Hat's five means; Tessera's order is faster, second by second.

Everything is simulated, with a declared cost model on virtual time; the controller, the agent and the webhook are real.
"""

from collections.abc import Callable

import pytest
from tests.lab.experiments.conftest import MAKE

from tessera.lab.experiments.attribution import attribute
from tessera.lab.experiments.measure import OURS, UPSTREAM, autoscale, policy_reset
from tessera.lab.experiments.scenarios import BUILT, INTERNAL, PUBLIC, RED_HAT, Scenario
from tessera.provisioning.experiments.results import Samples

Measure = Callable[..., Samples]

FIVE = [(policy_reset, BUILT), (policy_reset, PUBLIC), (autoscale, BUILT), (autoscale, PUBLIC), (autoscale, INTERNAL)]
NAMES = [f"{measure.__name__}-{scenario.name}" for measure, scenario in FIVE]


@pytest.mark.parametrize(("measure", "scenario"), FIVE, ids=NAMES)
def test_the_reference_comes_within_five_percent_of_red_hats_mean(measure: Measure, scenario: Scenario) -> None:
    told = measure(scenario, 5, operator=UPSTREAM, make=MAKE)
    theirs = RED_HAT[told.experiment, scenario.name]
    assert told.simulated
    assert told.summary.mean == pytest.approx(theirs, rel=0.05)


@pytest.mark.parametrize(("measure", "scenario"), FIVE, ids=NAMES)
def test_tesseras_order_of_steps_is_faster_on_the_same_costs(measure: Measure, scenario: Scenario) -> None:
    ours = measure(scenario, 1, operator=OURS, make=MAKE).summary.mean
    assert ours < 0.9 * RED_HAT[policy_reset_or_autoscale(measure), scenario.name]


def policy_reset_or_autoscale(measure: Measure) -> str:
    return measure.__name__.replace("_", "-")


def test_the_first_reset_pulls_images_and_does_not_count() -> None:
    told = policy_reset(PUBLIC, 2, operator=UPSTREAM, make=MAKE)
    assert told.first is not None
    assert told.first > max(told.samples)
    assert len(told.samples) == 2


def test_every_saved_second_is_attributed_to_a_wait_or_an_overlap() -> None:
    told = attribute(lambda order, waits: autoscale(PUBLIC, 1, operator=order, make=MAKE, waits=waits))
    assert told.saved > 100
    by_name = {each.what.partition(":")[2].strip(): each.seconds for each in told.savings}
    assert by_name["driver's startup probe, 60 s and then every 10 s"] <= 70
    assert by_name["node feature discovery"] > 10
    assert by_name["pulls begin before the node is Ready"] > 10
    rest = told.savings[-1]
    assert abs(rest.seconds) <= 10, "what is neither a wait nor an overlap is less than one of kubelet's periods"


def test_chance_is_repeatable_and_seeded() -> None:
    one, again, other = (policy_reset(PUBLIC, 2, operator=UPSTREAM, make=MAKE, seed=seed) for seed in (5, 5, 6))
    assert one == again
    assert one.samples != other.samples or one.first != other.first
