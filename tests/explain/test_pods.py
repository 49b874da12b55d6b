"""``tessera why``: one answer a pod, for everything that can be in its way. Plain objects in, text out."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from tessera.api.instaslice import (
    KIND_MISSING,
    AllocationRequest,
    AllocationResult,
    AllocationStatus,
    ForeignSlice,
    Instaslice,
    InstasliceSpec,
    InstasliceStatus,
    NodeGpu,
    NodeResources,
    PodRef,
    Position,
    ProfilePlacements,
    Slice,
)
from tessera.api.names import GATE, GPU_CONDITION, LENDS_ANNOTATION, SLICE_CONDITION, resource_of
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, CardFault, encode_cards
from tessera.api.nodes.health import describe_fault
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, encode_offers
from tessera.api.queues import Queue
from tessera.clock import rfc3339
from tessera.controller.slicing.planner import Planner
from tessera.explain.explanation import Explanation, ExplanationReport, Query, parse_query, report_lines
from tessera.explain.pods import explain_pod
from tessera.explain.snapshot import ClusterView, OrderObjects, Snapshot
from tessera.explain.workloads import WorkloadState, explain_workload
from tessera.forecast.queue_page import QueuedPod, QueuePage, decode_page
from tessera.kube.resources import (
    Condition,
    CoreEvent,
    Lease,
    LeaseSpec,
    Node,
    Pod,
    ResourceQuota,
)
from tessera.kube.resources.nodes import ContainerImage
from tessera.mig.models import model_by_short_name
from tessera.reasons.node_rules import NodeRule, RuleKind
from tessera.reasons.reason import NoNode, RuleCount
from tessera.text import REINSTALL

NOW = 1_800_000_000.0
DYNAMIC = {"nvidia.com/mig.config": "dynamic"}
GPU = "GPU-0"
#: What kubelet publishes of the device plugins of a node with one A100.
POSITIONS = {resource_of(row.name): str(len(row.starts)) for row in model_by_short_name("A100-40GB").geometry.profiles}
#: What its agent says they are.
OFFERS = encode_offers(
    NodeOffer(
        resource=resource,
        kind=OfferKind.DYNAMIC_SLICE,
        product="NVIDIA A100-SXM4-40GB",
        card_memory_mib=40960,
        memory_mib=4864,
        compute_capability="8.0",
        count=1,
        profile=resource.partition("mig-")[2],
    )
    for resource in POSITIONS
)


def node(name: str = "n1", labels: dict[str, str] = DYNAMIC, *, ready: str = "True", **spec: Any) -> Node:
    body = {
        "metadata": {
            "name": name,
            "labels": {**labels, "kubernetes.io/hostname": name},
            "annotations": {OFFERS_ANNOTATION: OFFERS} if DYNAMIC.items() <= labels.items() else {},
        },
        "spec": spec,
        "status": {
            "allocatable": {
                "cpu": "8",
                "memory": "64Gi",
                "pods": "110",
                **(POSITIONS if DYNAMIC.items() <= labels.items() else {}),
            },
            "conditions": [{"type": "Ready", "status": ready, "message": "kubelet stopped posting"}],
        },
    }
    return msgspec.convert(body, Node)


def cards(
    *held: tuple[str, str, int, int, str],
    name: str = "n1",
    foreign: Sequence[ForeignSlice] = (),
    of: str = "A100-40GB",
) -> Instaslice:
    """One card of a node, and slices on it: pod, profile, start, size, the agent's state."""
    model = model_by_short_name(of)
    table = {
        row.name: ProfilePlacements(
            placements=tuple(Position(size=row.size, start=start) for start in row.starts),
            gi_profile_id=row.gi_profile_id or 0,
            ci_profile_id=row.ci_profile_index,
        )
        for row in model.geometry.profiles
    }
    requests, results = {}, {}
    for pod, profile, start, size, state in held:
        part = Slice(id="0", profile=profile, gpu_uuid=GPU, start=start, size=size)
        ref = PodRef(namespace="team", name=pod, uid=f"uid-{pod}")
        requests[f"uid-{pod}"] = AllocationRequest(profile=profile, pod_ref=ref, slices=(part,))
        results[f"uid-{pod}"] = AllocationResult(
            allocation_status=AllocationStatus(
                allocation_status_controller="ungated", allocation_status_daemonset=state
            ),
            config_map_resource_identifier="x",
            gpu_uuid=GPU,
            mig_placement=Position(size=size, start=start),
            nodename=name,
        )
    gpu = NodeGpu(gpu_uuid=GPU, gpu_name=model.product_name, gpu_memory="40960Mi")
    resources = NodeResources(node_gpus=(gpu,), mig_placement=table, foreign=tuple(foreign))
    return Instaslice(
        metadata=msgspec.convert({"name": name, "namespace": "instaslice-system"}, type(Pod().metadata)),
        spec=InstasliceSpec(pod_allocation_requests=requests),
        status=InstasliceStatus(pod_allocation_results=results, node_resources=resources),
    )


def pod(name: str = "a", profile: str = "3g.20gb", *, gates: Sequence[str] = (GATE,), **more: Any) -> Pod:
    limits = {f"nvidia.com/mig-{profile}": "1"} if profile else {}
    status = {"phase": "Pending", **more.pop("status", {})}
    spec = {
        "containers": [{"name": "c", "resources": {"limits": {**limits, **more.pop("limits", {})}}}],
        "schedulingGates": [{"name": gate} for gate in gates],
        **more.pop("spec", {}),
    }
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "creationTimestamp": rfc3339(NOW - 60), **more}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)


def bound(name: str = "a", profile: str = "3g.20gb", **more: Any) -> Pod:
    return pod(name, profile, gates=(), **{**more, "spec": {"nodeName": "n1", **more.get("spec", {})}})


#: What a pod of the agents' DaemonSet has in its metadata.
OF_AGENTS = {
    "namespace": "tessera-system",
    "labels": {"app.kubernetes.io/name": "tessera-agent"},
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "tessera-agent", "controller": True}],
}


def agent(*, node: str = "n1", ready: str = "True", **metadata: Any) -> Pod:
    return msgspec.convert(
        {
            "metadata": {"name": "agent-x", "uid": f"uid-agent-{node}", **OF_AGENTS, **metadata},
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        },
        Pod,
    )


def agents_of(nodes: Iterable[Node]) -> list[Pod]:
    """An agent that is ready on each of these nodes."""
    return [agent(node=each.metadata.name) for each in nodes]


def lease(renewed: float = NOW, duration: int = 15) -> Lease:
    spec = LeaseSpec(holder_identity="c-1", lease_duration_seconds=duration, renew_time=rfc3339(renewed))
    return msgspec.structs.replace(
        msgspec.convert({"metadata": {"name": "tessera-controller", "namespace": "tessera-system"}}, Lease), spec=spec
    )


