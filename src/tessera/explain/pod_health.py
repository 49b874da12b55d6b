"""Explains what is wrong with a pod itself: with its card or its use of a shared one, or that it has ended.

The sources are the pod's own, so its owner needs no right for nodes: the condition that the node's agent writes
(:mod:`tessera.agent.health.pod_conditions`), the health of its devices that kubelet reports
(``allocatedResourcesStatus``, KEP-4680), and Events about memory that it takes from its neighbours
(:mod:`tessera.memory_limits.enforcement`). A pod has ended too if its node rejected it, or if it is being deleted
before it had a node.

A waiting pod without room is told the silent nodes before all else: nobody knows if it would have room there.

A node counts if it offered what the pod asks for, by its agent's last word, and if the pod's selector, affinity and
tolerations admit it. A node of which no agent ever said anything counts too.
"""

from collections.abc import Iterator, Mapping

import msgspec

from tessera.api.names import GPU_CONDITION, GPU_RECOVERED, NodeName, PodUid
from tessera.api.nodes.node_marks import HEALTH, LAYOUT, is_marked_silent
from tessera.api.nodes.offers import OFFERS_ANNOTATION, OfferKind, decode_offers
from tessera.api.nodes.silence import Silence, SilentNode
from tessera.controller.objects.pod_constraints import constraints_of
from tessera.controller.objects.pod_info import PodInfo
from tessera.explain.explanation import Explanation
from tessera.explain.node_reasons import WARNING_LIFETIME
from tessera.explain.offered_resources import fixed_requests
from tessera.explain.snapshot import ClusterView, event_time
from tessera.kube.resources import Node, Pod
from tessera.text import count_noun, list_names

#: Cases of a pod that lacks room, or a node, among those that answer.
NO_ROOM = frozenset(
    {
        "full",
        "fragmented",
        "never-fits",
        "no-node",
        "node-full",
        "node-not-ready",
        "volume",
        "card-held-back",
        "kind-missing",
        "no-card-reported",
        "no-such-profile",
        "not-offered",
        "too-many",
        "in-use",
        "gang-no-room",
        "own-rollout",
        "hand-over",
    }
)
#: The kinds of silence that only the agent ends; that a node is not ready, placement says itself.
_OF_AGENTS = (Silence.NO_AGENT, Silence.NEVER_RAN, Silence.AGENT_NOT_READY)
#: Nodes that are told one by one.
_NODES = 5


def put_silent_nodes_first(view: ClusterView, found: Explanation, pod: Pod, facts: PodInfo) -> Explanation:
    """The explanation of a pod without room, with the silent nodes that might have some before everything else.

    The steps that follow from a lack of room are left out: a pod need not request less while cards are silent.
    """
    if found.case not in NO_ROOM:
        return found
    silent = view.for_kind(facts, "silent nodes", lambda: list(_candidates(view, pod)))
    if not silent:
        return found
    now = view.snapshot.now
    names = list_names([each.node for each in silent])
    who = f"the agent of {names} does not" if len(silent) == 1 else f"the agents of {names} do not"
    return Explanation(
        case="agent-silent",
        verdict=f"waits; {who} answer, so nobody knows the cards there, and nothing can be placed there",
        facts=(
            *(f"{each.node}: {each.text(now)}" for each in silent[:_NODES]),
            f"on the other nodes it {found.verdict}",
            *found.facts,
        ),
        help=tuple(
            step
            for each in silent[:_NODES]
            for step in (f"see it: tessera why node/{each.node}", *([each.next] if each.next else []))
        ),
    )


def _candidates(view: ClusterView, pod: Pod) -> Iterator[SilentNode]:
    asked = fixed_requests(pod)
    if not any(each.kind in _OF_AGENTS for each in view.silent.values()):
        return
    nodes = {each.metadata.name: each for each in view.snapshot.nodes}
    for each in view.silent.values():
        node = nodes.get(each.node)
        if node is not None and each.kind in _OF_AGENTS and _has_offered(node, asked) and _is_admitted(view, node, pod):
            yield each


def _has_offered(node: Node, asked: Mapping[str, int]) -> bool:
    text = node.metadata.annotations.get(OFFERS_ANNOTATION)
    if text is None:
        return True
    try:
        offers = decode_offers(text)
    except ValueError:
        return True
    most: dict[str, float] = {}
    for each in offers:
        count = float("inf") if each.kind is OfferKind.DYNAMIC_SLICE else each.count
        most[each.resource] = most.get(each.resource, 0) + count
    return all(most.get(name, 0) >= count for name, count in asked.items())


def _is_admitted(view: ClusterView, node: Node, pod: Pod) -> bool:
    if view.slicer is None:
        return True
    index, constraints = view.slicer.state.cluster.index, constraints_of(pod)
    admitted = index.selected_nodes(constraints) & index.tolerated_nodes(constraints)
    return bool(admitted & index.mask_of(NodeName(node.metadata.name)))


#: How the reasons of the agent's Events about memory of shared cards begin.
_MEMORY = "GpuMemory"


