"""Texts of Events and conditions about pods and nodes.

The readers of a pod's events may have no right to see pods of other namespaces, so these texts do not name them.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from tessera.api.names import INSTASLICE_NAMESPACE, MOVABLE_ANNOTATION
from tessera.controller.cluster.filters import AVOIDANCE_SECONDS
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.node_records import Reservation
from tessera.placement.moves import Room
from tessera.reasons.reason import Blocker, Reason
from tessera.reasons.words import for_namespace, name_blockers, name_pods, name_profiles, name_slots, sentence
from tessera.text import age, one_line


def name_for(namespace: str, key: str) -> str:
    """Returns how readers of a namespace are told of the owner of slices: by its name if it is no pod of others."""
    return for_namespace(Blocker(key), namespace).pod


def _names_for(pod: PodInfo, keys: Iterable[str]) -> str:
    """Lists owners of slices for the readers of a pod's namespace."""
    return name_pods(name_for(pod.namespace, key) for key in keys)


def reason_text(pod: PodInfo, reason: Reason, indexes: Mapping[str, int] = MappingProxyType({})) -> str:
    """A reason, with what must end first, for the readers of a pod's namespace.

    Args:
        pod: the pod.
        reason: the reason.
        indexes: the driver's index of each card, by UUID; a card that is not among them is not named.
    """
    shown = for_namespace(reason, pod.namespace)
    return "; ".join(filter(None, (sentence(shown), name_blockers(shown, indexes))))


def waiting_text(pod: PodInfo, reason: Reason, indexes: Mapping[str, int] = MappingProxyType({})) -> str:
    """Returns the event message of a waiting pod: the reason, and what must end first."""
    return f"Waiting for {profiles_text(pod)}: {reason_text(pod, reason, indexes)}"


def fixed_layout_text(pod: PodInfo) -> str:
    """Returns the event message for a pod that nodes with a fixed layout serve."""
    return (
        f"No card that is cut on demand serves {profiles_text(pod)}, but nodes with a fixed MIG layout have it: "
        "the scheduler places the pod"
    )


def lost_slices_text(pod: PodInfo, reason: Reason, indexes: Mapping[str, int]) -> str:
    """Returns the event message for an ungated pod without recorded slices and without room for new ones."""
    return (
        f"The pod runs or is pinned without a slice on record, and its node has no room for {profiles_text(pod)}: "
        f"{reason_text(pod, reason, indexes)}. Delete the pod, so that its replacement gets another place"
    )


def object_fault_text(node: str, fault: str) -> str:
    """Returns the text of a node's condition and event about an Instaslice object that breaks a rule."""
    name = f"instaslice -n {INSTASLICE_NAMESPACE} {node}"
    return (
        f"instaslice {INSTASLICE_NAMESPACE}/{node}: {one_line(fault, 400)}. The node gets no new slices until the "
        f"object is right: kubectl edit {name}, or kubectl delete {name}, after which the agent creates it again"
    )


def withdrawn_text(pod: PodInfo, node: str, *, avoided: bool = False) -> str:
    """Returns the event message for a pod that cannot start on its node; its owner's next pod may avoid the node."""
    refusal = one_line(pod.unschedulable_message) or "it has not bound the pod in time"
    what = pod.kind.noun
    cause = f"The scheduler refuses the pod on node {node}, where its {what} were promised: {refusal}"
    then = (
        f"Its {what} go to the next pod. Delete the pod and create it again, so that it gets another place: if it is"
        " bound here when there is no room for it, it is deleted"
    )
    if pod.node:
        cause = f"The agent of node {node} is not ready, so the pod's containers with slices cannot start there"
        then = "They start once the agent is ready. Delete the pod and create it again, so that it gets another place"
    if pod.owner:
        then = "It is evicted, so that its owner creates it again"
    if pod.owner and avoided:
        then = f"It is evicted, and its owner's next pod avoids the node for {AVOIDANCE_SECONDS / 60:.0f} minutes"
    return f"{cause}. {then}"


def unbound_text(pod: PodInfo, node: str) -> str:
    """Returns the event message for a pod whose slices go to others, since nobody binds it."""
    what = pod.kind.noun
    said = one_line(pod.unschedulable_message)
    cause = "No scheduler has bound the pod or said why, while other pods were bound"
    if pod.gates:
        cause = f"The gate {one_line(', '.join(pod.gates), 200)} still holds the pod"
    elif pod.preempting:
        cause = "The scheduler waits for pods of lower priority to end, and has not bound the pod in time"
    elif said:
        cause = f"The scheduler has not bound the pod in time: {said}"
    return (
        f"{cause}. Its {what}, promised on node {node}, go to the next pod. Once the pod is bound, it starts on this"
        f" node if it is its turn and there is room; if there is none, it is {_end_text(pod)}"
    )


