"""However long cards come and go, a group gives a card of the fullest node, and the best group is found."""

import random
from collections.abc import Callable, Iterator

import pytest

from tessera.mig.models import model_by_short_name
from tessera.placement.cards import CardPlacement, Hold
from tessera.placement.fleet import Fleet
from tessera.placement.policies import FragmentationGradient

A100 = model_by_short_name("A100-40GB").geometry
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def history(nodes: int, cards: int, steps: int, keep: Callable[[random.Random], int]) -> Iterator[Fleet]:
    """Slices come to random legal places and leave again, and holds change; yields the fleet after each step."""
    rng, fleet = random.Random(nodes), Fleet()
    for number in range(nodes * cards):
        fleet.add_card(f"node-{number % nodes}", f"GPU-{number}", A100)
    held: list[CardPlacement] = []
    all_cards = list(fleet.cards())
    for step in range(steps):
        card, row = rng.choice(all_cards), A100.profile(rng.choice(PROFILES))
        start = rng.choice(row.starts)
        if not row.mask(start) & card.instances:
            held.append(CardPlacement(card.node.name, card.gpu, row.name, start, row.size))
            fleet.occupy(held[-1], "slice")
        while len(held) > keep(rng):
            ended = held.pop(rng.randrange(len(held)))
            fleet.release(ended.node, ended.gpu, ended.start)
        if step % 50 == 0:
            fleet.hold([Hold(card.node.name, card.gpu, rng.randrange(1, 256), "waiting")])
        yield fleet


@pytest.mark.parametrize(("nodes", "cards"), [(1, 1), (3, 2), (5, 8)])
def test_a_group_gives_a_card_of_its_fullest_node_and_bounds_its_stale_entries(nodes: int, cards: int) -> None:
    for fleet in history(nodes, cards, 3_000, lambda rng: rng.randrange(2 * nodes * cards + 1)):
        for group in fleet.candidates("1g.5gb"):
            assert group.entries <= 4 * group.count + 65
            assert group.first().node.free == min(card.node.free for card in group.members())
            assert len(group.members()) == group.count


def test_the_best_place_is_that_of_the_first_candidate() -> None:
    policy = FragmentationGradient()
    for fleet in history(3, 2, 3_000, lambda rng: rng.randrange(12)):
        for profile in PROFILES:
            first = next(fleet.candidates(profile), None)
            found = fleet.best_place(profile, policy.costs)
            assert (found and found[0]) is first
            if found is not None:
                (placed,) = policy.arrange(found[0].table, found[0].occupancy, (profile,)) or ()
                assert found[1] == placed
