"""A claim is told what became of it, for those who look at the claim and not at its pod."""

from dataclasses import replace

import pytest
from tests.support.claim_cluster import ClaimCluster, request
from tests.support.device_claims import profile_class

from tessera.dra.node_devices import DRIVER
from tessera.limits import POD_SLICES

ONE, THREE = "mig-1g.5gb.tessera.dev", "mig-3g.20gb.tessera.dev"


def told(cluster: ClaimCluster, key: str) -> list[tuple[str, str, bool]]:
    """Reason, text and urgency of a claim's events."""
    uid = f"uid-of-claim-{key}"
    return [
        (each.reason, each.message, each.warning) for each in cluster.told if each.kind == "claims" and each.uid == uid
    ]


@pytest.fixture
def cluster() -> ClaimCluster:
    return ClaimCluster()


def test_a_claim_is_told_where_it_is_allocated_and_that_nobody_uses_it_any_more(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    key = cluster.claim("c", request("x", ONE))
    pod = cluster.user("p", key)
    cluster.settle()
    ((_, device),) = cluster.devices(key)
    assert told(cluster, key) == [("ClaimAllocated", f"{device} of node n1, for pod p", False)]
    cluster.resume()
    assert len(told(cluster, key)) == 1
    cluster.put(replace(cluster.pods[pod.uid], finished=True))
    cluster.settle()
    last = ("ClaimTakenBack", f"{device} of node n1: no pod uses the claim any more", False)
    assert told(cluster, key)[1:] == [last]


@pytest.mark.parametrize("end", ["deleted", "finished"])
def test_a_claim_that_goes_with_its_pod_costs_one_event(cluster: ClaimCluster, end: str) -> None:
    cluster.claim_node("n1")
    key = cluster.template_claim("c", "p", request("x", ONE))
    pod = cluster.user("p", key)
    cluster.settle()
    if end == "deleted":
        cluster.remove(pod)
    else:
        cluster.put(replace(cluster.pods[pod.uid], finished=True))
    cluster.settle()
    assert [reason for reason, _, _ in told(cluster, key)] == ["ClaimAllocated"]


def test_a_claim_waits_in_the_words_of_its_pod_and_is_told_once(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    holders = [cluster.user(f"h{n}", cluster.claim(f"h{n}", request("x", THREE))) for n in range(2)]
    cluster.settle()
    keys = [cluster.claim(name, request("x", THREE)) for name in ("a", "b")]
    waiting = [cluster.user("w", *keys), cluster.user("v", keys[1])]
    for _ in range(3):
        cluster.settle()
        cluster.pass_time(3_600)
    (of_pod,) = [each for each in cluster.told if each.uid == waiting[0].uid]
    assert of_pod.message.startswith("Waiting for 2 ")
    same = [("SliceWaiting", of_pod.message, of_pod.warning)]
    assert [told(cluster, key) for key in keys] == [same, same]
    assert all(told(cluster, f"default/h{n}")[0][0] == "ClaimAllocated" for n in range(2))
    for pod in holders:
        cluster.remove(pod)
    cluster.settle()
    assert [told(cluster, key)[-1][0] for key in keys] == ["ClaimAllocated"] * 2


def test_a_refusal_that_is_the_same_for_several_pods_is_told_once(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    key = cluster.claim("c", request("x", "mig-1g.5gb.tessera.dev", allocationMode="Some"))
    other = cluster.claim("other", request("x", "gpus.elsewhere.example"))
    for name in ("p", "q"):
        cluster.user(name, key, other)
    cluster.settle()
    ((reason, text, warning),) = told(cluster, key)
    assert (reason, warning) == ("SliceRefused", True)
    assert "exactly.allocationMode is Some" in text
    assert told(cluster, other) == []


def test_a_node_that_refuses_the_pod_is_named(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    cluster.claim_node("n2", cordoned=True)
    cluster.refusing.add("n1")
    key = cluster.claim("c", request("x", ONE))
    cluster.user("p", key)
    cluster.run()
    ((_, device),) = cluster.devices(key)
    cluster.settle()
    assert told(cluster, key)[1] == (
        "ClaimTakenBack",
        f"{device} of node n1: the scheduler found that the node does not take pod p, which is placed again",
        True,
    )


def test_a_reservation_for_a_claim_is_told_to_the_claim() -> None:
    cluster = ClaimCluster(60.0)
    cluster.classes.append(profile_class(DRIVER, "7g.40gb"))
    cluster.tell_claims()
    cluster.pass_time(1)
    cluster.claim_node("n1")
    cluster.user("s", cluster.claim("s", request("x", THREE)))
    cluster.settle()
    key = cluster.claim("large", request("x", "mig-7g.40gb.tessera.dev"))
    cluster.user("large", key)
    cluster.settle_and_wait(120)
    assert {reason for reason, _, _ in told(cluster, key)} == {"SliceWaiting", "SliceReserved"}


def test_who_looks_at_a_pod_with_many_claims_does_a_bounded_work(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1")
    keys = [cluster.claim(f"c{n}", request("x", ONE)) for n in range(200)]
    cluster.user("p", *keys)
    cluster.settle()
    assert 0 < sum(bool(told(cluster, key)) for key in keys) <= int(POD_SLICES)
