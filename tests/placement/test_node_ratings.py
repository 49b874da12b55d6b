"""A pod goes where the fewest requests to come are blocked, and kept ratings are those of a fresh start."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.placement.card_demand import DRIFT, CardDemand, CardRequest, FreeCards, NodeRoom
from tessera.placement.demand import StepBudget
from tessera.placement.node_ratings import NodeRatings, NodeSize

ANY = ("A100", "H100")


def asks(cards: int = 1, part: int = 1000, *, cpu: int = 4000, kinds: tuple[str, ...] = ANY) -> CardRequest:
    return CardRequest(cpu, 0, cards, part, kinds, kinds != ANY)


def room(cards: FreeCards, *, kind: str = "A100", cpu: int = 96000, unused: bool = False) -> NodeRoom:
    return NodeRoom(kind, cards, cpu, 1 << 20, unused)


def ratings(*mix: tuple[CardRequest, int], **rooms: NodeRoom) -> NodeRatings:
    demand = CardDemand()
    for request, pods in mix:
        demand.add(request, pods)
    found = NodeRatings(demand)
    for node, each in rooms.items():
        found.put(node, each)
    return found


def first(of: NodeRatings, request: CardRequest) -> str:
    return next(of.rank(request)).node


def test_a_pod_that_any_card_suits_does_not_take_the_last_card_that_others_need() -> None:
    of = ratings(
        (asks(kinds=("H100",)), 1),
        (asks(), 9),
        fuller=room(((1000, 1),), kind="H100"),
        other=room(((1000, 3),)),
    )
    assert first(of, asks()) == "other"
    assert first(of, asks(kinds=("H100",))) == "fuller"


def test_a_pod_that_any_node_suits_leaves_the_largest_nodes_to_those_that_only_these_can_hold() -> None:
    of = ratings()
    for node, kind, cpu in (("large", "A100", 128_000), ("usual", "H100", 96_000)):
        of.put(node, room(((1000, 8),), kind=kind, cpu=cpu, unused=True))
        of.sizes.put(node, kind, NodeSize(cpu, 1 << 20, 8))
    huge, usual = asks(8, cpu=120_000), asks(8, cpu=64_000)
    assert first(of, usual) == "large"  # names decide between nodes that are equally good
    of.demand.add(of.sizes.narrow(huge))
    of.demand.add(of.sizes.narrow(usual))
    assert first(of, of.sizes.narrow(usual)) == "usual"
    assert first(of, of.sizes.narrow(huge)) == "large"


def test_a_model_that_nobody_needs_is_taken_where_the_node_is_fullest() -> None:
    of = ratings((asks(), 9), fuller=room(((1000, 1),), kind="H100"), other=room(((1000, 3),)))
    assert first(of, asks()) == "fuller"


def test_a_part_of_a_card_goes_where_the_fewest_requests_are_blocked() -> None:
    """On the card with 700 a pod of 700 still fits until a small one comes."""
    mix = ((asks(part=700), 5), (asks(part=300), 5))
    of = ratings(*mix, large=room(((700, 1),)), small=room(((400, 1), (1000, 2))))
    choice = next(of.rank(asks(part=300)))
    assert (choice.node, choice.taken) == ("small", 400)
    assert first(of, asks(part=700)) == "large"


def test_a_pod_with_much_cpu_goes_where_cpu_is_plentiful() -> None:
    of = ratings((asks(cpu=10000), 10), fuller=room(((1000, 2),), cpu=40000), plenty=room(((1000, 4),), cpu=200000))
    assert first(of, asks(cpu=36000)) == "plenty"
    assert first(of, asks(cpu=1000)) == "fuller"


def test_a_pod_of_one_card_does_not_open_an_empty_node_of_several() -> None:
    of = ratings((asks(), 9), empty=room(((1000, 4),), unused=True), begun=room(((1000, 6),)))
    assert first(of, asks()) == "begun"
    assert first(of, asks(2)) == "empty"


PAIRS = (4, (430, 10, 10, 10, 10, 430))


def test_several_cards_go_where_they_are_joined_best_within_the_cheapest_kind() -> None:
    of = ratings(
        (asks(2, kinds=("H100",)), 5),
        (asks(2), 5),
        apart=room(((1000, 2),))._replace(joined=(*PAIRS, (0, 2))),
        joined=room(((1000, 3),))._replace(joined=(*PAIRS, (0, 1, 2))),
        unknown=room(((1000, 2),)),
        dear=room(((1000, 4),), kind="H100")._replace(joined=(4, (1800,), None)),
    )
    assert [each.node for each in of.rank(asks(2))] == ["joined", "apart", "unknown", "dear"]


def test_one_card_breaks_no_pair_of_equally_good_nodes() -> None:
    of = ratings(
        (asks(), 9),
        pair=room(((1000, 2),))._replace(joined=(*PAIRS, (0, 1))),
        apart=room(((1000, 3),))._replace(joined=(*PAIRS, (0, 2))),
    )
    assert first(of, asks()) == "apart"


def test_a_node_without_room_cpu_or_memory_is_left_out() -> None:
    of = ratings(
        (asks(), 1),
        full=room(((500, 1),)),
        without_cpu=room(((1000, 1),), cpu=3999),
        without_memory=NodeRoom("A100", ((1000, 1),), 96000, 99, unused=False),
        gone=room(((1000, 1),)),
        fits=room(((1000, 8),)),
    )
    of.put("gone", None)
    assert [each.node for each in of.rank(asks()._replace(memory=100))] == ["fits"]
    assert not list(of.rank(asks(9)))


def test_only_the_named_nodes_are_ranked_if_some_are_named() -> None:
    of = ratings((asks(), 1), a=room(((1000, 1),)), b=room(((1000, 2),)), c=room(((1000, 3),)))
    assert [each.node for each in of.rank(asks(), ["c", "b", "unknown"])] == ["b", "c"]


def test_a_budget_pays_for_each_room_that_is_rated_anew_and_for_alike_nodes_once() -> None:
    of = ratings((asks(), 1), **{f"n{number}": room(((1000, 1 + number % 10),)) for number in range(100)})
    spent = []
    for request in (asks(), asks(), asks(cpu=9000)):
        work = StepBudget(1000)
        next(of.rank(request, work=work))
        spent.append(1000 - work.remaining)
    of.put("n0", room(((1000, 20),)))
    work = StepBudget(1000)
    next(of.rank(asks(), work=work))
    assert spent[0] == spent[2] == 10 * (1000 - work.remaining)
    assert spent[1] == 0


CARDS = st.lists(st.tuples(st.sampled_from([200, 300, 500, 1000]), st.integers(1, 4)), max_size=3).map(
    lambda found: tuple(sorted(dict(found).items()))
)
ROOMS = st.builds(
    NodeRoom,
    st.sampled_from(ANY),
    CARDS,
    st.integers(0, 99000),
    st.integers(0, 1 << 16),
    st.booleans(),
    st.sampled_from([None, (*PAIRS, (0, 1)), (*PAIRS, None), (4, (1800,), None)]),
)
ASKED = st.builds(
    CardRequest,
    st.integers(0, 40000),
    st.integers(0, 1 << 15),
    st.integers(1, 3),
    st.sampled_from([300, 1000]),
    st.sampled_from([ANY, ("A100",), ("H100",)]),
    st.just(value=False),
).map(lambda one: one._replace(part=1000 if one.cards > 1 else one.part, pinned=one.kinds != ANY))
NODES = st.sampled_from(["n1", "n2", "n3", "n4"])
STEPS = st.lists(st.one_of(st.tuples(NODES, st.none() | ROOMS), ASKED), max_size=40)


@given(STEPS)
def test_kept_ratings_are_those_of_a_fresh_start(steps: list[object]) -> None:
    kept = NodeRatings(CardDemand())
    rooms: dict[str, NodeRoom] = {}
    held: list[CardRequest] = []
    for step in steps:
        if isinstance(step, CardRequest):
            order = [rooms[choice.node].rounded for choice in kept.rank(step)]
            assert order == [rooms[choice.node].rounded for choice in kept.rank(step, list(rooms))]
            fits = {node for node, each in rooms.items() if _has_room(each, step)}
            assert {choice.node for choice in kept.rank(step)} == fits
            fresh = _start(rooms, held)
            expected = [rooms[choice.node].rounded for choice in fresh.rank(step)]
            _assert_close(kept.demand, fresh.demand)
            if kept.demand.typical == fresh.demand.typical:
                assert order == expected
            kept.demand.add(step)
            held.append(step)
        else:
            assert isinstance(step, tuple)
            node, given_room = step
            kept.put(node, given_room)
            rooms.pop(node, None)
            if given_room is not None:
                rooms[node] = given_room


def _start(rooms: dict[str, NodeRoom], held: list[CardRequest]) -> NodeRatings:
    """Ratings of a process that begins now."""
    fresh = NodeRatings(CardDemand())
    for request in held:
        fresh.demand.add(request)
    for node, each in rooms.items():
        fresh.put(node, each)
    return fresh


def _assert_close(kept: CardDemand, fresh: CardDemand) -> None:
    """A mix that is kept may be a little behind: no amount by more than it may drift."""
    for then, now in zip(kept.typical[1:], fresh.typical[1:], strict=True):
        assert abs(now - then) <= DRIFT * then


def _has_room(found: NodeRoom, request: CardRequest) -> bool:
    able = sum(count for free, count in found.cards if free >= request.part)
    enough = found.cpu >= request.cpu and found.memory >= request.memory
    return found.kind in request.kinds and enough and able >= request.cards
