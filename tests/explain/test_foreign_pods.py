"""``tessera why`` of pods as strangers bring them: each gets a true sentence that goes to the end, and a next step."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.explain.test_fixed_resources import node as fixed_node
from tests.explain.test_pods import NOW, answer, bound, cards, event, said
from tests.explain.test_pods import node as sliced_node
from tests.explain.test_pods import pod as pod_of

from tessera.clock import rfc3339
from tessera.explain.explanation import Explanation
from tessera.explain.snapshot import ClusterView, OrderObjects, Snapshot
from tessera.explain.workloads import WorkloadState, explain_workload
from tessera.forecast.queue_page import QueuedPod, QueuePage
from tessera.kube.resources import Namespace, Node, ObjectReference, Pod, ResourceQuota, Uid
from tessera.kueue.positions import QueueReading
from tessera.reasons.node_rules import NodeRule, RuleKind
from tessera.reasons.reason import NoNode, RuleCount
from tessera.reasons.words import sentence

GPU = {"nvidia.com/gpu": "1"}


def pod(limits: Mapping[str, str], **more: Any) -> Pod:
    return pod_of(profile="", gates=(), limits=dict(limits), **more)


def gated_whole(limits: Mapping[str, str]) -> Pod:
    """A pod of a managed namespace."""
    return pod_of(profile="", limits=dict(limits))


def said_by_scheduler(message: str, reason: str = "Unschedulable") -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]}


def with_gpus(name: str = "g1", gives: Mapping[str, str] = GPU, **spec: Any) -> Node:
    found = fixed_node(name, dict(gives))
    labels = {"kubernetes.io/hostname": name}
    return msgspec.structs.replace(
        found,
        metadata=msgspec.structs.replace(found.metadata, labels=labels),
        spec=msgspec.convert(spec, type(found.spec)),
    )


class Row(NamedTuple):
    """A stranger's pod, its cluster, and what must stand in the answer."""

    pod: Pod
    case: str
    verdict: str
    says: tuple[str, ...]
    nodes: tuple[Node, ...] = ()
    others: tuple[Pod, ...] = ()
    never: tuple[str, ...] = ()


def taint(key: str) -> dict[str, Any]:
    return {"taints": [{"key": key, "value": "x", "effect": "NoSchedule"}]}