def event(about: str, reason: str, message: str, kind: str = "Warning") -> CoreEvent:
    body = {
        "involvedObject": {"uid": f"uid-{about}"},
        "reason": reason,
        "message": message,
        "type": kind,
        "lastTimestamp": rfc3339(NOW - 5),
    }
    return msgspec.convert(body, CoreEvent)


def answer(who: Pod, *others: Pod, silent: bool = False, **seen: Any) -> Explanation:
    """About the first pod. Every node has an agent, if none is given and they are not ``silent``."""
    objects = {"nodes": [node()], "instaslices": [cards()], "leases": [lease()], **seen}
    given = silent or any(each.metadata.name.startswith("agent-") for each in others)
    agents = [] if given else agents_of(objects["nodes"])
    return explain_pod(ClusterView(Snapshot(now=NOW, pods=[who, *others, *agents], **objects)), who)


def said(found: Explanation) -> str:
    return "\n".join([found.verdict, *found.facts, *found.help])


# One pod


def test_a_running_pod_says_where_its_slice_is() -> None:
    found = answer(bound(status={"phase": "Running"}), instaslices=[cards(("a", "3g.20gb", 4, 4, "created"))])
    assert (found.case, found.verdict) == ("runs", "runs on node n1")
    assert found.facts == ("it has 3g.20gb on GPU 0, memory slots 4-7",)


def test_where_the_kind_of_the_records_is_missing_no_right_is_blamed() -> None:
    """The live page reads no Leases, whatever the rights of its visitor."""
    lost: dict[str, Any] = {"forbidden": frozenset({"instaslices", "leases"}), "failed": {"instaslices": KIND_MISSING}}
    found = answer(bound(status={"phase": "Running"}), instaslices=[], **lost)
    assert found.facts[1].startswith("the cluster lacks the kind instaslices.inference.redhat.com: this is from")
    assert "may not list" not in said(found)
    assert found.help == (REINSTALL,)


def without_offers(on: Node) -> Node:
    """The node as a plugin of fixed layouts leaves it: its resources are no positions of slices on demand."""
    return msgspec.structs.replace(on, metadata=msgspec.structs.replace(on.metadata, annotations={}))


@pytest.mark.parametrize(
    ("on", "words"),
    [
        (node(), "it has 3g.20gb; where is unknown, since node n1 has no Instaslice object that says it"),
        (without_offers(node()), "it has 3g.20gb of a fixed layout"),
    ],
    ids=["made on demand", "fixed"],
)
def test_a_slice_without_a_record_is_of_a_fixed_layout_only_where_the_node_offers_it(on: Node, words: str) -> None:
    assert answer(bound(status={"phase": "Running"}), nodes=[on], instaslices=[]).facts == (words,)


def test_a_pod_is_lent_slices_by_pods_of_its_namespace_alone() -> None:
    owners = [{"kind": "Pod", "name": "a", "uid": "uid-a"}]
    facts: dict[str, Any] = {"annotations": {LENDS_ANNOTATION: "a"}, "ownerReferences": owners}
    others = bound("lender", **facts), bound("stranger", namespace="other", **facts)
    assert [each for each in answer(bound(status={"phase": "Running"}), *others).facts if "lends" in each] == [
        "pod lender lends it a slice, beside its own; its container gets it at its next start"
    ]


@pytest.mark.parametrize("phase", ["Running", "Failed", "Succeeded"])
def test_a_pod_whose_borrower_has_ended_is_said_to_hold_a_slice_for_nobody(phase: str) -> None:
    owners = [{"kind": "Pod", "name": "a", "uid": "uid-a"}]
    lends = bound("lender", status={"phase": "Running"}, annotations={LENDS_ANNOTATION: "a"}, ownerReferences=owners)
    borrower = bound(status={"phase": phase})
    advice = "pod a has ended, and no other uses the slice: tessera resize a --back -n team"
    assert (advice in answer(lends, borrower).facts) is (phase != "Running")
    assert any("lends it" in each for each in answer(borrower, lends).facts) is (phase == "Running")


LOST = CardFault(GPU, "XID 79", index=2, asks="reboot")


def with_faults(*faults: CardFault) -> Node:
    found = node()
    annotations = {**found.metadata.annotations, CARDS_ANNOTATION: encode_cards((), faults)}
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, annotations=annotations))


def test_a_waiting_pod_and_a_running_one_are_told_of_a_cordoned_card() -> None:
    cordoned = CardFault(GPU, "cordon", index=2, asks="uncordon", text="cordoned by hand: fan is loud")
    full = [cards(("b", "7g.40gb", 0, 8, "created"))]
    waiting = answer(pod(), bound("b"), nodes=[with_faults(cordoned)], instaslices=full)
    assert "node n1: 1 card cordoned by hand: tessera health n1" in waiting.facts
    found = answer(
        bound(status={"phase": "Running"}),
        nodes=[with_faults(cordoned)],
        instaslices=[cards(("a", "3g.20gb", 4, 4, "created"))],
    )
    assert found.verdict == "runs on node n1"
    assert "GPU 2 of the node: cordoned by hand: fan is loud; not allocated until it is uncordoned" in said(found)


def other_card_listed(record: Instaslice) -> Instaslice:
    (gpu,) = record.status.node_resources.node_gpus
    other = msgspec.structs.replace(gpu, gpu_uuid="GPU-other", index=3)
    resources = msgspec.structs.replace(record.status.node_resources, node_gpus=(other,))
    return msgspec.structs.replace(record, status=msgspec.structs.replace(record.status, node_resources=resources))


SENTENCE = f"GPU 2: {describe_fault(LOST.evidence())}"


def told(reason: str = "GpuUnhealthy", message: str = SENTENCE) -> dict[str, Any]:
    """The status of a running pod whose agent has told it about its card."""
    status = "False" if reason == "GpuUnhealthy" else "True"
    condition = {"type": GPU_CONDITION, "status": status, "reason": reason, "message": message}
    return {"phase": "Running", "conditions": [condition]}


@pytest.mark.parametrize("whole", [False, True], ids=["a slice", "a whole card"])
@pytest.mark.parametrize("forbidden", [(), ("nodes", "instaslices")], ids=["all rights", "own pods"])
def test_a_running_pod_on_a_bad_card_is_told_what_its_condition_says(whole: bool, forbidden: Sequence[str]) -> None:
    kind: dict[str, Any] = {"profile": "", "limits": {"nvidia.com/gpu": "1"}} if whole else {}
    who = bound(status=told(), **kind)
    found = answer(who, instaslices=[cards(("a", "3g.20gb", 4, 4, "created"))], forbidden=frozenset(forbidden))
    assert found.verdict.endswith(", on a card that is not well")
    assert found.facts[0] == SENTENCE
    assert found.help[-1] == "see the card: tessera health n1"


