"""A waiting pod's age is the time for which it competed for room; a pod that is made anew while it waits keeps it."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, NodeName, PodUid
from tessera.clock import parse_rfc3339, rfc3339
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.waiting_pod import (
    EXPIRY,
    PAUSE,
    REMEMBERED_AGES,
    REMEMBERED_AGES_OF_NAMESPACE,
    UNTOLD,
    WaitingAges,
)

NOW = 1_767_000_000.0
OWN = "tenant.example/mine"
KUEUE = "kueue.x-k8s.io/admission"


def waiting(name: str, at: float = NOW, **facts: Any) -> PodInfo:
    """A pod of a Job at our gate, created at a time."""
    default: dict[str, Any] = {"gates": (GATE,), "profiles": ("7g.40gb",), "owner": "o", "maker": "Job/j"}
    facts = {**default, **facts}
    return PodInfo(uid=PodUid(name), namespace=facts.pop("namespace", "team"), name=name, created=rfc3339(at), **facts)


def seen(ages: WaitingAges, pod: PodInfo, now: float, *, known: bool = False) -> PodInfo:
    """Observes a pod; its owner exists."""
    found = ages.observe(pod, now, known=known, competes=False)
    for owner in list(ages.unknown_owners):
        ages.judge(owner, exists=True)
        found = ages.observe(pod, now, known=True, competes=False)
    return found


def age(ages: WaitingAges, pod: PodInfo, now: float, *, known: bool = False) -> float:
    """Seconds for which a pod has competed, rounded."""
    return round(now - parse_rfc3339(seen(ages, pod, now, known=known).created))


def leave(ages: WaitingAges, pod: PodInfo, after: float, *, competes: bool = True) -> None:
    """A pod comes with its creation, and goes after some seconds."""
    at = parse_rfc3339(pod.created)
    ages.forget(pod.uid, seen(ages, pod, at), at + after, competes=competes)


# From when an age counts


@pytest.fixture
def ages() -> WaitingAges:
    return WaitingAges()


def test_an_age_begins_with_the_pod() -> None:
    assert age(WaitingAges(), waiting("a", NOW), NOW + 5) == 5


@pytest.mark.parametrize("gate", [OWN, KUEUE])
def test_an_age_begins_when_the_last_gate_of_others_is_gone(ages: WaitingAges, gate: str) -> None:
    seen(ages, waiting("a", NOW, gates=(gate, GATE)), NOW)
    assert age(ages, waiting("a", NOW), NOW + 3_600, known=True) == 0
    assert age(ages, waiting("a", NOW), NOW + 3_700, known=True) == 100


def test_pods_whose_gates_go_in_one_second_keep_the_order_of_their_creation(ages: WaitingAges) -> None:
    pods = [waiting(name, NOW + at, gates=(OWN, GATE)) for name, at in (("b", 0), ("a", 1))]
    for pod in pods:
        seen(ages, pod, NOW + 2)
    first, second = (seen(ages, replace(pod, gates=(GATE,)), NOW + 60, known=True).created for pod in pods)
    assert first < second


def test_a_new_controller_takes_the_age_from_the_condition() -> None:
    pod = waiting("a", NOW, waits_since=rfc3339(NOW + 600))
    assert age(WaitingAges(), pod, NOW + 700) == 100


def test_a_pod_that_no_controller_has_told_of_its_wait_is_young() -> None:
    """It has lost its last gate of others a moment ago, or nobody could take it; or no controller has run."""
    assert age(WaitingAges(), waiting("a", NOW), NOW + 86_400) == 0
    assert age(WaitingAges(), waiting("a", NOW), NOW + UNTOLD - 1) == UNTOLD - 1
    ages = WaitingAges()
    first, second = (seen(ages, waiting(name, at), NOW + 1_000) for name, at in (("b", NOW), ("a", NOW + 1)))
    assert first.created < second.created


def test_an_age_stands_still_while_no_node_could_take_the_pod(ages: WaitingAges) -> None:
    pod = seen(ages, waiting("a", NOW), NOW)
    ages.note(pod, NOW + 10, competes=False)
    pod = ages.settle(pod, NOW + 100)
    assert round(NOW + 100 - parse_rfc3339(pod.created)) == 10
    pod = ages.settle(pod, NOW + 1_000)
    ages.note(pod, NOW + 1_000, competes=True)
    assert age(ages, waiting("a", NOW), NOW + 1_005, known=True) == 15
    assert ages.settle(pod, NOW + 2_000) is pod


@given(
    st.lists(
        st.tuples(st.sampled_from(["competes", "no node", "settle"]), st.integers(0, 10_000)), min_size=1, max_size=20
    )
)
def test_an_age_is_never_more_than_the_time_that_the_pod_competed(steps: list[tuple[str, int]]) -> None:
    ages, now, competed, competes = WaitingAges(), NOW, 0.0, True
    pod = seen(ages, waiting("a", NOW), NOW)
    for what, seconds in steps:
        now += seconds
        competed += seconds if competes else 0
        pod = ages.settle(pod, now)  # planning settles a pod before it says what it found
        if what != "settle":
            competes = what == "competes"
            ages.note(pod, now, competes=competes)
    pod = ages.settle(pod, now)
    assert abs(now - parse_rfc3339(pod.created) - competed) <= 2 * len(steps)  # texts have whole seconds


# Ages that go from pod to pod


def test_the_next_pod_of_the_owner_takes_the_age_over_and_keeps_it(ages: WaitingAges) -> None:
    leave(ages, waiting("a"), 600)
    assert age(ages, waiting("b", NOW + 601), NOW + 601) == 601
    assert age(ages, waiting("b", NOW + 601), NOW + 700, known=True) == 700
    assert age(ages, waiting("c", NOW + 700), NOW + 700) == 0


def test_an_age_goes_on_from_pod_to_pod(ages: WaitingAges) -> None:
    leave(ages, waiting("a"), 100)
    leave(ages, waiting("b", NOW + 100), 100)
    assert age(ages, waiting("c", NOW + 200), NOW + 200) == 200


def test_a_long_pause_between_two_pods_counts_for_nobody(ages: WaitingAges) -> None:
    """Else whoever makes a pod for a second now and then saves up an age."""
    leave(ages, waiting("a"), 100)
    assert age(ages, waiting("b", NOW + 10_000), NOW + 10_000) == 100 + PAUSE


@pytest.mark.parametrize("gate", [OWN, KUEUE])
def test_a_pod_made_anew_behind_a_gate_takes_the_age_over_when_that_is_gone(ages: WaitingAges, gate: str) -> None:
    leave(ages, waiting("a"), 100)
    seen(ages, waiting("b", NOW + 100, gates=(gate, GATE)), NOW + 100)
    assert age(ages, waiting("b", NOW + 100), NOW + 5_000, known=True) == 100 + PAUSE


def test_a_pod_that_is_being_deleted_leaves_its_age_once(ages: WaitingAges) -> None:
    """Its owner replaces it before it is gone, while a finalizer of Kueue holds it."""
    seen(ages, waiting("a"), NOW)
    leaving = ages.observe(waiting("a", terminating=True), NOW + 100, known=True, competes=True)
    assert age(ages, waiting("b", NOW + 100), NOW + 100) == 100
    ages.forget(leaving.uid, leaving, NOW + 200, competes=True)
    assert age(ages, waiting("c", NOW + 200), NOW + 200) == 0


def test_the_oldest_age_goes_first(ages: WaitingAges) -> None:
    pods = [seen(ages, waiting(name, at), at) for name, at in (("b", NOW - 500), ("a", NOW - 50))]
    for pod in reversed(pods):
        ages.forget(pod.uid, pod, NOW, competes=True)
    assert [age(ages, waiting(name), NOW) for name in "cd"] == [500, 50]


@pytest.mark.parametrize(
    ("facts", "competes"),
    [
        ({"maker": ""}, True),
        ({"gates": ()}, True),
        ({"profiles": ()}, True),
        ({"finished": True}, True),
        ({}, False),
    ],
    ids=["made-up owner", "had its slices", "no slices", "ended", "no node could take it"],
)
def test_only_a_pod_of_a_workload_that_competes_leaves_an_age(
    ages: WaitingAges, facts: dict[str, Any], competes: bool
) -> None:
    leave(ages, waiting("a", **facts), 600, competes=competes)
    assert age(ages, waiting("b", NOW + 600, **facts | {"gates": (GATE,)}), NOW + 600) == 0


@pytest.mark.parametrize(
    "facts",
    [
        {"owner": "other"},
        {"maker": "Job/other"},
        {"namespace": "other"},
        {"profiles": ("1g.5gb",)},
        {"amounts": {"cpu": 9_000}},
        {"constraints": NodeConstraints(selector=(("zone", "a"),))},
    ],
    ids=["owner", "name", "namespace", "profile", "CPU", "selector"],
)
def test_a_pod_that_asks_for_something_else_inherits_nothing(ages: WaitingAges, facts: dict[str, Any]) -> None:
    leave(ages, waiting("a"), 600)
    assert age(ages, waiting("b", NOW + 600, **facts), NOW + 600) == 0
    assert age(ages, waiting("c", NOW + 600), NOW + 600) == 600


@pytest.mark.parametrize("gated", [False, True], ids=["", "behind a gate first"])
def test_a_pod_whose_owner_does_not_exist_inherits_nothing(ages: WaitingAges, gated: bool) -> None:
    leave(ages, waiting("a"), 600)
    later = NOW + 600
    if gated:
        ages.observe(waiting("b", later, gates=(OWN, GATE)), later, known=False, competes=False)
    ages.observe(waiting("b", later), later, known=gated, competes=False)
    (owner,) = ages.unknown_owners
    assert (owner.namespace, owner.maker, owner.uid) == ("team", "Job/j", "o")
    assert ages.judge(owner, exists=False) == []
    assert not ages.unknown_owners
    assert age(ages, waiting("b", later), later, known=True) == 0
    assert age(ages, waiting("c", later), later) == 600, "the age is still there for a pod of an owner that exists"


def test_nobody_asks_about_the_owner_of_a_pod_that_inherits_nothing(ages: WaitingAges) -> None:
    leave(ages, waiting("a"), 600)
    for name, facts in (("b", {"owner": "other"}), ("c", {"waits_since": rfc3339(NOW)}), ("d", {"maker": ""})):
        ages.observe(waiting(name, NOW + 600, **facts), NOW + 600, known=False, competes=False)
        assert not ages.unknown_owners
    pod = ages.observe(waiting("e", NOW + 600), NOW + 600, known=False, competes=False)
    assert len(ages.unknown_owners) == 1
    ages.forget(pod.uid, pod, NOW + 601, competes=True)
    assert not ages.unknown_owners


def test_an_owner_that_is_found_late_costs_its_pod_nothing(ages: WaitingAges) -> None:
    leave(ages, waiting("a"), 600)
    later = NOW + 610
    ages.observe(waiting("b", later), later, known=False, competes=False)
    assert ages.judge(*ages.unknown_owners, exists=True) == ["b"]
    assert age(ages, waiting("b", later), later + 300, known=True) == 910


@given(st.lists(st.tuples(st.floats(0, 200), st.floats(0, 200)), min_size=1, max_size=30))
def test_pods_that_come_for_a_moment_now_and_then_save_up_at_most_twice_the_time_they_compete(
    rounds: list[tuple[float, float]],
) -> None:
    ages, now, competed = WaitingAges(), NOW, 0.0
    for number, (there, away) in enumerate(rounds):
        pod = seen(ages, waiting(f"p{number}", now), now)
        now, competed = now + there, competed + there
        ages.forget(pod.uid, pod, now, competes=True)
        now += away
    assert age(ages, waiting("last", now), now) <= 2 * competed + 2 * len(rounds)  # texts have whole seconds


def test_an_age_expires(ages: WaitingAges) -> None:
    leave(ages, waiting("a", owner="late"), 600)
    leave(ages, waiting("b", owner="early"), 600)
    late, early = NOW + 600 + EXPIRY, NOW + 599 + EXPIRY
    assert age(ages, waiting("c", late, owner="late"), late) == 0
    assert age(ages, waiting("d", early, owner="early"), early) == 600 + PAUSE


def test_a_namespace_that_leaves_many_ages_loses_its_own_only(ages: WaitingAges) -> None:
    leave(ages, waiting("modest", namespace="modest"), 600)
    for number in range(REMEMBERED_AGES + 1):
        leave(ages, waiting(f"a{number}", owner=f"owner-{number}"), 600)
    kept = REMEMBERED_AGES + 1 - REMEMBERED_AGES_OF_NAMESPACE
    assert age(ages, waiting("b", NOW + 600, owner=f"owner-{kept - 1}"), NOW + 600) == 0
    assert age(ages, waiting("c", NOW + 600, owner=f"owner-{kept}"), NOW + 600) == 600
    assert age(ages, waiting("d", NOW + 600, namespace="modest"), NOW + 600) == 600


def test_an_owner_beyond_the_bound_keeps_its_oldest_ages(ages: WaitingAges) -> None:
    named = [("a", NOW - 9_000), *((f"b{number}", NOW - 50) for number in range(REMEMBERED_AGES_OF_NAMESPACE))]
    for pod in [seen(ages, waiting(name, at), at) for name, at in named]:
        ages.forget(pod.uid, pod, NOW, competes=True)
    found = [age(ages, waiting(f"c{n}"), NOW) for n in range(REMEMBERED_AGES_OF_NAMESPACE + 1)]
    assert found == [9_000] + [50] * (REMEMBERED_AGES_OF_NAMESPACE - 1) + [0]


def test_beyond_the_bound_of_all_the_namespace_with_the_most_loses(ages: WaitingAges) -> None:
    leave(ages, waiting("modest", namespace="modest"), 600)
    spaces = REMEMBERED_AGES // REMEMBERED_AGES_OF_NAMESPACE
    for space in range(spaces):
        for number in range(REMEMBERED_AGES_OF_NAMESPACE):
            leave(ages, waiting(f"{space}-{number}", owner=f"owner-{number}", namespace=f"n{space}"), 600)
    later = NOW + 600
    found = [age(ages, waiting(f"x{n}", later, owner="owner-0", namespace=f"n{n}"), later) for n in range(spaces)]
    assert found == [0] + [600] * (spaces - 1)
    assert age(ages, waiting("b", later, namespace="modest"), later) == 600


# In the order of waiting pods


def full_cluster() -> SlicerCluster:
    """One card, which a pod holds."""
    cluster = SlicerCluster()
    cluster.date = NOW - 1
    cluster.pass_time(1)
    cluster.node("n")
    cluster.pod("holder", "7g.40gb", created=rfc3339(NOW))
    cluster.settle()
    return cluster


def come(cluster: SlicerCluster, name: str, after: float, **facts: Any) -> PodInfo:
    """Some seconds pass, and a pod for the whole card is created."""
    cluster.pass_time(after)
    pod = cluster.pod(name, "7g.40gb", **{"created": rfc3339(cluster.date), **facts})
    cluster.settle()
    return pod


def change(cluster: SlicerCluster, pod: PodInfo, after: float, **facts: Any) -> None:
    """Some seconds pass, and a pod changes."""
    cluster.pass_time(after)
    cluster.put(replace(cluster.pods[pod.uid], version=cluster.pods[pod.uid].version + 1, **facts))
    cluster.settle()


def first_after_the_holder(cluster: SlicerCluster) -> str:
    cluster.pass_time(5)
    cluster.remove(next(pod for pod in cluster.pods.values() if pod.name == "holder"))
    cluster.settle()
    return next(str(each.name) for each in cluster.slicer.state.allocations)


def test_a_remade_pod_goes_before_a_younger_one() -> None:
    cluster = full_cluster()
    first = come(cluster, "first", 10, owner="set", maker="ReplicaSet/r")
    come(cluster, "second", 10)
    cluster.pass_time(10)
    cluster.remove(first)
    come(cluster, "again", 1, owner="set", maker="ReplicaSet/r")
    assert first_after_the_holder(cluster) == "again"


def test_a_pod_behind_its_own_gate_gathers_no_age() -> None:
    cluster = full_cluster()
    early = come(cluster, "early", 10, gates=(OWN, GATE))
    come(cluster, "victim", 100)
    change(cluster, early, 100, gates=(GATE,))
    assert first_after_the_holder(cluster) == "victim"


def test_a_pod_that_no_node_could_take_gathers_no_age() -> None:
    """Its author lets a node take it later: adds a toleration, makes its volume, completes its gang."""
    cluster = full_cluster()
    nowhere = NodeConstraints(selector=(("no", "such"),))
    early = come(cluster, "early", 10, constraints=nowhere)
    come(cluster, "victim", 100)
    change(cluster, early, 100, constraints=NodeConstraints())
    assert first_after_the_holder(cluster) == "victim"


def test_a_pod_that_could_never_run_leaves_no_age_to_the_next_one() -> None:
    cluster = full_cluster()
    early = come(
        cluster, "early", 10, owner="o", maker="Job/j", constraints=NodeConstraints(selector=(("no", "such"),))
    )
    come(cluster, "victim", 100)
    cluster.remove(early)
    come(cluster, "fresh", 1, owner="o", maker="Job/j")
    assert first_after_the_holder(cluster) == "victim"


def test_a_pod_that_a_made_up_owner_makes_anew_is_young() -> None:
    """Kubernetes deletes a pod whose owner does not exist; a tenant makes the next one."""
    cluster = full_cluster()
    cluster.made_up.add("o")
    early = come(cluster, "early", 10, owner="o", maker="Job/j")
    come(cluster, "victim", 100)
    cluster.pass_time(100)
    cluster.remove(early)
    come(cluster, "fresh", 1, owner="o", maker="Job/j")
    assert first_after_the_holder(cluster) == "victim"


def test_an_outage_of_its_nodes_costs_a_pod_no_more_than_that_time() -> None:
    cluster = full_cluster()
    come(cluster, "old", 10)
    cluster.pass_time(1_000)
    node = cluster.nodes[NodeName("n")]
    cluster.node("n", cordoned=True)
    cluster.settle()
    cluster.pass_time(100)
    cluster.node("n", cordoned=node.cordoned)
    cluster.settle()
    come(cluster, "young", 10)
    assert first_after_the_holder(cluster) == "old"


def test_a_new_controller_keeps_the_order() -> None:
    cluster = full_cluster()
    early = come(cluster, "early", 10, gates=(OWN, GATE))
    victim = come(cluster, "victim", 100)
    change(cluster, early, 100, gates=(GATE,))
    told = {pod.uid: cluster.slicer.state.cluster.pods[pod.uid].created for pod in (early, victim)}
    for pod in (early, victim):
        change(cluster, pod, 0, waits_since=told[pod.uid])
    cluster.pass_time(1_000)
    cluster.restart()
    cluster.settle()
    assert first_after_the_holder(cluster) == "victim"
