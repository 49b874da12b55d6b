"""What free slots are worth follows the mix of placements and the shape of the cards, never their model."""

import math

import msgspec
import pytest
from bench.rivals import FragmentationGradient

from tessera.mig.geometry import Geometry
from tessera.mig.models import model_by_short_name
from tessera.placement.card_table import FOLD
from tessera.placement.demand import Demand
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.plan import plan
from tessera.placement.policies import (
    FEATURES,
    MIX_FEATURES,
    MixAware,
    StateValues,
    WeightFunction,
    features,
    mix_features,
    shapes_of,
    shipped_values,
)

A100 = model_by_short_name("A100-40GB").geometry
A30 = model_by_short_name("A30").geometry


#: Places of the share by slots of 1g and of 7g among the features of a mix.
SMALL, WHOLE = 0, 5


def function(**amounts: tuple[int, float]) -> WeightFunction:
    """The weight of each named feature is so many times a feature of the mix; the other weights are 0."""
    rows = []
    for name in FEATURES:
        place, factor = amounts.get(name.replace(" ", "_").replace(":", ""), (SMALL, 0.0))
        rows.append(tuple(factor * (number == place) for number in range(MIX_FEATURES + 1)))
    return WeightFunction((), tuple(rows))


#: Where 1g are asked for, a 1g goes to the left half of an empty card; where 7g are, to the right one.
SIDES = function(
    usable_4x4=(SMALL, -1.0), mean_lives_until_free_right=(WHOLE, 1.0), mean_lives_until_free_left=(WHOLE, -1.0)
)


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
    decided = plan(fleet, [Demand("pod", (profile,))], policy=MixAware(StateValues(SIDES)))
    return decided.assignments["pod"][0].start


def test_the_mix_decides_what_free_slots_are_worth() -> None:
    assert start_of_a_small_slice(learned(A100, "1g.5gb")) == 0
    assert start_of_a_small_slice(learned(A100, "7g.40gb")) == 4


def test_media_engines_do_not_change_a_slices_shape() -> None:
    assert start_of_a_small_slice(learned(A100, "1g.5gb+me"), "1g.5gb+me") == 0


def test_without_a_mix_or_on_other_cards_fragmentation_decides() -> None:
    empty = Fleet()
    empty.add_card("node", "GPU-0", A100)
    for fleet, profile in ((empty, "1g.5gb"), (learned(A30, "1g.6gb"), "1g.6gb")):
        expected = plan(fleet, [Demand("pod", (profile,))], policy=FragmentationGradient()).assignments
        assert plan(fleet, [Demand("pod", (profile,))], policy=MixAware(StateValues(SIDES))).assignments == expected


def test_a_mix_that_changes_changes_the_values() -> None:
    fleet = learned(A100, "7g.40gb")
    policy = MixAware(StateValues(SIDES))
    decided = plan(fleet, [Demand("pod", ("1g.5gb",))], policy=policy)
    assert decided.assignments["pod"][0].start == 4
    for _ in range(50 * FOLD):
        fleet.occupy(CardPlacement("node", "GPU-0", "1g.5gb", 0, 1), "pod")
        fleet.release("node", "GPU-0", 0)
    decided = plan(fleet, [Demand("pod", ("1g.5gb",))], policy=policy)
    assert decided.assignments["pod"][0].start == 0


def test_a_batch_is_packed_by_the_values_too() -> None:
    fleet = learned(A100, "7g.40gb")
    demands = [Demand(str(number), ("1g.5gb",)) for number in range(3)]
    decided = plan(fleet, demands, policy=MixAware(StateValues(SIDES)))
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