def test_the_error_of_a_card_on_a_silent_node_is_the_agents_last_word() -> None:
    held = [cards(("a", "3g.20gb", 4, 4, "created"))]
    found = answer(bound(status=told()), instaslices=held, silent=True)
    assert found.verdict == "runs on node n1, on a card that was not well, and whose state is unknown now"
    assert found.facts[0].startswith("the state of its card is unknown, since the agent of its node does not answer")
    assert found.facts[1] == f"by the last word of its node's agent: {SENTENCE}"


def test_a_pod_whose_card_is_well_again_is_told_nothing_of_it() -> None:
    found = answer(bound(status=told("GpuRecovered", "nothing is wrong with GPU 2 any more")), instaslices=[cards()])
    assert "GPU 2" not in said(found)


def test_a_lost_card_that_is_not_listed_keeps_its_index() -> None:
    found = answer(
        bound(status={"phase": "Running"}),
        nodes=[with_faults(LOST)],
        instaslices=[other_card_listed(cards(("a", "3g.20gb", 4, 4, "created")))],
    )
    assert found.facts == ("it has 3g.20gb on GPU 2, memory slots 4-7",)


def with_unhealthy_device() -> Pod:
    devices = [{"resourceID": "GPU-1", "health": "Unhealthy"}, {"resourceID": "GPU-2", "health": "Healthy"}]
    resources = [{"name": "nvidia.com/gpu", "resources": devices}]
    container = {"name": "main", "allocatedResourcesStatus": resources}
    return bound(
        profile="", limits={"nvidia.com/gpu": "2"}, status={"phase": "Running", "containerStatuses": [container]}
    )


def test_devices_that_a_change_of_the_layout_withholds_are_not_said_to_be_unwell() -> None:
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "GpuHealthy", "status": "True"},
        {"type": "GpuMigLayoutApplied", "status": "Unknown", "reason": "CardsInUse"},
    ]
    node = msgspec.convert({"metadata": {"name": "n1"}, "status": {"conditions": conditions}}, Node)
    found = answer(with_unhealthy_device(), nodes=[node])
    assert found.verdict == "runs on node n1, on devices that no other pod gets"
    assert found.facts[0].endswith("the cards are well, and the node's MIG layout waits for its pods (CardsInUse)")
    assert found.help[-1] == "see what waits: tessera why node/n1"


def test_the_health_of_devices_that_kubelet_reports_is_read_where_no_agent_told_the_pod() -> None:
    found = answer(with_unhealthy_device())
    assert found.verdict == "runs on node n1, on a card that is not well"
    assert found.facts[0] == "kubelet reports 1 unhealthy device of nvidia.com/gpu in main"


def test_a_pod_keeps_the_index_of_its_card_when_another_card_is_withheld() -> None:
    record = cards(("a", "3g.20gb", 4, 4, "created"))
    (gpu,) = record.status.node_resources.node_gpus
    resources = msgspec.structs.replace(
        record.status.node_resources, node_gpus=(msgspec.structs.replace(gpu, index=3),)
    )
    status = msgspec.structs.replace(record.status, node_resources=resources)
    found = answer(bound(status={"phase": "Running"}), instaslices=[msgspec.structs.replace(record, status=status)])
    assert found.facts == ("it has 3g.20gb on GPU 3, memory slots 4-7",)


@pytest.mark.parametrize(
    ("asked_about", "case", "words"),
    [
        (pod(gates=(), status={"phase": "Succeeded"}), "finished", "its slices are free again"),
        (
            bound(profile="", limits={"nvidia.com/gpu": "1"}, status={"phase": "Succeeded"}),
            "finished",
            "its cards are free again",
        ),
        (pod(gates=(), status={"phase": "Failed", "reason": "Evicted", "message": "low"}), "failed", "Evicted: low"),
        (
            bound(status={"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"}),
            "rejected",
            "Allocate failed",
        ),
        (
            bound(
                status={
                    "phase": "Failed",
                    "reason": "UnexpectedAdmissionError",
                    "message": "Allocate failed due to rpc error: desc = nvidia.com/gpu.shared: "
                    "invalid allocation request: maximum request size for shared resources is 1; found 2",
                }
            ),
            "rejected",
            "request one share in each container",
        ),
        (pod(profile="", gates=()), "no-slices", "does not request a GPU"),
        (pod(profile="", gates=(), limits={"nvidia.com/gpu": "1"}), "not-offered", "which no node offers"),
        (pod(limits={"nvidia.com/mig-1g.5gb": "0.5"}), "bad-request", "slices come whole"),
        (pod(gates=("kueue.x-k8s.io/admission", GATE)), "other-gate", "kubectl get workloads.kueue.x-k8s.io -n team"),
        (pod(gates=("example.com/hold",)), "other-gate", "it has the gate example.com/hold, not Tessera's"),
        (pod(profile="3g.20g"), "no-such-profile", "request nvidia.com/mig-3g.20gb instead"),
        (pod(limits={"nvidia.com/mig-7g.40gb": "1"}), "never-fits", "request less in one pod"),
        (pod(), "placing", "free for it: 3g.20gb on GPU 0"),
        (pod(gates=()), "not-gated", "webhook"),
    ],
)
def test_the_first_thing_in_the_way(asked_about: Pod, case: str, words: str) -> None:
    found = answer(asked_about)
    assert found.case == case
    assert words in said(found)


@pytest.mark.parametrize(
    ("leases", "facts"),
    [
        ([], ("there is no Lease",)),
        ([lease(NOW - 90)], ("90s ago by c-1",)),
        ([lease(NOW - 900, duration=2**31 - 1)], ("15m ago by c-1",)),
        ([lease(NOW - 90, duration=-1)], ("90s ago by c-1",)),
        ([lease(253402300799.0)], ("the renewTime 9999-12-31T23:59:59Z", "a day or more in the future")),
    ],
)
def test_a_controller_that_does_not_run(leases: list[Lease], facts: tuple[str, ...]) -> None:
    found = answer(pod(), leases=leases)
    assert found.case == "no-controller"
    for fact in (*facts, "there is room for it"):
        assert fact in said(found)


def test_no_node_joined() -> None:
    found = answer(pod(), nodes=[node(labels={})], instaslices=[])
    assert found.case == "no-card-reported"
    assert "kubectl label node NODE nvidia.com/mig.config=dynamic" in said(found)


def test_a_joined_node_without_an_agent() -> None:
    found = answer(pod(), instaslices=[], silent=True)
    assert found.case == "agent-silent"
    assert found.verdict.startswith("waits; the agent of n1 does not answer, so nobody knows the cards there")
    assert "no pod of DaemonSet tessera-system/tessera-agent" in found.facts[0]
    assert found.help[0] == "see it: tessera why node/n1"


