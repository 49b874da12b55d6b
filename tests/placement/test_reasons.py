"""Reasons in words."""

from tessera.mig.models import model_by_short_name
from tessera.placement.demand import Demand
from tessera.placement.explain import RefusalExplainer
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.reasons.reason import Fragmented, Full, NeverFits, UnknownProfile
from tessera.reasons.words import sentence

A100 = model_by_short_name("A100-40GB").geometry


def test_alike_slices_are_counted_and_not_listed() -> None:
    assert "could hold 28 x 1g.5gb + 3g.20gb, even empty" in sentence(NeverFits((*["1g.5gb"] * 28, "3g.20gb")))


def test_free_devices_are_counted_as_devices() -> None:
    """Memory slots say nothing to a reader who asks for whole cards."""
    whole = Fragmented(("nvidia.com/gpu",) * 4, free_slots=16, total=40, needed=32)
    assert sentence(whole) == "no node has 4 whole cards free; the most on one node is 2"
    shares = Fragmented(("nvidia.com/gpu.shared",) * 3, free_slots=2, total=4, needed=3)
    assert sentence(shares) == "no node has 3 nvidia.com/gpu.shared free; the most on one node is 2"


def test_whole_cards_are_no_profile_of_a_card() -> None:
    assert sentence(UnknownProfile("nvidia.com/gpu", ("1g.5gb", "7g.40gb"))) == "no node has nvidia.com/gpu"
    assert sentence(UnknownProfile("9g.5gb", ("1g.5gb",))) == 'no card has a profile "9g.5gb"; the cards have 1g.5gb'


def full_of_small_slices(nodes: int) -> Fleet:
    fleet = Fleet()
    for node in range(nodes):
        for gpu in range(4):
            fleet.add_card(f"n{node}", f"{node}-{gpu}", A100)
            for start in range(7):
                fleet.occupy(
                    CardPlacement(f"n{node}", f"{node}-{gpu}", "1g.5gb", start, 1), f"default/{node}-{gpu}-{start}"
                )
    return fleet


def test_searches_for_what_must_end_share_a_budget() -> None:
    """A tenant may create thousands of pods, each with other slices, and each such search takes some 50 ms."""
    explainer = RefusalExplainer(full_of_small_slices(16), lambda _demand, _node: None, {})
    shapes = [tuple(["1g.5gb"] * one + ["2g.10gb"] * two) for one in range(2, 8) for two in range(3, 6)]
    reasons = [explainer.reason(Demand(str(number), shape), {}) for number, shape in enumerate(shapes)]
    assert [each.frees for each in reasons if isinstance(each, Full)] == [()] * len(shapes)
    small = explainer.reason(Demand("two", ("1g.5gb", "1g.5gb")), {})
    assert isinstance(small, Full)
    assert not small.frees
    fresh = RefusalExplainer(full_of_small_slices(16), lambda _demand, _node: None, {})
    two = fresh.reason(Demand("two", ("1g.5gb", "1g.5gb")), {})
    assert isinstance(two, Full)
    assert len(two.frees) == 2
    one = explainer.reason(Demand("one", ("1g.5gb",)), {})
    assert isinstance(one, Full)
    assert len(one.frees) == 1, "one slice is always explained"
