"""Published allocations of NVIDIA's go-gpuallocator on its machines, and the rules for machines of any shape."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.placement.topology import NVLINK_POINTS, CardLink, PciPath, Topology

Links = dict[tuple[int, int], int]


def machine(count: int, nvlinks: Links, switches: tuple[tuple[int, int], ...], sockets: int = 2) -> Topology:
    """Cards by number; pairs in ``switches`` share a PCIe switch, others of a socket its host bridge."""
    half = count // sockets

    def path(one: int, other: int) -> PciPath:
        if (one, other) in switches:
            return PciPath.PIX
        return PciPath.PHB if one // half == other // half else PciPath.SYS

    pairs = {
        (str(one), str(other)): CardLink(path(one, other), nvlinks.get((one, other), 0))
        for one, other in combinations(range(count), 2)
    }
    return Topology([str(number) for number in range(count)], pairs)


def dgx1_pascal() -> Topology:
    quad = {pair: 1 for first in (0, 4) for pair in combinations(range(first, first + 4), 2)}
    across = {(number, number + 4): 1 for number in range(4)}
    return machine(8, {**quad, **across}, ((0, 2), (1, 3), (4, 6), (5, 7)))


def dgx1_volta() -> Topology:
    ring = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2}
    ring |= {(one + 4, other + 4): links for (one, other), links in ring.items()}
    across = {(0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1}
    return machine(8, {**ring, **across}, ((0, 1), (2, 3), (4, 5), (6, 7)))


def rtx8000() -> Topology:
    pairs = {("0", "3"): CardLink(nvlinks=2), ("1", "2"): CardLink(nvlinks=2)}
    pairs |= {("0", "1"): CardLink(PciPath.NODE), ("2", "3"): CardLink(PciPath.NODE)}
    pairs |= {("0", "2"): CardLink(PciPath.SYS), ("1", "3"): CardLink(PciPath.SYS)}
    return Topology(["0", "1", "2", "3"], pairs)


def drain(topology: Topology, size: int) -> list[str]:
    """One request after the other until the machine is full."""
    left = set(topology.cards)
    taken = []
    while chosen := topology.preferred_cards(left, (), size):
        taken.append("".join(chosen))
        left -= set(chosen)
    return taken


@pytest.mark.parametrize(
    ("available", "must", "size", "expected"),
    [
        ("0245", "", 2, "45"),
        ("0456", "", 2, "56"),
        ("013", "", 2, "03"),
        ("014", "", 2, "04"),
        ("01234567", "4", 1, "4"),
        ("01234567", "4", 2, "47"),
        ("01234567", "4", 4, "4567"),
        ("01234567", "0246", 4, "0246"),
        ("1234567", "0123", 4, ""),
        ("01234567", "123456", 4, ""),
        ("12345", "123456", 1, ""),
    ],
)
def test_a_dgx1_volta_answers_as_published(available: str, must: str, size: int, expected: str) -> None:
    assert "".join(dgx1_volta().preferred_cards(set(available), set(must), size)) == expected


@pytest.mark.parametrize(
    ("topology", "size", "expected"),
    [
        (rtx8000(), 2, ["03", "12"]),
        (rtx8000(), 4, ["0123"]),
        (dgx1_pascal(), 2, ["02", "13", "46", "57"]),
        (dgx1_pascal(), 4, ["0123", "4567"]),
        (dgx1_pascal(), 8, ["01234567"]),
        (dgx1_volta(), 2, ["03", "12", "47", "56"]),
        (dgx1_volta(), 4, ["0123", "4567"]),
        (dgx1_volta(), 8, ["01234567"]),
    ],
)
def test_a_machine_fills_as_published(topology: Topology, size: int, expected: list[str]) -> None:
    assert drain(topology, size) == expected


def fours() -> Topology:
    """Two boards of four cards with NVLinks, two cards to a PCIe switch."""
    joined = {pair: 4 for first in (0, 4) for pair in combinations(range(first, first + 4), 2)}
    return machine(8, joined, ((0, 1), (2, 3), (4, 5), (6, 7)))


@pytest.mark.parametrize(
    ("topology", "available", "expected"),
    [
        (rtx8000(), "0123", "0"),  # all alike: the first
        (rtx8000(), "123", "3"),  # its partner is in use
        (fours(), "0124567", "2"),  # of the board that is broken already, the card without its neighbour
        (fours(), "012345", "4"),  # of the smaller group
        (fours(), "01237", "7"),
        (dgx1_volta(), "01234567", "0"),
        (Topology.without_links(list("abc")), "cb", "b"),
    ],
)
def test_a_single_card_is_the_one_that_the_others_lose_least_by(
    topology: Topology, available: str, expected: str
) -> None:
    assert topology.preferred_cards(set(available), (), 1) == (expected,)


@pytest.mark.parametrize(
    ("topology", "expected"), [(rtx8000(), "0312"), (fours(), "01234567"), (dgx1_volta(), "03214567")]
)
def test_single_cards_fill_a_group_before_they_break_the_next(topology: Topology, expected: str) -> None:
    assert "".join(drain(topology, 1)) == expected


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=28, max_size=28), st.sets(st.integers(0, 7), min_size=2))
def test_no_other_single_card_leaves_more_points(links: list[int], available: set[int]) -> None:
    cards = [str(number) for number in range(8)]
    pairs = dict(zip(combinations(cards, 2), (CardLink(nvlinks=each) for each in links), strict=True))
    topology = Topology(cards, pairs)
    free = {str(number) for number in available}
    (chosen,) = topology.preferred_cards(free, (), 1)
    assert topology.total(free - {chosen}) == max(topology.total(free - {each}) for each in free)


def test_a_set_is_not_the_best_one_if_that_spoils_the_rest() -> None:
    # 1 and 2 are joined best of all, but then 0 and 3 would talk across the machine.
    chain = {("0", "1"): CardLink(nvlinks=3), ("1", "2"): CardLink(nvlinks=4), ("2", "3"): CardLink(nvlinks=3)}
    assert drain(Topology(list("0123"), chain), 2) == ["01", "23"]


def test_cards_on_an_nvswitch_are_joined_by_the_links_of_the_narrower_one() -> None:
    topology = Topology(["a", "b", "c"], {}, switch_links={"a": 12, "b": 6})
    assert topology.score("a", "b") == 6 * NVLINK_POINTS
    assert topology.score("a", "c") == 0


def test_on_an_nvswitch_the_way_through_pcie_decides() -> None:
    cards = [str(number) for number in range(8)]
    pairs = {(one, other): CardLink(PciPath.PIX) for one, other in (("0", "5"), ("1", "6"), ("2", "7"), ("3", "4"))}
    topology = Topology(cards, pairs, switch_links=dict.fromkeys(cards, 12))
    assert drain(topology, 2) == ["05", "16", "27", "34"]


def test_a_link_that_only_one_end_reports_counts() -> None:
    topology = Topology(["a", "b"], {("a", "b"): CardLink(PciPath.PIX, 2), ("b", "a"): CardLink(PciPath.PIX, 0)})
    assert topology.score("a", "b") == topology.score("b", "a") == 250


def test_a_lost_card_disturbs_no_answer() -> None:
    whole = dgx1_volta()
    assert whole.preferred_cards(set("0123567"), (), 4) == tuple("0123")
    assert whole.preferred_cards({"0", "3", "GPU-new"}, {"GPU-new"}, 2) == ("0", "GPU-new")


def test_a_card_stands_once() -> None:
    with pytest.raises(ValueError, match="a card stands twice in a, a"):
        Topology(["a", "a"], {})


def test_many_cards_are_answered_by_growth() -> None:
    cards = [f"{number:02}" for number in range(32)]
    pairs = {
        (one, other): CardLink(nvlinks=4) for one, other in combinations(cards, 2) if int(one) // 8 == int(other) // 8
    }
    topology = Topology(cards, pairs)
    assert topology.preferred_cards(cards, {"17"}, 8) == tuple(cards[16:24])
    assert len(topology.preferred_cards(cards, (), 20)) == 20


def divisions(cards: tuple[int, ...], size: int, rest: int) -> list[list[tuple[int, ...]]]:
    """Every division into sets of a size and one rest."""
    if not cards:
        return [[]]
    found = []
    for length, left in {(size, rest), (rest, 0)}:
        if length == 0 or (length == rest and len(cards) % size != rest) or length > len(cards):
            continue
        for others in combinations(cards[1:], length - 1):
            chosen = (cards[0], *others)
            remaining = tuple(card for card in cards if card not in chosen)
            found += [[chosen, *division] for division in divisions(remaining, size, left)]
    return found


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_the_division_is_the_best_of_all(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 7))
    size = data.draw(st.integers(1, count - 1))
    cards = [str(number) for number in range(count)]
    links = st.integers(0, 3)
    pairs = {pair: CardLink(nvlinks=data.draw(links)) for pair in combinations(cards, 2)}
    must = data.draw(st.sets(st.sampled_from(range(count)), max_size=size - 1))
    topology = Topology(cards, pairs)

    def worth(division: list[tuple[int, ...]]) -> int:
        return sum(topology.total(map(str, chosen)) for chosen in division)

    fitting = [
        division
        for division in divisions(tuple(range(count)), size, count % size)
        if any(len(chosen) == size and must <= set(chosen) for chosen in division)
    ]
    best = max(map(worth, fitting))
    chosen = tuple(map(int, topology.preferred_cards(cards, {str(number) for number in must}, size)))
    assert must <= set(chosen)
    assert len(chosen) == size
    assert any(chosen in division for division in fitting if worth(division) == best)