def test_the_card_of_a_pod_that_runs_on_a_silent_node_is_unknown() -> None:
    held = [cards(("a", "3g.20gb", 0, 4, "created"))]
    found = answer(bound(status={"phase": "Running"}), instaslices=held, silent=True)
    assert found.case == "runs"
    assert found.facts[0].startswith(
        "the state of its card is unknown, since the agent of its node does not answer: no"
    )
    assert "unknown" not in said(answer(bound(status={"phase": "Running"}), instaslices=held))


FULL = cards(("c", "7g.40gb", 0, 8, "created"))


@pytest.mark.parametrize(
    ("who", "without", "case"),
    [
        (pod(), node("n2"), "agent-silent"),
        (pod(profile="1g.99gb"), node("n2"), "no-such-profile"),
        (pod(spec={"nodeSelector": {"disk": "fast"}}), node("n2"), "no-node"),
        (pod(), node("n2", taints=[{"key": "team", "effect": "NoSchedule"}]), "full"),
        (pod(), node("n2", ready="False"), "full"),
        (pod(), node("n2", labels={}), "full"),
    ],
    ids=["might have room", "never offered it", "selector", "taint", "node not ready", "no cards"],
)
def test_a_silent_node_that_might_have_room_comes_first_and_nothing_less_is_advised(
    who: Pod, without: Node, case: str
) -> None:
    found = answer(who, agent(), bound("c", "7g.40gb"), nodes=[node(), without], instaslices=[FULL])
    assert found.case == case
    if case == "agent-silent":
        assert found.verdict.startswith("waits; the agent of n2 does not answer")
        assert any(each.startswith("on the other nodes it waits for room; ") for each in found.facts)
        assert not any("request" in each for each in found.help)
    else:
        assert "does not answer" not in said(found)


@pytest.mark.parametrize(
    ("who", "where", "fact", "remedy"),
    [
        (pod(), node(unschedulable=True), "1 node was unschedulable: n1", "kubectl uncordon n1"),
        (
            pod(),
            node(taints=[{"key": "gpu", "value": "down", "effect": "NoSchedule"}]),
            "1 node had untolerated taint {gpu: down}: n1",
            "kubectl taint node n1 gpu-",
        ),
        (pod(spec={"nodeSelector": {"zone": "b"}}), node(), "didn't match Pod's node affinity", "nodeSelector"),
        (pod(), node(ready="False"), "1 node was not ready: n1", "kubectl describe node n1"),
    ],
)
def test_no_node_allows_it(who: Pod, where: Node, fact: str, remedy: str) -> None:
    found = answer(who, nodes=[where])
    assert found.verdict.startswith("waits; 0 of 1 nodes can take it: 1 node(s) ")
    assert any(fact in each for each in found.facts)
    assert any(remedy in each for each in found.help)


@pytest.mark.parametrize(
    ("limits", "asks", "fact"),
    [
        ({"cpu": "400"}, "400 CPUs, and the largest node has 8 CPUs", "requests 400 CPUs; n1 has 8"),
        ({"memory": "65Gi"}, "65Gi of memory, and the largest node has 64Gi of memory", "requests 65Gi of memory"),
    ],
)
def test_a_pod_larger_than_every_node_is_told_so(limits: dict[str, str], asks: str, fact: str) -> None:
    found = answer(pod(limits=limits))
    assert found.case == "never-fits"
    assert found.verdict == f"cannot run in this cluster; no node could ever take it: it requests {asks}"
    assert any(f"1 node too small, even when empty: it {fact}" in each for each in found.facts)
    assert any("request less of it, or add a larger node" in each for each in found.help)


PLACE = "Position 2 of 3 for the same room. Starts after 2026-11-24 15:04 UTC, from how long such pods ran before"
NO_SLOT = [cards(("old", "7g.40gb", 0, 8, "created"))]


def told_so(seconds_ago: float, detail: str) -> dict[str, Any]:
    """The status of a pod that the controller told its place and reason so long ago."""
    return {
        "conditions": [
            {
                "type": "tessera.dev/SlicePromised",
                "status": "False",
                "reason": "Fragmented",
                "message": f"{detail[:1].upper()}{detail[1:]}. {PLACE}",
                "lastProbeTime": rfc3339(NOW - seconds_ago),
                "lastTransitionTime": rfc3339(NOW - 40),
            }
        ]
    }


def test_what_a_pod_was_told_of_another_reason_is_not_repeated() -> None:
    """Slots were free when it was written, and are taken now: the verdict says so, and no fact may contradict it."""
    waits = pod("z", status=told_so(250, "4 memory slots free, at most 4 together, at no start for 3g.20gb"))
    found = answer(waits, pod("first", creationTimestamp=rfc3339(NOW - 50)), instaslices=NO_SLOT)
    assert found.verdict == "waits for room; every card that it may use is full for 3g.20gb"
    assert "was told" not in said(found)
    assert "another pod waits with higher priority or for longer, and is served first" in found.facts
    assert not any("memory slots free" in fact for fact in found.facts)


def row_of(name: str, **more: Any) -> QueuedPod:
    return QueuedPod(namespace="team", name=name, uid=f"uid-{name}", **more)


@pytest.mark.parametrize(
    ("seconds", "said_when"), [(3.0, "the controller says"), (250.0, "the controller said 4m ago")]
)
def test_the_controllers_place_goes_before_what_the_pod_was_told_and_what_is_counted_here(
    seconds: float, said_when: str
) -> None:
    waits = pod("z", status=told_so(250, "full"))
    page = QueuePage(leads=True, age=seconds, pods=(row_of("z", position=4, of=4, detail="all cards are full"),))
    found = answer(waits, pod("first", priority=9), instaslices=NO_SLOT, page=page)
    (place,) = [each for each in found.facts if "its place in the queue" in each]
    assert place.startswith(f"its place in the queue, {said_when}: position 4 of 4 for the same room; its start is")
    assert "served first" not in said(found)
    assert "was told" not in said(found)


def test_room_that_the_controller_does_not_give_is_told_with_the_controllers_reason() -> None:
    """That an owner's pods avoid a node after a refusal is known to the controller alone."""
    why = NoNode((RuleCount(NodeRule(RuleKind.AVOIDED), 1),))
    found = answer(pod(), page=QueuePage(leads=True, age=2.0, pods=(row_of("a", why=why),)))
    detail = "0 of 1 nodes can take it: 1 node(s) where the scheduler refused the owner's last pod"
    assert (found.case, found.verdict) == ("no-node", f"waits; {detail}")


def test_what_the_pod_was_told_stands_before_what_is_free_by_all_that_the_reader_may_read() -> None:
    detail = "0 of 1 nodes can take it: 1 node(s) where the scheduler refused the owner's last pod"
    found = answer(pod(status=told_so(250, detail)))
    assert found.verdict.startswith(f"waits; the controller told it 4m ago: {detail}")
    assert any(each.startswith("by all that you may read, this is free: ") for each in found.facts)


