"""Tables are chosen by the mix of placements and by the shape of the cards, never by their model."""

import json

import pytest

from tessera.mig.geometry import Geometry
from tessera.mig.models import model_by_short_name
from tessera.placement.demand import Demand
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.plan import plan
from tessera.placement.policies import FragmentationGradient, MixAware
from tessera.placement.request_mix import FOLD
from tessera.placement.state_features import FEATURES, features
from tessera.placement.state_values import (
    MIX_FEATURES,
    StateValues,
    ValueTable,
    mix_features,
    shapes_of,
    shipped_values,
)

A100 = model_by_short_name("A100-40GB").geometry
A30 = model_by_short_name("A30").geometry


def weights(name: str, weight: float) -> tuple[float, ...]:
    """One feature decides."""
    return tuple(weight if each == name else 0.0 for each in FEATURES)


#: Places of the share by slots of 1g and of 7g among the features of a mix.
SMALL, WHOLE = 1, 6


def gains(feature: int) -> tuple[float, ...]:
    """As much gain as this feature is large."""
    return tuple(float(number == feature) for number in range(MIX_FEATURES))


#: Where 1g are asked for, a 1g goes to the left half of an empty card; where 7g are, to the right one.
LEFT = ValueTable(weights("any 4x4", -1.0), gains(SMALL))
RIGHT = ValueTable(weights("mean lives until free: right", 1.0), gains(WHOLE))


def learned(geometry: Geometry, profile: str) -> Fleet:
    """An empty card, and as many placements as a mix needs."""
    fleet = Fleet()
    fleet.add_card("node", "GPU-0", geometry)
    row = geometry.profile(profile)
    for _ in range(FOLD):
        fleet.occupy(CardPlacement("node", "GPU-0", profile, row.starts[0], row.size), "pod")
        fleet.release("node", "GPU-0", row.starts[0])
    return fleet


def start_of_a_small_slice(fleet: Fleet, profile: str = "1g.5gb") -> int:
    decided = plan(fleet, [Demand("pod", (profile,))], policy=MixAware(StateValues([LEFT, RIGHT])))
    return decided.assignments["pod"][0].start


def test_the_table_that_promises_most_decides() -> None:
    assert start_of_a_small_slice(learned(A100, "1g.5gb")) == 0
    assert start_of_a_small_slice(learned(A100, "7g.40gb")) == 4


def test_media_engines_do_not_change_a_slices_shape() -> None:
    assert start_of_a_small_slice(learned(A100, "1g.5gb+me"), "1g.5gb+me") == 0


def test_without_a_mix_or_a_table_fragmentation_decides() -> None:
    empty = Fleet()
    empty.add_card("node", "GPU-0", A100)
    for fleet, profile in ((empty, "1g.5gb"), (learned(A30, "1g.6gb"), "1g.6gb")):
        expected = plan(fleet, [Demand("pod", (profile,))], policy=FragmentationGradient()).assignments
        assert plan(fleet, [Demand("pod", (profile,))], policy=MixAware(StateValues([LEFT]))).assignments == expected
        assert plan(fleet, [Demand("pod", (profile,))], policy=MixAware(StateValues([]))).assignments == expected


def test_a_mix_that_changes_changes_the_table() -> None:
    fleet = learned(A100, "7g.40gb")
    policy = MixAware(StateValues([LEFT, RIGHT]))
    decided = plan(fleet, [Demand("pod", ("1g.5gb",))], policy=policy)
    assert decided.assignments["pod"][0].start == 4
    for _ in range(20 * FOLD):
        fleet.occupy(CardPlacement("node", "GPU-0", "1g.5gb", 0, 1), "pod")
        fleet.release("node", "GPU-0", 0)
    decided = plan(fleet, [Demand("pod", ("1g.5gb",))], policy=policy)
    assert decided.assignments["pod"][0].start == 0


def test_a_batch_is_packed_by_the_table_too() -> None:
    fleet = learned(A100, "7g.40gb")
    demands = [Demand(str(number), ("1g.5gb",)) for number in range(3)]
    decided = plan(fleet, demands, policy=MixAware(StateValues([LEFT, RIGHT])))
    assert sorted(one.start for placed in decided.assignments.values() for one in placed) == [4, 5, 6]


