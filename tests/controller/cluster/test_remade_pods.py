"""A pod that its owner makes anew while it waits keeps its age."""

from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, PodUid
from tessera.controller.cluster.remade_pods import EXPIRY, RemadePods
from tessera.controller.objects.pod_info import PodInfo
from tessera.limits.planning import REMEMBERED_AGES, REMEMBERED_AGES_OF_NAMESPACE

OLD, NEW, NEWER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"
NOW = 1_767_000_000.0


def waiting(name: str, created: str, **facts: Any) -> PodInfo:
    """A pod of an owner at our gate."""
    default: dict[str, Any] = {"gates": (GATE,), "profiles": ("7g.40gb",), "owner": "owner", "namespace": "default"}
    return PodInfo(uid=PodUid(name), name=name, created=created, **{**default, **facts})


def test_the_next_pod_of_the_owner_takes_the_age_over_and_keeps_it() -> None:
    remade = RemadePods()
    first = remade.observe(waiting("a", OLD), NOW, known=False)
    remade.forget(first.uid, first, NOW)
    assert remade.observe(waiting("b", NEW), NOW, known=False).created == OLD
    assert remade.observe(waiting("b", NEW), NOW, known=True).created == OLD
    assert remade.observe(waiting("c", NEWER), NOW, known=False).created == NEWER


def test_an_age_goes_on_from_pod_to_pod() -> None:
    remade = RemadePods()
    pod = remade.observe(waiting("a", OLD), NOW, known=False)
    for name, created in (("b", NEW), ("c", NEWER)):
        remade.forget(pod.uid, pod, NOW)
        pod = remade.observe(waiting(name, created), NOW, known=False)
    assert pod.created == OLD


def test_a_pod_that_is_being_deleted_leaves_its_age_once() -> None:
    """Its owner replaces it before it is gone, while a finalizer of Kueue holds it."""
    remade = RemadePods()
    remade.observe(waiting("a", OLD), NOW, known=False)
    leaving = remade.observe(waiting("a", OLD, terminating=True), NOW, known=True)
    assert remade.observe(waiting("b", NEW), NOW, known=False).created == OLD
    remade.forget(leaving.uid, leaving, NOW)
    assert remade.observe(waiting("c", NEWER), NOW, known=False).created == NEWER


def test_the_oldest_age_goes_first() -> None:
    remade = RemadePods()
    for name, created in (("a", NEW), ("b", OLD)):
        pod = remade.observe(waiting(name, created), NOW, known=False)
        remade.forget(pod.uid, pod, NOW)
    assert [remade.observe(waiting(name, NEWER), NOW, known=False).created for name in "cd"] == [OLD, NEW]


@pytest.mark.parametrize(
    "facts",
    [{"owner": ""}, {"gates": ()}, {"profiles": ()}, {"finished": True}],
    ids=["no owner", "had its slices", "no slices", "ended"],
)
def test_only_a_pod_of_an_owner_that_waits_leaves_an_age(facts: dict[str, Any]) -> None:
    remade = RemadePods()
    pod = remade.observe(waiting("a", OLD, **facts), NOW, known=False)
    remade.forget(pod.uid, pod, NOW)
    assert remade.observe(waiting("b", NEW), NOW, known=False).created == NEW


def test_another_owner_inherits_nothing() -> None:
    remade = RemadePods()
    pod = remade.observe(waiting("a", OLD), NOW, known=False)
    remade.forget(pod.uid, pod, NOW)
    assert remade.observe(waiting("b", NEW, owner="other"), NOW, known=False).created == NEW


def test_the_same_owner_in_another_namespace_inherits_nothing() -> None:
    """The author of a pod writes its owner's UID."""
    remade = RemadePods()
    leave(remade, waiting("a", OLD))
    assert inherited(remade, waiting("b", NEW, namespace="other")) == NEW
    assert inherited(remade, waiting("c", NEW)) == OLD


def test_an_age_expires() -> None:
    remade = RemadePods()
    leave(remade, waiting("a", OLD, owner="late"))
    leave(remade, waiting("b", OLD, owner="early"))
    assert remade.observe(waiting("c", NEW, owner="late"), NOW + EXPIRY, known=False).created == NEW
    assert remade.observe(waiting("d", NEW, owner="early"), NOW + EXPIRY - 1, known=False).created == OLD


def test_a_namespace_that_leaves_many_ages_loses_its_own_only() -> None:
    remade = RemadePods()
    leave(remade, waiting("modest", OLD, namespace="modest"))
    for number in range(REMEMBERED_AGES + 1):
        leave(remade, waiting(f"a{number}", OLD, owner=f"owner-{number}"))
    kept = REMEMBERED_AGES + 1 - REMEMBERED_AGES_OF_NAMESPACE
    assert inherited(remade, waiting("b", NEW, owner=f"owner-{kept - 1}")) == NEW
    assert inherited(remade, waiting("c", NEW, owner=f"owner-{kept}")) == OLD
    assert inherited(remade, waiting("d", NEW, namespace="modest")) == OLD


def test_an_owner_beyond_the_bound_keeps_its_oldest_ages() -> None:
    remade = RemadePods()
    named = [("a", OLD), *((f"b{number}", NEW) for number in range(REMEMBERED_AGES_OF_NAMESPACE))]
    for pod in [remade.observe(waiting(name, created), NOW, known=False) for name, created in named]:
        remade.forget(pod.uid, pod, NOW)
    found = [inherited(remade, waiting(f"c{n}", NEWER)) for n in range(REMEMBERED_AGES_OF_NAMESPACE + 1)]
    assert found == [OLD] + [NEW] * (REMEMBERED_AGES_OF_NAMESPACE - 1) + [NEWER]


def test_beyond_the_bound_of_all_the_namespace_with_the_most_loses() -> None:
    remade = RemadePods()
    leave(remade, waiting("modest", OLD, namespace="modest"))
    spaces = REMEMBERED_AGES // REMEMBERED_AGES_OF_NAMESPACE
    for space in range(spaces):
        for number in range(REMEMBERED_AGES_OF_NAMESPACE):
            leave(remade, waiting(f"{space}-{number}", OLD, owner=f"owner-{number}", namespace=f"n{space}"))
    found = [inherited(remade, waiting(f"new-{n}", NEW, owner="owner-0", namespace=f"n{n}")) for n in range(spaces)]
    assert found == [NEW] + [OLD] * (spaces - 1)
    assert inherited(remade, waiting("b", NEW, namespace="modest")) == OLD


def leave(remade: RemadePods, pod: PodInfo) -> None:
    """A pod comes and goes while it waits."""
    remade.forget(pod.uid, remade.observe(pod, NOW, known=False), NOW)


def inherited(remade: RemadePods, pod: PodInfo) -> str:
    """The creation time of a pod that comes."""
    return remade.observe(pod, NOW, known=False).created


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