def test_a_reason_of_a_later_version_is_told_in_the_words_of_its_controller() -> None:
    row = {"namespace": "team", "name": "a", "uid": "uid-a", "reason": "eclipse", "detail": "it is dark"}
    page = {"leads": True, "pods": [{**row, "why": {"type": "eclipse", "until": 3}}]}
    found = answer(pod(), page=decode_page(msgspec.json.encode(page)))
    assert (found.case, found.verdict) == ("eclipse", "waits; it is dark")


def test_full_cards_say_whose_end_makes_room() -> None:
    holder = bound("old", "7g.40gb", status={"phase": "Running", "startTime": rfc3339(NOW - 7200)})
    found = answer(pod(), holder, instaslices=[cards(("old", "7g.40gb", 0, 8, "created"))])
    assert (found.case, found.verdict) == ("full", "waits for room; every card that it may use is full for 3g.20gb")
    (room,) = (each for each in found.facts if "can make it" in each)
    for fact in ("1 card on 1 node", "8 of its 8 memory slots", "in use or promised"):
        assert fact in room
    (step,) = found.help
    for fact in (
        "there is room as soon as this ends",
        "on node n1",
        "pod team/old",
        "7g.40gb on GPU 0",
        "memory slots 0-7",
        "on its node for 2h",
    ):
        assert fact in step


@pytest.mark.parametrize(
    ("held", "wanted", "rest"),
    [
        ((("1g.5gb", 2, 1), ("1g.5gb", 5, 1)), "7g.40gb", "; 6 are free, on GPU 0 of n1"),
        (tuple(("1g.5gb", start, 1) for start in range(7)), "1g.5gb", "; no further slice can use the other 1"),
        ((("3g.20gb", 0, 4), ("2g.10gb", 4, 2)), "4g.20gb", "; 2 are free, on GPU 0 of n1"),
        ((("4g.20gb", 0, 4), ("3g.20gb", 4, 4)), "3g.20gb", ""),
    ],
)
def test_slots_are_counted_in_one_way_in_the_answer_and_in_its_facts(
    held: tuple[tuple[str, int, int], ...], wanted: str, rest: str
) -> None:
    """It said "30 of 32 in use or promised", and "1 free" above."""
    names = [f"h{number}" for number in range(len(held))]
    slices = [(name, *each, "created") for name, each in zip(names, held, strict=True)]
    others = [bound(name, each[0], status={"phase": "Running"}) for name, each in zip(names, held, strict=True)]
    found = answer(pod(profile=wanted), *others, instaslices=[cards(*slices)])
    used = sum(each[2] for each in held)
    assert f"1 card on 1 node can make it: n1; {used} of its 8 memory slots are in use or promised{rest}" in found.facts
    free = rest.partition(" are free")[0].removeprefix("; ") if "free" in rest else ""
    assert not free or f" {free} free" in found.verdict or f"{free} memory slots free" in found.verdict


def _owned(name: str, kind: str, owner: str) -> dict[str, Any]:
    version = {"Job": "batch/v1", "Node": "v1", "Notebook": "kubeflow.org/v1"}.get(kind, "apps/v1")
    return {"ownerReferences": [{"apiVersion": version, "kind": kind, "name": owner, "uid": owner, "controller": True}]}


@pytest.mark.parametrize(
    ("first", "second", "step"),
    [
        (("ReplicaSet", "web"), ("Job", "train"), "there is room as soon as this ends, on node n1: pod team/h1 ("),
        (("ReplicaSet", "other"), ("Job", "train"), "there is room as soon as this ends, on node n1: pod team/h1 ("),
        (
            ("ReplicaSet", "other"),
            ("StatefulSet", "db"),
            "there is room once this is scaled down, since it runs without end, on node n1: pod team/h0 (",
        ),
        *(
            (
                (kind, "one"),
                (kind, "one"),
                "there is room once this is scaled down or removed where it is defined, since it runs without end, on",
            )
            for kind in ("DaemonSet", "Node", "Notebook")
        ),
        (
            ("ReplicaSet", "web"),
            ("ReplicaSet", "web"),
            "no pod that ends by itself is in its way, but others of its own ReplicaSet/web are: add a node, or do",
        ),
    ],
)
def test_pods_that_end_by_themselves_are_named_before_those_of_services(
    first: tuple[str, str], second: tuple[str, str], step: str
) -> None:
    others = [
        bound(f"h{number}", status={"phase": "Running"}, **_owned(f"h{number}", *owner))
        for number, owner in enumerate((first, second))
    ]
    held = cards(("h0", "3g.20gb", 0, 4, "created"), ("h1", "3g.20gb", 4, 4, "created"))
    found = answer(pod(**_owned("a", "ReplicaSet", "web")), *others, instaslices=[held])
    assert found.case == "full"
    assert found.help[0].startswith(step)


@pytest.mark.parametrize(
    ("profile", "first", "step"),
    [
        (
            "7g.40gb",
            ("ReplicaSet", "other"),
            "there is room as soon as these 2 end (team/h0 runs without end until scaled down), on node n1: pod ",
        ),
        (
            "7g.40gb",
            ("ReplicaSet", "web"),
            "no pod that ends by itself is in its way, but others of its own ReplicaSet/web are: add a node, or do",
        ),
    ],
)
def test_of_pods_that_must_all_end_only_those_of_services_are_said_to_run_without_end(
    profile: str, first: tuple[str, str], step: str
) -> None:
    """It said of a Job's pod too that it runs without end, and is to be scaled down."""
    owners = first, ("Job", "train")
    others = [
        bound(f"h{number}", status={"phase": "Running"}, **_owned(f"h{number}", *owner))
        for number, owner in enumerate(owners)
    ]
    held = cards(("h0", "3g.20gb", 0, 4, "created"), ("h1", "3g.20gb", 4, 4, "created"))
    found = answer(pod(profile=profile, **_owned("a", "ReplicaSet", "web")), *others, instaslices=[held])
    assert found.help[0].startswith(step)


def test_pods_of_its_own_custom_controller_are_in_the_way_without_a_name() -> None:
    mine = _owned("a", "Notebook", "one")
    others = [bound(name, status={"phase": "Running"}, **mine) for name in ("h0", "h1")]
    held = cards(("h0", "3g.20gb", 0, 4, "created"), ("h1", "3g.20gb", 4, 4, "created"))
    found = answer(pod(**mine), *others, instaslices=[held])
    assert found.help[0].startswith(
        "no pod that ends by itself is in its way, but others of its own controller are: add a node, or do with fewer"
    )


def test_a_pod_of_any_controller_that_does_not_restart_ends_by_itself() -> None:
    own = {"restartPolicy": "OnFailure"}
    held = cards(("h0", "7g.40gb", 0, 8, "created"))
    holder = bound("h0", "7g.40gb", status={"phase": "Running"}, **_owned("h0", "PyTorchJob", "train"), spec=own)
    found = answer(pod(), holder, instaslices=[held])
    assert found.help[0].startswith("there is room as soon as this ends, on node n1: pod team/h0 (")