def test_seven_slice_cards_have_shapes_and_others_have_none() -> None:
    assert shapes_of(A100) == {
        "1g.5gb": "1x1",
        "1g.5gb+me": "1x1",
        "1g.10gb": "1x2",
        "2g.10gb": "2x2",
        "3g.20gb": "3x4",
        "4g.20gb": "4x4",
        "7g.40gb": "7x8",
    }
    for name in ("A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB"):
        shapes = shapes_of(model_by_short_name(name).geometry) or {}
        assert set(shapes.values()) == {"1x1", "1x2", "2x2", "3x4", "4x4", "7x8"}
    assert shapes_of(A30) is None
    odd = Geometry.from_placements("odd", {"1g.5gb": [(start, 1) for start in range(8)]})
    assert shapes_of(odd) is None


def test_a_table_without_a_gain_is_not_used() -> None:
    loses = ValueTable(LEFT.weights, tuple(-gain for gain in LEFT.gains))
    fleet = learned(A100, "1g.5gb")
    assert StateValues([loses]).best(next(iter(fleet.tables))) is None
    assert start_of_a_small_slice(fleet) == 0


def test_the_features_of_a_mix() -> None:
    half = mix_features({"1x1": 0.5, "7x8": 0.5})
    assert half[0] == 1.0
    assert (half[SMALL], half[WHOLE]) == (0.5, 0.5)
    assert (half[SMALL + 6], half[WHOLE + 6]) == pytest.approx((8 / 9, 1 / 9))
    assert len(half) == MIX_FEATURES
    assert sum(half[-21:]) == pytest.approx(0.75)  # 1g by 1g, 1g by 7g, 7g by 7g: 0.25 each


def test_the_shipped_tables_gain_for_some_mix() -> None:
    for profile in ("1g.5gb", "3g.20gb"):
        assert next(iter(learned(A100, profile).tables)).mix.shares
    mixes = ({"1x1": 0.4, "2x2": 0.2, "3x4": 0.4}, {"1x1": 0.2, "3x4": 0.4, "7x8": 0.4})
    table = next(iter(learned(A100, "1g.5gb").tables))
    found = set()
    for mix in mixes:
        table.mix.shares = {"1g.5gb": mix["1x1"], "3g.20gb": mix["3x4"] / 4, "7g.40gb": mix.get("7x8", 0.0) / 8}
        found.add(shipped_values().best(table))
    assert found - {None}


def test_a_bad_table_is_refused_with_its_number() -> None:
    with pytest.raises(ValueError, match="table 0: 3 weights; it needs 33, one a feature"):
        StateValues([ValueTable((1.0, 2.0, 3.0), LEFT.gains)])
    with pytest.raises(ValueError, match="table 1: 1 gains; it needs 46, one a feature"):
        StateValues([LEFT, ValueTable(LEFT.weights, (1.0,))])
    text = json.dumps([{"weights": list(LEFT.weights), "gains": list(LEFT.gains)}]).encode()
    assert StateValues.from_json(text).best(next(iter(learned(A100, "1g.5gb").tables))) is not None


def named_features(slots: int, starts: int) -> dict[str, float]:
    return dict(zip(FEATURES, features(slots, starts), strict=True))


def test_features_say_what_fits_beside_the_instances() -> None:
    one_3g_on_the_right = named_features(0b1111_0000, 0b0001_0000)
    assert one_3g_on_the_right["legal 3x4"] == 0.5
    assert one_3g_on_the_right["any 4x4"] == 1.0
    assert one_3g_on_the_right["any 7x8"] == 0.0
    assert one_3g_on_the_right["most 2x2"] == 0.5
    assert one_3g_on_the_right["free"] == 0.5
    # 1g at 1: the pairs at 2 are left, and the 1g at 0
    assert named_features(0b10, 0b10)["legal 2x2"] == pytest.approx(2 / 3)


def test_features_count_the_instances_that_must_end() -> None:
    four_1g = named_features(0b1111, 0b1111)
    two_2g = named_features(0b1111, 0b0101)
    assert four_1g["mean lives until free: left"] == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert two_2g["mean lives until free: left"] == pytest.approx(1.5)
    assert two_2g["mean lives until free: right"] == 0.0
    whole = named_features(0b1111_1111, 0b1)
    assert whole["mean lives until free: right"] == whole["mean lives until free: card"] == 1.0
