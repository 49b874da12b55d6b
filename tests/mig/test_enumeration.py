"""The tables reproduce the counts that are published or were derived independently."""

import pytest
from tests.support.mig_enumeration import filling_multisets, layouts, maximal_layouts, maximal_multisets, multisets

from tessera.mig.models import model_by_short_name

S7_BASE = ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]


@pytest.mark.parametrize(
    ("model", "profiles", "counts"),
    [
        ("A100-40GB", S7_BASE, (298, 19, 37, 12)),
        ("A100-40GB", [*S7_BASE, "1g.10gb"], (723, 78, 77, 28)),
        ("A100-40GB", [*S7_BASE, "1g.10gb", "1g.5gb+me"], (2319, 239, 127, 44)),
        ("A30", ["1g.6gb", "2g.12gb", "4g.24gb"], (26, 5, 9, 4)),
        ("RTX-PRO-6000", ["1g.24gb", "2g.48gb", "4g.96gb"], (26, 5, 9, 4)),
    ],
)
def test_layouts_maximal_layouts_multisets_and_maximal_multisets_of_a_table(
    model: str, profiles: list[str], counts: tuple[int, int, int, int]
) -> None:
    geometry = model_by_short_name(model).geometry.restrict(profiles)
    assert (len(layouts(geometry)), len(maximal_layouts(geometry))) == counts[:2]
    assert (len(multisets(geometry)), len(maximal_multisets(geometry))) == counts[2:]


def test_the_twelve_maximal_multisets_of_the_seven_slice_base_table() -> None:
    geometry = model_by_short_name("A100-40GB").geometry.restrict(S7_BASE)
    short = {tuple((name.split(".")[0], count) for name, count in one) for one in maximal_multisets(geometry)}
    assert short == {
        (("1g", 7),),
        (("1g", 5), ("2g", 1)),
        (("1g", 4), ("3g", 1)),
        (("1g", 3), ("2g", 2)),
        (("1g", 3), ("4g", 1)),
        (("1g", 2), ("2g", 1), ("3g", 1)),
        (("1g", 1), ("2g", 3)),
        (("1g", 1), ("2g", 1), ("4g", 1)),
        (("2g", 2), ("3g", 1)),
        (("3g", 2),),
        (("3g", 1), ("4g", 1)),
        (("7g", 1),),
    }


@pytest.mark.parametrize("model", ["A100-40GB", "A100-80GB", "H100-80GB", "H200"])
def test_thirty_two_combinations_of_all_seven_profiles_fill_a_card(model: str) -> None:
    assert len(filling_multisets(model_by_short_name(model).geometry)) == 32