def test_for_several_slices_it_is_not_said_that_no_pod_in_the_way_ends_by_itself() -> None:
    """Such pods are looked for only for one slice; those of a Job may be in the way elsewhere."""
    own = [bound(name, status={"phase": "Running"}, **_owned(name, "ReplicaSet", "web")) for name in ("h0", "h1")]
    held = cards(("h0", "3g.20gb", 0, 4, "created"), ("h1", "3g.20gb", 4, 4, "created"))
    both = pod(limits={"nvidia.com/mig-3g.20gb": "2"}, **_owned("a", "ReplicaSet", "web"))
    found = answer(both, *own, instaslices=[held])
    assert found.help[0].startswith(
        "there is room once these 2 are scaled down, since they run without end, on node n1"
    )


def test_slices_with_as_much_memory_are_named_before_smaller_ones() -> None:
    full = cards(("x", "7g.40gb", 0, 8, "created"))
    found = answer(
        pod(),
        bound("x", "7g.40gb", status={"phase": "Running"}),
        nodes=[node(), node("n2")],
        instaslices=[full, cards(name="n2", of="H100-80GB")],
    )
    assert found.help[1:] == (
        "a slice with 20 GB or more has room now: " + ", ".join(map(resource_of, ("2g.20gb", "1g.20gb", "3g.40gb"))),
        "a smaller slice has room now: nvidia.com/mig-1g.10gb",
    )


def test_every_node_of_the_cluster_is_named_or_counted() -> None:
    """A node without on-demand slices was missing, and those that can make the slice had no name."""
    static = node("n3", {})
    static.status.allocatable["nvidia.com/gpu"] = "4"
    plain = node("n4", {})
    nodes = [node(), node("n2"), static, plain]
    found = answer(
        pod(),
        bound("x", "7g.40gb", status={"phase": "Running"}),
        *agents_of(nodes[:3]),
        nodes=nodes,
        instaslices=[cards(("x", "7g.40gb", 0, 8, "created")), cards(name="n2", of="H100-80GB")],
    )
    assert found.facts[1:5] == (
        "1 card on 1 node can make it: n1; 8 of its 8 memory slots are in use or promised",
        "1 node had no card that can make 3g.20gb: n2",
        "1 node did not offer on-demand slices (label nvidia.com/mig.config=dynamic): n3",
        "1 node offers no cards",
    )


def test_free_memory_in_the_wrong_place() -> None:
    small = [bound(name, "1g.5gb", status={"phase": "Running"}) for name in ("x", "y")]
    held = cards(("x", "1g.5gb", 2, 1, "created"), ("y", "1g.5gb", 5, 1, "created"))
    found = answer(pod(), *small, instaslices=[held])
    assert found.case == "fragmented"
    assert "not at a start that NVIDIA allows for 3g.20gb" in found.verdict
    assert "there is room as soon as this ends" in said(found)
    assert "a smaller slice has room now: nvidia.com/mig-2g.10gb" in said(found)


def test_too_little_on_each_card_is_no_matter_of_starts() -> None:
    found = answer(
        pod(profile="7g.40gb"),
        bound("b", "1g.5gb"),
        bound("c", "1g.5gb", spec={"nodeName": "n2"}),
        nodes=[node(), node("n2")],
        instaslices=[cards(("b", "1g.5gb", 6, 1, "created")), cards(("c", "1g.5gb", 6, 1, "created"), name="n2")],
    )
    assert found.verdict == "waits for room; 12 memory slots free, at most 6 on one card, and 7g.40gb needs 8"


def test_foreign_slices_are_named_as_such() -> None:
    other = ForeignSlice(gpu_uuid=GPU, start=0, size=8, profile="7g.40gb")
    found = answer(pod(), instaslices=[cards(foreign=[other])])
    assert found.case == "full"
    assert "a slice that no record of Tessera explains" in said(found)


def test_who_waited_longer_goes_first() -> None:
    older = pod("older", creationTimestamp=rfc3339(NOW - 600))
    found = answer(pod(), older, instaslices=[cards(("gone", "7g.40gb", 0, 8, "created"))])
    (queue,) = (each for each in found.facts if "another pod waits" in each)
    for fact in ("with higher priority", "or for longer", "is served first"):
        assert fact in queue


def test_with_queues_the_order_also_goes_by_their_shares() -> None:
    older = pod("older", creationTimestamp=rfc3339(NOW - 600))
    queues = OrderObjects(queues=[Queue(name="default")])
    found = answer(pod(), older, instaslices=[cards(("gone", "7g.40gb", 0, 8, "created"))], order=queues)
    (ahead,) = (each for each in found.facts if "another pod waits" in each)
    assert ahead.endswith("with higher priority, in a queue with a smaller share, or for longer, and is served first")


# Past the gate


def test_kube_scheduler_has_the_word() -> None:
    refused = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes: volume zone"}]}
    found = answer(pod(gates=(), status=refused), agent(), instaslices=[cards(("a", "3g.20gb", 0, 4, "created"))])
    assert (found.case, found.verdict) == ("unscheduled", "has its slice and waits for kube-scheduler to bind it")
    assert "kube-scheduler last said: 0/3 nodes: volume zone" in found.facts


@pytest.mark.parametrize(
    ("others", "events", "case", "words"),
    [
        ([agent()], [], "slice-being-made", "has not reported its slice as made yet"),
        ([agent(namespace="team")], [], "agent-down", "no pod of DaemonSet tessera-system/tessera-agent"),
        ([agent(ownerReferences=[])], [], "agent-down", "no pod of DaemonSet tessera-system/tessera-agent"),
        ([agent(ready="False")], [], "agent-down", "tessera-system/agent-x is not ready"),
        ([agent()], [event("a", "SliceFailed", "GPU is lost")], "slice-failed", "GPU is lost"),
    ],
)
def test_a_slice_that_is_not_there_yet(others: list[Pod], events: list[CoreEvent], case: str, words: str) -> None:
    found = answer(bound(), *others, events=events, instaslices=[cards(("a", "3g.20gb", 0, 4, ""))])
    assert found.case == case
    assert words in said(found)


def test_a_slice_that_nobody_makes() -> None:
    found = answer(bound(), instaslices=[cards(("a", "3g.20gb", 0, 4, ""))], silent=True)
    assert found.case == "agent-down"
    assert "no pod of DaemonSet tessera-system/tessera-agent" in said(found)


def test_a_container_that_waits_for_something_else() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    stuck = bound(status={"containerStatuses": [{"name": "c", "state": waiting}]})
    found = answer(stuck, agent(), instaslices=[cards(("a", "3g.20gb", 0, 4, "created"))])
    assert found.case == "container-waits"
    assert "container c waits with ImagePullBackOff: no such image" in found.verdict


