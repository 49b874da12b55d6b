"""How many new nodes the waiting pods need."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cost import count_calls, most_calls_at_a_time

from tessera.api.names import QUOTA_RESOURCE, PodUid
from tessera.api.nodes.node_groups import NodeGroup, parse_node_groups
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.kube.resources import NodeSelectorRequirement, NodeSelectorTerm, Toleration
from tessera.mig.layout_planning import is_feasible
from tessera.scale_up import new_nodes
from tessera.scale_up.new_nodes import SCALE_UP_PODS, NewNodes, least_amounts
from tessera.scale_up.patterns import PART
from tessera.scale_up.useless_nodes import Standing, request_kind

ONE, THREE, SEVEN = "1g.5gb", "3g.20gb", "7g.40gb"
SINGLE = "{name: single, selector: {pool: a}, cards: {model: A100-40GB}"
PAIRS = "{name: pairs, selector: {pool: b}, cards: {model: A100-40GB, count: 2}, labels: {zone: z1}"


def groups(*texts: str) -> tuple[NodeGroup, ...]:
    return parse_node_groups(f"groups: [{', '.join(f'{text}}}' for text in texts)}]")


def plan_new_nodes(
    waiting: Sequence[PodInfo],
    known: Sequence[NodeGroup],
    starting: Mapping[str, int],
    seen: Mapping[str, dict[str, int]] | None = None,
) -> Mapping[str, NewNodes]:
    return asyncio.run(new_nodes.plan_new_nodes(waiting, known, starting, seen or {}))


def pods(*requests: tuple[str, ...], amounts: dict[str, int] | None = None, **selector: str) -> list[PodInfo]:
    constraints = NodeConstraints(selector=tuple(sorted(selector.items())))
    return [
        PodInfo(
            uid=PodUid(f"u{number}"),
            namespace="n",
            name=f"p{number}",
            profiles=profiles,
            constraints=constraints,
            amounts=amounts or {},
        )
        for number, profiles in enumerate(requests)
    ]


def counts(found: dict[str, NewNodes]) -> dict[str, int]:
    return {name: each.count for name, each in found.items() if each.count}


@pytest.mark.parametrize(
    ("requests", "starting", "expected"),
    [
        ([(ONE,)], 0, {"single": 1}),
        ([(ONE,)] * 7, 0, {"single": 1}),
        ([(ONE,)] * 8, 0, {"single": 2}),
        ([(ONE,)] * 8, 1, {"single": 1}),
        ([(ONE,)] * 8, 2, {}),
        ([(ONE,)] * 8, 5, {}),
        ([(THREE,)] * 3 + [(ONE,)] * 12, 0, {"single": 3}),
        ([(THREE,)] * 3 + [(ONE,)] * 13, 0, {"single": 4}),
        ([(SEVEN, ONE)], 0, {"pairs": 1}),
        ([(ONE,), (SEVEN, ONE), (SEVEN, ONE)] + [(ONE,)] * 11, 0, {"pairs": 2}),
        ([(ONE,), (SEVEN, ONE), (SEVEN, ONE)] + [(ONE,)] * 12, 0, {"pairs": 2, "single": 1}),
        ([(ONE,), (SEVEN, ONE), (SEVEN, ONE)] + [(ONE,)] * 12, 1, {"pairs": 2}),
        ([(SEVEN,) * 3], 0, {}),
        ([("7g.80gb",)], 0, {}),
        ([(SEVEN,)] * 12, 0, {"single": 10}),
    ],
)
def test_the_smallest_number_that_planning_can_use(
    requests: list[tuple[str, ...]], starting: int, expected: dict[str, int]
) -> None:
    found = plan_new_nodes(pods(*requests), groups(SINGLE, PAIRS), {"single": starting})
    assert counts(dict(found)) == expected


@pytest.mark.parametrize(
    ("standings", "starting", "expected"),
    [
        ({}, 0, {"single": 3}),
        ({"p0": Standing.PAUSED}, 0, {"single": 2}),
        ({"p0": Standing.PAUSED, "p1": Standing.PAUSED, "p2": Standing.PAUSED}, 0, {}),
        ({"p0": Standing.ON_TRIAL, "p1": Standing.ON_TRIAL, "p2": Standing.ON_TRIAL}, 0, {"single": 1}),
        ({"p0": Standing.ON_TRIAL, "p1": Standing.ON_TRIAL, "p2": Standing.ON_TRIAL}, 1, {}),
        ({"p0": Standing.ON_TRIAL, "p1": Standing.ON_TRIAL}, 0, {"single": 2}),
        ({"p0": Standing.ON_TRIAL, "p1": Standing.ON_TRIAL}, 1, {}),
    ],
)
def test_requests_that_new_nodes_did_not_help_get_none_or_one_together(
    standings: dict[str, Standing], starting: int, expected: dict[str, int]
) -> None:
    waiting = [replace(pod, amounts={"cpu": 1 + n}) for n, pod in enumerate(pods((SEVEN,), (SEVEN,), (SEVEN,)))]
    by_kind = {request_kind(pod): standings[pod.name] for pod in waiting if pod.name in standings}
    found = asyncio.run(
        new_nodes.plan_new_nodes(waiting, groups(SINGLE), {"single": starting}, {}, {"single": by_kind})
    )
    assert counts(dict(found)) == expected


def test_a_node_on_trial_is_asked_for_with_what_each_such_request_can_do_with() -> None:
    """One that no machine can take keeps it from no other."""
    waiting = [replace(pod, amounts={"cpu": 5000 - n}) for n, pod in enumerate(pods((SEVEN,), (SEVEN,)))]
    standings = {request_kind(pod): Standing.ON_TRIAL for pod in waiting}
    found = asyncio.run(new_nodes.plan_new_nodes(waiting, groups(SINGLE), {}, {}, {"single": standings}))
    assert found == {"single": NewNodes(1, ("n/p0", "n/p1"), {"cpu": 4999})}


def test_a_pod_that_another_group_admits_goes_there_while_one_is_paused_or_on_trial() -> None:
    (waiting,) = pods((ONE,))
    known = groups(SINGLE, PAIRS)
    for standing in Standing:
        standings = {"single": {request_kind(waiting): standing}}
        found = asyncio.run(new_nodes.plan_new_nodes([waiting], known, {}, {}, standings))
        assert counts(dict(found)) == {"pairs": 1}


def test_the_pods_that_would_run_are_named() -> None:
    found = plan_new_nodes(pods((SEVEN,), (SEVEN,), (SEVEN,)), groups(f"{SINGLE}, max: 2"), {})
    assert found == {"single": NewNodes(2, ("n/p0", "n/p1"))}


def test_a_pods_selector_and_affinity_choose_the_group() -> None:
    known = groups(SINGLE, PAIRS)
    assert counts(dict(plan_new_nodes(pods((ONE,), zone="z1"), known, {}))) == {"pairs": 1}
    assert plan_new_nodes(pods((ONE,), zone="z2"), known, {}) == {}
    term = NodeSelectorTerm(match_expressions=(NodeSelectorRequirement(key="pool", operator="NotIn", values=("a",)),))
    (pod,) = pods((ONE,))
    chosen = PodInfo(
        uid=pod.uid, namespace="n", name="p", profiles=pod.profiles, constraints=NodeConstraints(terms=(term,))
    )
    assert counts(dict(plan_new_nodes([chosen], known, {}))) == {"pairs": 1}


def test_taints_that_nodes_keep_must_be_tolerated() -> None:
    known = groups(f"{SINGLE}, taints: [{{key: gpu, value: x}}]")
    (pod,) = pods((ONE,))
    assert plan_new_nodes([pod], known, {}) == {}
    tolerant = NodeConstraints(tolerations=(Toleration(key="gpu", operator="Exists"),))
    other = PodInfo(uid=pod.uid, namespace="n", name="p", profiles=pod.profiles, constraints=tolerant)
    assert counts(dict(plan_new_nodes([other], known, {}))) == {"single": 1}
    only_preferred = groups(f"{SINGLE}, taints: [{{key: gpu, effect: PreferNoSchedule}}]")
    assert counts(dict(plan_new_nodes([pod], only_preferred, {}))) == {"single": 1}


def test_amounts_that_the_group_states_are_counted() -> None:
    known = groups(f"{SINGLE}, allocatable: {{cpu: 8, memory: 16Gi}}")
    half = {"cpu": 4000, "memory": 2**30, "instaslice.redhat.com/accelerator-memory-quota": 5 * 2**30}
    assert counts(dict(plan_new_nodes(pods(*[(ONE,)] * 5, amounts=half), known, {}))) == {"single": 3}
    assert plan_new_nodes(pods((ONE,), amounts={"memory": 17 * 2**30}), known, {}) == {}


def test_pods_that_no_node_could_take_keep_no_nodes_from_those_behind_them() -> None:
    known, seen = groups(SINGLE), {"single": {"cpu": 64_000}}
    hopeless = pods(*[(ONE,)] * SCALE_UP_PODS, amounts={"cpu": 5_000_000})
    (waiting,) = (replace(pod, namespace="other") for pod in pods((ONE,), amounts={"cpu": 1_000}))
    assert plan_new_nodes([*hopeless, waiting], known, {}, seen) == {
        "single": NewNodes(1, ("other/p0",), {"cpu": 1_000})
    }


def test_a_namespace_of_many_kinds_of_pods_costs_no_more_than_one_with_the_limit() -> None:
    """Each kind is compared with each group; the pods of other namespaces still get their nodes."""
    impossible = [
        replace(pod, amounts={"cpu": 1_000 + number}) for number, pod in enumerate(pods(*[(SEVEN,) * 3] * 4_000))
    ]
    (waiting,) = (replace(pod, namespace="other") for pod in pods((ONE,)))
    known = groups(SINGLE, PAIRS)
    one, _ = count_calls(lambda: plan_new_nodes([*impossible[:SCALE_UP_PODS], waiting], known, {}))
    four, found = count_calls(lambda: plan_new_nodes([*impossible, waiting], known, {}))
    assert four < 2 * one
    assert found["single"].pods == ("other/p0",)


def test_no_more_pods_than_the_limit_are_planned() -> None:
    found = plan_new_nodes(pods(*[(ONE,)] * (SCALE_UP_PODS + 700)), groups(f"{SINGLE}, max: 100"), {})
    assert found["single"].count == 100
    assert len(found["single"].pods) == 700


def test_other_work_of_the_process_comes_between_pods_that_are_compared_with_many_groups() -> None:
    """Fifty groups and a hundred kinds of pods: a few pods are compared with all groups in one part."""
    cards = "cards: {model: T4, kind: whole}"
    texts = (f"{{name: g{number}, selector: {{pool: p{number}}}, {cards}" for number in range(50))
    known = groups(*texts)
    waiting = [replace(each, amounts={"cpu": number}) for number, each in enumerate(pods(*[(ONE,)] * 100))]

    assert asyncio.run(count_turns(waiting, known)) >= len(waiting) * len(known) // PART


def test_other_work_of_the_process_comes_between_slices_that_are_planned() -> None:
    """Each of 300 pods costs 20 steps and more, whatever is found."""
    waiting = pods(*[(ONE,), (THREE,), (SEVEN,)] * 100)
    assert asyncio.run(count_turns(waiting, groups(f"{SINGLE}, max: 100"))) >= len(waiting) * 20 // PART


async def count_turns(waiting: Sequence[PodInfo], known: Sequence[NodeGroup]) -> int:
    """The turns of the event loop while new nodes are planned."""
    planned = asyncio.ensure_future(new_nodes.plan_new_nodes(waiting, known, {}))
    turns = 0
    while not planned.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


def test_without_groups_nothing_is_asked_for() -> None:
    assert plan_new_nodes(pods((ONE,)), (), {}) == {}


@given(st.lists(st.sampled_from([ONE, "1g.5gb.me", "1g.10gb", "2g.10gb", THREE, "4g.20gb", SEVEN]), max_size=8))
@settings(deadline=None)
def test_on_nodes_of_one_card_one_less_would_not_do(profiles: list[str]) -> None:
    """For up to two cards, the exact layouts of a card tell if fewer would have sufficed."""
    found = plan_new_nodes(pods(*((profile,) for profile in profiles)), groups(SINGLE), {})
    count = found["single"].count if found else 0
    geometry = groups(SINGLE)[0].geometry
    assert (count == 0) == (not profiles)
    if count:
        assert len(found["single"].pods) == len(profiles)
        assert (count == 1) == is_feasible(geometry, profiles)


WHOLE = "{name: whole, selector: {pool: w}, cards: {model: L40S, count: 4, kind: whole}"
SHARES = "{name: shares, selector: {pool: s}, cards: {model: T4, count: 2, kind: shares, replicas: 4}"
GPU, SHARE = "nvidia.com/gpu", "nvidia.com/gpu.shared"


@pytest.mark.parametrize(
    ("requests", "starting", "expected"),
    [
        ([(GPU,)], {}, {"whole": 1}),
        ([(GPU,) * 4] * 3, {}, {"whole": 3}),
        ([(GPU,) * 3] * 2 + [(GPU,)] * 2, {}, {"whole": 2}),
        ([(GPU,) * 3] * 2 + [(GPU,)] * 2, {"whole": 1}, {"whole": 1}),
        ([(GPU,) * 5], {}, {}),
        ([(SHARE,)] * 9, {}, {"shares": 2}),
        ([(SHARE,) * 8, (GPU,), (ONE,) * 3], {}, {"shares": 1, "whole": 1, "single": 1}),
    ],
)
def test_whole_cards_and_shares_come_with_groups_that_have_them(
    requests: list[tuple[str, ...]], starting: dict[str, int], expected: dict[str, int]
) -> None:
    found = plan_new_nodes(pods(*requests), groups(SINGLE, WHOLE, SHARES), starting)
    assert counts(dict(found)) == expected


@pytest.mark.parametrize(("group", "profile"), [(WHOLE, GPU), (SINGLE, ONE)])
def test_pods_with_little_cpu_leave_the_cpu_of_new_nodes_to_pods_with_much(group: str, profile: str) -> None:
    """Two nodes have CPU for a large pod and three small ones each; with four small ones on one, three are needed."""
    known = groups(f"{group}, allocatable: {{cpu: 40}}")
    small = pods(*[(profile,)] * 6, amounts={"cpu": 4000})
    large = [replace(each, name=f"l{each.name}") for each in pods(*[(profile,)] * 2, amounts={"cpu": 28000})]
    (found,) = plan_new_nodes([*small, *large], known, {}).values()
    assert (found.count, len(found.pods)) == (2, 8)


MANY = "{name: many, selector: {pool: m}, cards: {model: T4, count: 8, kind: shares, replicas: 32}, max: 100"


@pytest.mark.parametrize(
    ("group", "request_", "cpu", "expected"),
    [
        (f"{MANY}, allocatable: {{cpu: 40}}", (SHARE,), 9000, (100, 400)),
        (MANY, (SHARE,) * 16, 0, (63, 1000)),
        (f"{SINGLE}, max: 100, allocatable: {{cpu: 40}}", (ONE,), 9000, (100, 400)),
    ],
    ids=["shares with CPU", "many shares", "slices with CPU"],
)
def test_a_thousand_pods_are_planned_at_a_bounded_cost(
    group: str, request_: tuple[str, ...], cpu: int, expected: tuple[int, int]
) -> None:
    """Calls are counted: a try with each number of nodes, or a card made for each share, takes a hundred times more."""
    waiting, known = pods(*[request_] * 1000, amounts={"cpu": cpu}), groups(group)
    calls, found = count_calls(lambda: plan_new_nodes(waiting, known, {}))
    (needed,) = found.values()
    assert (needed.count, len(needed.pods)) == expected
    assert calls < 700_000


@pytest.mark.parametrize(("least", "most"), [(2, 2), (1, 8)])
def test_the_search_for_slices_lets_other_work_come_first_after_a_few_steps(least: int, most: int) -> None:
    rng = random.Random(most)
    profiles = (ONE, "1g.10gb", "2g.10gb", THREE, "4g.20gb", SEVEN)
    requests = [tuple(rng.choices(profiles, k=rng.randint(least, most))) for _ in range(300)]
    waiting = pods(*requests, amounts={"cpu": 9000})
    known = groups(
        "{name: a, selector: {pool: a}, cards: {model: A100-40GB, count: 8}, max: 100, allocatable: {cpu: 96}"
    )
    assert asyncio.run(most_calls_at_a_time(new_nodes.plan_new_nodes(waiting, known, {}))) <= 60_000


def test_pods_that_one_decision_has_no_steps_for_ask_for_no_node_too_many() -> None:
    """Sixteen cards each, and 64 a node: a thousand pods need 250 nodes, of which the group allows 100."""
    known = groups("{name: big, selector: {pool: b}, cards: {model: A100-40GB, count: 64}, max: 100")
    assert counts(dict(plan_new_nodes(pods(*[(SEVEN,) * 16] * 100), known, {}))) == {"big": 25}
    assert counts(dict(plan_new_nodes(pods(*[(SEVEN,) * 16] * 1000), known, {}))) == {"big": 100}


def test_nodes_are_for_pods_that_ask_for_so_much_at_least() -> None:
    """What cards are asked for, and Tessera's own names for them, a new node has in any case."""
    asked = [
        {"cpu": 5_000_000, "memory": 8, "example.com/fpga": 1, "nvidia.com/gpu": 2, QUOTA_RESOURCE: 5, "pods": 1},
        {"cpu": 4_000, "memory": 16, "pods": 1},
    ]
    both = [replace(pod, amounts=amounts) for pod, amounts in zip(pods((ONE,), (ONE,)), asked, strict=True)]
    assert least_amounts(both) == {"cpu": 4_000, "memory": 8}
    assert least_amounts(both[:1]) == {"cpu": 5_000_000, "memory": 8, "example.com/fpga": 1}
    assert least_amounts([]) == {}
    assert dict(plan_new_nodes(both[:1], groups(SINGLE), {}))["single"].least == least_amounts(both[:1])


@pytest.mark.parametrize(
    ("amounts", "nodes"),
    [
        ({"cpu": 64_000, "nvidia.com/gpu": 9}, {"single": 1}),
        ({"cpu": 64_001}, {}),
        ({"cpu": 1, "example.com/fpga": 1}, {}),
    ],
)
def test_no_node_is_asked_for_by_a_pod_that_those_seen_are_too_small_for(
    amounts: dict[str, int], nodes: dict[str, int]
) -> None:
    (pod,) = pods((ONE,), amounts=amounts)
    seen = {"single": {"cpu": 64_000, "memory": 1 << 40}}
    assert counts(dict(plan_new_nodes([pod], groups(SINGLE), {}, seen))) == nodes
    assert counts(dict(plan_new_nodes([pod], groups(SINGLE), {}))) == {"single": 1}
