"""Each check finds what it is for, and nothing in a cluster that is as it should be."""

import base64
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.kube.certificates import Authority

from tessera.api.nodes.card_faults import CARDS_ANNOTATION, encode_cards
from tessera.api.nodes.preflights import PREFLIGHT_ANNOTATION, CardTest, encode_tests
from tessera.cli.install.variants import PROTECTIONS, without_protections
from tessera.clock import rfc3339_micro
from tessera.doctor.facts import ClusterFacts, Finding, Refusal, Verdict
from tessera.doctor.installation_checks import check_installation
from tessera.doctor.installed_objects import POLICIES, places
from tessera.doctor.manifests import install_manifests, page_manifests
from tessera.doctor.platform_checks import check_platform
from tessera.kube.resources import CoreEvent, Node, ObjectReference
from tessera.text import REINSTALL

NOW = time.time()
FORBIDDEN = Refusal("Error from server (Forbidden): no", lacks_right=True)
UNANSWERED = Refusal("Error from server (InternalError): etcd is slow")
MISSING = Refusal("Error from server (NotFound): none", missing=True)


def node(name: str = "n1", *, ready: str = "True", wrong: str = "", **info: str) -> Node:
    told = {"kubeletVersion": "v1.34.1", "containerRuntimeVersion": "containerd://2.1.4", **info}
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}},
            "status": {
                "nodeInfo": told,
                "conditions": [
                    {"type": "Ready", "status": ready},
                    {"type": "GpuHealthy", "status": "True"},
                    {"type": "GpuNodeReady", "status": "False" if wrong else "True", "reason": wrong},
                ],
            },
        },
        Node,
    )


WRONG_TWICE = msgspec.convert(
    {
        "metadata": {"name": "n1"},
        "status": {
            "conditions": [
                {"type": "GpuHealthy", "status": "False", "reason": "CardUnhealthy"},
                {"type": "GpuMigLayoutApplied", "status": "False", "reason": "NvmlFailed"},
            ]
        },
    },
    Node,
)

PASSED = CardTest(index=3, gpu="GPU-3", at=7)
FAILED = msgspec.structs.replace(PASSED, finding="copies are too slow")
SKIPPED = msgspec.structs.replace(PASSED, skipped="a pod holds it")


def after(*tests: CardTest) -> Node:
    found = node()
    found.metadata.annotations[PREFLIGHT_ANNOTATION] = encode_tests(tests)
    return found


HOLDS = msgspec.convert(
    {
        "metadata": {"name": "n2", "annotations": {CARDS_ANNOTATION: encode_cards((), (), {"nvidia.com/gpu": 1})}},
        "status": {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": "3"}},
    },
    Node,
)

SILENT = msgspec.convert(
    {
        "metadata": {"name": "n9"},
        "status": {
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "GpuHealthy", "status": "Unknown", "reason": "AgentStatusUnknown"},
            ]
        },
    },
    Node,
)