AFFINE = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}]
            }
        }
    }
}
NOT_GATE = ("without Tessera's gate", "the webhook runs")
ROWS = {
    "whole card on a sliced cluster": Row(
        pod(GPU),
        "not-offered",
        "waits for nvidia.com/gpu, which no node offers",
        ("request the largest slice instead: nvidia.com/mig-7g.40gb", "tessera.dev/gpu-memory", "all-disabled"),
    ),
    "whole card on a sliced cluster, managed": Row(
        gated_whole(GPU),
        "not-offered",
        "waits; no node has nvidia.com/gpu",
        ("request the largest slice instead: nvidia.com/mig-7g.40gb",),
    ),
    "a shared slice that no node offers": Row(
        pod({"nvidia.com/mig-1g.5gb.shared": "1"}),
        "not-offered",
        "waits for nvidia.com/mig-1g.5gb.shared, which no node offers",
        ("request a slice of its own: nvidia.com/mig-1g.5gb", "nvidia.com/device-plugin.config"),
        never=NOT_GATE,
    ),
    "shares that no node offers": Row(
        pod({"nvidia.com/gpu.shared": "2"}),
        "not-offered",
        "waits for nvidia.com/gpu.shared, which no node offers",
        ("by a sharing profile",),
    ),
    "a profile that no node offers": Row(
        pod({"nvidia.com/mig-4g.24gb": "1"}),
        "not-offered",
        "waits for nvidia.com/mig-4g.24gb, which no node offers",
        ("nodes make on demand", "tessera plan mig MODEL 4g.24gb=1"),
        never=NOT_GATE,
    ),
    "a name of a sharing profile": Row(
        pod({"nvidia.com/t4-ts4": "1"}),
        "not-offered",
        "waits for nvidia.com/t4-ts4, which no node offers",
        ("by a sharing profile that gives this name",),
    ),
    "HAMi": Row(
        pod({**GPU, "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}),
        "not-offered",
        "waits for nvidia.com/gpucores, nvidia.com/gpumem, which no node offers",
        ("the annotation tessera.dev/gpu-memory: 3000Mi", "remove nvidia.com/gpu, nvidia.com/gpucores", "percentage"),
        nodes=(with_gpus(),),
        never=("label the node with a layout",),
    ),
    "HAMi in a managed namespace": Row(
        gated_whole({**GPU, "nvidia.com/gpumem": "8000"}),
        "never-fits",
        "cannot run in this cluster; no node could ever take it: it requests 8000 nvidia.com/gpumem",
        ("the annotation tessera.dev/gpu-memory: 8000Mi",),
        nodes=(with_gpus(),),
    ),
    "HAMi beside a slice": Row(
        pod_of(limits={"nvidia.com/gpumem": "8000"}),
        "never-fits",
        "cannot run in this cluster; no node could ever take it: it requests 8000 nvidia.com/gpumem",
        ("the annotation tessera.dev/gpu-memory: 8000Mi",),
    ),
    "Volcano's shares": Row(
        pod({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}),
        "not-offered",
        "waits for volcano.sh/vgpu-memory, volcano.sh/vgpu-number, which no node offers",
        ("tessera.dev/gpu-memory: 3000Mi",),
    ),
    "nos' shares by memory": Row(
        pod({"nvidia.com/gpu-10gb": "1"}), "not-offered", "waits for nvidia.com/gpu-10gb", ("gpu-memory: 10Gi",)
    ),
    "cards of another vendor": Row(
        pod({"amd.com/gpu": "1"}),
        "not-offered",
        "waits for amd.com/gpu, which no node offers",
        ("the device plugin of its vendor",),
    ),
    "a network card beside a card": Row(
        pod({**GPU, "rdma/hca": "1"}),
        "not-offered",
        "waits for rdma/hca, which no node offers",
        ("see who should serve rdma/hca",),
        nodes=(with_gpus(),),
    ),
    "huge pages that no node has": Row(
        pod({**GPU, "hugepages-2Mi": "64Mi"}),
        "not-offered",
        "waits for hugepages-2Mi, which no node offers",
        ("request no hugepages-2Mi, or let a node have it",),
        nodes=(with_gpus(),),
    ),
    "a network card beside a slice": Row(
        pod_of(limits={"rdma/hca": "1"}),
        "never-fits",
        "cannot run in this cluster; no node could ever take it: it requests 1 rdma/hca",
        ("it requests 1 rdma/hca; n1 has 0", "see who should serve rdma/hca"),
    ),
    "a selector on a full node": Row(
        pod_of(profile="7g.40gb", spec={"nodeSelector": {"gpu": "x"}}),
        "no-node",
        "waits; 0 of 1 nodes can take it: 1 node(s) didn't match Pod's node affinity/selector",
        ("(kubectl get node n1 --show-labels); and there is room as soon as this ends",),
        others=(bound("b"),),
    ),
    "plural": Row(
        pod({"nvidia.com/gpus": "1"}), "misspelt", "cannot run as written", ("request nvidia.com/mig-7g.40gb",)
    ),
    "capitals": Row(
        pod({"nvidia.com/MIG-3g.20gb": "1"}), "misspelt", "cannot run as written", ("request nvidia.com/mig-3g.20gb",)
    ),
    "domain without com": Row(
        pod({"nvidia/mig-3g.20gb": "1"}), "misspelt", "cannot run as written", ("request nvidia.com/mig-3g.20gb",)
    ),
    "another slicer": Row(
        pod({"org.instaslice/mig-1g.5gb": "1"}), "misspelt", "cannot run", ("request nvidia.com/mig-1g.5gb",)
    ),
    "another scheduler that nobody runs": Row(
        pod(GPU, spec={"schedulerName": "runai-scheduler"}),
        "other-scheduler",
        "waits for scheduler runai-scheduler (spec.schedulerName), and nothing shows that it runs",
        ("kubectl get pods -A | grep -i runai", "leave spec.schedulerName out"),
        nodes=(with_gpus(),),
    ),
    "another scheduler that serves others": Row(
        pod(GPU, spec={"schedulerName": "volcano"}),
        "unscheduled",
        "waits for volcano, which has not bound it yet",
        ("node g1 has all that it requests free",),
        nodes=(with_gpus(),),
        others=(bound("b", "", spec={"schedulerName": "volcano", "nodeName": "elsewhere"}),),
    ),
    "another scheduler that said why": Row(
        pod(GPU, spec={"schedulerName": "volcano"}, status=said_by_scheduler("queue is closed")),
        "unscheduled",
        "waits for volcano",
        ("volcano last said: queue is closed",),
        nodes=(with_gpus(),),
    ),
    "a full card and a scheduler that nobody runs": Row(
        pod_of(profile="7g.40gb", spec={"schedulerName": "kai-scheduler"}),
        "full",
        "waits for room",
        ("it needs scheduler kai-scheduler (spec.schedulerName) after its gate, and nothing shows that this runs",),
        others=(bound("b"),),
    ),
    "a gate that nobody owns": Row(
        pod_of(gates=("example.com/hold",)),
        "other-gate",
        "waits; it has the gate example.com/hold, not Tessera's: its owner removes it",
        ("grep -i example", "if the cluster has none, create the pod again without the gate"),
    ),
    "selector to nothing": Row(
        pod(GPU, spec={"nodeSelector": {"gpu": "a100"}}),
        "no-node",
        "waits; the only node that offers what it requests may not take it",
        (
            "1 node didn't match Pod's node affinity/selector: g1",
            "change the pod's nodeSelector",
            "spec.nodeSelector asks for gpu=a100, and no node has a label gpu",
        ),
        nodes=(with_gpus(),),
        never=("all that it requests free",),
    ),
    "a selector with a value that no node has": Row(
        pod_of(spec={"nodeSelector": {"kubernetes.io/hostname": "node-9"}}),
        "no-node",
        "waits; 0 of 1 nodes can take it: 1 node(s) didn't match",
        ("spec.nodeSelector asks for kubernetes.io/hostname=node-9, and no node has this value; nodes have n1",),
    ),
    "a selector with a misspelt label": Row(
        pod(GPU, spec={"nodeSelector": {"kubernetes.io/hostnam": "g1"}}),
        "no-node",
        "waits; the only node",
        ("and no node has a label kubernetes.io/hostnam; did you mean kubernetes.io/hostname?",),
        nodes=(with_gpus(),),
    ),
    "selector to nothing beside a node without cards": Row(
        pod(GPU, spec={"nodeSelector": {"gpu": "a100"}}),
        "no-node",
        "waits; none of the 2 nodes that offer what it requests may take it",
        ("2 nodes didn't match Pod's node affinity/selector: g1, g2",),
        nodes=(with_gpus(), with_gpus("g2"), fixed_node("plain")),
    ),
    "affinity to nothing": Row(
        pod(GPU, spec=AFFINE),
        "no-node",
        "waits; the only node",
        ("its node affinity asks for zone=z, and no node has a label zone",),
        nodes=(with_gpus(),),
    ),
    "two taints": Row(
        pod(GPU),
        "no-node",
        "waits; the only node that offers what it requests may not take it",
        ("taints sku and team, or remove them: kubectl taint node g1 sku- team-",),
        nodes=(with_gpus(taints=[*taint("sku")["taints"], *taint("team")["taints"]]),),
    ),
    "a cordoned node": Row(
        pod(GPU), "no-node", "waits; the only node", ("kubectl uncordon g1",), nodes=(with_gpus(unschedulable=True),)
    ),
    "CPU that no node has": Row(
        pod({**GPU, "cpu": "500"}),
        "too-many",
        "waits for 500 CPUs, more than any node offers",
        ("the most on one node is 8 CPUs", "request at most 8 CPUs"),
        nodes=(with_gpus(),),
    ),
    "card and CPU on different nodes": Row(
        pod({**GPU, "cpu": "7"}),
        "too-many",
        "waits; no node has all that it requests, even when empty",
        ("g1 has 4", "plain has 0"),
        nodes=(with_gpus(gives={**GPU, "cpu": "4"}), fixed_node("plain")),
    ),
    "cards that others hold": Row(
        pod(GPU),
        "in-use",
        "waits for nvidia.com/gpu: the node that may take it has too little free",
        (
            "node g1: 1 of 1 nvidia.com/gpu in use",
            "there is room as soon as this ends, on node g1: pod team/b",
            "or use node g2, which has it free: let the pod tolerate the taint other, or remove it: kubectl taint",
        ),
        nodes=(with_gpus(), with_gpus("g2", **taint("other"))),
        others=(bound("b", "", limits=GPU, spec={"nodeName": "g1"}),),
    ),
    "a claim that does not exist": Row(
        pod(GPU, status=said_by_scheduler('0/1 nodes are available: persistentvolumeclaim "data" not found.')),
        "volume",
        "waits for its volumes",
        ('last said: 0/1 nodes are available: persistentvolumeclaim "data" not found', "kubectl get persistentvolume"),
        nodes=(with_gpus(),),
    ),
    "a claim that does not exist, though all cards are held too": Row(
        pod(GPU, status=said_by_scheduler('0/1 nodes are available: persistentvolumeclaim "data" not found.')),
        "volume",
        "waits for its volumes",
        ('persistentvolumeclaim "data" not found',),
        nodes=(with_gpus(),),
        others=(bound("b", "", limits=GPU, spec={"nodeName": "g1"}),),
        never=("there is room as soon as",),
    ),
    "a selector for a node that slices": Row(
        pod(GPU, spec={"nodeSelector": {"kubernetes.io/hostname": "n1"}}),
        "no-node",
        "waits; the only node that offers what it requests may not take it",
        (
            "its rules let it onto node n1, which has too little even when empty: nvidia.com/gpu",
            "or request what node n1 has: nvidia.com/mig-1g.10gb",
        ),
        nodes=(with_gpus(), sliced_node()),
    ),
    "slices taken back from a pod of another scheduler": Row(
        pod_of(
            gates=(),
            spec={"schedulerName": "kai-scheduler", "nodeSelector": {"kubernetes.io/hostname": "n1"}},
            limits={"instaslice.redhat.com/accelerator-memory-quota": "20"},
            status={"conditions": [{"type": "tessera.dev/SliceAvailable", "status": "False", "message": "taken back"}]},
        ),
        "taken-back",
        "waits for scheduler kai-scheduler, and nothing shows that it runs; Tessera gave its place to the next pod",
        ("it requests 3g.20gb", "taken back", "leave spec.schedulerName out", "kubectl delete pod -n team a"),
    ),
    "a pod that ends nobody": Row(
        pod_of(profile="7g.40gb", spec={"priority": 100, "preemptionPolicy": "Never"}),
        "full",
        "waits for room",
        ("its priority 100 puts it before others, and ends none of them (preemptionPolicy: Never)",),
        others=(bound("b"),),
    ),
    "a scheduler's word about gates that are gone": Row(
        pod(
            GPU, status=said_by_scheduler("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated")
        ),
        "unscheduled",
        "waits for kube-scheduler, which has not bound it yet",
        ("kube-scheduler has said nothing about it yet",),
        nodes=(with_gpus(),),
        never=("scheduling gates",),
    ),
    "claims of devices": Row(
        pod({}, spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}),
        "claims",
        "asks for devices by its ResourceClaims gpu; who serves them is not known here",
        ("kubectl get resourceclaims,deviceclasses -n team",),
    ),
    "a runtime class without a limit": Row(
        pod({}, spec={"runtimeClassName": "nvidia"}),
        "no-slices",
        "does not request a GPU",
        ("runtimeClassName nvidia gives it no card; only a limit does",),
    ),
    "a label instead of an annotation": Row(
        pod({}, labels={"tessera.dev/gpu-memory": "10Gi"}),
        "no-slices",
        "does not request a GPU",
        ("its label tessera.dev/gpu-memory has no effect: it is an annotation, in metadata.annotations",),
    ),
    "an annotation that nobody reads": Row(
        pod({}, annotations={"tessera.dev/moveable": "true"}),
        "no-slices",
        "does not request a GPU",
        ("Tessera reads no annotation of this name; did you mean tessera.dev/movable?",),
    ),
    "an annotation instead of a label": Row(
        pod(GPU, annotations={"tessera.dev/queue": "blue"}),
        "unscheduled",
        "waits for kube-scheduler",
        ("its annotation tessera.dev/queue has no effect: it is a label, in metadata.labels",),
        nodes=(with_gpus(),),
    ),
    "a node's label on a pod": Row(
        pod(GPU, annotations={"nvidia.com/mig.config": "all-1g.5gb"}),
        "unscheduled",
        "waits for kube-scheduler",
        ("its annotation nvidia.com/mig.config has no effect: it is a label of nodes (kubectl label node NODE ",),
        nodes=(with_gpus(),),
    ),
    "a resource among the annotations": Row(
        pod({}, annotations={"nvidia.com/mig-1g.5gb": "1"}),
        "no-slices",
        "does not request a GPU",
        ("its annotation nvidia.com/mig-1g.5gb has no effect: it is a resource, in resources.limits of a container",),
    ),
    "a resource as a selector": Row(
        pod(GPU, spec={"nodeSelector": {"nvidia.com/gpu": "1"}}),
        "no-node",
        "waits; the only node",
        ("its nodeSelector nvidia.com/gpu matches no node: it is a resource, in resources.limits of a container",),
        nodes=(with_gpus(),),
    ),
    "HAMi's annotations": Row(
        pod(GPU, annotations={"nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"}),
        "unscheduled",
        "waits for kube-scheduler",
        ("its annotation nvidia.com/gpumem has no effect: other systems share a card by it; here the annotation",),
        nodes=(with_gpus(),),
    ),
    "a fraction of KAI or Run:ai": Row(
        pod({}, annotations={"gpu-fraction": "0.5"}),
        "no-slices",
        "does not request a GPU",
        ("its annotation gpu-fraction has no effect: other systems share a card by it",),
    ),
    "preemption by kube-scheduler": Row(
        pod(GPU, status={"nominatedNodeName": "g1", **said_by_scheduler("Insufficient nvidia.com/gpu")}),
        "in-use",
        "waits for nvidia.com/gpu",
        ("kube-scheduler ends pods of lower priority for it on node g1",),
        nodes=(with_gpus(),),
        others=(bound("b", "", limits=GPU, spec={"nodeName": "g1"}),),
    ),
}


def answer_of(row: Row) -> Explanation:
    nodes = row.nodes or (sliced_node(),)
    held = [(each.metadata.name, "3g.20gb", 0, 4, "created") for each in row.others if not row.nodes]
    return answer(row.pod, *row.others, nodes=list(nodes), instaslices=[] if row.nodes else [cards(*held)])


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_foreign_pod_is_told_the_cause_to_its_end_and_a_next_step(row: Row) -> None:
    found = answer_of(row)
    assert (found.case, found.verdict[: len(row.verdict)]) == (row.case, row.verdict)
    assert found.help
    for words in row.says:
        assert words in said(found)
    for words in row.never:
        assert words not in said(found)


def test_a_quota_that_counts_nothing_and_a_label_of_the_namespace_among_its_annotations_are_told() -> None:
    """Kubernetes takes both without a word: the quota is never reached, and the namespace is in no queue."""
    meta = {"name": "gpu-quota", "namespace": "team"}
    wrong = ("nvidia.com/mig-1g.5gb", "limits.nvidia.com/mig-1g.5gb")
    spec = {"hard": {**dict.fromkeys(wrong, "2"), "requests.nvidia.com/mig-2g.10gb": "1"}}
    quota = msgspec.convert({"metadata": meta, "spec": spec}, ResourceQuota)
    annotations = {"tessera.dev/placement": "managed"}
    team = msgspec.convert({"metadata": {"name": "team", "annotations": annotations}}, Namespace)
    waits = pod_of(profile="1g.5gb", limits={"nvidia.com/mig-2g.10gb": "1"})
    found = answer(waits, nodes=[sliced_node()], quotas=[quota], order=OrderObjects(namespaces=[team]))
    counts = [each for each in found.facts if "counts nothing" in each]
    assert [each.partition(": ")[0] for each in counts] == [
        f"quota gpu-quota counts nothing for {key}" for key in wrong
    ]
    for each in counts:
        assert "as requests.nvidia.com/mig-1g.5gb (kubectl edit resourcequota -n team gpu-quota)" in each
    step = "kubectl label namespace team tessera.dev/placement=managed"
    assert (
        f"the annotation tessera.dev/placement of namespace team has no effect: it is a label ({step})" in found.facts
    )


def test_a_resource_that_a_limit_range_wrote_into_a_pod_is_told() -> None:
    """Its author asked for no card: the namespace has a maximum, which is the default of each container."""
    told = "LimitRanger plugin set: memory request for container a; memory, nvidia.com/gpu limit for container a"
    who = pod({"nvidia.com/gpu": "1"}, annotations={"kubernetes.io/limit-ranger": told})
    (fact,) = [each for each in answer(who, nodes=[sliced_node()]).facts if "LimitRange" in each]
    assert "wrote a limit into it: memory, nvidia.com/gpu limit for container a; a maximum without a default" in fact
    asked = pod(
        {"nvidia.com/gpu": "1"}, annotations={"kubernetes.io/limit-ranger": told.replace("nvidia.com/gpu", "x")}
    )
    assert not [each for each in answer(asked, nodes=[sliced_node()]).facts if "LimitRange" in each]


def waits_for_volume() -> QueuePage:
    why = NoNode((RuleCount(NodeRule(RuleKind.CLAIM, '"data" not found'), 1),))
    row = QueuedPod(namespace="team", name="a", uid="uid-a", reason=why.case, detail=sentence(why), why=why)
    return QueuePage(leads=True, pods=(row,))


def test_a_slice_that_waits_for_a_claim_is_told_so_in_the_words_of_a_card_that_does() -> None:
    """The plan made from what a reader sees knows no volumes; the controller's does."""
    found = answer(pod_of(), page=waits_for_volume())
    verdict = 'waits; 0 of 1 nodes can take it: 1 persistentvolumeclaim "data" not found'
    assert (found.case, found.verdict) == ("volume", verdict)
    assert found.help[-1].endswith("kubectl get persistentvolumeclaims,storageclasses -n team")


SUSPENDED: dict[str, Any] = {
    "kind": "job",
    "namespace": "team",
    "name": "train",
    "controller_uids": frozenset({"job"}),
    "desired": 0,
    "suspended": True,
}


@pytest.mark.parametrize(
    ("queue", "reading", "verdict"),
    [
        ("", QueueReading(installed=False), "are created once the job is resumed (spec.suspend)"),
        ("q", QueueReading(installed=False), "names the queue q of Kueue, which is not installed"),
        ("q", QueueReading(), "names the queue q of Kueue, which has no Workload for it"),
        ("q", QueueReading(forbidden=("workloads",)), "names the queue q of Kueue, which you may not read (workloads)"),
    ],
)
def test_a_suspended_job_is_told_who_resumes_it(queue: str, reading: QueueReading, verdict: str) -> None:
    view = ClusterView(Snapshot(now=NOW, queues=reading))
    (found,) = explain_workload(view, WorkloadState(**SUSPENDED, queue=queue)).answers
    assert found.case == "suspended"
    assert found.verdict.endswith(verdict)
    assert """kubectl patch job -n team train -p '{"spec":{"suspend":false}}'""" in found.help[-1]


@pytest.mark.parametrize(
    ("message", "step"),
    [
        ('pods "x" is forbidden: pod rejected: RuntimeClass "nope" not found', "remove runtimeClassName"),
        ('pods "x" is forbidden: error looking up service account: serviceaccount "s" not found', "create the service"),
        (
            'pods "x" is forbidden: failed quota: q: must specify limits.cpu for: c',
            "requests and limits that the quota",
        ),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged', "Pod Security label"),
        ('admission webhook "gpus.tessera.dev" denied the request: container "c"', "as the message says"),
        ("something of the future", "do what the message asks for"),
    ],
)
def test_a_refused_pod_is_told_what_to_change(message: str, step: str) -> None:
    state = {**SUSPENDED, "suspended": False, "desired": 1}
    refused = event("job", "FailedCreate", message)
    view = ClusterView(Snapshot(now=NOW, events=[msgspec.structs.replace(refused, involved_object=about("job"))]))
    (found,) = explain_workload(view, WorkloadState(**state)).answers
    assert (found.case, found.facts) == ("refused", (message,))
    assert step in found.help[0]


def test_a_refusal_before_the_last_created_pod_is_over() -> None:
    old = msgspec.structs.replace(event("job", "FailedCreate", "no"), last_timestamp=rfc3339(NOW - 60))
    new = event("job", "SuccessfulCreate", "yes", kind="Normal")
    events = [msgspec.structs.replace(each, involved_object=about("job")) for each in (old, new)]
    state = {**SUSPENDED, "suspended": False, "desired": 1}
    assert explain_workload(ClusterView(Snapshot(now=NOW, events=events)), WorkloadState(**state)).answers == ()


def about(uid: str) -> ObjectReference:
    return ObjectReference(uid=Uid(uid))
