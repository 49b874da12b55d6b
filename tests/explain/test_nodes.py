"""``tessera why node/NAME``: whether a node's cards are as asked, and what keeps them from it. Plain objects."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.explain.test_pods import OF_AGENTS

from tessera.api.nodes.card_faults import CARDS_ANNOTATION, CardFault, encode_cards
from tessera.api.nodes.health import BOOT_STEP
from tessera.api.nodes.node_marks import DRIVER_ANNOTATION, DriverPhase, DriverStatus, DriverStrategy
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, encode_offers
from tessera.api.nodes.silence import SilentNode
from tessera.clock import rfc3339
from tessera.doctor.manifests import install_manifests
from tessera.driver.node_status import encode_status
from tessera.explain.explanation import Explanation, ExplanationReport, report_lines
from tessera.explain.nodes import AGENT_NODE_LABELS, explain_node
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.kube.resources import CoreEvent, Node, Pod

NOW = 1_800_000_000.0
A100 = "NVIDIA A100-SXM4-40GB"
SHARED = {"nvidia.com/device-plugin.config": "slice-4", "nvidia.com/gpu.present": "true"}
HEALTHY = ("GpuHealthy", "True", "CardsHealthy", "nothing is wrong with the node's 4 cards")
IN_FORCE = ("GpuSharingApplied", "True", "ProfileInForce", 'profile "slice-4" is in force: the node\'s label')
CUT = ("GpuMigLayoutApplied", "True", "Applied", 'layout "all-1g.5gb" is in force')

Told = tuple[str, str, str, str]


def offer(resource: str, kind: OfferKind, count: int, **more: Any) -> NodeOffer:
    return NodeOffer(
        resource=resource,
        kind=kind,
        product=A100,
        card_memory_mib=40960,
        memory_mib=more.pop("memory", 40960),
        compute_capability="8.0",
        count=count,
        **more,
    )


SHARES = offer("nvidia.com/gpu.shared", OfferKind.SHARE, 16, replicas=4, memory=10240, one_per_request=True)


def node(
    *told: Told,
    labels: Mapping[str, str] = SHARED,
    gives: Mapping[str, str] | None = None,
    offers: Sequence[NodeOffer] = (SHARES,),
    ready: str = "True",
    since: float = 60.0,
    nothing: bool = False,
) -> Node:
    """A node; with ``nothing`` its agent has reported that it offers nothing by limits."""
    conditions = [{"type": "Ready", "status": ready, "message": "kubelet stopped posting"}]
    moved = {"lastTransitionTime": rfc3339(NOW - since)}
    conditions += [{"type": t, "status": s, "reason": r, "message": m, **moved} for t, s, r, m in told]
    allocatable = {"cpu": "8", **({"nvidia.com/gpu.shared": "16"} if gives is None else gives)}
    annotations = {OFFERS_ANNOTATION: encode_offers(offers)} if offers or nothing else {}
    metadata = {"name": "n1", "uid": "u1", "labels": labels, "annotations": annotations}
    body = {"metadata": metadata, "status": {"conditions": conditions, "allocatable": allocatable}}
    return msgspec.convert(body, Node)


def agent(ready: str = "True", *arguments: str) -> Pod:
    body = {
        "metadata": {"name": "tessera-agent-x", **OF_AGENTS},
        "spec": {"nodeName": "n1", "containers": [{"name": "agent", "args": arguments}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }
    return msgspec.convert(body, Pod)


def event(reason: str, ago: float, *, kind: str = "Warning", uid: str = "u1", name: str = "n1") -> CoreEvent:
    body = {
        "metadata": {"name": f"{reason}.1", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": name, "uid": uid},
        "type": kind,
        "reason": reason,
        "message": f"about {reason}",
        "lastTimestamp": rfc3339(NOW - ago),
    }
    return msgspec.convert(body, CoreEvent)


def answer(
    about: Node, *, pods: Sequence[Pod] | None = None, events: Sequence[CoreEvent] = (), unseen: Sequence[str] = ()
) -> Explanation:
    running = (agent(),) if pods is None else pods
    snapshot = Snapshot(
        now=NOW, nodes=(about,), pods=running, events=events, forbidden=frozenset({"instaslices", *unseen})
    )
    return explain_node(ClusterView(snapshot), about)


def test_a_node_that_is_as_asked_says_what_it_gives() -> None:
    found = answer(node(HEALTHY, IN_FORCE))
    assert (found.case, found.verdict) == ("as-configured", "is as configured: nvidia.com/gpu.shared 16")
    assert found.help == ()
    *state, offered = found.facts
    assert state == [
        "health: nothing is wrong with the node's 4 cards",
        'sharing: profile "slice-4" is in force: the node\'s label',
        "configuration labels: nvidia.com/device-plugin.config=slice-4",
    ]
    assert offered.startswith("offers nvidia.com/gpu.shared: 16")
    for fact in ("each 10240 MiB", f"shares of {A100}", "4 to a device", "one to a container"):
        assert fact in offered


def test_it_reads_as_an_answer_then_facts() -> None:
    report = ExplanationReport(kind="node", namespace="", name="n1", answers=(answer(node(HEALTHY, IN_FORCE)),))
    first, second, *_ = report_lines(report)
    assert first == "node n1: is as configured: nvidia.com/gpu.shared 16"
    assert second.startswith("  - health: ")


#: Condition that is not as configured, the case, and words of what would help.
WRONG = [
    (("GpuHealthy", "False", "CardUnhealthy", "GPU 2: XID 79"), "card-unhealthy", "nvidia-smi and dmesg on n1"),
    (("GpuMigLayoutApplied", "False", "LayoutUnknown", "no x"), "layout-unknown", "label node n1 nvidia.com/mig"),
    (("GpuMigLayoutApplied", "False", "LayoutImpossible", "9 slots"), "layout-impossible", "tessera plan mig"),
    (("GpuMigLayoutApplied", "False", "LayoutsRefused", "bad"), "layouts-refused", "tessera config check -"),
    (("GpuMigLayoutApplied", "False", "LayoutsUnreadable", "no"), "layouts-unreadable", "tessera install"),
    (("GpuMigLayoutApplied", "False", "ResetRequired", "reset"), "reset-required", "kubectl drain n1"),
    (("GpuMigLayoutApplied", "False", "Odd", "odd"), "odd", "name another layout"),
    (("GpuSharingApplied", "False", "ProfileRefused", "bad"), "profile-refused", "tessera config check -"),
    (("GpuSharingApplied", "False", "ProfileMissing", "none"), "profile-missing", "label node n1 nvidia.com/dev"),
    (("GpuSharingApplied", "False", "ProfilesUnreadable", "no"), "profiles-unreadable", "tessera install"),
    (("GpuSharingApplied", "False", "ResourceNameConflict", "taken"), "resource-name-conflict", "rename"),
    (("GpuSharingApplied", "False", "KubeletNotResponding", "silent"), "kubelet-not-responding", "kubelet runs on n1"),
    (("GpuSharingApplied", "False", "CdiFailed", "full"), "cdi-failed", "make room on n1"),
    (("GpuSharingApplied", "False", "ResourceRefused", "no"), "resource-refused", "read kubelet's log on n1"),
    (("GpuMigLayoutApplied", "False", "StateUnwritable", "full"), "state-unwritable", "make room on n1"),
    (("GpuMpsReady", "False", "DaemonNotReady", "down"), "daemon-not-ready", "agent's log"),
    (("GpuMpsReady", "False", "WaitingForClients", "waits"), "waiting-for-clients", "delete the pods"),
]  # fmt: skip


@pytest.mark.parametrize(("told", "case", "words"), WRONG, ids=[case for _, case, _ in WRONG])
def test_what_is_not_as_asked_comes_first_with_its_text_and_a_way_out(told: Told, case: str, words: str) -> None:
    others = [each for each in (HEALTHY, IN_FORCE, CUT) if each[0] != told[0]]
    found = answer(node(*others, told))
    assert found.case == case
    assert f"({told[2]})" in found.verdict
    assert found.facts[0].endswith(f": {told[3]}"), "the verdict's own fact stands in front"
    assert any(words in each for each in found.help)
    assert not any("{" in each for each in found.help)


MODELS = {"tessera.dev/count.NVIDIA-A100-SXM4-40GB": "4", "tessera.dev/count.Tesla-T4": "2"}
SETTINGS = ("--sharing-config=kube-system/profiles", "--mig-config=kube-system/layouts")


@pytest.mark.parametrize(
    ("told", "steps"),
    [
        (
            ("GpuSharingApplied", "False", "ProfileRefused", "bad"),
            [
                "kubectl get configmap -n kube-system profiles -o yaml",
                "tessera config check - --model 4xA100-40GB --model 2xT4",
                "kubectl edit configmap -n kube-system profiles",
            ],
        ),
        (("GpuMigLayoutApplied", "False", "LayoutImpossible", "9 slots"), ["tessera plan mig A100-40GB PROFILE="]),
        (("GpuMigLayoutApplied", "False", "LayoutUnknown", "no x"), ["edit configmap -n kube-system layouts"]),
    ],
)
def test_steps_name_the_nodes_cards_and_the_config_maps_of_its_agent(told: Told, steps: list[str]) -> None:
    found = answer(node(told, labels=SHARED | MODELS), pods=(agent("False"), agent("True", *SETTINGS)))
    assert all(any(step in each for each in found.help) for step in steps)


def test_a_node_without_mig_loses_its_label() -> None:
    impossible = ("GpuMigLayoutApplied", "False", "LayoutImpossible", "Tesla T4 has no MIG")
    found = answer(node(impossible, labels={"tessera.dev/count.Tesla-T4": "2"}))
    (step,) = found.help
    for fact in ("remove the label", "kubectl label node n1 nvidia.com/mig.config-"):
        assert fact in step


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (("GpuMigLayoutApplied", "Unknown", "CardsInUse", "held"), "again as before, with --mig-evict"),
        (("GpuMigLayoutApplied", "False", "ResetRequired", "reset"), "and run tessera install again as before"),
        (("GpuSharingApplied", "False", "ProfilesUnreadable", "no"), "again as before, with --values FILE"),
    ],
)
def test_a_step_that_installs_again_says_to_repeat_the_former_options(told: Told, words: str) -> None:
    (step,) = (each for each in answer(node(told)).help if "tessera install" in each)
    assert words in step


def test_what_comes_first_explains_what_comes_later() -> None:
    layout = ("GpuMigLayoutApplied", "False", "NvmlFailed", "no answer")
    sharing = ("GpuSharingApplied", "False", "CardsInUse", "busy")
    found = answer(node(HEALTHY, sharing, layout))
    assert found.case == "nvml-failed"
    assert found.facts[0] == "MIG layout: no answer"
    assert "sharing: busy" in found.facts


@pytest.mark.parametrize("reason", ["ProfilePending", "CardsInUse"])
def test_what_is_under_way_is_said_to_be(reason: str) -> None:
    found = answer(node(HEALTHY, ("GpuSharingApplied", "Unknown", reason, "is next")))
    assert (found.case, found.verdict) == ("changing", f"is being changed ({reason})")
    assert found.help


def test_a_mark_of_the_controller_is_no_change_of_the_agent() -> None:
    found = answer(node(HEALTHY, ("GpuSharingApplied", "Unknown", "AgentStatusUnknown", "stopped posting")))
    assert (found.case, found.verdict) == ("not-reported", "has an agent again, which has not reported its cards yet")


def test_a_silent_agent_is_told_once_and_not_by_each_of_its_conditions() -> None:
    found = answer(node(HEALTHY, ("GpuSharingApplied", "Unknown", "AgentStatusUnknown", "stopped posting")), pods=())
    assert found.case == "agent-down"
    assert not any("stopped posting" in each for each in found.facts)


def test_a_failure_counts_before_a_change() -> None:
    pending = ("GpuMigLayoutApplied", "Unknown", "LayoutApplying", "at work")
    assert answer(node(pending, ("GpuSharingApplied", "False", "ProfileMissing", "none"))).case == "profile-missing"


def test_a_node_that_is_down_is_that_first() -> None:
    found = answer(node(IN_FORCE, ready="Unknown"))
    assert found.case == "node-down"
    assert found.facts[0] == "kubelet stopped posting"
    assert found.facts[1].startswith("sharing: last reported: ")


def test_while_its_agent_does_not_answer_what_it_said_is_no_present() -> None:
    """As during a reboot: its conditions and its agent's pod still read as before."""
    about, silent = node(HEALTHY, IN_FORCE), SilentNode(node="n1", reason="its agent cannot be reached", next="wait")
    snapshot = Snapshot(now=NOW, nodes=(about,), pods=(agent(),), unanswered=(silent,))
    found = explain_node(ClusterView(snapshot), about)
    assert (found.case, found.help[0]) == ("agent-down", "wait")
    assert "unknown" in found.verdict
    assert found.facts[0] == "its agent cannot be reached"
    assert "health: last reported: nothing is wrong with the node's 4 cards" in found.facts


