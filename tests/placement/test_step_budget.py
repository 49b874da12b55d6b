"""A batch that costs more than it may is cut, in the order of admission, and goes on where it was cut."""

from tessera.mig.models import model_by_short_name
from tessera.placement.demand import Demand, StepBudget
from tessera.placement.fleet import Fleet
from tessera.placement.plan import plan
from tessera.reasons.node_rules import NodeRule, RuleKind

A100 = model_by_short_name("A100-40GB").geometry


def fleet(nodes: int) -> Fleet:
    made = Fleet()
    for number in range(nodes):
        made.add_card(f"n{number}", f"GPU-{number}", A100)
    return made


def never(_demand: Demand, _node: str) -> NodeRule:
    return NodeRule(RuleKind.AFFINITY)


def test_a_part_is_charged_to_the_whole() -> None:
    whole = StepBudget(100)
    part = whole.part(0.4)
    part.spend(50)
    assert (part.is_spent, whole.remaining) == (True, 50)


def test_what_the_work_does_not_suffice_for_is_postponed_and_comes_next() -> None:
    demands = [Demand(f"d{number:02}", ("1g.5gb",), arrival=number) for number in range(20)]
    left, steps = demands, 0
    while left:
        found = plan(fleet(50), left, never, work=StepBudget(1000))
        decided = [demand.key for demand in left if demand.key in found.refusals]
        assert decided == [demand.key for demand in left[: len(decided)]]
        assert decided
        assert found.postponed == {demand.key for demand in left[len(decided) :]}
        left, steps = left[len(decided) :], steps + 1
    assert 2 < steps < 20


def test_the_first_demand_is_decided_whatever_it_costs() -> None:
    found = plan(fleet(50), [Demand("a", ("1g.5gb",)), Demand("b", ("1g.5gb",))], never, work=StepBudget(0))
    assert (list(found.refusals), found.postponed) == (["a"], frozenset({"b"}))


def test_what_fits_is_placed_even_if_packing_all_costs_too_much() -> None:
    demands = [Demand(f"d{number:02}", ("1g.5gb",), arrival=number) for number in range(20)]
    found = plan(fleet(50), demands, work=StepBudget(300))
    assert found.assignments
    assert found.assignments.keys() | found.postponed == {demand.key for demand in demands}
    assert list(found.assignments) == [demand.key for demand in demands[: len(found.assignments)]]


def test_a_demand_with_few_nodes_goes_where_it_would_go_among_all() -> None:
    made = fleet(10)
    everywhere = plan(made, [Demand("a", ("3g.20gb",))], lambda _d, node: None if node == "n7" else never(_d, node))
    only = plan(made, [Demand("a", ("3g.20gb",), nodes=frozenset({"n7", "gone"}))])
    assert only.assignments == everywhere.assignments != {}


def test_a_demand_that_is_refused_again_has_a_new_reason_only_while_work_is_left() -> None:
    again = Demand("a", ("1g.5gb",), nodes=frozenset({"n1"}), again=True)
    found = plan(fleet(3), [again], never)
    assert (found.assignments, list(found.refusals), found.postponed) == ({}, ["a"], frozenset())
    found = plan(fleet(3), [again], never, work=StepBudget(0))
    assert (found.assignments, found.refusals, found.postponed) == ({}, {}, frozenset())
