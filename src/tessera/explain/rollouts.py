"""A pod that waits for an old pod of its own Deployment, which the Deployment keeps until the new one is ready.

With ``maxUnavailable`` 0, as by default for fewer than four pods, a rolling update ends no old pod before a new one is
available. Where the new pod needs what the old one holds, neither goes on. That is called so only where the same plan
finds a place for the pod in a cluster without the old pods, and without other pods that wait.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from tessera.api.names import HAND_OVER, UPDATE_ANNOTATION
from tessera.explain.explanation import Explanation
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Deployment, Pod
from tessera.kube.resources.meta import OwnerReference
from tessera.reasons.reason import OldPods
from tessera.reasons.words import name_blockers, steps, verdict, ways_out
from tessera.text import list_names

#: Labels with which controllers tell the templates of their pods apart.
_HASHES = ("pod-template-hash", "rollouts-pod-template-hash")
#: Annotation with the number of a ReplicaSet's template, and of the newest one of a Deployment.
_REVISION = "deployment.kubernetes.io/revision"
#: Cases of a pod that lacks room, or what others hold.
WAITS = frozenset(
    {"full", "fragmented", "no-node", "in-use", "reserved", "queue-full"}
    | {"node-full", "node-not-ready", "volume", "card-held-back"}
)
#: Cases of a pod that has a place.
_PLACED = frozenset({"placing", "unscheduled"})


def owner_of(pod: Pod) -> OwnerReference | None:
    """The ReplicaSet that controls a pod; None if none does."""
    owners = pod.metadata.owner_references
    return next((each for each in owners if each.controller and each.kind == "ReplicaSet"), None)


def old_pods(pods: Iterable[Pod], pod: Pod) -> Sequence[Pod]:
    """The pods on nodes that are of the same Deployment as a pod, and of an older template than its own."""
    base = _base(pod)
    if not base:
        return ()
    own = owner_of(pod)
    return [
        each
        for each in pods
        if each.metadata.namespace == pod.metadata.namespace
        and _base(each) == base
        and owner_of(each) != own
        and each.spec.node_name
        and each.metadata.deletion_timestamp is None
        and each.status.phase not in {"Succeeded", "Failed"}
        and (each.metadata.creation_timestamp or "") <= (pod.metadata.creation_timestamp or "")
    ]


def _base(pod: Pod) -> str:
    """The name of the Deployment of a pod, by its ReplicaSet's name and hash; empty if it has none."""
    owner = owner_of(pod)
    hashes = [pod.metadata.labels[each] for each in _HASHES if pod.metadata.labels.get(each)]
    if owner is None or not hashes or not owner.name.endswith(f"-{hashes[0]}"):
        return ""
    return owner.name.removesuffix(f"-{hashes[0]}")


def name_rollout(
    view: ClusterView, found: Explanation, pod: Pod, explain: Callable[[ClusterView, Pod], Explanation]
) -> Explanation:
    """The explanation of a waiting pod, with the update of its own Deployment if that stands in the way.

    Args:
        view: the cluster as it was read.
        found: why the pod waits.
        pod: the pod.
        explain: explains a pod of another view.
    """
    unplanned = found.case == "held" and view.slicer is None
    old = old_pods(view.snapshot.pods, pod) if found.case in WAITS or unplanned else ()
    owner = owner_of(pod)
    if not old or owner is None:
        return found
    deployment = _deployment_of(view, owner)
    if deployment is None:
        return found if view.snapshot.deployments else _tell_of_old(found, pod, old, _IF_KEPT)
    if unplanned:
        return _tell_of_old(found, pod, old, _KEPT) if deployment.keeps_old_pods else found
    if not deployment.keeps_old_pods or explain(_without(view, pod, old), pod).case not in _PLACED:
        return found
    if _hands_over(pod):
        return _tell_of_old(found, pod, old, _KEPT)
    keys = tuple(f"{each.metadata.namespace}/{each.metadata.name}" for each in old)
    reason = OldPods(deployment.metadata.namespace, deployment.metadata.name, keys)
    return msgspec.structs.replace(
        found,
        case=reason.case,
        verdict=verdict(reason),
        facts=(name_blockers(reason, view.indexes), f"it {found.verdict}", *found.facts),
        help=(
            *steps(reason, pod.metadata.namespace),
            *(step for step in found.help if not any(each.metadata.name in step for each in old)),
        ),
    )


def _deployment_of(view: ClusterView, owner: OwnerReference) -> Deployment | None:
    """The Deployment of a ReplicaSet with its newest template; None for an older template, and if it was not read."""
    mine = next((each for each in view.snapshot.replica_sets if each.metadata.uid == owner.uid), None)
    uids = {each.uid for each in mine.metadata.owner_references if each.controller} if mine is not None else set()
    found = next((each for each in view.snapshot.deployments if each.metadata.uid in uids), None)
    if mine is None or found is None:
        return None
    revisions = [each.metadata.annotations.get(_REVISION) for each in (mine, found)]
    return found if revisions[0] == revisions[1] else None


#: What is known of old pods: by a reader of the Deployment, and by others.
_KEPT = (
    "its maxUnavailable is 0, so an old pod ends only when a new one is ready, and neither goes on if both need the"
    " same room"
)
_HANDED_OVER = (
    f"by its annotation {UPDATE_ANNOTATION}: {HAND_OVER} the controller ends old pods one by one for new ones, unless"
    " its option --handover says otherwise; it has not published this pod's step yet"
)
_IF_KEPT = "if its maxUnavailable is 0 (also 25% of fewer than 4 pods), an old pod ends only when a new one is ready"


def _hands_over(pod: Pod) -> bool:
    """True if the controller may end an old pod for this one (:mod:`tessera.handover.hand_over`)."""
    return bool(pod.spec.scheduling_gates) and pod.metadata.annotations.get(UPDATE_ANNOTATION) == HAND_OVER


def _tell_of_old(found: Explanation, pod: Pod, old: Sequence[Pod], known: str) -> Explanation:
    """Names the old pods where it is not known that they and the new one wait for each other."""
    names, name = list_names([each.metadata.name for each in old], 3), _base(pod)
    verb = "is" if len(old) == 1 else "are"
    what = _HANDED_OVER if _hands_over(pod) else known
    told = f"{names} {verb} of the same Deployment {name} and of an older template: {what}"
    way = f"in an update that waits for its own old pod: {ways_out(pod.metadata.namespace, name)[0]}"
    return msgspec.structs.replace(
        found, facts=(*found.facts, told), help=(*found.help, *(() if _hands_over(pod) else (way,)))
    )


def _without(view: ClusterView, pod: Pod, old: Sequence[Pod]) -> ClusterView:
    """The cluster in which the old pods have ended, and no pod waits but this one."""
    gone = {each.metadata.uid for each in old}
    snapshot = view.snapshot
    pods = [
        each
        for each in snapshot.pods
        if each.metadata.uid not in gone and (each.metadata.uid == pod.metadata.uid or not each.spec.scheduling_gates)
    ]
    records = [
        msgspec.structs.replace(
            each,
            spec=msgspec.structs.replace(
                each.spec, pod_allocation_requests=_less(each.spec.pod_allocation_requests, gone)
            ),
            status=msgspec.structs.replace(
                each.status, pod_allocation_results=_less(each.status.pod_allocation_results, gone)
            ),
        )
        for each in snapshot.instaslices
    ]
    return ClusterView(replace(snapshot, pods=pods, instaslices=records, page=None))


def _less(by_uid: Mapping[str, Any], gone: Iterable[str]) -> dict[str, Any]:
    return {uid: each for uid, each in by_uid.items() if uid not in gone}