@pytest.mark.parametrize("pods", [(), (agent("False"),)])
def test_without_an_agent_what_it_said_last_is_marked(pods: Sequence[Pod]) -> None:
    found = answer(node(IN_FORCE), pods=pods)
    assert found.case == "agent-down"
    assert any(each.startswith("sharing: last reported: ") for each in found.facts)
    assert any("kubectl logs" in each for each in found.help) is bool(pods), "without a pod there is no log"


def test_a_node_that_no_agent_is_meant_for_says_which_labels_bring_one() -> None:
    found = answer(node(labels={}, offers=(), gives={}), pods=())
    assert found.case == "no-agent"
    assert "nvidia.com/gpu.present=true" in found.facts[0]


def test_the_labels_that_bring_an_agent_are_those_of_the_manifest() -> None:
    (daemon_set,) = (
        each
        for each in install_manifests()
        if (each["kind"], each["metadata"]["name"]) == ("DaemonSet", "tessera-agent")
    )
    affinity = daemon_set["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    wanted = {}
    for term in terms:
        one = term["matchExpressions"][0]
        wanted[one["key"]] = one["values"][0] if one["operator"] == "In" else None
    assert wanted == AGENT_NODE_LABELS


def test_a_long_event_is_cut() -> None:
    long = msgspec.structs.replace(event("GpuUnhealthy", 5), message="pod default/x holds a share; " * 40)
    fact = answer(node(HEALTHY, IN_FORCE), events=(long,)).facts[-1]
    assert fact.endswith(" ...")
    assert len(fact) < 400


def test_an_agent_that_has_said_nothing_is_waited_for() -> None:
    assert answer(node(offers=())).case == "not-reported"


def test_slices_on_demand_are_not_counted_by_their_positions() -> None:
    dynamic = offer("nvidia.com/mig-1g.5gb", OfferKind.DYNAMIC_SLICE, 28, memory=4864, profile="1g.5gb")
    labels = {"nvidia.com/mig.config": "dynamic", "nvidia.com/mig.config.state": "success"}
    found = answer(node(HEALTHY, labels=labels, gives={"nvidia.com/mig-1g.5gb": "28"}, offers=(dynamic,)))
    assert found.verdict == "is as configured: slices on demand"
    assert "configuration labels: nvidia.com/mig.config=dynamic (state success)" in found.facts
    (offered,) = (each for each in found.facts if each.startswith("offers nvidia.com/mig-1g.5gb: "))
    for fact in ("at most 28", "each 4864 MiB", f"1g.5gb of {A100}", "made on demand"):
        assert fact in offered


def test_slices_on_demand_that_go_to_claims_are_no_resource() -> None:
    dynamic = offer("nvidia.com/mig-1g.5gb", OfferKind.DYNAMIC_SLICE, 28, memory=4864, profile="1g.5gb")
    labels = {"nvidia.com/mig.config": "dynamic", "tessera.dev/device-api": "dra"}
    found = answer(node(HEALTHY, labels=labels, gives={}, offers=(dynamic,)))
    assert any(each.startswith("offers 1g.5gb by ResourceClaims: at most 28") for each in found.facts)
    assert not any("nvidia.com/mig-1g.5gb" in each for each in found.facts)


def test_cards_that_go_to_claims_are_an_offer_though_kubelet_counts_none() -> None:
    labels = {"nvidia.com/device-plugin.config": "slice-4", "tessera.dev/device-api": "dra"}
    found = answer(node(HEALTHY, IN_FORCE, labels=labels, gives={}, offers=(), nothing=True))
    assert (found.case, found.help) == ("as-configured", ())
    assert found.verdict == "is as configured: whole cards, or shares of them, by ResourceClaims"
    assert not any(each.startswith("kubelet gives nothing") for each in found.facts)
    cut = {**labels, "nvidia.com/mig.config": "all-enabled"}
    assert answer(node(HEALTHY, IN_FORCE, labels=cut, gives={}, offers=(), nothing=True)).case == "offers-nothing"


def test_what_kubelet_does_not_give_of_an_offer_is_told() -> None:
    found = answer(node(HEALTHY, IN_FORCE, gives={"nvidia.com/gpu.shared": "12"}))
    (given,) = (each for each in found.facts if each.startswith("kubelet gives "))
    for fact in ("12 of the 16 nvidia.com/gpu.shared", "the others are unhealthy", "or not free yet"):
        assert fact in given


def test_without_the_annotation_kubelets_counts_are_told() -> None:
    assert "kubelet gives nvidia.com/gpu 4" in answer(node(HEALTHY, gives={"nvidia.com/gpu": "4"}, offers=())).facts
    assert "kubelet gives nothing of nvidia.com/*" in answer(node(HEALTHY, gives={}, offers=())).facts


def test_a_node_that_offers_nothing_though_all_is_as_asked_says_how_that_comes() -> None:
    found = answer(node(HEALTHY, IN_FORCE, gives={"nvidia.com/mig-1g.5gb": "0"}, offers=()))
    assert (found.case, found.verdict) == ("offers-nothing", "is as configured, and offers nothing")
    assert "nvidia.com/mig.config=all-disabled" in found.help[0]


def test_an_annotation_that_is_broken_is_told_and_ends_nothing() -> None:
    broken = node(HEALTHY)
    broken.metadata.annotations[OFFERS_ANNOTATION] = "[{}]"
    found = answer(broken)
    assert found.case == "as-configured"
    assert any(OFFERS_ANNOTATION in each and "writes it again" in each for each in found.facts)


def test_the_last_warnings_on_the_node_are_told_whoever_names_it_how() -> None:
    events = [
        event("Fine", 1, kind="Normal"),
        event("Elsewhere", 2, name="n2"),
        *(event(f"Bad{n}", 60 * n, uid="n1" if n % 2 else "u1") for n in range(3, 7)),
    ]
    told = [each for each in answer(node(HEALTHY), events=events).facts if each.startswith("event ")]
    assert [each.split()[1] for each in told] == ["Bad5", "Bad4", "Bad3"]


def test_an_event_that_says_what_a_condition_says_is_not_told_twice() -> None:
    told = ("GpuSharingApplied", "False", "ProfileMissing", "about ProfileMissing")
    found = answer(node(HEALTHY, told), events=[event("ProfileMissing", 1)])
    assert [each for each in found.facts if "about ProfileMissing" in each] == ["sharing: about ProfileMissing"]


MISSING = ("GpuSharingApplied", "False", "ProfileMissing", "none")
BUSY = ("GpuSharingApplied", "Unknown", "CardsInUse", "held")


@pytest.mark.parametrize(
    ("conditions", "reason", "ago", "listed"),
    [
        ((IN_FORCE, CUT), "LayoutImpossible", 90, False),
        ((IN_FORCE, CUT), "ProfileMissing", 90, False),
        ((IN_FORCE,), "LayoutImpossible", 90, False),  # no layout is asked for any more
        ((HEALTHY,), "CardUnhealthy", 90, False),
        ((MISSING,), "ProfileMissing", 90, False),  # another one, before it was in force for a while
        ((MISSING,), "ProfileRefused", 30, True),
        ((BUSY, CUT), "CardsInUse", 90, False),
        ((BUSY, CUT), "CardsInUse", 30, True),  # a word of two conditions, one of which is at it
        ((IN_FORCE, CUT), "NvmlFailed", 30, False),
        ((IN_FORCE, CUT), "GpuUnhealthy", 90, True),
        ((IN_FORCE, CUT), "GpuUnhealthy", 3700, False),
        ((IN_FORCE, CUT), "NodeNotReady", 90, True),
        ((), "LayoutImpossible", 90, True),
    ],
)
def test_warnings_are_told_until_they_have_passed(
    conditions: Sequence[Told], reason: str, ago: float, listed: bool
) -> None:
    facts = answer(node(*conditions, since=60), events=[event(reason, ago)]).facts
    assert any(each.startswith(f"event {reason} ") for each in facts) is listed


def test_a_condition_that_says_no_time_leaves_its_warnings() -> None:
    about = node(MISSING)
    conditions = [msgspec.structs.replace(each, last_transition_time=None) for each in about.status.conditions]
    status = msgspec.structs.replace(about.status, conditions=conditions)
    found = answer(msgspec.structs.replace(about, status=status), events=[event("ProfileRefused", 90)])
    assert any(each.startswith("event ProfileRefused ") for each in found.facts)


def test_who_may_not_see_pods_is_told_so() -> None:
    found = answer(node(HEALTHY, IN_FORCE), pods=(), unseen=("pods",))
    assert found.case == "as-configured"
    assert any("may not list pods" in each for each in found.facts)


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("WaitingForDriver", "tessera driver status"),
        ("WaitingForToolkit", "app.kubernetes.io/name=tessera-container-toolkit"),
        ("WaitingForValidation", "app.kubernetes.io/name=tessera-validation"),
        ("PausedForDriver", "check again in a moment"),
        ("NvmlFailed", "nvidia-smi and dmesg on n1"),
        ("Another", "read the agent's log"),
    ],
)
def test_an_agent_that_waits_for_its_driver_is_not_the_one_to_look_at(reason: str, step: str) -> None:
    waits = ("GpuNodeReady", "False", reason, "what is waited for")
    found = answer(node(HEALTHY, waits, gives={}), pods=[agent("False")])
    assert found.verdict == f"offers no card to kubelet ({reason})"
    assert found.facts[0] == "driver: what is waited for"
    for fact in ("health: ", "with its last driver", "nothing is wrong", "the node's 4 cards"):
        assert fact in found.facts[1]
    assert any(step in each for each in found.help)