def add_pod_health(view: ClusterView, found: Explanation, pod: Pod) -> Explanation:
    """Returns the explanation with the faults of the pod's card first; the same one if there are none."""
    if not pod.spec.node_name or pod.status.phase in {"Succeeded", "Failed"}:
        return found
    condition = pod.status.condition(GPU_CONDITION)
    silent = bool(view.agent_fault(pod.spec.node_name))
    told = "by the last word of its node's agent: " if silent else ""
    unwell = [f"{told}{condition.message}"] if condition is not None and condition.reason != GPU_RECOVERED else []
    reported = list(_unhealthy_devices(pod))
    use = list(_memory_events(view, pod))
    if not unwell and not reported and not use:
        return found
    on = ", on a card that is not well" if unwell or reported else ", and takes memory of its neighbours"
    see = f"see the card: tessera health {pod.spec.node_name}"
    withheld = "" if unwell or not reported else _withheld_for(view, pod.spec.node_name)
    if withheld:  # the agent offers the devices to nobody else, and kubelet knows no other word for that
        on, see = ", on devices that no other pod gets", f"see what waits: tessera why node/{pod.spec.node_name}"
        reported = [f"{each}: {withheld}" for each in reported]
    first = found.facts[:1] if silent else ()  # it says why the card's state is unknown
    if silent and unwell:  # what was wrong may be over, or worse
        on = ", on a card that was not well, and whose state is unknown now"
    return msgspec.structs.replace(
        found,
        verdict=f"{found.verdict}{on}" if found.case == "runs" else found.verdict,
        facts=(*first, *unwell, *reported, *use, *found.facts[len(first) :]),
        help=(*found.help, see),
    )


def _withheld_for(view: ClusterView, name: str) -> str:
    """The change of its layout that a node with healthy cards waits for; empty if there is none, or nobody knows."""
    node = view.node(name)
    if node is None:
        return ""
    health, layout = node.status.condition(HEALTH), node.status.condition(LAYOUT)
    if health is None or health.status != "True" or layout is None or layout.status == "True":
        return ""
    if is_marked_silent(layout):
        return ""
    return f"the cards are well, and the node's MIG layout waits for its pods ({layout.reason})"


def _unhealthy_devices(pod: Pod) -> Iterator[str]:
    """What kubelet says of the pod's devices that are not healthy."""
    for container in pod.status.containers:
        for each in container.allocated_resources_status:
            bad = [device for device in each.resources if device.health == "Unhealthy"]
            if bad:
                yield f"kubelet reports {count_noun(len(bad), 'unhealthy device')} of {each.name} in {container.name}"


def _memory_events(view: ClusterView, pod: Pod) -> Iterator[str]:
    """The last Event about memory, as long as it may be true."""
    events = [each for each in view.events_of(pod.metadata.uid, warnings=True) if each.reason.startswith(_MEMORY)]
    for event in events[-1:]:
        if event_time(event) >= view.snapshot.now - WARNING_LIFETIME:
            yield view.describe_event(event)


#: Reasons with which kubelet rejects a bound pod for good (``pkg/kubelet/lifecycle``), with the step against each.
_REJECTED = (
    ("UnexpectedAdmissionError", "if it happens again, see if the node's agent answers kubelet: tessera why node/NODE"),
    ("OutOf", "if it happens again, compare what the node's pods request: kubectl describe node NODE"),
    ("NodeAffinity", "if it happens again, compare its nodeSelector and affinity with the labels of node NODE"),
    ("TaintToleration", "if it happens again, compare its tolerations with the taints of node NODE"),
    ("AdmissionError", "if it happens again, read kubelet's log on node NODE"),
)
#: Words of the device plugin's error when a container asks for several shares where one is the most; NVIDIA's words.
_TOO_MANY_SHARES = "maximum request size for shared resources"


def explain_ended(view: ClusterView, pod: Pod, facts: PodInfo) -> Explanation | None:
    """Explains a pod that will not run any more; None for any other."""
    status = pod.status
    if status.phase == "Succeeded":
        return Explanation(case="finished", verdict=f"has finished (Succeeded){_left(view, facts)}")
    if status.phase == "Failed":
        steps = [step for reason, step in _REJECTED if status.reason.startswith(reason)]
        return _explain_rejected(pod, facts, steps[0]) if steps else _explain_failed(view, pod, facts)
    if facts.terminating and not facts.node:
        return Explanation(case="leaving", verdict="is being deleted", facts=_finalizers(pod))
    return None


def _left(view: ClusterView, facts: PodInfo) -> str:
    """What became of its cards or slices, as far as it is known."""
    if facts.devices:
        return "; its cards are free again"
    if view.slicer is None or not facts.profiles:
        return ""
    record = view.slicer.state.allocations.current_of(PodUid(facts.uid))
    return "; its slices are free again" if record is None else "; its slices are being removed"


def _explain_rejected(pod: Pod, facts: PodInfo, step: str) -> Explanation:
    message = pod.status.message
    steps: tuple[str, ...] = (
        "delete this pod, so that its owner creates another; a pod without an owner must be created again by hand",
        step.replace("NODE", facts.node),
    )
    if _TOO_MANY_SHARES in message:
        steps = ("request one share in each container, in the manifest of the pod's owner, and create the pod again",)
    return Explanation(
        case="rejected",
        verdict=f"was rejected by the node's kubelet, and will not run ({pod.status.reason})",
        facts=(f"node {facts.node} said: {message}",),
        help=steps,
    )


def _explain_failed(view: ClusterView, pod: Pod, facts: PodInfo) -> Explanation:
    cause = ": ".join(each for each in (pod.status.reason, pod.status.message) if each)
    return Explanation(
        case="failed",
        verdict=f"has failed{_left(view, facts)}",
        facts=(*([cause] if cause else []), *_exits(pod)),
        help=(f"read its log: kubectl logs -n {facts.namespace} {facts.name}",),
    )


def _exits(pod: Pod) -> Iterator[str]:
    for each in pod.status.container_statuses:
        if each.state is not None and each.state.terminated is not None:
            ended = each.state.terminated
            yield f"container {each.name} ended with exit code {ended.exit_code} ({ended.reason or 'no reason given'})"


def _finalizers(pod: Pod) -> tuple[str, ...]:
    names = ", ".join(pod.metadata.finalizers)
    return (f"waits for the finalizers {names}",) if names else ()