def turn_lost_text(pod: PodInfo, node: str) -> str:
    """Returns the event message for a pod that was bound after its slices had gone to others."""
    return (
        f"The scheduler has bound the pod to node {node} after its {pod.kind.noun} went to"
        f" the next pod, and there is no room for it now: it is {_end_text(pod)}"
    )


def _end_text(pod: PodInfo) -> str:
    return "evicted, so that its owner creates it again" if pod.owner else "deleted; create it again"


def overstay_text(pod: PodInfo) -> str:
    """Returns the event message for a pod that stays beyond its deadline."""
    asked = f"Tessera asks it to end within {max(1, int(pod.grace))} s, the grace period of its spec"
    if pod.terminating:
        return f"Its activeDeadlineSeconds are over, and its deletion has a longer grace period: {asked}"
    return f"Its activeDeadlineSeconds and its grace period are over, and it is still there: {asked}"


_NO_YOUNGER = "younger pods do not get these slots"


def reserved_text(pod: PodInfo, reservation: Reservation, holders: Sequence[str], indexes: Mapping[str, int]) -> str:
    """Returns the event message of a pod for which slots are kept; its forecast alone says when it starts.

    Args:
        pod: the pod.
        reservation: the slots.
        holders: owners of slices that must end first, as ``namespace/name``.
        indexes: the driver's index of each card of the node, by UUID.
    """
    places = (
        "as many"
        if pod.devices
        else ", ".join(
            f"{each.profile} on GPU {indexes.get(each.gpu_uuid, each.gpu_uuid)}, {name_slots(each.start, each.size)}"
            for each in reservation.slices
        )
    )
    rule = "a pod of the same owner held these slots" if reservation.is_inherited else _NO_YOUNGER
    kept = f"Reserved for {profiles_text(pod)}: {places}, on node {reservation.node}; {rule}"
    if not holders:
        return f"{kept}. They are free now; the pod starts with its gang"
    return f"{kept}. They are free when {_names_for(pod, holders)} {'ends' if len(holders) == 1 else 'end'}"


def room_text(pod: PodInfo, room: Room) -> str:
    """Returns the event message of a pod for which moves would make room."""
    names = [move.allocation.owner for move in room.moves]
    ending = "ended and its owner made it" if len(names) == 1 else "ended and their owners made them"
    return (
        f"{profiles_text(pod)} would fit on node {room.placement.node} if {_names_for(pod, names)} {ending} anew"
        f" elsewhere; the gain is more than the lost work. The moves: tessera defrag --plan"
    )


def moved_text(pod: PodInfo, reservation: Reservation) -> str:
    """Returns the event message of a pod that is evicted to make room."""
    waiting = name_for(pod.namespace, reservation.key)
    profiles = " + ".join(each.profile for each in reservation.slices)
    return (
        f"Evicted, because {waiting} needs {profiles} on node {reservation.node}, and this pod may move: it has"
        f' the annotation {MOVABLE_ANNOTATION}: "true". Its owner makes it anew, and there was a place for it'
    )


def not_moved_text(pod: PodInfo, reservation: Reservation, reason: str, rest: float) -> str:
    """Returns the event message of a pod whose eviction was refused; it is left alone for ``rest`` seconds."""
    waiting = name_for(pod.namespace, reservation.key)
    profiles = " + ".join(each.profile for each in reservation.slices)
    said = f": {one_line(reason, 300).rstrip('.')}" if reason else ""
    return (
        f"Not moved: {waiting} needs {profiles} on node {reservation.node}, and the eviction of this pod was"
        f" refused{said}. The pod stays, and is not asked to move again for {age(rest)}"
    )


def preempted_text(pod: PodInfo, waiting: PodInfo, node: str) -> str:
    """Returns the event message of a pod that is evicted for one of higher priority."""
    return (
        f"To be evicted, unless a PodDisruptionBudget keeps it: {name_for(pod.namespace, waiting.key)} of priority"
        f" {waiting.priority} needs its slices on node {node}; this pod has priority {pod.priority}"
    )


def profiles_text(pod: PodInfo) -> str:
    """Formats a pod's profiles as ``3g.20gb`` or ``2 x 1g.5gb + 3g.20gb``."""
    return name_profiles(pod.profiles)