def test_a_node_whose_kubelet_has_yet_to_publish_the_cards_says_so() -> None:
    waits = ("GpuNodeReady", "False", "WaitingForKubelet", "what is waited for")
    found = answer(node(HEALTHY, waits, gives={}), pods=[agent("True")])
    for fact in ("has offered its cards to kubelet", "does not count them yet", "(WaitingForKubelet)"):
        assert fact in found.verdict
    assert any("publishes with its next status" in each for each in found.help)


def test_a_driver_that_is_there_is_not_spoken_of() -> None:
    there = ("GpuNodeReady", "True", "Advertised", "the driver is there")
    assert answer(node(HEALTHY, IN_FORCE, there)) == answer(node(HEALTHY, IN_FORCE))


def driven(about: Node, phase: DriverPhase, reason: str, *, leaving: bool = False) -> Node:
    """The node, with what the controller says of its driver."""
    status = DriverStatus(strategy=DriverStrategy.PRECOMPILED, phase=phase, since="", reason=reason, leaving=leaving)
    annotations = {**about.metadata.annotations, DRIVER_ANNOTATION: encode_status(status)}
    return msgspec.structs.replace(about, metadata=msgspec.structs.replace(about.metadata, annotations=annotations))


def test_a_node_that_is_given_another_driver_says_what_that_waits_for() -> None:
    found = answer(driven(node(HEALTHY, IN_FORCE), DriverPhase.UPGRADING, "Waiting for pod default/train to leave."))
    assert found.case == "changing-driver"
    assert found.facts[0] == "driver: Waiting for pod default/train to leave."
    assert found.help == ("see its progress: tessera driver status n1 -v",)


