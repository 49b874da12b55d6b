"""However long cards come and go, a group gives a card of the fullest node, and the best group is found."""

import random
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from bench.rivals import FragmentationGradient
from tests.support.searching import steps

from tessera.mig.models import model_by_short_name
from tessera.placement.card_table import CardTable
from tessera.placement.cards import AlikeCards, CardPlacement, FleetCard, FleetNode, Hold
from tessera.placement.fleet import Fleet

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
    for fleet in history(nodes, cards, steps(3_000), lambda rng: rng.randrange(2 * nodes * cards + 1)):
        for group in fleet.candidates("1g.5gb"):
            assert group.entries <= 4 * group.count + 65
            assert group.first().node.free == min(card.node.free for card in group.members())
            assert len(group.members()) == group.count


class CountedNode(FleetNode):
    """A node that counts how often its free slots are read."""

    reads = 0

    @property
    def free(self) -> int:
        CountedNode.reads += 1
        return self.number

    @free.setter
    def free(self, slots: int) -> None:
        pass


def test_cards_come_in_the_order_of_their_nodes_free_slots_each_once() -> None:
    for fleet in history(5, 8, steps(3_000), lambda rng: rng.randrange(81)):
        for group in fleet.candidates("1g.5gb"):
            found = list(group.cards())
            assert len(found) == len(set(found)) == group.count
            free = [card.node.free for card in found]
            assert free == sorted(free)
            assert group.entries <= 5 * group.count + 65


def test_the_first_cards_of_a_large_group_cost_little() -> None:
    """Pods that the fullest nodes refuse look at a few cards, not at all cards of the cluster."""
    group = AlikeCards(CardTable(A100, 0), 0, ())
    for number in range(10_000):
        card = FleetCard(CountedNode("full", 4), f"GPU-{number}", number, group)
        group.count += 1
        group.file(card, 4)
    CountedNode.reads = 0
    for _ in range(100):
        assert len(list(islice(group.cards(), 10))) == 10
    assert CountedNode.reads <= 100 * 10


def test_stale_entries_are_passed_about_once() -> None:
    """Cards whose nodes became emptier are filed anew when they are passed, and their old entries removed."""
    group = AlikeCards(CardTable(A100, 0), 0, ())
    for number in range(10_000):
        card = FleetCard(CountedNode("emptier", 7 if number % 100 else 4), f"GPU-{number}", number, group)
        group.count += 1
        group.file(card, 4)
    CountedNode.reads = 0
    for _ in range(100):
        assert [card.node.number for card in islice(group.cards(), 100)] == [4] * 100
    assert CountedNode.reads <= 4 * 10_000 + 100 * 100


def test_a_group_without_cards_keeps_no_entries() -> None:
    fleet = Fleet()
    for number in range(100):
        fleet.add_card(f"node-{number}", f"GPU-{number}", A100)
    (empty,) = fleet.candidates("1g.5gb")
    for number in range(100):
        fleet.occupy(CardPlacement(f"node-{number}", f"GPU-{number}", "1g.5gb", 0, 1), f"slice-{number}")
    assert (empty.count, empty.entries) == (0, 0)
    fleet.release("node-7", "GPU-7", 0)
    assert next(fleet.candidates("1g.5gb", spread=True)).first().gpu == "GPU-7"


def test_the_best_place_is_that_of_the_first_candidate() -> None:
    policy = FragmentationGradient()
    for fleet in history(3, 2, steps(3_000), lambda rng: rng.randrange(12)):
        for profile in PROFILES:
            first = next(fleet.candidates(profile), None)
            found = fleet.best_place(profile, policy.costs)
            assert (found and found[0]) is first
            if found is not None:
                (placed,) = policy.arrange(found[0].table, found[0].occupancy, (profile,)) or ()
                assert found[1] == placed
