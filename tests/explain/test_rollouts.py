"""A rolling update that waits for its own old pod: named where the Deployment keeps that pod, and only there."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.explain.test_foreign_pods import with_gpus
from tests.explain.test_pods import NOW, answer, bound, cards, lease, node, said
from tests.explain.test_pods import pod as pod_of

from tessera.clock import rfc3339
from tessera.explain.explanation import Explanation
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.explain.workloads import WorkloadState, explain_workload
from tessera.kube.resources import Condition, Deployment, ObjectMeta, Pod, ReplicaSet, Uid

WHOLE = "7g.40gb"
HELD = [cards(("svc-old-x", WHOLE, 0, 8, "created"))]
GPU = {"nvidia.com/gpu": "1"}


def of(revision: str) -> dict[str, Any]:
    """What a pod of the Deployment ``svc`` has in its metadata."""
    owner = {"kind": "ReplicaSet", "name": f"svc-{revision}", "uid": f"rs-{revision}", "controller": True}
    return {"labels": {"app": "svc", "pod-template-hash": revision}, "ownerReferences": [owner]}


def old(**more: Any) -> Pod:
    made = rfc3339(NOW - 600)
    status = {"phase": "Running", **more.pop("status", {})}
    return bound("svc-old-x", **{"profile": WHOLE, "creationTimestamp": made, "status": status, **of("old"), **more})


def new(**more: Any) -> Pod:
    return pod_of("svc-new-x", **{"profile": WHOLE, **of("new"), **more})


def deployment(strategy: Mapping[str, Any], replicas: int = 1) -> dict[str, Any]:
    """The objects that a reader with rights sees."""
    name, revision = "svc", {"deployment.kubernetes.io/revision": "2"}
    body = {
        "metadata": {"name": name, "uid": "d", "annotations": revision},
        "spec": {"replicas": replicas, "strategy": strategy},
    }
    owner = {"kind": "Deployment", "name": name, "uid": "d", "controller": True}
    owned = {"metadata": {"name": "svc-new", "uid": "rs-new", "annotations": revision, "ownerReferences": [owner]}}
    return {
        "deployments": [msgspec.convert(body, Deployment)],
        "replica_sets": [msgspec.convert(owned, ReplicaSet)],
    }


def names_it(found: Explanation) -> bool:
    return found.case == "own-rollout"


def test_an_update_that_waits_for_its_own_old_pod_names_the_deadlock_and_two_ways_out() -> None:
    found = answer(new(), old(), instaslices=HELD, **deployment({"type": "RollingUpdate"}))
    assert found.case == "own-rollout"
    assert found.verdict == (
        "waits for room; an old pod of its own Deployment holds what it needs, and ends only when this one is ready"
        " (maxUnavailable 0): neither goes on by itself"
    )
    assert found.facts[0] == "the old pod is team/svc-old-x"
    assert found.facts[1] == f"it waits for room; every card that it may use is full for {WHOLE}"
    assert "kubectl patch deployment -n team svc -p" in found.help[0]
    assert "tessera.dev/update: hand-over" in found.help[1]
    assert found.help[2].startswith("or make room for one pod more")


@pytest.mark.parametrize(
    ("strategy", "replicas", "deadlock"),
    [
        ({}, 1, True),
        ({}, 3, True),
        ({}, 4, False),
        ({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}, 9, True),
        ({"rollingUpdate": {"maxUnavailable": "50%"}}, 1, True),
        ({"rollingUpdate": {"maxUnavailable": "50%"}}, 2, False),
        ({"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}, 1, False),
        ({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 0}}, 1, False),
        ({"type": "Recreate", "rollingUpdate": None}, 1, False),
    ],
)
def test_only_a_deployment_that_lets_none_be_unavailable_keeps_its_old_pod(
    strategy: Mapping[str, Any], replicas: int, deadlock: bool
) -> None:
    found = answer(new(), old(), instaslices=HELD, **deployment({"type": "RollingUpdate", **strategy}, replicas))
    assert names_it(found) is deadlock


def test_the_room_of_others_and_a_pod_that_ends_are_no_deadlock() -> None:
    seen = deployment({})
    other = [cards(("b", WHOLE, 0, 8, "created"))]
    elsewhere = old(profile="", limits={"cpu": "1"})
    assert not names_it(answer(new(), elsewhere, bound("b", WHOLE), instaslices=other, **seen))
    ending = old(deletionTimestamp=rfc3339(NOW))
    assert not names_it(answer(new(), ending, instaslices=HELD, **seen))
    older = msgspec.structs.replace(seen["replica_sets"][0], metadata=ObjectMeta(uid=Uid("rs-new")))
    assert not names_it(answer(new(), old(), instaslices=HELD, **{**seen, "replica_sets": [older]}))


def test_pods_of_others_that_wait_do_not_hide_it() -> None:
    found = answer(new(), old(), pod_of("first", WHOLE, priority=9), instaslices=HELD, **deployment({}))
    assert names_it(found)


def test_whole_cards_that_kube_scheduler_places_are_kept_alike() -> None:
    waits = new(profile="", limits=GPU, gates=())
    holds = old(profile="", limits=GPU, spec={"nodeName": "g1"})
    found = answer(waits, holds, nodes=[with_gpus()], instaslices=[], **deployment({}))
    assert names_it(found)
    assert "the old pod is team/svc-old-x" in found.facts


QUOTA = 'Error creating: pods "x" is forbidden: exceeded quota: gpu, used: requests.nvidia.com/gpu=1, limited: 1'


@pytest.mark.parametrize(("keeps_old", "named"), [(True, True), (False, False)])
def test_a_quota_that_old_pods_use_up_is_the_same_deadlock(keeps_old: bool, named: bool) -> None:
    holds = old()
    failure = Condition(type="ReplicaFailure", status="True", message=QUOTA)
    state = WorkloadState(
        kind="deployment",
        namespace="team",
        name="svc",
        controller_uids=frozenset({"rs-old", "rs-new"}),
        desired=1,
        keeps_old=keeps_old,
        conditions=(failure,),
    )
    view = ClusterView(Snapshot(now=NOW, pods=[holds], nodes=[node()], instaslices=HELD, leases=[lease()]))
    (first, *_) = explain_workload(view, state).answers
    assert first.case == "quota"
    assert ("its old pods use it until a new one is ready (maxUnavailable 0)" in first.verdict) is named
    assert ("kubectl patch deployment -n team svc" in said(first)) is named


def test_a_reader_who_does_not_see_the_deployment_is_told_what_would_keep_the_old_pod() -> None:
    found = answer(new(), old(), instaslices=HELD)
    assert found.case == "full"
    assert "svc-old-x is of the same Deployment svc and of an older template: if its maxUnavailable is 0" in said(found)
    assert "kubectl patch deployment -n team svc -p" in found.help[-1]


@pytest.mark.parametrize(
    ("strategy", "known"),
    [({}, "its maxUnavailable is 0, so an old pod ends only when a new one is ready"), ({"type": "Recreate"}, "")],
)
def test_a_reader_of_one_namespace_is_told_what_its_deployment_does(strategy: Mapping[str, Any], known: str) -> None:
    """The default for a tenant: pods and Deployments of a namespace, no nodes and no cards."""
    found = answer(new(), old(), instaslices=[], nodes=[], forbidden=frozenset({"nodes"}), **deployment(strategy))
    assert found.case == "held"
    assert (f"svc-old-x is of the same Deployment svc and of an older template: {known}" in said(found)) is bool(known)


@pytest.mark.parametrize(
    "seen", [deployment({}), {}, {"nodes": [], "forbidden": frozenset({"nodes"}), **deployment({})}]
)
def test_a_pod_that_asks_for_hand_over_is_not_told_that_it_waits_for_ever(seen: Mapping[str, Any]) -> None:
    """Until the controller has published the step of a new pod, as for half a minute."""
    found = answer(new(annotations={"tessera.dev/update": "hand-over"}), old(), **{"instaslices": HELD, **seen})
    assert "svc-old-x is of the same Deployment svc and of an older template: by its annotation" in said(found)
    assert "neither goes on" not in said(found)
    assert not any("maxUnavailable" in each or "hand-over" in each for each in found.help)