def user(name: str, **metadata: Any) -> Pod:
    """A pod that has a card of the node."""
    containers = [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    about = {"name": name, "namespace": "team", "uid": name, **metadata}
    return msgspec.convert({"metadata": about, "spec": {"nodeName": "n1", "containers": containers}}, Pod)


def test_a_node_with_another_driver_than_the_wanted_one_is_not_as_configured() -> None:
    status = DriverStatus(
        strategy=DriverStrategy.PRECOMPILED, phase=DriverPhase.READY, since="", version="525", wanted="535"
    )
    about = node(HEALTHY, IN_FORCE)
    annotations = {**about.metadata.annotations, DRIVER_ANNOTATION: encode_status(status)}
    metadata = msgspec.structs.replace(about.metadata, annotations=annotations)
    outdated = msgspec.structs.replace(about, metadata=metadata)
    found = answer(outdated)
    assert (found.case, found.facts[0]) == ("outdated-driver", "driver: The policy names 535, the node has 525.")
    owned = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": True}]
    held = answer(outdated, pods=[agent(), *(user(f"p{n}") for n in range(7)), user("web-1", ownerReferences=owned)])
    assert held.facts[-1].endswith(
        "no controller would replace: team/p0, team/p1, team/p2, team/p3, team/p4 and 2 more"
    )
    assert "upgradePolicy.podDeletion.force" in held.help[0]
    assert held.help[1:] == found.help


def test_a_driver_that_goes_with_the_pods_that_use_it_is_told_of() -> None:
    reason = "Its driver stays while pods use its cards."
    found = answer(driven(node(HEALTHY, IN_FORCE), DriverPhase.READY, reason, leaving=True))
    assert (found.case, found.facts[0]) == ("as-configured", f"driver: {reason}")
    assert answer(driven(node(HEALTHY, IN_FORCE), DriverPhase.READY, "It is there.")) == answer(node(HEALTHY, IN_FORCE))


def test_a_tenants_pod_with_the_agents_label_is_no_agent() -> None:
    forged = msgspec.convert(
        {
            "metadata": {"name": "x", "namespace": "team", "labels": {"app.kubernetes.io/name": "tessera-agent"}},
            "spec": {"nodeName": "n1"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        },
        Pod,
    )
    assert answer(node(IN_FORCE), pods=[forged]).case == "agent-down"


def test_every_card_that_is_not_well_has_a_line_of_its_own() -> None:
    faults = [CardFault(f"GPU-{index}", "XID 48", index=index, asks="withhold") for index in range(8)]
    faults += [CardFault("GPU-7", "probe", index=7, asks="reboot", text="the driver lost it", lost=True)]
    unhealthy = node(("GpuHealthy", "False", "CardUnhealthy", "GPU 7: the driver lost it; GPU 0: and the rest is c"))
    unhealthy.metadata.annotations[CARDS_ANNOTATION] = encode_cards((), faults)
    lines = [fact for fact in answer(unhealthy).facts if fact.startswith("health: ")]
    assert lines[0].startswith("health: GPU 7: the driver lost it; not allocated until the node is rebooted")
    assert [line.split(": ")[1] for line in lines[1:]] == [f"GPU {index}" for index in range(8)]
    many = [CardFault(f"GPU-{index}", "XID 48", index=index) for index in range(64)]
    unhealthy.metadata.annotations[CARDS_ANNOTATION] = encode_cards((), many)
    lines = [fact for fact in answer(unhealthy).facts if fact.startswith("health: ")]
    assert (len(lines), lines[-1]) == (17, "health: and 48 more errors: tessera health n1")


def test_a_lost_card_gets_the_next_step_that_its_health_names() -> None:
    lost = CardFault("GPU-c", "probe", index=2, asks="reboot", lost=True)
    unhealthy = node(("GpuHealthy", "False", "CardUnhealthy", "text for people, which nobody parses"))
    unhealthy.metadata.annotations[CARDS_ANNOTATION] = encode_cards((), [lost])
    found = answer(unhealthy)
    assert found.help == (BOOT_STEP, "see who holds the card: tessera health n1")


def test_a_label_among_the_annotations_is_named_with_the_command_that_sets_it() -> None:
    bare = node(HEALTHY, labels={"nvidia.com/gpu.present": "true"})
    annotations = {**bare.metadata.annotations, "nvidia.com/mig.config": "all-1g.5gb"}
    written = msgspec.structs.replace(bare, metadata=msgspec.structs.replace(bare.metadata, annotations=annotations))
    step = "kubectl label node n1 nvidia.com/mig.config=all-1g.5gb"
    assert f"its annotation nvidia.com/mig.config has no effect: it is a label ({step})" in answer(written).facts
    assert "has no effect" not in "".join(answer(bare).facts)


def test_a_node_that_reported_nothing_is_said_to_have_an_agent_only_where_one_is_seen() -> None:
    silent = node(offers=())
    assert answer(silent).verdict == "has an agent that has not reported its cards yet"
    hidden = ClusterView(Snapshot(now=NOW, nodes=[silent], forbidden=frozenset({"pods", "instaslices"})))
    assert explain_node(hidden, silent).verdict == "has labels of GPUs, and no agent has reported its cards yet"