def test_the_features_of_a_mix() -> None:
    half = mix_features({"1x1": 0.5, "7x8": 0.5})
    assert (half[SMALL], half[WHOLE]) == (0.5, 0.5)
    assert (half[SMALL + 6], half[WHOLE + 6]) == pytest.approx((8 / 9, 1 / 9))
    assert half[SMALL + 12] == pytest.approx(0.5**0.5)
    assert half[18:] == (1.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    assert mix_features({"1x1": 0.99, "7x8": 0.01})[23] == pytest.approx(0.25)


def test_weights_add_the_mix_the_units_and_a_constant() -> None:
    """One unit: tanh(1 - 2 x share of 7g); the first weight takes it twice, the second the share, the third 3."""
    unit = tuple(-2.0 * (number == WHOLE) + (number == MIX_FEATURES) for number in range(MIX_FEATURES + 1))
    rows = [[0.0] * (MIX_FEATURES + 2) for _ in FEATURES]
    rows[0][MIX_FEATURES], rows[1][WHOLE], rows[2][-1] = 2.0, 1.0, 3.0
    found = WeightFunction((unit,), tuple(map(tuple, rows))).of(mix_features({"1x1": 0.75, "7x8": 0.25}))
    wanted = (2 * math.tanh(0.5), 0.25, 3.0)
    scale = sum(wanted) / len(FEATURES)
    assert found == pytest.approx((*(each / scale for each in wanted), *(0.0 for _ in FEATURES[3:])))


def test_the_shipped_values_differ_by_mix() -> None:
    tables = [next(iter(learned(A100, profile).tables)) for profile in ("1g.5gb", "3g.20gb")]
    losses = [shipped_values().for_mix(table) for table in tables]
    assert losses[0] is not None
    assert losses[1] is not None
    assert losses[0](tables[0], 0) != losses[1](tables[1], 0)


def test_a_bad_function_is_refused_with_the_row_and_the_rule() -> None:
    row = (0.0,) * (MIX_FEATURES + 1)
    with pytest.raises(ValueError, match="weights: 1 numbers; it needs 17, one a feature of a state"):
        WeightFunction((), (row,))
    with pytest.raises(ValueError, match="unit 0: 2 numbers; it needs 25, one a feature of a mix, and a constant"):
        WeightFunction(((1.0, 2.0),), SIDES.weights)
    with pytest.raises(ValueError, match=r"weight 'usable 1x1': 25 numbers; it needs 26, one a feature of a mix and"):
        WeightFunction((row,), SIDES.weights)
    assert StateValues.from_json(msgspec.json.encode(SIDES)).for_mix(next(iter(learned(A100, "1g.5gb").tables)))
    with pytest.raises(ValueError, match="weights: 0 numbers"):
        StateValues.from_json(b'{"units": [], "weights": []}')


def named_features(slots: int, starts: int) -> dict[str, float]:
    return dict(zip(FEATURES, features(slots, starts), strict=True))


def test_features_say_what_fits_beside_the_instances() -> None:
    one_3g_on_the_right = named_features(0b1111_0000, 0b0001_0000)
    assert one_3g_on_the_right["usable 3x4"] == 0.5
    assert one_3g_on_the_right["usable 4x4"] == 0.5
    assert one_3g_on_the_right["usable 7x8"] == 0.0
    assert one_3g_on_the_right["free"] == 0.5
    assert one_3g_on_the_right["free squared"] == 0.25
    # 1g at 1: 2g fit at 2 and at 4; a 1g.10gb fits at 6, too
    one_1g = named_features(0b10, 0b10)
    assert (one_1g["usable 2x2"], one_1g["usable 1x2"], one_1g["usable 1x1"]) == (4 / 8, 6 / 8, 6 / 8)
    assert named_features(0b0111_1111, 0b0101_0101)["any 1x1"] == 0.0
    assert named_features(0b0011_1111, 0b0001_0101)["any 1x2"] == 1.0


def test_features_count_the_instances_that_must_end() -> None:
    four_1g = named_features(0b1111, 0b1111)
    two_2g = named_features(0b1111, 0b0101)
    assert four_1g["mean lives until free: left"] == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert two_2g["mean lives until free: left"] == pytest.approx(1.5)
    assert two_2g["mean lives until free: right"] == 0.0
    whole = named_features(0b1111_1111, 0b1)
    assert whole["mean lives until free: right"] == whole["mean lives until free: card"] == 1.0
