"""Where more than a few pods must end, enough of them are named, and none in vain."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.forecast.queue.published_reasons import find_enough_ends
from tessera.mig.models import model_by_short_name
from tessera.placement.cards import OwnedPlacement
from tessera.placement.demand import Demand
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.plan import plan

A100 = model_by_short_name("A100-40GB").geometry
WHOLE = "7g.40gb"


def _fleet(nodes: int, cards: int) -> Fleet:
    fleet = Fleet()
    for node in range(nodes):
        for card in range(cards):
            fleet.add_card(f"node-{node}", f"GPU-{node}-{card}", A100)
    return fleet


def _end(fleet: Fleet, found: tuple[OwnedPlacement, ...]) -> None:
    for one in found:
        fleet.release(one.placement.node, one.placement.gpu, one.placement.start)


def test_eight_whole_cards_wait_for_eight_pods_of_one_node() -> None:
    fleet = _fleet(2, 8)
    for node in range(2):
        for card in range(8):
            fleet.occupy(CardPlacement(f"node-{node}", f"GPU-{node}-{card}", WHOLE, 0, 8), f"pod-{node}-{card}")
    fleet.release("node-1", "GPU-1-0", 0)
    found = find_enough_ends(fleet, (WHOLE,) * 8, ["node-0", "node-1"])
    assert {one.owner for one in found} == {f"pod-1-{card}" for card in range(1, 8)}


def test_a_pod_that_need_not_end_is_left_out() -> None:
    fleet = _fleet(1, 5)
    for card in range(4):
        fleet.occupy(CardPlacement("node-0", f"GPU-0-{card}", "4g.20gb", 0, 4), f"large-{card}")
    fleet.occupy(CardPlacement("node-0", "GPU-0-4", "3g.20gb", 4, 4), "small")
    found = find_enough_ends(fleet, (WHOLE,) * 4, ["node-0"])
    assert len(found) == 4


def test_a_node_that_is_too_small_names_nobody() -> None:
    fleet = _fleet(1, 2)
    fleet.occupy(CardPlacement("node-0", "GPU-0-0", WHOLE, 0, 8), "pod")
    assert find_enough_ends(fleet, (WHOLE,) * 3, ["node-0"]) == ()


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 4))
def test_the_slices_fit_once_they_have_ended_and_not_before_the_last_has(seed: int, nodes: int, cards: int) -> None:
    rng, fleet = random.Random(seed), _fleet(nodes, cards)
    names = ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", WHOLE]
    for number in range(12 * cards):
        profiles = tuple(rng.choices(names, k=rng.choice([1, 1, 2])))
        for placements in plan(fleet, [Demand(f"pod-{number}", profiles)]).assignments.values():
            fleet.occupy_all(placements, f"pod-{number}")
    wanted = Demand("wanted", tuple(rng.choices(names[2:], k=min(cards, rng.randint(1, 4)))))
    if plan(fleet, [wanted]).assignments:
        return
    found = find_enough_ends(fleet, wanted.profiles, [f"node-{node}" for node in range(nodes)])
    assert len({one.placement.node for one in found}) == 1
    spared = rng.choice(sorted({one.owner for one in found}))
    _end(fleet, tuple(one for one in found if one.owner != spared))
    here = [one.placement.node for one in found][:1]
    assert all(each[0].node not in here for each in plan(fleet, [wanted]).assignments.values())
    _end(fleet, tuple(one for one in found if one.owner == spared))
    assert plan(fleet, [wanted]).assignments
