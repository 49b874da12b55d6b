"""Reasons in words."""

from tessera.placement.demand import Full, NeverFits


def test_alike_slices_are_counted_and_not_listed() -> None:
    assert "can hold 28 x 1g.5gb, 3g.20gb together" in NeverFits((*["1g.5gb"] * 28, "3g.20gb")).text
    assert Full(("3g.20gb",)).text.startswith("every card is full for 3g.20gb;")
