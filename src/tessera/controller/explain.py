"""Why a pod does not run yet, in sentences: what ``tessera why`` prints.

Works on the very state machine that decides, filled from a LIST and never acted upon, so that the answer is the
controller's own. One pod has one answer: the first thing in its way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tessera.api.instaslice import Instaslice
from tessera.api.names import GATE, MIG_RESOURCE_PREFIX, QUOTA_RESOURCE, PodUid
from tessera.controller.allocation import Allocation
from tessera.controller.facts import PodFacts, node_facts, pod_facts
from tessera.controller.machine import Slicer
from tessera.controller.wording import waiting_text, wanted_text
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources import Node, Pod, ResourceQuota


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer about one pod.

    Attributes:
        held_by: what it waits for: ``nothing``, ``gate``, ``request``, ``room``, ``controller``, ``agent``,
            ``scheduler`` or ``quota``.
        text: the answer in sentences.
    """

    held_by: str
    text: str


def state_of(pods: Iterable[Pod], nodes: Iterable[Node], instaslices: Iterable[Instaslice]) -> Slicer:
    """The controller's state as it follows from what is stored, with everything that waits planned once."""
    slicer = Slicer()
    for node in nodes:
        slicer.see_node(node_facts(node))
    for pod in pods:
        slicer.see_pod(pod_facts(pod))
    for item in instaslices:
        slicer.see_object(item)
    slicer.decide()
    return slicer


def explain(slicer: Slicer, pod: Pod) -> Explanation:
    """Why a pod does not run yet, or where its slices are.

    Args:
        slicer: from :func:`state_of`.
        pod: the pod, one of those that the state was made of.
    """
    facts = pod_facts(pod)
    if facts.fault:
        return Explanation("request", f"Its request cannot be served: {facts.fault}")
    if not facts.profiles:
        return Explanation("nothing", f"It asks for no slice: none of its containers names {MIG_RESOURCE_PREFIX}*")
    if facts.finished:
        return Explanation("nothing", f"It has ended ({pod.status.phase}); its slices are given back")
    if facts.leaving and facts.gated:
        return Explanation("nothing", "It is being deleted")
    promise = slicer.ledger.live(PodUid(pod.metadata.uid))
    if promise is not None and promise.recorded:
        return _promised(promise, facts, pod)
    return _unpromised(slicer, promise, facts)


def explain_absence(quotas: Iterable[ResourceQuota]) -> Explanation:
    """Why a pod may not even have been created: quotas of its namespace that leave no room for slices."""
    full = [line for quota in quotas for line in _exhausted(quota)]
    if full:
        return Explanation("quota", "There is no such pod. Its creation may have been refused: " + "; ".join(full))
    return Explanation("nothing", "There is no such pod, and no quota on slices is exhausted in its namespace")


def _unpromised(slicer: Slicer, planned: Allocation | None, pod: PodFacts) -> Explanation:
    others = [gate for gate in pod.gates if gate != GATE]
    if others:
        also = f"; Tessera's own gate ({GATE}) is opened after that" if pod.gated else ""
        return Explanation("gate", f"Another operator holds it by the gate {', '.join(others)}{also}")
    if planned is not None:
        return Explanation(
            "controller",
            f"There is room for {_positions(planned)}, but the controller has not acted yet: look at its Deployment "
            "and its log",
        )
    reason = slicer.waiting.get(pod.uid)
    if reason is not None:
        return Explanation("room", waiting_text(pod, reason))
    if pod.node:
        return Explanation("nothing", f"It is bound to node {pod.node}, whose cards are not sliced on demand")
    return Explanation(
        "scheduler",
        f"It asks for {wanted_text(pod)} but is not behind Tessera's gate, so the scheduler looks for a node that "
        "advertises such slices",
    )


def _promised(promise: Allocation, facts: PodFacts, pod: Pod) -> Explanation:
    where = _positions(promise)
    agent = promise.result[1] if promise.result is not None else ""
    if facts.gated:
        return Explanation("controller", f"Promised {where}; the controller is about to open its gate")
    if agent != "created":
        return Explanation(
            "agent",
            f"Promised {where}; the node's agent has not made the slices yet: look at the agent's pod on that node",
        )
    if not facts.node:
        said = next((c.message for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), "")
        because = f": {said}" if said else ""
        return Explanation("scheduler", f"It has {where} and waits for the scheduler to bind it{because}")
    return Explanation("nothing", f"It has {where} (phase {pod.status.phase or 'unknown'})")


def _positions(promise: Allocation) -> str:
    parts = [f"{part.profile} at slot {part.start} of {part.gpu_uuid}" for part in promise.slices]
    return f"{', '.join(parts)} on node {promise.node}"


def _exhausted(quota: ResourceQuota) -> Iterable[str]:
    for name, hard in quota.status.hard.items():
        resource = name.removeprefix("requests.")
        if resource != QUOTA_RESOURCE and not resource.startswith(MIG_RESOURCE_PREFIX):
            continue
        used = quota.status.used.get(name, "0")
        yield from _short(quota, {"name": name, "hard": hard, "used": used})


def _short(quota: ResourceQuota, entry: Mapping[str, str]) -> Iterable[str]:
    try:
        left = parse_quantity(entry["hard"]) - parse_quantity(entry["used"])
    except ValueError:
        return
    yield (
        f"quota {quota.metadata.name} allows {entry['hard']} of {entry['name']}, {entry['used']} is used"
        + (", nothing is left" if left <= 0 else "")
    )
