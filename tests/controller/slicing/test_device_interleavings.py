"""Whole cards under any order of events: never more than a node has, gangs whole, and a restart at any write.

The second property has a scheduler that places pods of other namespaces and does not know what is promised.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.api.pod_annotations import Gang
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.events import RefusalTimedOut

CARDS = {"n1": 4, "n2": 2, "n3": 1}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.integers(1, 4), st.integers(0, 2)),
        st.tuples(st.just("gang"), st.integers(2, 3), st.integers(1, 2)),
        st.tuples(st.just("outside"), st.integers(1, 2), st.sampled_from(sorted(CARDS))),
        st.tuples(st.just("end"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("bind"), st.just(0), st.just(0)),
        st.tuples(st.just("write"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


def taken(cluster: SlicerCluster) -> Counter[str]:
    """The cards that pods hold by node, as the scheduler counts: those of bound and of pinned pods."""
    return _cards(pod for pod in cluster.pods.values() if not pod.gated)


def bound(cluster: SlicerCluster) -> Counter[str]:
    """The cards that bound pods hold, which is all that kube-scheduler knows."""
    return _cards(pod for pod in cluster.pods.values() if pod.node)


def _cards(pods: Iterable[PodInfo]) -> Counter[str]:
    found: Counter[str] = Counter()
    for pod in pods:
        found[pod.node or pod.hostname] += len(pod.devices)
    return found


def write_some(cluster: SlicerCluster, count: int) -> None:
    """The controller decides, and so many of its writes arrive; the answers of the others are lost with it."""
    cluster.slicer.decide()
    found = cluster.slicer.pop_writes()
    for instruction in found[:count]:
        cluster.answer(instruction)
    if len(found) > count:
        cluster.restart()


@settings(max_examples=examples(60))
@given(STEPS)
def test_no_card_is_given_twice_and_what_fits_starts(steps: list[tuple[str, int, int | str]]) -> None:
    cluster = SlicerCluster()
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    for name, count in CARDS.items():
        cluster.device_node(name, count=count)
    for number, (kind, first, second) in enumerate(steps):
        match kind:
            case "pod":
                cluster.whole(f"p{number}", first, priority=int(second), created=f"{number:04}")
            case "gang":
                gang = Gang(f"default/g{number}", f"g{number}", first)
                for member in range(first):
                    cluster.whole(f"g{number}-{member}", int(second), gang=gang, created=f"{number:04}")
            case "outside":
                node = NodeName(str(second))
                cluster.settle()
                if taken(cluster)[node] + first <= CARDS[node]:
                    cluster.whole(f"o{number}", first, gated=False, node=node, namespace="other")
            case "end":
                pods = sorted(cluster.pods.values(), key=lambda pod: pod.uid)
                if pods:
                    cluster.remove(pods[first % len(pods)])
            case "bind":
                for pod in tuple(cluster.pods.values()):
                    if not pod.gated and not pod.node:
                        cluster.put(replace(pod, node=NodeName(pod.hostname)))
            case "write":
                write_some(cluster, first)
            case _:
                cluster.restart()
        assert all(count <= CARDS[node] for node, count in taken(cluster).items())
    cluster.settle()
    held = taken(cluster)
    assert all(count <= CARDS[node] for node, count in held.items())
    for pod in cluster.pods.values():
        if pod.gated and pod.gang is None:
            assert all(CARDS[node] - held[node] < len(pod.devices) for node in CARDS), f"{pod.name} fits and waits"
    occupied = Counter(each.placement.node for each in cluster.slicer.state.inventory.fleet.allocations())
    assert occupied == +held


RACES = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("outside"), st.integers(1, 4), st.sampled_from(sorted(CARDS))),
        st.tuples(st.just("end"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("schedule"), st.just(0), st.just(0)),
        st.tuples(st.just("timeout"), st.just(0), st.just(0)),
        st.tuples(st.just("write"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


def schedule(cluster: SlicerCluster) -> None:
    """kube-scheduler binds pinned pods to their nodes, or says that they do not fit there."""
    for pod in sorted(cluster.pods.values(), key=lambda each: each.uid):
        if pod.gated or pod.node:
            continue
        node = NodeName(pod.hostname)
        if bound(cluster)[node] + len(pod.devices) <= CARDS[node]:
            cluster.put(replace(pod, node=node, unschedulable_message=""))
        elif not pod.unschedulable_message:
            cluster.put(replace(pod, unschedulable_message="Insufficient nvidia.com/gpu"))


def time_out(cluster: SlicerCluster) -> None:
    """The deadline of pinned pods that the scheduler refuses."""
    cluster.settle()
    for uid in sorted(cluster.slicer.state.pods.cannot_start):
        cluster.slicer.handle(RefusalTimedOut(uid, 0.0))
    cluster.settle()


@settings(max_examples=examples(200))
@given(RACES)
def test_a_scheduler_that_takes_promised_cards_first_leaves_no_pod_stuck(steps: list[tuple[str, int, Any]]) -> None:
    cluster = SlicerCluster()
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    for name, count in CARDS.items():
        cluster.device_node(name, count=count)
    for number, (kind, first, second) in enumerate(steps):
        match kind:
            case "pod":
                owner = f"set-{number}" if second else ""
                cluster.whole(f"p{number:02}", first, owner=owner, created=f"{number:04}")
            case "outside":  # it does not know which cards are promised
                if bound(cluster)[second] + first <= CARDS[second]:
                    cluster.whole(f"o{number:02}", first, gated=False, node=NodeName(second), namespace="other")
            case "end":
                pods = sorted(cluster.pods.values(), key=lambda pod: pod.uid)
                if pods:
                    cluster.remove(pods[first % len(pods)])
            case "schedule":
                schedule(cluster)
            case "timeout":
                time_out(cluster)
            case "write":
                write_some(cluster, first)
            case _:
                cluster.restart()
        assert all(count <= CARDS[node] for node, count in bound(cluster).items())
    for _ in range(2 * len(steps) + 2):
        cluster.settle()
        schedule(cluster)
        time_out(cluster)
    held = bound(cluster)
    for pod in cluster.pods.values():
        if pod.gated:
            assert all(CARDS[node] - held[node] < len(pod.devices) for node in CARDS), f"{pod.name} fits and waits"
        else:
            assert pod.node or pod.slices_withdrawn, f"{pod.name} is pinned, refused, and was not told"
    occupied = Counter(each.placement.node for each in cluster.slicer.state.inventory.fleet.allocations())
    assert occupied == +held