def test_a_node_that_is_down() -> None:
    found = answer(
        bound(), agent(), nodes=[node(ready="False")], instaslices=[cards(("a", "3g.20gb", 0, 4, "created"))]
    )
    assert found.case == "node-down"
    assert "kubelet stopped posting" in said(found)


def test_a_pod_on_a_sliced_node_without_a_record() -> None:
    assert answer(bound()).case == "placing"
    full = cards(("old", "7g.40gb", 0, 8, "created"))
    assert answer(bound(), bound("old", "7g.40gb"), instaslices=[full]).case == "no-record"


def test_with_few_rights_the_events_speak() -> None:
    told = [event("a", "SliceWaiting", "Waiting for 3g.20gb: every card is full", "Normal")]
    found = answer(pod(), nodes=[], instaslices=[], leases=[], events=told, forbidden=frozenset({"nodes", "leases"}))
    assert found.case == "held"
    assert "every card is full" in said(found)
    assert "you may not list leases, nodes" in said(found)


# Workloads


def owned(name: str, **more: Any) -> Pod:
    return pod(name, ownerReferences=[{"uid": "uid-rs", "controller": True}], **more)


def workload(desired: int, **more: Any) -> WorkloadState:
    return WorkloadState(
        kind="deployment", namespace="team", name="web", controller_uids=frozenset({"uid-rs"}), desired=desired, **more
    )


def view(*pods: Pod, **seen: Any) -> ClusterView:
    objects = {"nodes": [node()], "instaslices": [cards()], "leases": [lease()], **seen}
    return ClusterView(Snapshot(now=NOW, pods=[*pods, *agents_of(objects["nodes"])], **objects))


def test_pods_of_one_reason_are_told_together() -> None:
    found = explain_workload(
        view(owned("w1", profile="3g.20g"), owned("w2", profile="3g.20g"), pod("other")), workload(2)
    )
    assert found.summary == "it should have 2 pods: 2 do not run"
    assert [(each.case, each.pods) for each in found.answers] == [("no-such-profile", ("w1", "w2"))]


