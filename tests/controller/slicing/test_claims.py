"""ResourceClaims get slices by the same decisions as limits, and are written so that a real server takes it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.support.claim_cluster import ClaimCluster, request, selecting
from tests.support.cost import count_calls
from tests.support.device_claims import profile_class
from tests.support.slicer_cluster import CheckedSlicer

from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL, GATE, HOSTNAME_LABEL, LAST_GATES, NodeName, PodUid
from tessera.api.pod_annotations import Gang
from tessera.claims.controller import published_devices
from tessera.claims.controller.claims import Claims
from tessera.clock import rfc3339
from tessera.controller.base import MoveMode, MoveSettings
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import (
    InstasliceObserved,
    LastGatesObserved,
    NodeDeleted,
    NodeObserved,
    RecordObserved,
    RefusalTimedOut,
)
from tessera.controller.slicing.state.instructions import Evict, PatchRecord, Ungate
from tessera.dra import resource_slices
from tessera.dra.limits import SORT_CHANGE_SECONDS, SORT_CHANGES
from tessera.dra.node_devices import DRIVER
from tessera.dra.resource_slices import ResourceSlice
from tessera.observe.record_player import DECIDERS
from tessera.reasons.reason import NeverFits
from tessera.reasons.words import sentence
from tessera.replay.state_codec import decode, encode

ONE, THREE = "mig-1g.5gb.tessera.dev", "mig-3g.20gb.tessera.dev"


def kinds(cluster: ClaimCluster) -> list[str]:
    return [type(each).__name__ for each in cluster.writes]


@pytest.fixture
def cluster() -> ClaimCluster:
    return ClaimCluster()


def test_a_pod_without_a_gate_is_placed_by_its_claim_alone(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    key = cluster.claim("c", request("slice", ONE))
    pod = cluster.user("p", key)
    cluster.settle()
    assert cluster.pods[pod.uid].node == "n1"
    ((node, profile, start),) = cluster.where(pod)
    assert (node, profile) == ("n1", "1g.5gb")
    assert cluster.devices(key) == [("n1", f"gpu-0-mig-1g5gb-19-{start}")]
    assert kinds(cluster)[:3] == ["PatchRecord", "PatchRequests", "PatchRecord"]


def test_claims_of_several_slices_lie_on_one_node_and_share_nothing(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    cluster.claim_node("n2")
    keys = [cluster.claim("a", request("x", ONE, count=2), request("y", THREE)), cluster.claim("b", request("x", ONE))]
    pod = cluster.user("p", *keys)
    cluster.settle()
    devices = [device for key in keys for device in cluster.devices(key)]
    assert len(set(devices)) == 4
    assert {pool for pool, _ in devices} == {cluster.pods[pod.uid].node}
    results = cluster.read_claim(keys[0]).status.allocation.devices.results  # type: ignore[union-attr]
    assert [(each.request, "3g" in each.device) for each in results] == [("x", False), ("x", False), ("y", True)]


def test_a_pod_at_the_gate_leaves_it_once_its_claims_are_allocated(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    key = cluster.claim("c", request("slice", ONE))
    pod = cluster.user("p", key, gates=(GATE,))
    cluster.settle()
    assert cluster.pods[pod.uid].node == "n1"
    assert kinds(cluster)[:4] == ["PatchRecord", "PatchRequests", "PatchRecord", "Ungate"]


@pytest.mark.parametrize("end", ["deleted", "finished"])
def test_a_claim_of_a_template_costs_one_write_and_needs_no_finalizer(cluster: ClaimCluster, end: str) -> None:
    """Kube-controller-manager deletes it once the pod is done."""
    cluster.claim_node("n1")
    key = cluster.template_claim("c", "p", request("slice", ONE))
    pod = cluster.user("p", key, gates=(GATE,))
    cluster.settle()
    assert kinds(cluster)[:3] == ["PatchRequests", "PatchRecord", "Ungate"]
    assert cluster.devices(key)
    if end == "deleted":
        cluster.remove(pod)
    else:
        cluster.put(replace(cluster.pods[pod.uid], finished=True))
    cluster.drop_claim(key)
    cluster.settle()
    assert cluster.empty()


def test_claims_and_limits_get_slices_of_different_nodes(cluster: ClaimCluster) -> None:
    cluster.claim_node("dra")
    cluster.node("plugin")
    limits = cluster.pod("by-limits", "1g.5gb")
    claims = cluster.user("by-claims", cluster.claim("c", request("slice", ONE)))
    cluster.settle()
    assert [cluster.where(each)[0][0] for each in (limits, claims)] == ["plugin", "dra"]


def test_a_pod_waits_with_a_reason_while_no_node_publishes_a_device(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    cluster.withdraw("n1")
    pod = cluster.user("p", cluster.claim("c", request("slice", ONE)))
    cluster.settle()
    assert not cluster.where(pod)
    assert cluster.slicer.state.cluster.pods[pod.uid].fault == (
        "claim default/c: request slice: no node publishes a device for it: its class and selectors choose none; see"
        " kubectl get resourceslices"
    )
    cluster.publish("n1")
    cluster.settle()
    assert cluster.where(pod)


@pytest.mark.parametrize("more", [{}, {"allocationMode": "All"}], ids=["one", "all"])
def test_a_node_that_still_publishes_devices_gives_none_without_the_label(
    cluster: ClaimCluster, more: dict[str, str]
) -> None:
    node = cluster.node("n1")
    cluster.publish("n1")
    pod = cluster.user("p", cluster.claim("c", request("slice", ONE, **more)))
    cluster.settle()
    assert not cluster.where(pod)
    reason = cluster.slicer.state.pods.reason_of(pod.uid)
    assert reason is not None
    assert "had no slices for ResourceClaims (label tessera.dev/device-api=dra)" in sentence(reason)
    labels = {**node.labels, DEVICE_API_LABEL: DEVICE_API_DRA}
    cluster.slicer.handle(NodeObserved(replace(node, labels=labels)))
    cluster.settle()
    assert cluster.where(pod)


def test_what_a_claim_gives_back_the_next_one_gets(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    pods = [cluster.user(f"p{n}", cluster.claim(f"c{n}", request("slice", THREE))) for n in range(3)]
    cluster.settle()
    assert [bool(cluster.where(each)) for each in pods] == [True, True, False]
    first = cluster.devices("default/c0")
    cluster.remove(pods[0])
    cluster.settle()
    assert cluster.devices("default/c2") == first


def test_slots_stay_taken_until_the_claim_has_no_allocation(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    pods = [cluster.user(f"p{n}", cluster.claim(f"c{n}", request("slice", THREE))) for n in range(3)]
    cluster.settle()
    cluster.remove(pods[0])
    for _ in range(3):  # the claim controller is slow
        cluster.agents()
        cluster.run()
    assert cluster.devices("default/c0")
    assert not cluster.devices("default/c2")


def test_pods_that_share_a_claim_run_where_it_is_until_the_last_is_gone(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    shared = cluster.claim("shared", request("slice", THREE))
    first, second = cluster.user("first", shared), cluster.user("second", shared)
    cluster.settle()
    assert {cluster.pods[each.uid].node for each in (first, second)} == {"n1"}
    assert [bool(cluster.where(each)) for each in (first, second)] == [True, False]
    cluster.user("filler", cluster.claim("other", request("slice", THREE)))
    waiting = cluster.user("waiting", cluster.claim("late", request("slice", THREE)))
    cluster.settle()
    place = cluster.devices(shared)
    cluster.remove(first)
    cluster.settle()
    cluster.resume()
    assert (cluster.devices(shared), cluster.where(waiting)) == (place, [])
    cluster.remove(second)
    cluster.settle()
    assert cluster.devices("default/late") == place


def test_an_older_pod_that_is_seen_late_does_not_take_a_claim_over(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    shared = cluster.claim("shared", request("slice", ONE))
    first = cluster.user("first", shared, created="2026-01-01T00:00:02Z")
    cluster.slicer.decide()
    second = cluster.user("second", shared, created="2026-01-01T00:00:01Z")
    cluster.settle()
    assert [bool(cluster.where(each)) for each in (first, second)] == [True, False]


def test_the_oldest_of_its_users_asks_for_a_claim_whichever_is_observed_first(cluster: ClaimCluster) -> None:
    key = cluster.claim("c", request("slice", ONE))
    young = cluster.user("young", key, created="2026-01-01T00:00:02Z")
    old = cluster.user("old", key, created="2026-01-01T00:00:01Z")
    cluster.claim_node("n1")
    cluster.run()
    assert [bool(cluster.where(each)) for each in (old, young)] == [True, False]


def test_a_claim_that_comes_back_costs_as_many_steps_for_each_of_its_users() -> None:
    def steps(users: int) -> int:
        cluster = ClaimCluster()
        cluster.claim_node("n1")
        key = cluster.claim("shared", request("x", THREE))
        for number in range(users):
            cluster.user(f"p{number}", key)
        claim = cluster.read_claim(key)
        cluster.slicer.handle(RecordObserved("claims", claim, deleted=True))
        return count_calls(lambda: cluster.slicer.handle(RecordObserved("claims", claim)))[0]

    few, many = steps(100), steps(400)
    assert few > 100
    assert many < 5 * few


@pytest.mark.parametrize("order", [1, -1], ids=["oldest first", "youngest first"])
@pytest.mark.parametrize("placed", [True, False])
def test_pods_that_come_and_go_with_one_claim_cost_as_many_steps_each(order: int, placed: bool) -> None:
    """A tenant may name one claim in any number of pods."""

    def steps(users: int) -> int:
        cluster = ClaimCluster()
        if placed:
            cluster.claim_node("n1")
        key = cluster.claim("shared", request("x", THREE))

        def work() -> None:
            names = range(users)[::order]
            pods = [cluster.user(f"p{each}", key, created=f"2026-01-01T00:00:00.{each:04}Z") for each in names]
            cluster.slicer.decide()
            cluster.slicer.pop_writes()
            for pod in pods:
                cluster.remove(pod)
            cluster.slicer.decide()

        return count_calls(work)[0]

    few, many = steps(50), steps(200)
    assert few > 100
    assert many < 5 * few


def test_pods_whose_claims_are_still_to_be_made_cost_nothing_of_each_other() -> None:
    def steps(pods: int) -> int:
        cluster = ClaimCluster()

        def burst() -> None:
            for number in range(pods):
                cluster.user(f"p{number}", "")

        return count_calls(burst)[0]

    few, many = steps(15), steps(60)
    assert few > 100
    assert many < 5 * few


def test_when_the_first_user_goes_before_it_is_placed_the_next_one_asks(cluster: ClaimCluster) -> None:
    shared = cluster.claim("shared", request("slice", ONE))
    first, second = cluster.user("first", shared), cluster.user("second", shared)
    cluster.run()
    cluster.remove(first)
    cluster.claim_node("n1")
    cluster.settle()
    assert cluster.where(second)
    assert cluster.pods[second.uid].node == "n1"


def test_those_who_wait_for_a_claim_that_another_asks_for_follow_that_pod(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    cluster.user("holder", cluster.claim("all", request("slice", THREE, count=2)))
    cluster.settle()
    shared, own = cluster.claim("shared", request("slice", THREE)), cluster.claim("own", request("slice", THREE))
    pods = [cluster.user(name, shared) for name in ("first", "second", "third")]
    cluster.user("alone", own)
    cluster.user("unmade", shared, "")
    cluster.user("held", shared, gates=("example.com/hold", GATE))

    def followers() -> list[tuple[str, tuple[str, ...], str]]:
        kind = cluster.slicer.kinds.by_name["claims"]
        return sorted((pod.name, pod.profiles, first.name) for pod, first in kind.followers())

    cluster.settle()
    assert followers() == [("second", ("3g.20gb",), "first"), ("third", ("3g.20gb",), "first")]
    cluster.remove(pods[0])
    cluster.settle()
    assert followers() == [("third", ("3g.20gb",), "second")]


def test_a_node_that_refuses_the_pod_is_left_for_another(cluster: ClaimCluster) -> None:
    cluster.pass_time(1)
    cluster.claim_node("n1")
    cluster.refusing = {"n1"}
    key = cluster.claim("c", request("slice", ONE))
    pod = cluster.user("p", key)
    cluster.settle()
    assert cluster.devices(key) == []
    cluster.claim_node("n2")
    cluster.settle()
    assert cluster.pods[pod.uid].node == "n2"
    assert [node for node, *_ in cluster.where(pod)] == ["n2"]


def test_a_node_on_which_others_are_preempted_for_the_pod_is_kept(cluster: ClaimCluster) -> None:
    cluster.pass_time(1)
    cluster.claim_node("n1")
    cluster.claim_node("n2")
    key = cluster.claim("c", request("slice", ONE))
    pod = cluster.user("p", key)
    cluster.run()
    node = cluster.node_of(key)
    cluster.put(replace(cluster.pods[pod.uid], preempting=True))
    cluster.patch_claim(key, {"status": {"allocation": None}})
    cluster.run()
    assert cluster.node_of(key) == node


def test_a_pod_that_the_scheduler_never_binds_is_placed_elsewhere(cluster: ClaimCluster) -> None:
    cluster.pass_time(1)
    cluster.claim_node("n1")
    cluster.claim_node("n2")
    key = cluster.claim("c", request("slice", ONE))
    pod = cluster.user("p", key, unschedulable_message="0/2 nodes are available")
    cluster.run()
    node = cluster.node_of(key)
    cluster.slicer.handle(RefusalTimedOut(pod.uid, cluster.date + 600))
    cluster.agents()
    cluster.run()
    cluster.settle()
    assert {node, cluster.node_of(key)} == {"n1", "n2"}


def test_claims_of_other_drivers_are_left_alone(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    other = {"metadata": {"name": "nic"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'nic'"}}]}}
    cluster.classes.append(other)
    cluster.tell_claims()
    alone = cluster.user("alone", cluster.claim("a", request("x", "nic")))
    both = cluster.user("both", cluster.claim("b", request("x", "nic")), cluster.claim("c", request("x", ONE)))
    cluster.settle()
    assert not cluster.where(alone)
    assert cluster.where(both)
    assert (cluster.devices("default/b"), len(cluster.devices("default/c"))) == ([], 1)


def test_selectors_choose_among_models(cluster: ClaimCluster) -> None:
    cluster.claim_node("small", "A100-40GB")
    cluster.claim_node("large", "H100-80GB")
    memory = "device.capacity['gpu.tessera.dev'].memory.compareTo(quantity('15Gi')) >= 0"
    product = "device.attributes['gpu.tessera.dev'].productName.matches('.*H100.*')"
    for name, selector in (("memory", memory), ("product", product)):
        pod = cluster.user(name, cluster.claim(name, request("x", "mig.tessera.dev", **selecting(selector))))
        cluster.settle()
        assert [each[0] for each in cluster.where(pod)] == ["large"], name
        assert cluster.where(pod)[0][1] == ("1g.20gb" if name == "memory" else "1g.10gb")
    first = [{"name": "a", "deviceClassName": "mig-none.tessera.dev"}, {"name": "b", "deviceClassName": ONE}]
    cluster.classes.append(
        {
            "metadata": {"name": "mig-none.tessera.dev"},
            "spec": {
                "selectors": [{"cel": {"expression": "device.attributes['gpu.tessera.dev'].profile == '7g.1gb'"}}]
            },
        }
    )
    cluster.tell_claims()
    pod = cluster.user("either", cluster.claim("either", {"name": "x", "firstAvailable": first}))
    cluster.settle()
    assert [each[1] for each in cluster.where(pod)] == ["1g.5gb"]
    (result,) = cluster.read_claim("default/either").status.allocation.devices.results  # type: ignore[union-attr]
    assert result.request == "x/b"


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (
            {"requests": [request("x", "mig.tessera.dev", allocationMode="All")]},
            "request x: allocationMode All chooses gpu-0-mig-",
        ),
        (
            {"requests": [request("x", ONE, count=2)], "constraints": [{"matchAttribute": "gpu.tessera.dev/start"}]},
            "spec.devices.constraints[0].matchAttribute compares start, which is chosen by the room that it leaves",
        ),
        ({"requests": [request("x", "gpu.tessera.dev")]}, "request x: no node publishes a device for it"),
        ({"requests": [request("x", "gpu.tessera.dev.x")]}, ""),
        (
            {"requests": [request("x", ONE, **selecting("device.nothing"))]},
            "selectors[0].cel.expression: it does not compile",
        ),
        ({"requests": [request("x", ONE), request("y", "nic")]}, ""),
        ({"requests": [request("x", ONE, count=33)]}, "count is 33: a claim has 1 to 32 devices"),
    ],
)
def test_what_cannot_be_given_is_refused_with_the_field(
    cluster: ClaimCluster, devices: dict[str, list[object]], text: str
) -> None:
    cluster.claim_node("n1")
    key = cluster.claim("c", *devices["requests"], constraints=devices.get("constraints", []))  # type: ignore[arg-type]
    pod = cluster.user("p", key)
    cluster.settle()
    assert not cluster.where(pod)
    fault = cluster.slicer.state.cluster.pods[pod.uid].fault
    assert text in fault
    assert fault.startswith("claim default/c: " if text else "")
    told = [each.message for each in cluster.told if each.reason == "SliceRefused" and not each.kind]
    assert told == ([fault] if fault else [])


def test_limits_and_claims_in_one_pod_are_refused(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    pod = cluster.pod("p", "1g.5gb", device_claims=(cluster.claim("c", request("x", ONE)),))
    cluster.settle()
    assert not cluster.where(pod)
    assert "by limits and by ResourceClaims" in cluster.slicer.state.cluster.pods[pod.uid].fault


def test_a_pod_waits_until_all_of_its_claims_are_made(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    pod = cluster.user("p", cluster.claim("a", request("x", ONE)), "default/later", "")
    cluster.settle()
    assert not cluster.where(pod)
    cluster.claim("later", request("x", ONE))
    cluster.put(replace(pod, device_claims=("default/a", "default/later")))
    cluster.settle()
    assert len(cluster.where(pod)) == 2


def test_a_quiet_cluster_writes_nothing_and_a_restart_neither(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    for number in range(4):
        cluster.user(f"p{number}", cluster.claim(f"c{number}", request("x", ONE)))
    cluster.settle()
    before = len(cluster.writes)
    cluster.resume()
    assert cluster.writes[before:] == []
    assert sum(isinstance(each, PatchRecord) for each in cluster.writes) == 8


def test_a_claim_of_another_namespace_that_names_the_same_device_holds_nothing_back(cluster: ClaimCluster) -> None:
    """A tenant who may write the status of claims forges an allocation of a neighbour's device."""
    cluster.claim_node("n1")
    key = cluster.claim("c", request("x", THREE))
    pod = cluster.user("p", key)
    cluster.settle()
    forged = cluster.claim("forged", request("x", THREE), namespace="thief")
    cluster.claims[forged]["status"] = {
        "allocation": cluster.claims[key]["status"]["allocation"],
        "reservedFor": [{"resource": "pods", "name": "x", "uid": "nobody"}],
    }
    cluster.patch_claim(forged, {})
    cluster.remove(pod)
    for _ in range(4):
        cluster.agents()
        cluster.run()
        cluster.claims[forged]["status"]["reservedFor"] = [{"resource": "pods", "name": "x", "uid": pod.uid + "x"}]
        cluster.pods.setdefault(pod.uid, pod)
        cluster.pods.pop(pod.uid)
        cluster.patch_claim(key, {"status": {"reservedFor": None, "allocation": None}})
    assert cluster.empty()