def pod(app: str, name: str = "n1", *, ready: str = "True", image: str = "tessera:1") -> Mapping[str, Any]:
    kind = {"apiVersion": "apps/v1", "kind": "DaemonSet", "uid": "u", "controller": True}
    return {
        "metadata": {
            "name": f"{app}-{name}",
            "namespace": "tessera-system",
            "labels": {"app.kubernetes.io/name": app},
            "ownerReferences": [{**kind, "name": app}],
        },
        "spec": {"nodeName": name, "containers": [{"image": image}]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def daemon_set(container: str, scheduled: int = 1) -> Mapping[str, Any]:
    return {
        "metadata": {"name": "theirs", "namespace": "gpu-operator"},
        "spec": {"template": {"spec": {"containers": [{"name": container}]}}},
        "status": {"desiredNumberScheduled": scheduled},
    }


def lease(name: str, age: float) -> Mapping[str, Any]:
    return {"metadata": {"name": name}, "spec": {"renewTime": rfc3339_micro(NOW - age), "leaseDurationSeconds": 15}}


def webhook(hours: int | None) -> Mapping[str, Any]:
    if hours is None:
        return {"webhooks": [{"clientConfig": {}}]}
    bundle = base64.b64encode(Authority(hours=(-99, hours)).pem).decode()
    return {"webhooks": [{"clientConfig": {"caBundle": bundle}}]}


def groups(cards: str) -> Mapping[str, Any]:
    return {"data": {"groups.yaml": f"groups: [{{name: a, selector: {{pool: a}}, cards: {cards}}}]"}}


def definition(name: str, established: str = "True") -> Mapping[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Established", "status": established}]}}


APPS = ("tessera-agent", "tessera-controller", "tessera-webhook")
PODS = [*map(pod, APPS), pod("tessera-webhook", "n2"), pod("tessera-dashboard")]
MANIFESTS = (*install_manifests(), *page_manifests())
POLICY = "ValidatingAdmissionPolicy"
PRIVILEGED = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
VALID = webhook(90 * 24)


def cluster_of(manifests: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The facts about the objects of a cluster that has these alone."""
    there = [(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in manifests]
    has = [name for kind, _, name in there if kind in {"MutatingWebhookConfiguration", "Namespace"}]
    return {
        "names": {
            (kind.label, where): [name for of, at, name in there if (of, at) == (kind.kind, where)]
            for kind, where in places()
        },
        "bindings": [name for kind, _, name in there if kind == f"{POLICY}Binding"],
        "definitions": [definition(name) for kind, _, name in there if kind == "CustomResourceDefinition"],
        "webhook": VALID if "tessera-webhook" in has else MISSING,
        "namespace": PRIVILEGED if "tessera-system" in has else MISSING,
    }


REFUSED_POD = CoreEvent(
    involved_object=ObjectReference(kind="DaemonSet", namespace="csi", name="node"),
    reason="FailedCreate",
    message="pods \"node-\" is forbidden: ValidatingAdmissionPolicy 'tessera-device-access' with binding"
    " 'tessera-device-access' denied request: container driver is privileged",
)
HEALTHY = ClusterFacts(
    version="v1.34.1",
    nodes=[node()],
    pods=PODS,
    daemon_sets=[daemon_set("agent"), daemon_set("nvidia-mig-manager", 0)],
    leader=lease("tessera-controller", 2),
    node_leases=[lease("n1", 8), lease("gone", 9_000)],
    gates={"PodSchedulingReadiness": True},
    exempt=["calico-system"],
    refused=[],
    settings={"tessera-system/sharing-profiles": True, "tessera-system/mig-layouts": True},
    node_groups=MISSING,
    repairs=MISSING,
    trial=Refusal('admission webhook "gpus.tessera.dev" denied the request: container "trial": asks for 1 of ...'),
    rights={"tessera map": []},
    skew=0.4,
    now=NOW,
    **cluster_of(MANIFESTS),
)


def examine(facts: ClusterFacts) -> Sequence[Finding]:
    return [*check_platform(facts), *check_installation(facts)]


def test_a_healthy_cluster_has_no_other_finding() -> None:
    assert {each.verdict for each in examine(HEALTHY)} == {Verdict.OK}


def test_every_object_of_the_manifests_is_missed() -> None:
    assert set(cluster_of(MANIFESTS)["bindings"]) == set(POLICIES)
    forgotten = []
    for gone in MANIFESTS:
        rest = cluster_of(each for each in MANIFESTS if each is not gone)
        found = [each for each in examine(msgspec.structs.replace(HEALTHY, **rest)) if each.verdict is not Verdict.OK]
        text = " ".join(f"{each.text} {each.advice} {' '.join(each.objects)}" for each in found)
        name = gone["metadata"]["name"]
        if not (name in text or (name == "tessera-system" and "Tessera is not installed" in text)):
            forgotten.append((gone["kind"], name))
    assert not forgotten


@pytest.mark.parametrize("left_out", [*PROTECTIONS, "device-access", "page", "all"])
def test_what_an_installation_may_leave_out_is_not_missed(left_out: str) -> None:
    every = PROTECTIONS if left_out == "all" else [left_out] if left_out in PROTECTIONS else []
    page = [] if left_out in {"page", "all"} else page_manifests()
    made = without_protections([*install_manifests(), *page], every)
    if left_out == "device-access":
        made = [each for each in made if each["metadata"]["name"] != "tessera-device-access"]
    found = examine(msgspec.structs.replace(HEALTHY, **cluster_of(made)))
    assert Verdict.ERROR not in {each.verdict for each in found}
    (objects,) = [each for each in found if each.check == "objects"]
    assert (objects.verdict, "the live page" in objects.text) == (Verdict.OK, not page)


def test_an_api_service_and_a_policy_that_are_missing_are_named_with_the_next_step() -> None:
    gone = {"v1alpha1.view.tessera.dev", "tessera-pins"}
    kinds = {"APIService", POLICY}
    rest = cluster_of(each for each in MANIFESTS if each["kind"] not in kinds or each["metadata"]["name"] not in gone)
    (found,) = [each for each in examine(msgspec.structs.replace(HEALTHY, **rest)) if each.verdict is not Verdict.OK]
    assert (found.check, found.verdict, found.advice) == ("objects", Verdict.ERROR, REINSTALL)
    assert found.objects == ("validatingadmissionpolicy/tessera-pins", "apiservice/v1alpha1.view.tessera.dev")


def test_kinds_that_the_asker_may_not_list_are_not_called_missing() -> None:
    names = {place: FORBIDDEN if place[0] == "services" else found for place, found in HEALTHY.names.items()}
    (found,) = [
        each for each in examine(msgspec.structs.replace(HEALTHY, names=names)) if each.verdict is not Verdict.OK
    ]
    assert (found.verdict, found.lacks_right) == (Verdict.UNKNOWN, True)
    assert found.text == "not examined: that needs the right to list services"


def test_a_wrong_node_group_is_told_with_object_field_value_rule_effect_and_next_step() -> None:
    wrong = groups("{model: L40S, kind: whole, count: 65}")
    found = examine(msgspec.structs.replace(HEALTHY, node_groups=wrong))
    (finding,) = (each for each in found if each.check == "node-groups")
    assert finding.objects == ("configmap/tessera-node-groups in tessera-system",)
    assert finding.text == (
        "ConfigMap tessera-node-groups: groups.yaml: Expected `int` <= 64 - at `$.groups[0].cards.count`: 65; correct"
        " the file; until then no new node is asked for, and pods for any new node are admitted"
    )
    assert finding.advice.startswith(
        "kubectl edit configmap tessera-node-groups -n tessera-system, or correct what made"
    )


def test_right_node_groups_are_counted() -> None:
    found = examine(msgspec.structs.replace(HEALTHY, node_groups=groups("{model: H200, count: 8}")))
    (finding,) = (each for each in found if each.check == "node-groups")
    assert (finding.verdict, finding.text) == (Verdict.OK, "1 group of new nodes")


NOT_PULLED = {
    **pod("tessera-agent", ready="False"),
    "status": {
        "containerStatuses": [
            {"image": "tessera:0.2.0", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "pull denied"}}}
        ]
    },
}
INSTASLICE = {
    "metadata": {"name": "instaslice-operator-controller-daemonset", "namespace": "instaslice-system"},
    "spec": {"template": {"spec": {"containers": [{"name": "daemonset"}]}}},
    "status": {"desiredNumberScheduled": 1},
}
BASELINE = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
CASES: Sequence[tuple[str, Any, str, Verdict, str]] = [
    ("version", "v1.30.9", "kubernetes", Verdict.ERROR, "v1.30.9"),
    ("version", FORBIDDEN, "kubernetes", Verdict.UNKNOWN, "Forbidden"),
    ("version", "main", "kubernetes", Verdict.UNKNOWN, "main"),
    ("external_metrics", FORBIDDEN, "external-metrics", Verdict.UNKNOWN, "Forbidden"),
    ("gates", {"PodSchedulingReadiness": False}, "feature-gates", Verdict.ERROR, "PodSchedulingReadiness"),
    ("gates", FORBIDDEN, "feature-gates", Verdict.UNKNOWN, "/metrics"),
    ("nodes", [], "gpu-nodes", Verdict.WARNING, "no node"),
    ("nodes", FORBIDDEN, "nodes", Verdict.UNKNOWN, "list nodes"),
    ("nodes", [node(kubeletVersion="v1.29.0")], "kubelet", Verdict.ERROR, "n1"),
    ("nodes", [node(containerRuntimeVersion="containerd://1.6.36")], "runtime", Verdict.ERROR, "n1"),
    ("nodes", [node(containerRuntimeVersion="containerd://1.7.20")], "runtime", Verdict.WARNING, "off by default"),
    ("nodes", [node(containerRuntimeVersion="docker://27.1.0")], "runtime", Verdict.WARNING, "not known"),
    ("nodes", [node(ready="False")], "ready", Verdict.WARNING, "n1"),
    ("nodes", [node(), node("n9")], "agents", Verdict.ERROR, "n9: no pod of DaemonSet"),
    ("nodes", [node(ready="Unknown")], "agents", Verdict.UNKNOWN, "n1: the node is not ready"),
    ("nodes", [node(), SILENT], "node-conditions", Verdict.WARNING, "n9 GpuHealthy: AgentStatusUnknown"),
    ("daemon_sets", [daemon_set("nvidia-device-plugin")], "others", Verdict.ERROR, "daemonset/theirs in gpu-operator"),
    ("daemon_sets", [INSTASLICE], "others", Verdict.ERROR, "InstaSlice slices the same cards"),
    ("daemon_sets", FORBIDDEN, "others", Verdict.UNKNOWN, "list daemonsets"),
    ("skew", -30.0, "clock", Verdict.WARNING, "30 s ahead of"),
    ("skew", 30.0, "clock", Verdict.WARNING, "30 s behind"),
    ("node_leases", [lease("n1", -20)], "node-clocks", Verdict.WARNING, "ahead: n1"),
    ("node_leases", [lease("n1", 120)], "node-clocks", Verdict.WARNING, "late: n1"),
    ("node_leases", FORBIDDEN, "node-clocks", Verdict.UNKNOWN, "leases"),
    ("rights", {"tessera top": ["get pods/proxy in tessera-system"]}, "rights", Verdict.WARNING, "pods/proxy"),
    ("namespace", BASELINE, "pod-security", Verdict.ERROR, "baseline"),
    ("definitions", [], "definitions", Verdict.ERROR, "instaslices.inference.redhat.com"),
    (
        "definitions",
        [definition("instaslices.inference.redhat.com", "False")],
        "definitions",
        Verdict.ERROR,
        "not served",
    ),
    ("pods", [*PODS[:1], *PODS[2:]], "tessera-controller", Verdict.ERROR, "no pod"),
    ("pods", PODS[:4], "tessera-dashboard", Verdict.ERROR, "no pod of tessera-dashboard is ready"),
    ("pods", [*PODS[:3], pod("tessera-webhook", ready="False")], "tessera-webhook", Verdict.WARNING, "1 of 2"),
    (
        "pods",
        [pod("tessera-agent", ready="False"), *PODS[1:]],
        "agents",
        Verdict.ERROR,
        "tessera-agent-n1 is not ready",
    ),
    ("pods", [*PODS[1:], pod("tessera-agent", image="tessera:2")], "versions", Verdict.WARNING, "2 images"),
    ("pods", [NOT_PULLED, *PODS[1:]], "image", Verdict.ERROR, "nodes cannot pull tessera:0.2.0: pull denied"),
    ("nodes", [node(wrong="WaitingForDriver")], "node-conditions", Verdict.WARNING, "WaitingForDriver"),
    ("nodes", [node(), HOLDS], "withheld-cards", Verdict.WARNING, "node n2: pods hold 1 withheld nvidia.com/gpu;"),
    (
        "nodes",
        [node(), after(FAILED)],
        "preflight",
        Verdict.WARNING,
        "card n1/3: preflight of 1970-01-01T00:00:07Z fail",
    ),
    ("nodes", [after(SKIPPED)], "preflight", Verdict.WARNING, "tested nothing: a pod holds it"),
    ("nodes", FORBIDDEN, "preflight", Verdict.UNKNOWN, "list nodes"),
    ("nodes", UNANSWERED, "preflight", Verdict.UNKNOWN, "etcd is slow"),
    ("nodes", UNANSWERED, "agents", Verdict.UNKNOWN, "etcd is slow"),
    ("node_leases", UNANSWERED, "node-clocks", Verdict.UNKNOWN, "etcd is slow"),
    ("nodes", [WRONG_TWICE], "node-conditions", Verdict.WARNING, "n1 GpuHealthy: CardUnhealthy, GpuMigLayout"),
    (
        "settings",
        {"kube-system/nvidia-mig-config": False},
        "settings",
        Verdict.WARNING,
        "kube-system/nvidia-mig-config",
    ),
    ("settings", FORBIDDEN, "settings", Verdict.UNKNOWN, "Forbidden"),
    ("node_groups", groups("{model: T4}"), "node-groups", Verdict.ERROR, 'group "a": T4: the card has no MIG'),
    ("node_groups", groups("{model: L40S, count: 65}"), "node-groups", Verdict.ERROR, "groups[0].cards.count`: 65; "),
    ("node_groups", {"data": {"groups.yml": ""}}, "node-groups", Verdict.ERROR, "the key groups.yaml is missing"),
    ("node_groups", FORBIDDEN, "node-groups", Verdict.UNKNOWN, "Forbidden"),
    (
        "bindings",
        ["tessera-agent", "tessera-driver", "tessera-namespaces", "tessera-pins"],
        "policies",
        Verdict.WARNING,
        "pods may use GPUs",
    ),
    ("bindings", FORBIDDEN, "policies", Verdict.UNKNOWN, "Forbidden"),
    (
        "refused",
        [REFUSED_POD],
        "device-access",
        Verdict.WARNING,
        "pods of DaemonSet csi/node cannot be created: container",
    ),
    ("refused", FORBIDDEN, "device-access", Verdict.UNKNOWN, "Forbidden"),
    ("exempt", FORBIDDEN, "device-access", Verdict.UNKNOWN, "Forbidden"),
    (
        "past",
        {"problem": "Prometheus does not answer"},
        "page-prometheus",
        Verdict.WARNING,
        "Prometheus does not answer",
    ),
    ("past", {"empty": ["sum(a{})"]}, "page-prometheus", Verdict.WARNING, "has no values for: sum(a{})"),
    ("past", FORBIDDEN, "page-prometheus", Verdict.UNKNOWN, "Forbidden"),
    ("pods", FORBIDDEN, "page-prometheus", Verdict.UNKNOWN, "needs the right to list pods in tessera-system"),
    ("leader", MISSING, "leader", Verdict.ERROR, "no controller"),
    ("leader", FORBIDDEN, "leader", Verdict.UNKNOWN, "Forbidden"),
    ("leader", lease("tessera-controller", 31), "leader", Verdict.ERROR, "31 s ago"),
    ("webhook", MISSING, "webhook", Verdict.ERROR, "no MutatingWebhookConfiguration"),
    ("webhook", webhook(None), "certificates", Verdict.ERROR, "caBundle"),
    ("webhook", webhook(25), "certificates", Verdict.WARNING, "1.0 days"),
    ("webhook", webhook(-2), "certificates", Verdict.ERROR, "ended"),
    ("webhook", {"webhooks": [{"clientConfig": {"caBundle": "junk"}}]}, "certificates", Verdict.ERROR, "ended"),
    ("trial", Refusal('failed calling webhook "gpus.tessera.dev"'), "webhook-reachable", Verdict.ERROR, "cannot reach"),
    ("trial", FORBIDDEN, "webhook-reachable", Verdict.UNKNOWN, "Forbidden"),
    ("trial", Refusal('admission webhook "theirs" denied the request'), "webhook-reachable", Verdict.UNKNOWN, "theirs"),
    ("trial", {"spec": {}}, "webhook-reachable", Verdict.ERROR, "must refuse is admitted"),
]


def test_an_admitted_trial_is_no_error_to_one_who_may_not_know_whether_tessera_is_installed() -> None:
    found = examine(msgspec.structs.replace(HEALTHY, trial={"spec": {}}, webhook=FORBIDDEN))
    (finding,) = (each for each in found if each.check == "webhook-reachable")
    assert (finding.verdict, "may not be installed" in finding.advice) == (Verdict.WARNING, True)


@pytest.mark.parametrize(("part", "value", "check", "verdict", "text"), CASES)
def test_a_check_finds_what_it_is_for(part: str, value: Any, check: str, verdict: Verdict, text: str) -> None:
    found = examine(msgspec.structs.replace(HEALTHY, **{part: value}))
    (finding,) = (each for each in found if each.check == check and each.verdict is not Verdict.OK)
    assert finding.verdict is verdict
    assert text in finding.text
    if verdict is Verdict.ERROR:
        assert finding.advice


@pytest.mark.parametrize(
    ("server", "text"),
    [
        ("", "nobody serves external.metrics.k8s.io; examples/services/external-metrics.yaml lets Tessera"),
        ("tessera-system/tessera-dashboard", "external.metrics.k8s.io is served by tessera-system/tessera-dashboard"),
        ("keda/keda-operator-metrics", "external.metrics.k8s.io is served by keda/keda-operator-metrics; scale by"),
    ],
)
def test_the_server_of_external_metrics_is_named(server: str, text: str) -> None:
    found = examine(msgspec.structs.replace(HEALTHY, external_metrics=server))
    (finding,) = (each for each in found if each.check == "external-metrics")
    assert finding.verdict is Verdict.OK
    assert finding.text.startswith(text)


def test_preflights_that_all_cards_passed_are_told() -> None:
    (found,) = (
        each for each in examine(msgspec.structs.replace(HEALTHY, nodes=[after(PASSED)])) if each.check == "preflight"
    )
    assert (found.verdict, found.text) == (Verdict.OK, "1 card passed the last preflight")


def test_the_namespace_of_a_privileged_pod_is_named_with_the_command_that_exempts_it() -> None:
    (found,) = (
        each
        for each in check_installation(msgspec.structs.replace(HEALTHY, refused=[REFUSED_POD]))
        if each.check == "device-access"
    )
    assert found.advice.endswith("kubectl label namespace csi tessera.dev/device-access=allowed")
    exempt = msgspec.structs.replace(HEALTHY, refused=[REFUSED_POD], exempt=["csi"])
    (found,) = (each for each in check_installation(exempt) if each.check == "device-access")
    assert (found.verdict, found.text.endswith("exempt by their label: csi")) == (Verdict.OK, True)


def test_before_the_installation_only_the_platform_is_examined() -> None:
    facts = msgspec.structs.replace(HEALTHY, namespace=MISSING, pods=[], webhook=MISSING, leader=MISSING)
    assert [each.check for each in check_installation(facts)] == ["rights", "installed"]


def test_the_advice_about_instaslice_keeps_its_objects() -> None:
    (found,) = (each for each in examine(msgspec.structs.replace(HEALTHY, daemon_sets=[INSTASLICE])) if each.advice)
    assert "keep its Instaslice objects" in found.advice
    assert "docs/from-nvidia.md#from-instaslice" in found.advice


def test_an_agent_that_waits_for_its_driver_is_a_matter_of_drivers() -> None:
    running = {"containerStatuses": [{"name": "agent", "state": {"running": {}}}]}
    waits = pod("tessera-agent", ready="False")
    waits = {**waits, "status": {**waits["status"], **running}}
    changed = msgspec.structs.replace(HEALTHY, nodes=[node(wrong="WaitingForDriver")], pods=[waits, *PODS[1:]])
    (found,) = (each for each in check_installation(changed) if each.check == "drivers")
    assert found.verdict is Verdict.ERROR
    assert "n1: its agent runs, and has read no card" in found.text


def test_a_tenant_is_told_calmly_that_installing_is_for_administrators() -> None:
    lacking = {"tessera map": (), "tessera install": ("create daemonsets.apps in tessera-system",)}
    (finding,) = (each for each in examine(msgspec.structs.replace(HEALTHY, rights=lacking)) if each.check == "rights")
    assert finding.verdict is Verdict.OK
    assert finding.text == "yours suffice for all commands but tessera install, which is an administrator's"


def test_a_tenant_without_rights_is_told_once_who_gives_the_one_that_is_enough() -> None:
    lacking = {
        "tessera map": ("list instaslices",),
        "tessera top": ("get pods/proxy", "list pods"),
        "tessera why": ("list nodes", "list pods"),
        "tessera install": ("create daemonsets",),
    }
    (finding,) = (each for each in examine(msgspec.structs.replace(HEALTHY, rights=lacking)) if each.check == "rights")
    assert finding.verdict is Verdict.WARNING
    assert finding.text.endswith(": you may not get pods/proxy, list instaslices, list nodes, list pods")
    assert finding.text.startswith("tessera map, tessera top, tessera why do not show you the cluster's cards")
    assert "-n NAME" in finding.advice
    assert "ClusterRole tessera-view" in finding.advice
