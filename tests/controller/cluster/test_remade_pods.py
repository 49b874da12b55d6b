"""A pod that its owner makes anew while it waits keeps its age."""

from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, PodUid
from tessera.controller.cluster.remade_pods import RemadePods
from tessera.controller.objects.pod_info import PodInfo
from tessera.limits.planning import REMEMBERED_AGES

OLD, NEW, NEWER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"


def waiting(name: str, created: str, **facts: Any) -> PodInfo:
    """A pod of an owner at our gate."""
    default: dict[str, Any] = {"gates": (GATE,), "profiles": ("7g.40gb",), "owner": "owner"}
    return PodInfo(uid=PodUid(name), namespace="default", name=name, created=created, **{**default, **facts})


def test_the_next_pod_of_the_owner_takes_the_age_over_and_keeps_it() -> None:
    remade = RemadePods()
    first = remade.observe(waiting("a", OLD), known=False)
    remade.forget(first.uid, first)
    assert remade.observe(waiting("b", NEW), known=False).created == OLD
    assert remade.observe(waiting("b", NEW), known=True).created == OLD
    assert remade.observe(waiting("c", NEWER), known=False).created == NEWER


def test_an_age_goes_on_from_pod_to_pod() -> None:
    remade = RemadePods()
    pod = remade.observe(waiting("a", OLD), known=False)
    for name, created in (("b", NEW), ("c", NEWER)):
        remade.forget(pod.uid, pod)
        pod = remade.observe(waiting(name, created), known=False)
    assert pod.created == OLD


def test_a_pod_that_is_being_deleted_leaves_its_age_once() -> None:
    """Its owner replaces it before it is gone, while a finalizer of Kueue holds it."""
    remade = RemadePods()
    remade.observe(waiting("a", OLD), known=False)
    leaving = remade.observe(waiting("a", OLD, terminating=True), known=True)
    assert remade.observe(waiting("b", NEW), known=False).created == OLD
    remade.forget(leaving.uid, leaving)
    assert remade.observe(waiting("c", NEWER), known=False).created == NEWER


def test_the_oldest_age_goes_first() -> None:
    remade = RemadePods()
    for name, created in (("a", NEW), ("b", OLD)):
        pod = remade.observe(waiting(name, created), known=False)
        remade.forget(pod.uid, pod)
    assert [remade.observe(waiting(name, NEWER), known=False).created for name in "cd"] == [OLD, NEW]


@pytest.mark.parametrize(
    "facts",
    [{"owner": ""}, {"gates": ()}, {"profiles": ()}, {"finished": True}],
    ids=["no owner", "had its slices", "no slices", "ended"],
)
def test_only_a_pod_of_an_owner_that_waits_leaves_an_age(facts: dict[str, Any]) -> None:
    remade = RemadePods()
    pod = remade.observe(waiting("a", OLD, **facts), known=False)
    remade.forget(pod.uid, pod)
    assert remade.observe(waiting("b", NEW), known=False).created == NEW


def test_another_owner_inherits_nothing() -> None:
    remade = RemadePods()
    pod = remade.observe(waiting("a", OLD), known=False)
    remade.forget(pod.uid, pod)
    assert remade.observe(waiting("b", NEW, owner="other"), known=False).created == NEW


def test_the_ages_are_bounded() -> None:
    remade = RemadePods()
    for number in range(REMEMBERED_AGES + 1):
        pod = remade.observe(waiting(f"a{number}", OLD, owner=f"owner-{number}"), known=False)
        remade.forget(pod.uid, pod)
    assert remade.observe(waiting("b", NEW, owner="owner-0"), known=False).created == NEW
    assert remade.observe(waiting("c", NEW, owner=f"owner-{int(REMEMBERED_AGES)}"), known=False).created == OLD


def test_a_remade_pod_goes_before_a_younger_one() -> None:
    cluster = SlicerCluster()
    cluster.node("n")
    holder = cluster.pod("holder", "7g.40gb")
    cluster.settle()
    first = cluster.pod("first", "7g.40gb", owner="set", created=OLD)
    cluster.pod("second", "7g.40gb", created=NEW)
    cluster.settle()
    cluster.remove(first)
    again = cluster.pod("again", "7g.40gb", owner="set", created=NEWER)
    cluster.settle()
    cluster.remove(holder)
    cluster.settle()
    assert [each.uid for each in cluster.slicer.state.allocations] == [again.uid]