def test_a_thousand_equal_pods_cost_little_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is equal for pods of one kind is found once; with 980 pods and 40 nodes it took 20 s of CPU."""
    plans = 0
    real = Planner.plan_alone

    def plan_alone(*arguments: Any, **more: Any) -> Any:
        nonlocal plans
        plans += 1
        return real(*arguments, **more)

    monkeypatch.setattr(Planner, "plan_alone", plan_alone)
    full = cards(("c", "7g.40gb", 0, 8, "created"))
    waiting = [owned(f"w{number}") for number in range(30)]
    found = explain_workload(view(bound("c", "7g.40gb"), *waiting, nodes=[node()], instaslices=[full]), workload(30))
    (told,) = found.answers
    assert (told.case, len(told.pods)) == ("full", 30)
    assert 1 <= plans <= 6


def test_a_rollout_has_more_pods_than_there_should_be() -> None:
    old = [owned(name, profile="", gates=(), status={"phase": "Running"}) for name in ("w1", "w2")]
    found = explain_workload(view(*old, owned("w3", profile="3g.20g")), workload(2))
    assert found.summary == "it should have 2 pods and has 3 now during its rollout: 2 run, 1 does not run"


def test_new_pods_that_a_quota_refuses_while_old_ones_without_gpus_run() -> None:
    message = 'pods "web-x" is forbidden: exceeded quota: gpu, requested: requests.nvidia.com/mig-3g.20gb=1'
    failure = Condition(type="ReplicaFailure", status="True", reason="FailedCreate", message=message)
    old = [owned(name, profile="", gates=(), status={"phase": "Running"}) for name in ("w1", "w2")]
    found = explain_workload(view(*old), workload(2, conditions=(failure,)))
    for fact in ("it should have 2 pods", ": 2 run", "pods of its new template cannot be created"):
        assert fact in found.summary
    assert [each.case for each in found.answers] == ["quota"]


def test_pods_that_a_quota_refuses() -> None:
    message = 'pods "web-x" is forbidden: exceeded quota: gpu, requested: requests.nvidia.com/mig-3g.20gb=1'
    failure = Condition(type="ReplicaFailure", status="True", reason="FailedCreate", message=message)
    hard = {"requests.nvidia.com/mig-3g.20gb": "1", "pods": "10"}
    body = {"metadata": {"name": "gpu"}, "status": {"hard": hard, "used": hard}}
    seen = view(quotas=[msgspec.convert(body, ResourceQuota)])
    found = explain_workload(seen, workload(3, conditions=(failure,)))
    assert found.summary == "it should have 3 pods: 3 cannot be created"
    assert found.answers[0].case == "quota"
    quoted, quota = found.answers[0].facts
    assert quoted == message
    for fact in ("quota gpu: ", "1 of 1 of requests.nvidia.com/mig-3g.20gb used", "nothing is left"):
        assert fact in quota


@pytest.mark.parametrize(
    ("message", "case"),
    [
        ('Error creating: admission webhook "x" denied the request: typo', "refused"),
        ('Error creating: Internal error occurred: failed calling webhook "x": no endpoints', "webhook-down"),
    ],
)
def test_a_job_learns_of_refusals_from_events(message: str, case: str) -> None:
    found = explain_workload(view(events=[event("rs", "FailedCreate", message)]), workload(1))
    assert found.answers[0].case == case
    assert message in found.answers[0].facts


def test_pods_that_would_take_gpus_past_kubernetes() -> None:
    by = "ValidatingAdmissionPolicy 'tessera-device-access' with binding 'tessera-device-access'"
    message = f'Error creating: pods "x" is forbidden: {by} denied request: container main chooses its GPUs itself'
    found = explain_workload(view(events=[event("rs", "FailedCreate", message)]), workload(1)).answers[0]
    assert found.case == "device-access"
    assert found.facts == ("container main chooses its GPUs itself",)
    assert any("tessera.dev/device-access=allowed" in each for each in found.help)


def test_a_suspended_job_and_one_scaled_to_nothing() -> None:
    assert "suspended" in explain_workload(view(), workload(0, suspended=True)).summary
    assert explain_workload(view(), workload(0)).summary == "it should have no pods now"


# Words


def test_the_verdict_comes_first_then_facts_then_help() -> None:
    one = Explanation(case="x", verdict="waits", facts=("fact",), help=("help",), pods=("a",))
    report = ExplanationReport(kind="pod", namespace="team", name="a", answers=(one,))
    assert list(report_lines(report)) == ["pod team/a: waits", "  - fact", "What would help:", "  - help"]


def test_a_workload_names_at_most_three_pods() -> None:
    many = Explanation(case="x", verdict="waits", pods=("a", "b", "c", "d", "e"))
    report = ExplanationReport(kind="job", namespace="team", name="j", summary="it wants 5 pods", answers=(many,))
    assert list(report_lines(report))[2] == "each of 5 pods (a, b, c and 2 more): waits"


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("a", "pod", "a"),
        ("pod/a", "pod", "a"),
        ("deploy/web", "deployment", "web"),
        ("deployment.apps/web", "deployment", "web"),
        ("rs/web-1", "replicaset", "web-1"),
        ("sts/db", "statefulset", "db"),
        ("Jobs/train", "job", "train"),
        *((f"{kind}/c", "cronjob", "c") for kind in ("cronjob", "cj", "cronjobs.batch")),
        *((f"{kind}/n1", "node", "n1") for kind in ("node", "nodes", "no", "Node")),
        *(
            (f"{kind}/c", "claim", "c")
            for kind in ("claim", "claims", "resourceclaim", "resourceclaims.resource.k8s.io")
        ),
    ],
)
def test_what_may_be_asked(text: str, kind: str, name: str) -> None:
    assert parse_query(text) == Query(kind, name)


@pytest.mark.parametrize(("text", "words"), [("secret/n", "supported are pod, node"), ("pod/", "the name is empty")])
def test_what_may_not_be_asked(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_query(text)


def test_a_gate_whose_owner_goes_last_does_not_hold_the_pod_for_tessera() -> None:
    last = "kai.scheduler/queue-admission"
    order = OrderObjects(last_gates=frozenset({last}))
    assert answer(pod(gates=(last, GATE)), order=order).case != "other-gate"
    after = answer(pod(gates=(last,)), instaslices=[cards(("a", "3g.20gb", 0, 4, ""))], order=order)
    assert after.case == "other-gate"
    assert "Tessera has gone first: its slices are promised" in after.facts
    assert "promised" not in said(answer(pod(gates=(last,)), order=order))
    late = pod(gates=(last,), status={"conditions": [{"type": SLICE_CONDITION, "status": "False"}]})
    assert any("the gate held it for too long" in fact for fact in answer(late, order=order).facts)


def test_a_gate_that_would_go_last_holds_the_pod_where_its_owner_does_not_exist() -> None:
    found = answer(pod(gates=("kai.scheduler/queue-admission", GATE)))
    assert found.case == "other-gate"
    assert found.help[0] == "find the gate's owner: kubectl get pods -A | grep -i kai"


def test_a_running_pod_is_told_which_preferences_its_node_meets() -> None:
    def prefers(value: str, weight: int) -> dict[str, Any]:
        tests = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [value]}]
        return {"weight": weight, "preference": {"matchExpressions": tests}}

    own = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [prefers("n1", 10), prefers("n2", 5)]},
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": own}]
        },
    }
    running = bound(labels={"app": "web"}, spec={"affinity": affinity}, status={"phase": "Running"})
    found = answer(running, nodes=[node("n1"), node("n2")], instaslices=[cards(("a", "3g.20gb", 4, 4, "created"))])
    assert [each for each in found.facts if each.startswith("it prefers")] == [
        "it prefers nodes by kubernetes.io/hostname (weight 10): met",
        f"it prefers nodes by kubernetes.io/hostname (weight 5): {NO_ROOM}",
        "it prefers apart from pods by kubernetes.io/hostname (weight 100): met",
    ]


NO_ROOM = "not met; where it would be, there was no room, or a place would have cost the cards more"


def node_with(name: str, *images: str, **spec: Any) -> Node:
    made = node(name, **spec)
    listed = tuple(ContainerImage(names=(each,), size_bytes=9_000 << 20) for each in images)
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, images=listed))


@pytest.mark.parametrize(
    ("others", "wanted", "image"),
    [
        ([node_with("n2")], "not met; no node is so", None),
        ([node_with("zoned"), node_with("n3", "docker.io/vllm/vllm:1")], NO_ROOM, NO_ROOM),
        ([node_with("zoned", unschedulable=True)], "not met; such nodes do not take the pod", None),
        ([node_with("n2", "docker.io/vllm/vllm:1", unschedulable=True)], "not met; no node is so", None),
        ([node_with("n2"), node_with("n3")], "not met; no node is so", "met"),
    ],
    ids=["no node is so", "no room", "closed nodes", "an image on closed nodes", "an image here"],
)
def test_what_a_node_lacks_that_a_pod_prefers_has_its_reason(
    others: list[Node], wanted: str, image: str | None
) -> None:
    tests = [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["zoned"]}]
    prefers = [{"weight": 7, "preference": {"matchExpressions": tests}}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefers}}
    own = [{"name": "c", "image": "vllm/vllm:1", "resources": {"limits": {"nvidia.com/mig-3g.20gb": "1"}}}]
    running = bound(spec={"affinity": affinity, "containers": own}, status={"phase": "Running"})
    here = node_with("n1", *(["docker.io/vllm/vllm:1"] if image == "met" else []))
    found = answer(running, nodes=[here, *others], instaslices=[cards(("a", "3g.20gb", 4, 4, "created"))])
    assert [each for each in found.facts if each.startswith("it prefers")] == [
        f"it prefers nodes by kubernetes.io/hostname (weight 7): {wanted}",
        *([f"it prefers nodes with the image docker.io/vllm/vllm:1 (by default): {image}"] if image else []),
    ]


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ("n2", "met"),
        ("n1", NO_ROOM),
        ("", None),
    ],
    ids=["another node", "the same card", "no other replica"],
)
def test_a_running_replica_is_told_whether_it_is_apart_from_the_others(other: str, found: str | None) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "uid-web", "controller": True}
    facts: dict[str, Any] = {"ownerReferences": [owner], "status": {"phase": "Running"}}
    running = bound(**facts)
    on = {"n1": [("a", "3g.20gb", 4, 4, "created")], "n2": list[tuple[str, str, int, int, str]]()}
    others = []
    if other:
        others = [bound("b", **facts, spec={"nodeName": other})]
        on[other].append(("b", "3g.20gb", 0, 4, "created"))
    told = answer(
        running,
        *others,
        nodes=[node("n1"), node("n2")],
        instaslices=[cards(*held, name=name) for name, held in on.items()],
    )
    text = f"it prefers apart from other pods of ReplicaSet/web-1 (by default): {found}"
    assert [each for each in told.facts if each.startswith("it prefers")] == ([text] if found else [])


@pytest.mark.parametrize(("count", "told"), [(1, "was restarted 1 time"), (2, "was restarted 2 times")])
def test_restarts_of_a_container_are_counted(count: int, told: str) -> None:
    container = {"name": "main", "restartCount": count}
    running = bound(status={"phase": "Running", "containerStatuses": [container]})
    found = answer(running, instaslices=[cards(("a", "3g.20gb", 0, 4, "created"))])
    assert f"container main {told}" in found.facts
