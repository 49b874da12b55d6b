"""Waiting pods are planned together: demands that fill a card fit one card, in any order of arrival, and as one pod."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.support.mig_enumeration import filling_multisets, maximal_multisets
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.names import resource_of
from tessera.mig.models import model_by_short_name

A100 = model_by_short_name("A100-40GB").geometry
#: All base profiles; the published 28 maximal multisets are without the media engines.
BASE = [profile.name for profile in A100.profiles if not profile.media]
WHOLE = {resource_of("7g.40gb"): 1}


def combinations() -> list[tuple[str, ...]]:
    """The 32 that fill all eight memory slots, and the 28 maximal ones, without repetition."""
    found = {*filling_multisets(A100), *maximal_multisets(A100.restrict(BASE))}
    return sorted(tuple(name for name, count in each for _ in range(count)) for each in found)


def as_limits(profiles: Sequence[str]) -> dict[str, int]:
    """The limits of one container that asks for all of them."""
    return {resource_of(name): profiles.count(name) for name in profiles}


async def wait_for_free_card(lab: VirtualLab, names: Sequence[str]) -> None:
    """The card is freed under pods that wait; then it is theirs, and then free again."""
    await lab.until(lambda: all(lab.events_of(name, "SliceWaiting") for name in names), "all of them wait")
    await lab.delete("blocker")
    await lab.running(*names)
    for name in names:
        await lab.delete(name)
    await lab.empty()


def test_there_are_as_many_combinations_as_published() -> None:
    assert len(list(filling_multisets(A100))) == 32
    assert len(list(maximal_multisets(A100.restrict(BASE)))) == 28


def arriving_in_orders(seed: int) -> Callable[[Any], Awaitable[None]]:
    """Each combination after one another, the pods of each in an order that the seed decides."""

    async def scenario(lab: VirtualLab) -> None:
        rng = random.Random(seed)
        for number, combination in enumerate(combinations()):
            await lab.create("blocker", WHOLE)
            await lab.running("blocker")
            order = rng.sample(combination, len(combination))
            names = [f"c{number}-{n}" for n in range(len(order))]
            for name, profile in zip(names, order, strict=True):
                await lab.create(name, {resource_of(profile): 1})
            await wait_for_free_card(lab, names)

    return scenario


@pytest.mark.soak
@pytest.mark.parametrize("seed", [7, *range(100, 110)])
def test_every_combination_fits_one_card_in_any_order(in_lab: InLab, seed: int) -> None:
    in_lab(arriving_in_orders(seed), nodes="1xA100-40GB")


#: `make test` tries every sixth combination; tests/placement/test_plan.py has all of them in many orders.
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.soak)])
def test_every_combination_fits_as_one_pod(in_lab: InLab, every: int) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for number, combination in enumerate(combinations()[::every]):
            await lab.create("blocker", WHOLE)
            await lab.running("blocker")
            await lab.create(f"c{number}", as_limits(combination))
            await wait_for_free_card(lab, [f"c{number}"])

    in_lab(scenario, nodes="1xA100-40GB")


def test_what_waits_when_a_card_joins_is_planned_together(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        profiles = ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]
        await lab.leave("node-1")
        for n, profile in enumerate(profiles):
            await lab.create(f"p{n}", {resource_of(profile): 1})
        await lab.until(lambda: all(lab.events_of(f"p{n}", "SliceWaiting") for n in range(4)), "all of them wait")
        await lab.join("node-1")
        await lab.running(*(f"p{n}" for n in range(4)))
        assert len(lab.hardware()) == 4

    in_lab(scenario, nodes="1xA100-40GB")
