"""What is kept of rankings has a bound, whatever pods request; pods that no node takes leave nothing."""

import tracemalloc

import pytest

from tessera.placement.card_demand import CardRequest, NodeRoom, TypicalRequests
from tessera.placement.demand import StepBudget
from tessera.placement.rankings import RANKED_ROOMS, Rankings
from tessera.placement.room_rating import RoomIndex
from tessera.placement.topology import LinkRatings

ANY = ("A100", "H100")


def rooms(count: int) -> dict[NodeRoom, dict[str, None]]:
    """Rooms that differ, of a node each."""
    return {
        NodeRoom("A100", ((1000, 8),), 1_000 * (20 + each % 50), 4_096 * (20 + each // 50), unused=False): {
            f"n{each}": None
        }
        for each in range(count)
    }


def asks(number: int) -> CardRequest:
    """A request of another kind for each number, which every room holds."""
    return CardRequest(1_000 * (number % 10), 4_096 * (number // 10 % 10), 1 + number // 100, 1000, ANY, pinned=False)


class Kept:
    """Rankings of some rooms within a bound.

    Args:
        count: the number of different rooms.
        most: the bound.
    """

    def __init__(self, count: int, most: int) -> None:
        self.alike = rooms(count)
        self.index = RoomIndex(self.alike)
        self.rankings = Rankings(TypicalRequests(), self.index, LinkRatings(), most)

    def rate(self, number: int, *, refused: bool = False) -> bool:
        """Ranks the rooms for a request; True if they were rated anew for it."""
        work = StepBudget(10_000)
        self.rankings.of(asks(number), work)
        if refused:
            self.rankings.note_refused()
        return work.remaining < 10_000


def test_as_many_entries_are_kept_as_the_bound_allows_and_not_one_more() -> None:
    kept = Kept(10, most=30)
    rated = [kept.rate(number) for number in (0, 1, 2, 0, 1, 2, 3)]
    assert rated == [True, True, True, False, False, False, True]
    assert kept.rankings.entries == 30
    kept.rate(4)
    assert kept.rankings.entries == 30


def test_the_ranking_that_was_used_least_recently_leaves_first() -> None:
    kept = Kept(10, most=30)
    for number in (0, 1, 2, 0, 3, 4):
        kept.rate(number)
    assert [kept.rate(number) for number in (0, 2, 3)] == [False, False, False]
    assert kept.rate(1)


@pytest.mark.parametrize(("most", "again"), [(10, False), (9, True)])
def test_a_ranking_that_alone_exceeds_the_bound_is_used_and_not_kept(most: int, again: bool) -> None:
    kept = Kept(10, most)
    kept.rate(0)
    kept.rate(1)
    assert kept.rankings.entries == (0 if again else 10)
    assert [kept.rate(0), kept.rate(1), kept.rate(1)] == [again, again, False]


def test_a_request_that_every_node_refused_is_not_kept_and_displaces_none() -> None:
    kept = Kept(10, most=20)
    kept.rate(0)
    kept.rate(1)
    for number in range(2, 9):
        assert kept.rate(number, refused=True)
    assert kept.rankings.entries == 20
    assert [kept.rate(0, refused=True), kept.rate(1), kept.rate(0)] == [False, False, False]


def test_rooms_that_nodes_left_count_until_they_are_dropped() -> None:
    """A ranking drops them before they are many, so it does not fill the bound."""
    kept = Kept(10, most=1_000)
    for number in range(500):
        kept.rate(number % 2)
        room, nodes = next(iter(kept.alike.items()))
        del kept.alike[room]
        nodes.clear()
        kept.index.remove(room)
        fresh = room._replace(cpu=1_000 * (100 + number))
        kept.index.add(fresh, kept.alike.setdefault(fresh, {"n": None}))
    kept.rate(2)
    assert kept.rankings.entries <= 2 * (2 * 10 + 64 + 1)


@pytest.mark.soak
def test_ten_thousand_kinds_of_pods_take_no_more_memory_than_the_bound_allows() -> None:
    kept = Kept(50, most=1_000)
    tracemalloc.start()
    ours = [tracemalloc.Filter(inclusive=True, filename_pattern="*/tessera/placement/*")]
    sizes = []
    for number in range(10_000):
        kept.rankings.of(asks(number % 100)._replace(kinds=("A100", f"other-{number}")), StepBudget(100))
        assert kept.rankings.entries <= 1_000
        if number % 1_000 == 999:
            found = tracemalloc.take_snapshot().filter_traces(ours).statistics("filename")
            sizes.append(sum(each.size for each in found))
    tracemalloc.stop()
    assert max(sizes) < 1.1 * sizes[0]


def test_an_entry_takes_a_few_words_of_memory() -> None:
    kept = Kept(1_000, most=int(RANKED_ROOMS))
    kept.rate(0)
    tracemalloc.start()
    for number in range(1, 22):
        kept.rate(number)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.rankings.entries == 21_000
    assert taken / kept.rankings.entries < 32