def test_the_pods_of_a_gang_get_their_claims_together(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    gang = Gang("default/g", "g", 3)
    pods = [cluster.user(f"p{n}", cluster.claim(f"c{n}", request("x", THREE)), gang=gang) for n in range(3)]
    cluster.settle()
    assert [cluster.devices(f"default/c{n}") for n in range(3)] == [[], [], []]
    cluster.claim_node("n2")
    cluster.settle()
    assert all(cluster.pods[each.uid].node for each in pods)


def test_slots_are_reserved_for_a_large_claim() -> None:
    cluster = ClaimCluster(60.0)
    cluster.classes.append(profile_class(DRIVER, "7g.40gb"))
    cluster.tell_claims()
    cluster.pass_time(1)
    cluster.claim_node("n1")
    small = [cluster.user(f"s{n}", cluster.claim(f"s{n}", request("x", THREE))) for n in range(2)]
    cluster.settle()
    large = cluster.user("large", cluster.claim("large", request("x", "mig-7g.40gb.tessera.dev")))
    cluster.settle_and_wait(120)
    assert large.uid in cluster.slicer.state.reservations
    late = cluster.user("late", cluster.claim("late", request("x", THREE)))
    cluster.remove(small[0])
    cluster.settle()
    assert not cluster.where(late)
    cluster.remove(small[1])
    cluster.settle()
    assert cluster.where(large)


# Issues of kubernetes-sigs/dra-driver-nvidia-gpu, by number, as in tests/cluster/test_odd_claims.py


def test_932_small_slices_gather_on_one_card(cluster: ClaimCluster) -> None:
    """Its claims take the first device that fits, on a node that is chosen by CPU and memory."""
    for name in ("n1", "n2"):
        cluster.claim_node(name, count=2)
    small = [cluster.user(f"s{n}", cluster.claim(f"s{n}", request("x", ONE))) for n in range(6)]
    for _ in small:
        cluster.settle()
    cards = {(pool, device.split("-mig")[0]) for n in range(6) for pool, device in cluster.devices(f"default/s{n}")}
    assert len(cards) == 1


def test_933_room_that_ended_pods_left_in_pieces_is_made_whole_by_a_move() -> None:
    """There it stays in pieces until the pods on it have ended."""
    cluster = ClaimCluster(moves=MoveSettings(mode=MoveMode.EVICT))
    cluster.classes.append(profile_class(DRIVER, "7g.40gb"))
    cluster.tell_claims()
    cluster.pass_time(1)
    cluster.claim_node("n1")
    ended, _ = running(cluster, "ended", THREE), running(cluster, "small", ONE)
    cluster.claim_node("n2")
    running(cluster, "half", THREE)
    cluster.remove(ended)
    cluster.pass_time(600)
    large = cluster.user("large", cluster.claim("large", request("x", "mig-7g.40gb.tessera.dev")))
    cluster.settle()
    assert not cluster.where(large)
    cluster.wait(61)
    assert len([each for each in cluster.writes if isinstance(each, Evict)]) == 1
    assert cluster.where(large)


def running(cluster: ClaimCluster, name: str, device_class: str) -> PodInfo:
    """A pod with a claim that runs, and may move."""
    pod = cluster.user(name, cluster.claim(name, request("x", device_class)), movable=True, owner=f"owner-{name}")
    cluster.settle()
    return cluster.put(replace(cluster.pods[pod.uid], started=cluster.date))


@pytest.mark.parametrize(
    ("rule", "cards"),
    [({"matchAttribute": "gpu.tessera.dev/parentUUID"}, 1), ({"distinctAttribute": "gpu.tessera.dev/parentUUID"}, 2)],
)
def test_slots_are_reserved_as_a_constraint_wants_them(rule: dict[str, str], cards: int) -> None:
    """Else small pods, of which one ends now and then, would hold the claim up for ever."""
    cluster = ClaimCluster(60.0)
    cluster.pass_time(1)
    cluster.claim_node("n1", count=2)
    count = 0

    def small() -> PodInfo:
        nonlocal count
        count += 1
        return cluster.user(f"s{count}", cluster.claim(f"s{count}", request("x", THREE)), created=rfc3339(cluster.date))

    running = [small() for _ in range(4)]
    cluster.settle()
    large = cluster.claim("large", request("x", THREE, count=2), constraints=[{"requests": ["x"], **rule}])
    pod = cluster.user("large", large, created=rfc3339(cluster.date))
    waiting = [small()]
    for _ in range(5):
        cluster.wait(300)
        cluster.remove(running.pop(0))
        waiting.append(small())
        cluster.settle()
        running += [each for each in waiting if cluster.where(each)]
        waiting = [each for each in waiting if not cluster.where(each)]
    gpus = {each.gpu_uuid for each in cluster.slicer.state.allocations.of(pod.uid)[0].slices}
    assert len(gpus) == cards


@pytest.mark.parametrize("attribute", ["gpu.tessera.dev/parentUUID", "gpu.tessera.dev/productName"])
def test_897_devices_that_a_constraint_compares_are_of_one_card_and_of_their_profiles(
    cluster: ClaimCluster, attribute: str
) -> None:
    cluster.claim_node("n1", count=2)
    for number in range(2):
        cluster.user(f"filler{number}", cluster.claim(f"filler{number}", request("x", "mig-3g.20gb.tessera.dev")))
    cluster.settle()
    rule = {"requests": ["x", "y"], "matchAttribute": attribute}
    key = cluster.claim("c", request("x", THREE), request("y", ONE, count=3), constraints=[rule])
    pod = cluster.user("p", key)
    cluster.settle()
    cards = {device.split("-mig")[0] for _, device in cluster.devices(key)}
    assert (len(cluster.devices(key)), len(cards)) == (4, 1), cluster.where(pod)
    results = cluster.read_claim(key).status.allocation.devices.results  # type: ignore[union-attr]
    assert [(each.request, "3g" in each.device) for each in results] == [("x", True), *[("y", False)] * 3]


def test_devices_of_one_card_that_no_card_has_are_refused_for_good(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1", count=4)
    rule = {"matchAttribute": "gpu.tessera.dev/parentUUID"}
    pod = cluster.user("p", cluster.claim("c", request("x", THREE, count=3), constraints=[rule]))
    cluster.settle()
    assert isinstance(cluster.slicer.state.pods.reason_of(pod.uid), NeverFits)


def test_an_attribute_that_no_device_has_holds_no_slices(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    rule = {"matchAttribute": "gpu.tessera.dev/nothing"}
    pod = cluster.user("p", cluster.claim("c", request("x", ONE, count=2), constraints=[rule]))
    cluster.settle()
    assert "matchAttribute compares what no device has" in cluster.slicer.state.cluster.pods[pod.uid].fault
    assert not cluster.where(pod)


def test_a_gated_pod_that_asks_for_no_slices_of_its_own_is_let_go(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    cluster.classes.append({"metadata": {"name": "nic"}, "spec": {"selectors": []}})
    cluster.tell_claims()
    shared = cluster.claim("shared", request("slice", THREE))
    first = cluster.user("first", shared)
    cluster.settle()
    second = cluster.user("second", shared, gates=(GATE,))
    other = cluster.user("other", cluster.claim("nic", request("x", "nic")), gates=(GATE, "example.com/first"))
    cluster.settle()
    assert {cluster.pods[each.uid].node for each in (first, second)} == {"n1"}
    assert GATE in cluster.pods[other.uid].gates  # another operator's gate goes before
    cluster.put(replace(cluster.pods[other.uid], gates=(GATE,)))
    cluster.settle()
    assert cluster.pods[other.uid].gates == ()
    assert not cluster.where(second)


def test_a_pod_that_is_taken_in_once_more_asks_for_the_same(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    pod = cluster.user("p", cluster.claim("c", request("x", ONE)), gates=(GATE, *LAST_GATES))
    cluster.slicer.handle(LastGatesObserved(frozenset()))
    cluster.slicer.handle(LastGatesObserved(frozenset(LAST_GATES)))
    cluster.settle()
    assert (cluster.slicer.state.cluster.pods[pod.uid].fault, cluster.pods[pod.uid].gates) == ("", tuple(LAST_GATES))


def test_a_pod_that_has_left_the_gate_is_placed_elsewhere_when_its_node_refuses_it(cluster: ClaimCluster) -> None:
    cluster.pass_time(1)
    cluster.claim_node("n1")
    cluster.refusing = {"n1"}
    pod = cluster.user("p", cluster.claim("c", request("slice", ONE)), gates=(GATE,))
    cluster.settle()
    cluster.claim_node("n2")
    cluster.settle()
    assert cluster.pods[pod.uid].node == "n2"


def test_a_pod_whose_selector_and_shared_claim_name_two_nodes_is_refused_and_nothing_is_written(
    cluster: ClaimCluster,
) -> None:
    """A tenant's pod must not make the controller give slices and take them back for ever."""
    cluster.claim_node("n1")
    shared = cluster.claim("shared", request("x", ONE))
    cluster.user("first", shared)
    cluster.settle()
    cluster.claim_node("n2")
    keys = shared, cluster.claim("own", request("x", ONE))
    pod = cluster.user("p", *keys, hostname="n2", constraints=NodeConstraints(selector=((HOSTNAME_LABEL, "n2"),)))
    cluster.settle()
    assert cluster.slicer.state.cluster.pods[pod.uid].fault == (
        "its node selector names kubernetes.io/hostname=n2, but its ResourceClaim default/shared is allocated on node"
        " n1, and a pod runs where its claims are: make the pod without the selector"
    )
    assert not cluster.where(pod)


def test_selectors_that_choose_the_same_devices_are_one_choice_however_they_are_written(cluster: ClaimCluster) -> None:
    """Else each of a tenant's thousands of selectors would be asked of each node."""
    cluster.claim_node("n1")
    cluster.claim_node("n2", "H100-80GB")
    for number in range(20):
        selector = f"device.attributes['gpu.tessera.dev'].productName.contains('H100') || {number} == -1"
        cluster.user(f"p{number}", cluster.claim(f"c{number}", request("x", "mig.tessera.dev", **selecting(selector))))
    cluster.settle()
    wanted = {each.constraints.devices for each in cluster.slicer.state.cluster.pods.values()}
    assert len(wanted) == 1
    assert sum(bool(cluster.devices(key)) for key in cluster.claims) == 7


def test_a_node_that_gives_an_attribute_two_values_draws_no_claims(cluster: ClaimCluster) -> None:
    """Planning would read a smaller profile than the selectors, and choose it for all claims of the larger one."""
    cluster.claim_node("n1")
    cluster.claim_node("evil")
    for item in [each for each in cluster.slices.values() if each["spec"]["nodeName"] == "evil"]:
        for device in item["spec"].get("devices", []):
            device["attributes"]["gpu.tessera.dev/profile"] = {"string": "3g.20gb"}
        cluster.slicer.handle(RecordObserved("claims", msgspec.convert(item, ResourceSlice)))
    pods = [cluster.user(f"p{n}", cluster.claim(f"c{n}", request("x", THREE))) for n in range(3)]
    cluster.settle()
    assert [[each[:2] for each in cluster.where(pod)] for pod in pods] == [[("n1", "3g.20gb")]] * 2 + [[]]


def forge(cluster: ClaimCluster, node: str, change: Callable[[dict[str, Any], int], None]) -> None:
    """A node publishes its devices otherwise; ``change`` gets each of them with its number."""
    number = 0
    for item in [each for each in cluster.slices.values() if each["spec"]["nodeName"] == node]:
        for device in item["spec"].get("devices", []):
            change(device, number)
            number += 1
        cluster.slicer.handle(RecordObserved("claims", msgspec.convert(item, ResourceSlice)))


def _grow(device: dict[str, Any], _number: int) -> None:
    device["capacity"]["memory"] = {"value": "80Gi"}


def _invent(device: dict[str, Any], _number: int) -> None:
    device["attributes"]["profile"] = {"string": "1g.1gb"}


def _rename(device: dict[str, Any], number: int) -> None:
    _invent(device, number)
    device["attributes"]["productName"] = {"string": "NVIDIA A1000-SXM4-40GB"}


def _name_product(name: str, device: dict[str, Any], _number: int) -> None:
    device["attributes"]["productName"] = {"string": name}


def _multiply(device: dict[str, Any], number: int) -> None:
    device["attributes"]["productName"] = {"string": f"NVIDIA A100-{number}"}


@pytest.mark.parametrize("change", [_grow, _invent, _rename, _multiply])
@pytest.mark.parametrize("least", ["1Gi", "15Gi"])
def test_a_node_that_invents_devices_draws_no_claims_that_others_serve(
    cluster: ClaimCluster, change: Callable[[dict[str, Any], int], None], least: str
) -> None:
    """Planning would ask for the invented profile for all claims, and only this node has it."""
    cluster.claim_node("n1", count=2)
    cluster.claim_node("evil", count=5)
    forge(cluster, "evil", change)
    memory = selecting(f"device.capacity['gpu.tessera.dev'].memory.compareTo(quantity('{least}')) >= 0")
    pods = [cluster.user(f"p{n}", cluster.claim(f"c{n}", request("x", "mig.tessera.dev", **memory))) for n in range(4)]
    cluster.settle()
    assert [cluster.pods[each.uid].node for each in pods] == ["n1"] * 4


def test_a_node_that_changes_its_kinds_of_devices_without_end_is_read_now_and_then(
    cluster: ClaimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, all claims of the cluster are read again."""
    cluster.pass_time(1)
    cluster.claim_node("n1")
    cluster.claim_node("evil")
    pod = cluster.user("p", cluster.claim("c", request("x", ONE)))
    cluster.settle()
    reads: list[int] = []
    monkeypatch.setattr(Claims, "_read_all_again", lambda _self: reads.append(1))
    for number in range(100):
        forge(cluster, "evil", partial(_name_product, f"NVIDIA {number}"))
        cluster.slicer.decide()
    assert len(reads) <= SORT_CHANGES
    assert cluster.where(pod)
    monkeypatch.undo()
    cluster.pass_time(100 * SORT_CHANGE_SECONDS)
    cluster.slicer.handle(NodeObserved(cluster.nodes[NodeName("evil")]))
    cluster.settle()
    last = "device.attributes['gpu.tessera.dev'].productName == 'NVIDIA 99'"
    late = cluster.user("late", cluster.claim("late", request("x", "mig.tessera.dev", **selecting(last))))
    cluster.settle()
    assert cluster.pods[late.uid].node == "evil"


def test_a_slicer_that_is_read_from_its_record_knows_which_nodes_keep_a_choice(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    cluster.claim_node("n2", "H100-80GB")
    selector = "device.attributes['gpu.tessera.dev'].productName.contains('H100')"
    pod = cluster.user("p", cluster.claim("c", request("x", "mig.tessera.dev", **selecting(selector))))
    cluster.settle()
    copy = decode(encode(cluster.slicer, shared=True), (*DECIDERS["slicer"].modules, CheckedSlicer.__module__))
    assert isinstance(copy, Slicer)
    items = [msgspec.convert(each, ResourceSlice) for each in cluster.slices.values()]
    for slicer in (cluster.slicer, copy):
        for deleted in (True, False):
            for item in items:
                slicer.handle(RecordObserved("claims", item, deleted=deleted))
        found = slicer.state.cluster
        assert found.index.open_to(found.pods[pod.uid].constraints) == found.index.mask_of(NodeName("n2"))


def test_a_host_that_a_pod_names_is_left_when_it_refuses_the_pod(cluster: ClaimCluster) -> None:
    """Its node selector is no place that was found before; else slices were given and taken back without end."""
    cluster.pass_time(1)
    cluster.claim_node("n1")
    cluster.refusing = {"n1"}
    rule = NodeConstraints(selector=((HOSTNAME_LABEL, "n1"),))
    pod = cluster.user("p", cluster.claim("c", request("x", ONE)), hostname="n1", constraints=rule)
    cluster.settle()
    assert not cluster.where(pod)
    cluster.refusing.clear()
    cluster.wait(4_000)
    assert cluster.pods[pod.uid].node == "n1"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_claim_whose_slices_are_on_record_nowhere_is_cleared(cluster: ClaimCluster, restarts: bool) -> None:
    """The node was deleted and made again before kube-scheduler saw the pod, and the pod is gone."""
    cluster.claim_node("n1")
    key = cluster.claim("c", request("x", THREE))
    pod = cluster.user("p", key)
    cluster.run()
    assert cluster.devices(key)
    cluster.remove(pod)
    del cluster.nodes[NodeName("n1")]
    if restarts:
        del cluster.objects["n1"]
        cluster.restart()
    else:
        cluster.slicer.handle(NodeDeleted(NodeName("n1")))
        cluster.run()
    cluster.claim_node("n1")
    cluster.settle()
    assert cluster.devices(key) == []
    pods = [cluster.user(f"p{n}", cluster.claim(f"c{n}", request("x", THREE))) for n in range(2)]
    cluster.settle()
    assert all(cluster.pods[each.uid].node for each in pods)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_claim_leaves_a_node_that_is_renamed_and_its_cards_are_given_under_the_new_name(
    cluster: ClaimCluster, restarts: bool
) -> None:
    """The node comes again under another name before the pods of the old one are deleted."""
    cluster.claim_node("n1")
    key = cluster.claim("c", request("x", THREE))
    pods = [cluster.user(f"p{number}", key) for number in range(2)]
    cluster.settle()
    rename(cluster, "n1", "n2")
    if restarts:
        cluster.restart()
    cluster.settle()
    assert cluster.node_of(key) == "n1", "its pods still count as running"
    for pod in pods:
        cluster.remove(pod)
    cluster.settle()
    assert cluster.devices(key) == []
    after = cluster.user("after", key)
    others = [cluster.user(f"q{number}", cluster.claim(f"d{number}", request("x", THREE))) for number in range(2)]
    cluster.settle()
    homes = [cluster.pods[each.uid].node for each in (after, *others)]
    assert sorted(homes) == ["", "n2", "n2"], "a card of the two names has two slices of this size"


def rename(cluster: ClaimCluster, old: str, new: str) -> None:
    """A node is deleted, and comes with the same cards under another name."""
    del cluster.nodes[NodeName(old)], cluster.objects[old]
    cluster.slicer.handle(NodeDeleted(NodeName(old)))
    cluster.withdraw(old)
    cluster.claim_node(new)
    text = msgspec.json.encode([cluster.objects[new], cluster.slices]).decode()
    cluster.objects[new], cluster.slices = msgspec.json.decode(text.replace(f"GPU-{new}-", f"GPU-{old}-"))
    cluster.slicer.handle(InstasliceObserved(cluster.read(new)))
    cluster.tell_claims()


def test_devices_that_cannot_be_read_are_read_once_and_given_to_nobody(
    cluster: ClaimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each event and claim would look through all nodes, since one node publishes a bad amount."""
    cluster.claim_node("n1")
    cluster.claim_node("evil")
    for item in [each for each in cluster.slices.values() if each["spec"]["nodeName"] == "evil"]:
        for device in item["spec"].get("devices", []):
            device["capacity"]["memory"] = {"value": "much"}
        cluster.slicer.handle(RecordObserved("claims", msgspec.convert(item, ResourceSlice)))
    read: list[ResourceSlice] = []
    original = resource_slices.read_slice

    def count(part: ResourceSlice) -> object:
        read.append(part)
        return original(part)

    monkeypatch.setattr(published_devices, "read_slice", count)
    for number in range(3):
        cluster.user(f"p{number}", cluster.claim(f"c{number}", request("x", f"mig-{number}.tessera.dev")))
        cluster.slicer.decide()
    keys = [cluster.claim(f"d{n}", request("x", "mig.tessera.dev"), request("y", THREE)) for n in range(2)]
    pods = [cluster.user(f"q{n}", key) for n, key in enumerate(keys)]
    cluster.slicer.decide()
    assert read == []
    cluster.settle()
    assert [each[0] for pod in pods for each in cluster.where(pod)] == ["n1"] * 2  # the second finds no room


@pytest.mark.parametrize("late", [False, True])
def test_a_claim_that_is_being_deleted_holds_no_slices(cluster: ClaimCluster, late: bool) -> None:
    """Its author may keep it for ever by a finalizer, and nobody grants it."""
    cluster.claim_node("n1")
    key = cluster.claim("c", request("x", THREE))
    pod = cluster.user("p", key)
    if late:
        cluster.slicer.decide()
    cluster.patch_claim(key, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"]}})
    cluster.settle()
    assert (cluster.where(pod), cluster.empty()) == ([], True)
    cluster.drop_claim(key)
    cluster.claim("c", request("x", THREE))
    cluster.settle()
    assert cluster.pods[pod.uid].node == "n1"


def test_costly_selectors_of_a_namespace_stop_that_namespace_alone(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1", count=8)
    digits = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    loops = "".join(f"{digits}.all(x{level}, " for level in range(5))
    for number in range(40):
        costly = selecting(f"{loops}{number} >= 0{')' * 5}")
        cluster.user(f"p{number}", cluster.claim(f"c{number}", request("x", "mig.tessera.dev", **costly)))
    cluster.settle()
    pods = cluster.slicer.state.cluster.pods
    last = pods[PodUid("uid-p39")].fault
    assert last.startswith("claim default/c39: the selectors of claims in its namespace cost more than 3,000,000 units")
    key = cluster.claim("c", request("x", ONE), namespace="other")
    other = cluster.user("other", key, namespace="other")
    cluster.settle()
    assert cluster.where(other)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pod_that_is_bound_before_the_one_whose_slices_it_shares_takes_them_from_nobody(
    cluster: ClaimCluster, restarts: bool
) -> None:
    """The controller died before it opened the gate; its successor took back the slices that the other pod has."""
    cluster.claim_node("n1")
    shared = cluster.claim("shared", request("slice", THREE))
    first = cluster.user("first", shared, gates=(GATE,))
    while not cluster.devices(shared):
        cluster.agents()
        cluster.slicer.decide()
        for write in cluster.slicer.pop_writes():
            if not isinstance(write, Ungate):
                cluster.answer(write)
    second = cluster.user("second", shared)
    assert cluster.schedule()
    assert cluster.pods[second.uid].node == "n1"
    if restarts:
        cluster.restart()
    cluster.settle()
    assert cluster.pods[first.uid].node == "n1"
    assert cluster.where(first)


def test_a_controller_that_comes_back_takes_no_slices_from_pods_at_the_gate(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    pod = cluster.user("p", cluster.claim("c", request("slice", THREE)), gates=(GATE,))
    cluster.slicer.decide()
    for write in cluster.slicer.pop_writes():
        cluster.answer(write)
    place = cluster.where(pod)
    assert place
    cluster.restart()
    before = len(cluster.writes)
    cluster.settle()
    assert cluster.where(pod) == place
    assert [type(each).__name__ for each in cluster.writes[before:]] == ["PatchRecord", "Ungate"]
