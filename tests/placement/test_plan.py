"""What waits together is packed together, in the order that priority and arrival demand."""

import random
from collections.abc import Sequence

import pytest

from tessera.mig.enumeration import filling_multisets, maximal_multisets
from tessera.mig.models import model_by_short_name
from tessera.placement.demand import Demand
from tessera.placement.fleet import Fleet
from tessera.placement.plan import Plan, plan
from tessera.placement.reasons import Full

A100 = model_by_short_name("A100-40GB").geometry
BASE = A100.restrict([name for name in A100.names if name != "1g.5gb+me"])


def fleet_of(nodes: int, cards: int) -> Fleet:
    fleet = Fleet()
    for node in range(nodes):
        for card in range(cards):
            fleet.add_card(f"node-{node}", f"GPU-{node}-{card}", A100)
    return fleet


def one_each(profiles: Sequence[str]) -> list[Demand]:
    return [Demand(f"pod-{index}", (profile,), arrival=index) for index, profile in enumerate(profiles)]


def carry_out(fleet: Fleet, decided: Plan) -> None:
    for key, placements in decided.assignments.items():
        fleet.occupy_all(placements, key)


def test_seven_small_pods_sit_on_one_card_and_the_twenty_ninth_of_four_cards_waits() -> None:
    fleet = fleet_of(1, 4)
    for index in range(28):
        decided = plan(fleet, [Demand(f"pod-{index}", ("1g.5gb",))])
        carry_out(fleet, decided)
        assert len({held.placement.gpu for held in fleet.allocations()}) == index // 7 + 1
    reason = plan(fleet, [Demand("late", ("1g.5gb",))]).refusals["late"]
    assert isinstance(reason, Full)
    assert len(reason.frees) == 1
    fleet.release("node-0", reason.frees[0].placement.gpu, reason.frees[0].placement.start)
    assert "late" in plan(fleet, [Demand("late", ("1g.5gb",))]).assignments


COMBINATIONS = [*filling_multisets(A100), *maximal_multisets(BASE)]


def test_there_are_thirty_two_filling_and_twenty_eight_maximal_combinations() -> None:
    assert (len(filling_multisets(A100)), len(maximal_multisets(BASE))) == (32, 28)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda one: "+".join(f"{n}x{name}" for name, n in one))
def test_every_combination_fits_one_free_card_in_any_order_of_arrival(combination: tuple[tuple[str, int], ...]) -> None:
    profiles = [name for name, count in combination for _ in range(count)]
    for seed in range(20):
        random.Random(seed).shuffle(profiles)
        fleet = fleet_of(1, 1)
        decided = plan(fleet, one_each(profiles))
        assert not decided.refusals
        carry_out(fleet, decided)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda one: "+".join(f"{n}x{name}" for name, n in one))
def test_every_combination_fits_one_free_card_as_one_demand(combination: tuple[tuple[str, int], ...]) -> None:
    profiles = tuple(name for name, count in combination for _ in range(count))
    fleet = fleet_of(1, 1)
    decided = plan(fleet, [Demand("pod", profiles)])
    assert [placed.profile for placed in decided.assignments["pod"]] == list(profiles)
    carry_out(fleet, decided)
