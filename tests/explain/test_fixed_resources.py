"""``tessera why`` of pods that ask for whole cards, shares or fixed slices: what nodes give, and who has it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.explain.test_pods import agents_of
from tests.explain.test_pods import answer as why_here

from tessera.api.names import GATE, PLACEMENT_LABEL, PLACEMENT_MANAGED
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, encode_offers
from tessera.explain.explanation import Explanation
from tessera.explain.pods import explain_pod
from tessera.explain.snapshot import NODES_COMPARED, ClusterView, OrderObjects, Snapshot
from tessera.kube.resources import Namespace, Node, Pod

SHARED = "nvidia.com/gpu.shared"
SLICE = "nvidia.com/mig-1g.5gb"
UNSCHEDULED = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]}


def node(name: str = "n1", gives: Mapping[str, str] | None = None, wrong: str = "", on_demand: str = "") -> Node:
    conditions = [{"type": "Ready", "status": "True"}]
    conditions += [{"type": "GpuSharingApplied", "status": "False", "reason": wrong}] if wrong else []
    offer = NodeOffer(
        resource=on_demand or "a",
        kind=OfferKind.DYNAMIC_SLICE,
        product="NVIDIA A100-SXM4-40GB",
        card_memory_mib=40960,
        memory_mib=4864,
        compute_capability="8.0",
        count=7,
        profile="1g.5gb",
    )
    annotations = {OFFERS_ANNOTATION: encode_offers([offer])} if on_demand else {}
    body = {
        "metadata": {"name": name, "annotations": annotations},
        "status": {"allocatable": {"cpu": "8", "pods": "9", **(gives or {})}, "conditions": conditions},
    }
    return msgspec.convert(body, Node)


def pod(name: str = "a", *limits: Mapping[str, str], on: str = "", phase: str = "Pending", **more: Any) -> Pod:
    containers = [{"name": f"c{n}", "resources": {"limits": each}} for n, each in enumerate(limits or [{SHARED: "1"}])]
    spec = {"containers": containers, "nodeName": on, **more.pop("spec", {})}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", **more.pop("metadata", {})}
    status = {"phase": phase, **(UNSCHEDULED if not on else {}), **more}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)


def answer(who: Pod, nodes: Sequence[Node], *others: Pod, unseen: Sequence[str] = ()) -> Explanation:
    snapshot = Snapshot(now=1.0, pods=[who, *others, *agents_of(nodes)], nodes=nodes, forbidden=frozenset(unseen))
    return explain_pod(ClusterView(snapshot), who)


def test_a_running_pod_says_what_it_has_asked_for() -> None:
    found = answer(pod("a", {SHARED: "1"}, {"nvidia.com/gpu": "2"}, on="n1", phase="Running"), [node()])
    assert (found.case, found.verdict) == ("runs", "runs on node n1")
    assert found.facts == ("it requests 2 nvidia.com/gpu, 1 nvidia.com/gpu.shared",)


def test_cards_of_init_containers_count_as_the_scheduler_counts_them() -> None:
    inits = [{"name": "load", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]
    who = pod("a", {"nvidia.com/gpu": "1"}, on="n1", phase="Running", spec={"initContainers": inits})
    assert answer(who, [node()]).facts == ("it requests 4 nvidia.com/gpu",)


def behind_the_gate(count: str) -> Pod:
    """A pod of a managed namespace that waits for whole cards."""
    return pod("a", {"nvidia.com/gpu": count}, spec={"schedulingGates": [{"name": GATE}]})


def test_more_cards_than_any_node_has_never_fit() -> None:
    has_four = node(gives={"nvidia.com/gpu": "4", "pods": "9"})
    labels = {"kubernetes.io/hostname": "n1"}
    has_four = msgspec.structs.replace(has_four, metadata=msgspec.structs.replace(has_four.metadata, labels=labels))
    found = why_here(behind_the_gate("5"), nodes=[has_four], instaslices=[])
    words = "no node could hold 5 x nvidia.com/gpu, even empty; all cards of a pod are on one node: ask for fewer"
    assert (found.case, found.verdict) == ("never-fits", f"cannot run in this cluster; {words}")
    found = why_here(behind_the_gate("1k"), nodes=[has_four], instaslices=[])
    assert (found.case, found.verdict) == ("bad-request", "cannot run as written")


def test_pinned_pods_of_managed_namespaces_hold_their_cards_before_they_are_bound() -> None:
    has_two = node(gives={"nvidia.com/gpu": "2", "pods": "9"})
    labels = {"kubernetes.io/hostname": "n1"}
    has_two = msgspec.structs.replace(has_two, metadata=msgspec.structs.replace(has_two.metadata, labels=labels))
    pinned = pod("b", {"nvidia.com/gpu": "2"}, spec={"nodeSelector": labels}, conditions=[])
    mark = {"tessera.dev/pinned": pinned.metadata.uid}
    pinned = msgspec.structs.replace(pinned, metadata=msgspec.structs.replace(pinned.metadata, annotations=mark))
    team = msgspec.convert({"metadata": {"name": "team", "labels": {PLACEMENT_LABEL: PLACEMENT_MANAGED}}}, Namespace)
    found = why_here(
        behind_the_gate("1"), pinned, nodes=[has_two], instaslices=[], order=OrderObjects(namespaces=[team])
    )
    assert (found.case, found.facts[1]) == ("full", "1 node has 2 of them; pods hold 2")
    assert found.verdict == "waits for room; no nvidia.com/gpu free"
    assert "pod team/b" in found.help[0]


MESSAGE = "the free cards that would do for nvidia.com/gpu are reserved for 1 pod that goes first"


@pytest.mark.parametrize(
    ("told", "case"), [("Reserved", "reserved"), ("Full", "full"), ("", "placing")], ids=["reserved", "full", "new"]
)
def test_free_cards_that_are_reserved_for_others_are_told_by_the_word_of_the_controller(told: str, case: str) -> None:
    """No object has the reservations of whole cards; `why` once said for minutes that the pod gets these cards now."""
    has_two = node(gives={"nvidia.com/gpu": "2", "pods": "9"})
    labels = {"kubernetes.io/hostname": "n1"}
    has_two = msgspec.structs.replace(has_two, metadata=msgspec.structs.replace(has_two.metadata, labels=labels))
    waits = behind_the_gate("1")
    conditions = (
        [{"type": "tessera.dev/SlicePromised", "status": "False", "reason": told, "message": MESSAGE}] if told else []
    )
    status = msgspec.convert({"phase": "Pending", "conditions": conditions}, type(waits.status))
    found = why_here(msgspec.structs.replace(waits, status=status), nodes=[has_two], instaslices=[])
    assert found.case == case
    if case == "reserved":
        assert found.verdict == f"waits; the controller told it some time ago: {MESSAGE}"
        assert found.facts[1] == "by all that you may read, this is free: 1 x nvidia.com/gpu, on node n1"


def test_cards_that_are_free_on_different_nodes_are_told_so() -> None:
    nodes = []
    for name in ("n1", "n2"):
        given = node(name, gives={"nvidia.com/gpu": "2", "pods": "9"})
        labels = {"kubernetes.io/hostname": name}
        nodes.append(msgspec.structs.replace(given, metadata=msgspec.structs.replace(given.metadata, labels=labels)))
    others = [pod(f"on-{each.metadata.name}", {"nvidia.com/gpu": "1"}, on=each.metadata.name) for each in nodes]
    found = why_here(behind_the_gate("2"), *others, nodes=nodes, instaslices=[])
    assert found.case == "fragmented"
    assert found.verdict == "waits for room; no node has 2 whole cards free; the most on one node is 1"


def test_what_no_node_gives_is_told_with_what_nodes_give_and_which_are_not_as_asked() -> None:
    nodes = [node(gives={"nvidia.com/gpu": "4"}), node("n2", wrong="ProfileMissing")]
    found = answer(pod(), nodes)
    assert (found.case, found.verdict) == ("not-offered", f"waits for {SHARED}, which no node offers")
    assert "nodes offer nvidia.com/gpu 4" in found.facts
    (other,) = (each for each in found.facts if each.startswith("node n2 "))
    for fact in ("is not as configured", "(ProfileMissing)", "tessera why node/n2"):
        assert fact in other
    assert "kube-scheduler last said: 0/1 nodes are available" in found.facts


def test_shares_under_another_name_are_told_before_slices() -> None:
    nodes = [node(gives={SHARED: "8"}), node("n2", gives={SLICE: "7"}, on_demand=SLICE)]
    found = answer(pod("a", {"nvidia.com/gpu": "1"}), nodes)
    assert found.help[0].endswith(f"by the name that a sharing profile gives them: {SHARED}")
    assert found.help[1].startswith("request the largest slice instead")


def test_what_nodes_make_on_demand_is_told_where_they_give_nothing_else() -> None:
    found = answer(pod("a", {"nvidia.com/gpu": "1"}), [node(gives={SLICE: "7"}, on_demand=SLICE)])
    assert found.facts[1] == f"nodes make on demand {SLICE}"
    assert found.help[0].startswith(f"request the largest slice instead: {SLICE}; or an amount of memory: annotation ")
    nothing = answer(pod("a", {"nvidia.com/gpu": "1"}), [node()])
    assert nothing.facts[1] == "nodes offer nothing of nvidia.com/*"
    assert nothing.help == (
        "see which nodes have cards, and what keeps them: tessera doctor, then tessera why node/NODE",
    )


def test_more_than_any_node_gives_will_never_be() -> None:
    found = answer(pod("a", {"nvidia.com/gpu": "5"}), [node(gives={"nvidia.com/gpu": "4"})])
    assert (found.case, found.help) == ("too-many", ("request at most 4 nvidia.com/gpu",))


def test_what_others_hold_is_counted_node_by_node() -> None:
    nodes = [node(gives={SHARED: "2"}), node("n2", {SHARED: "1"}), node("n3")]
    others = [pod(f"b{n}", on=where, phase="Running") for n, where in enumerate(("n1", "n1", "n2"))]
    found = answer(pod(), nodes, *others)
    assert (found.case, found.verdict) == (
        "in-use",
        f"waits for {SHARED}: the 2 nodes that may take it have too little free",
    )
    assert f"node n1: 2 of 2 {SHARED} in use" in found.facts
    assert f"node n2: 1 of 1 {SHARED} in use" in found.facts


def test_pods_that_have_ended_hold_nothing() -> None:
    ended = [pod(f"b{phase}", on="n1", phase=phase) for phase in ("Succeeded", "Failed")]
    found = answer(pod(), [node(gives={SHARED: "2"})], *ended)
    assert found.case == "unscheduled"
    assert "node n1 has all that it requests free, and its labels and taints let it in" in found.facts
    assert "kubectl describe pod" in found.help[0]


def test_slices_of_a_fixed_layout_are_compared_in_the_same_way() -> None:
    holder = pod("b", {SLICE: "1"}, on="n1", phase="Running")
    found = answer(pod("a", {SLICE: "1"}), [node(gives={SLICE: "1"})], holder)
    assert (found.case, found.verdict) == (
        "in-use",
        f"waits for {SLICE}: the node that may take it has too little free",
    )
    assert found.help[0] == f"there is room as soon as this ends, on node n1: pod team/b (1 {SLICE}, Running)"


def test_positions_for_slices_on_demand_are_no_fixed_slices() -> None:
    found = answer(pod("a", {SLICE: "1"}), [node(gives={SLICE: "7"}, on_demand=SLICE)])
    assert found.case == "not-gated"


@pytest.mark.parametrize("unseen", [("nodes",), ("pods",)])
def test_who_may_not_see_everything_is_told_what_the_scheduler_says(unseen: Sequence[str]) -> None:
    found = answer(pod(), [], unseen=unseen)
    assert (found.case, found.verdict) == ("unscheduled", "waits for kube-scheduler, which has not bound it yet")
    assert "kube-scheduler last said: 0/1 nodes are available" in found.facts
    assert f"you may not list {unseen[0]}" in found.facts


def test_a_container_that_is_stuck_is_named() -> None:
    waiting = {"name": "c0", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    found = answer(pod(on="n1", containerStatuses=[waiting]), [node(gives={SHARED: "1"})])
    assert found.case == "container-waits"
    for fact in ("does not start on node n1", "container c0 waits", "ImagePullBackOff: no such image"):
        assert fact in found.verdict
    assert answer(pod(on="n1"), [node()]).case == "starting"


def test_another_operators_gate_comes_first() -> None:
    gated = pod(spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]})
    found = answer(gated, [node()])
    assert found.case == "other-gate"
    assert f"it requests 1 {SHARED}" in found.facts


def test_why_it_asks_for_what_it_asks_for_is_told_where_that_was_chosen() -> None:
    annotations = {"tessera.dev/chosen-resource-reason": "the smallest with 10Gi"}
    found = answer(pod(metadata={"annotations": annotations}), [node()])
    assert found.facts[-1] == "Tessera chose its request: the smallest with 10Gi"


def test_many_kinds_of_pods_cost_no_more_than_a_few() -> None:
    """A tenant can make any number of different pods; the page explains 200 at once, in clusters of 5,000 nodes."""
    nodes = [node(gives={"nvidia.com/gpu": "4"})]
    kinds = [pod(f"k{n}", {"nvidia.com/gpu": "1", "cpu": f"{100 + n}m"}) for n in range(30)]
    alike = [pod(f"a{n}", {"nvidia.com/gpu": "1"}, metadata={"labels": {"n": f"{n}"}}) for n in range(30)]
    snapshot = Snapshot(now=1.0, pods=[*kinds, *alike, *agents_of(nodes)], nodes=nodes)
    view = ClusterView(snapshot)
    assert all("was not compared" not in f"{explain_pod(view, each).facts}" for each in alike)
    assert view.comparisons == NODES_COMPARED - 1
    uncompared = [each for each in kinds if "was not compared" in f"{explain_pod(view, each).facts}"]
    assert len(uncompared) == 30 - (NODES_COMPARED - 1)
    assert explain_pod(view, uncompared[0]).case == "unscheduled"
