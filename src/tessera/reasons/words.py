"""Reasons in words: the one sentence for each, which every screen, condition, event and refusal shows.

A sentence names no other pod and no node, so it is the same for every reader. :func:`name_blockers` names what must end
first, to those who may know it: give it a reason that :func:`for_namespace` or a Redactor has returned.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import msgspec

from tessera.limits import GANG_SIZE
from tessera.mig.names import CARD_SLOTS, RESOURCE_PREFIX, is_device_profile, resource_spelling
from tessera.reasons.node_rules import name_rule
from tessera.reasons.reason import (
    Blocker,
    CardsAway,
    Fragmented,
    Full,
    GangIncomplete,
    GangNoRoom,
    GangTooLarge,
    NeverFits,
    NoNode,
    OldPods,
    OtherGate,
    Planning,
    QueueFull,
    Reason,
    Reserved,
    SharedClaim,
    UnknownProfile,
    UpdateStep,
)
from tessera.text import INSTALLATION, REINSTALL, count_noun, list_names
from tessera.visibility import OTHERS_POD, Unnamed, Visibility

#: Shows the controller's log.
CONTROLLER_LOG = "kubectl logs -n tessera-system deployment/tessera-controller"
_SHORTER = "a pod that ends before these slots are expected to be free may use them: set activeDeadlineSeconds"
#: The text where no slices were found whose end makes room; the search is bounded, so there may be some.
NO_ENDS = "no small set of pods was found whose end makes room"
NO_ENDS_STEP = f"{NO_ENDS}: tessera map shows which pods have which slices"
_SHOWN = 3
_OTHERS_PODS = "pods of other namespaces"
_NO_INDEXES: Mapping[str, int] = MappingProxyType({})
R = TypeVar("R", bound=msgspec.Struct)


def sentence(reason: Reason) -> str:
    """Why a pod waits, without a capital letter and without a full stop."""
    match reason:
        case UnknownProfile():
            return _unknown(reason)
        case NeverFits():
            return _never_fits(reason)
        case NoNode():
            return _no_node(reason)
        case Full():
            return _full(reason)
        case Fragmented():
            return _fragmented(reason)
        case Reserved(profiles=profiles, keys=keys, spare=spare):
            pods = f"reserved for {count_noun(len(keys), 'pod')} that {'goes' if len(keys) == 1 else 'go'} first"
            kept = f"kept spare for services of queue {list_names(spare, _SHOWN)}"
            first = " or ".join([*([pods] if keys else []), *([kept] if spare else [])])
            wanted = name_profiles(profiles)
            return f"the free {room_word(profiles)} that would do for {wanted} are {first}"
        case QueueFull():
            return _queue_full(reason)
        case GangIncomplete():
            return _gang_incomplete(reason)
        case GangTooLarge(gang=gang, size=size, wanted=wanted, most=most):
            return (
                f"gang {gang}: its {size} pods request {wanted} together; all cards of the cluster hold at most {most},"
                " even empty. Ask for a smaller gang or smaller slices, or add nodes"
            )
        case GangNoRoom(gang=gang, size=size, fit=fit, reason=of):
            why = sentence(of) if of is not None else "planning them together exceeds the work of one decision"
            return f"gang {gang} starts as a whole, and {fit} of its {size} pods have a place now: {why}"
        case CardsAway(cards=cards, reason=of, faults=faults):
            held = "is" if cards == 1 else "are"
            why = f" ({list_names(faults, _SHOWN)})" if faults else ""
            return f"{count_noun(cards, 'card')} that might serve it {held} held back for a fault{why}; {sentence(of)}"
        case OldPods():
            return _OLD_PODS[reason.step]
        case OtherGate(gates=gates):
            return _other_gate(gates)
        case SharedClaim():
            return "another pod asks for its ResourceClaim first"
        case Planning():
            return "the controller has not planned it yet"


def verdict(reason: Reason) -> str:
    """The sentence as it continues after the name of the pod."""
    if reason.never:
        return f"cannot run in this cluster; {sentence(reason)}"
    return f"waits{' for room' if reason.waits_for_room else ''}; {sentence(reason)}"


def steps(reason: Reason, namespace: str) -> tuple[str, ...]:
    """What would help a pod of a namespace, as far as the reason alone says it."""
    match reason:
        case UnknownProfile(profile=profile, missing_kind=kind) if kind and not is_device_profile(profile):
            return (REINSTALL,)
        case UnknownProfile(profile=profile, known=known, closest=closest) if known and not is_device_profile(profile):
            return (
                *((f"request {RESOURCE_PREFIX}{resource_spelling(closest)} instead",) if closest else ()),
                f"add a node whose cards have {profile}",
                "delete the pod and create it again: the resources of an existing pod cannot be changed",
            )
        case NeverFits():
            return ("request less in one pod, or add a node with more cards",)
        case Full(frees=()) | Fragmented(frees=()):
            return (NO_ENDS_STEP,)
        case NoNode(case="volume"):
            return (f"look at its claims: kubectl get persistentvolumeclaims,storageclasses -n {namespace}",)
        case Reserved(keys=keys, spare=spare):
            return (_SHORTER,) if keys else (f"see what it keeps: kubectl get queues.tessera.dev {' '.join(spare)}",)
        case QueueFull(queue=queue, never=never):
            ends = "end pods of the queue, or wait until they end"
            see = f"see the queue: kubectl get queues.tessera.dev {queue} -o yaml"
            return ("request fewer or smaller slices" if never else ends, see)
        case GangIncomplete(gang=gang, size=0):
            return (
                f"look at it: kubectl get podgroups.scheduling.x-k8s.io -n {namespace} {gang}",
                "or write the size on the pods, as annotation tessera.dev/gang-size",
            )
        case GangIncomplete(size=size, exist=exist) if exist < size:
            missing = count_noun(size - exist, "pod")
            return (f"create the missing {missing} with the same gang, or correct the number that start together",)
        case GangIncomplete():
            return ("see what holds the other pods of the gang: tessera queue, and tessera why POD",)
        case GangTooLarge() | GangNoRoom(reason=None):
            return ("make a smaller gang or request smaller slices, or add nodes",)
        case GangNoRoom(reason=of) if of is not None:
            return steps(of, namespace)
        case CardsAway(reason=of):
            return ("see which cards have a fault, and what ends it: tessera health", *steps(of, namespace))
        case SharedClaim():
            return ("see why the pod waits that asks for it: tessera queue, and tessera why POD",)
        case OldPods(deployment=name, step=UpdateStep.STAY):
            return ways_out(namespace, name)
        case OldPods(step=UpdateStep.SHORT):
            return (f"see which of its pods are not ready: kubectl get pods -n {namespace}",)
        case OldPods(step=UpdateStep.REFUSED):
            return (
                f"set maxUnavailable 1 in its PodDisruptionBudget: kubectl get poddisruptionbudgets -n {namespace}",
            )
        case OldPods(deployment=name, step=UpdateStep.IMAGE):
            return (
                "correct the image in the pod template, or push it: the update goes on by itself",
                f"or take the update back: kubectl rollout undo -n {namespace} deployment/{name}",
            )
        case OldPods(deployment=name, step=UpdateStep.FAILED):
            return (
                f"see why it failed: kubectl get events -n {namespace}",
                f"correct the template, or take the update back: kubectl rollout undo -n {namespace} deployment/{name}",
            )
        case Planning():
            return ("check again in a moment; if nothing changes, read the controller's log", CONTROLLER_LOG)
        case _:
            return ()


def name_blockers(reason: Reason, indexes: Mapping[str, int] = _NO_INDEXES) -> str:
    """What must end or start before the pod, by name; empty if the reason is not about other pods.

    Args:
        reason: the reason.
        indexes: the driver's index of each card, by UUID; a card that is not among them is not named.
    """
    match reason:
        case Full(frees=()) | Fragmented(frees=()):
            return NO_ENDS
        case Full(frees=frees) | Fragmented(frees=frees):
            parts = _name_blockers(frees, indexes)
            verb = "ends" if len(parts) == 1 and not parts[0].startswith(_OTHERS_PODS) else "end"
            return f"room comes when {' and '.join(parts)} on node {frees[0].node} {verb}"
        case Reserved(keys=keys) if keys:
            first = list_names(list(dict.fromkeys(keys)), _SHOWN)
            return f"first {'goes' if len(keys) == 1 else 'go'} {first}"
        case GangNoRoom(member=member, reason=of):
            more = name_blockers(of, indexes) if of is not None else ""
            return f"{member} finds no place beside the others{f'; {more}' if more else ''}"
        case CardsAway(reason=of):
            return name_blockers(of, indexes)
        case SharedClaim(first=first):
            return f"{first} asks for it"
        case OldPods(old=old, said=said, step=step):
            who = "kubelet" if step is UpdateStep.IMAGE else "the server"
            age = "new" if step is UpdateStep.BACK else "old"
            names = f"the {age} {'pod is' if len(old) == 1 else 'pods are'} {name_pods(old[:_SHOWN])}" if old else ""
            return "; ".join(filter(None, (names, f"{who} says: {said.rstrip('.')}" if said else "")))
        case _:
            return ""


#: What keeps a new pod of a Deployment that has no room beside the old ones, by step.
_OLD_PODS = {
    UpdateStep.STAY: "an old pod of its own Deployment holds what it needs, and ends only when this one is ready"
    " (maxUnavailable 0): neither goes on by itself",
    UpdateStep.FOLLOW: "it gets the slots of an old pod of its own Deployment once the new pods before it are ready",
    UpdateStep.SHORT: "it gets the slots of an old pod once as many pods are ready as its Deployment wants, or once"
    " this pod is progressDeadlineSeconds old",
    UpdateStep.PULL: "it gets the slots of an old pod of its own Deployment once its images are on that pod's node",
    UpdateStep.IMAGE: "an old pod of its own Deployment holds what it needs, and serves on: its node does not get an"
    " image of this pod",
    UpdateStep.END: "it gets the slots of an old pod of its own Deployment, which was asked to end",
    UpdateStep.REFUSED: "it gets the slots of an old pod of its own Deployment, and its eviction is refused",
    UpdateStep.FAILED: "a pod of this revision did not become ready, and its slots went back to the old revision;"
    " this revision gets no further try",
    UpdateStep.BACK: "a new pod of its own Deployment has its slots, and gives them back if it is not ready in time",
}
_PATCH = '{"spec":{"strategy":{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1}}}}'


def ways_out(namespace: str, deployment: str) -> tuple[str, ...]:
    """The ways out of an update in which old and new pods wait for each other."""
    patch = f"kubectl patch deployment -n {namespace} {deployment} -p '{_PATCH}'"
    return (
        f"let an old pod end first; the service is without it meanwhile: {patch}",
        "or let Tessera do so, and go back if a new pod fails: annotate the pod template tessera.dev/update: hand-over",
        "or make room for one pod more, and keep the old one until then: end another pod, request less, or add a node",
    )


def _name_blockers(frees: Iterable[Blocker], indexes: Mapping[str, int]) -> list[str]:
    """What must end, each pod once; pods of other namespaces, which have no name here, together."""
    every = list(dict.fromkeys(frees))
    others = list(dict.fromkeys(_place(each, indexes) for each in every if each.pod == OTHERS_POD))
    if len(others) < 2:
        return list(dict.fromkeys(_name_blocker(each, indexes) for each in every))
    own = dict.fromkeys(_name_blocker(each, indexes) for each in every if each.pod != OTHERS_POD)
    return [*own, f"{_OTHERS_PODS} ({list_names(others, separator='; ')})"]


def name_pods(names: Iterable[str]) -> str:
    """Lists pods; those of other namespaces, which have no name here, by their number.

    Args:
        names: one for each pod.
    """
    listed = list(names)
    others = listed.count(OTHERS_POD)
    own = [each for each in listed if each != OTHERS_POD]
    return list_names([*own, *([f"{others} {_OTHERS_PODS}"] if others > 1 else [OTHERS_POD] * others)])


def for_namespace(reason: R, namespace: str) -> R:
    """A reason, or a part of one, as the readers of a namespace's pods may read it alone, such as in an event."""
    return Unnamed().redact(reason, Visibility(nodes=True, namespaces=frozenset({namespace})))


def name_profiles(profiles: Iterable[str]) -> str:
    """``28 x 1g.5gb + 3g.20gb``."""
    counts = Counter(each.partition(" (")[0] for each in profiles).items()  # without a choice's digest
    return " + ".join(name if count == 1 else f"{count} x {name}" for name, count in counts)


def room_word(profiles: Iterable[str]) -> str:
    """Names what pods with these profiles take: ``cards`` for whole cards and shares, ``memory slots`` for slices."""
    return "cards" if all(map(is_device_profile, profiles)) else "memory slots"


def _unknown(reason: UnknownProfile) -> str:
    if is_device_profile(reason.profile):
        return f"no node has {name_profiles([reason.profile])}"
    if reason.missing_kind:
        lacks = f"the cluster lacks the kind {reason.missing_kind}, which {INSTALLATION} brings back"
        return f'no card is known that can make "{reason.profile}": {lacks}'
    if not reason.known:
        return f'no card can make "{reason.profile}": no node has reported a card that is cut on demand'
    meant = f'; did you mean "{reason.closest}"?' if reason.closest else ";"
    return f'no card has a profile "{reason.profile}"{meant} the cards have {", ".join(reason.known)}'


def _never_fits(reason: NeverFits) -> str:
    what = "cards" if all(map(is_device_profile, reason.profiles)) else "slices"
    holds = name_profiles(reason.holds)
    return cannot_hold(name_profiles(reason.profiles), what, reason.largest, holds, selected=reason.selected)


def cannot_hold(wanted: str, what: str, largest: str, holds: str, *, selected: bool) -> str:
    """The sentence about a request that no node could hold; the arguments are those of ``NeverFits`` in words.

    Args:
        wanted: the request.
        what: ``cards`` or ``slices``.
        largest: the node that holds most of it; empty if not known.
        holds: what that node holds of it; empty for nothing.
        selected: True if only the nodes that the pod selects were asked.
    """
    where = "no node that it selects" if selected else "no node"
    found = f"{where} could hold {wanted}, even empty; all {what} of a pod are on one node"
    if not largest:
        return f"{found}: ask for fewer"
    if not holds:
        return f"{found}, and {largest} holds none of them: ask for what the nodes have"
    return f"{found}, and {largest} holds {holds}: ask for no more, or divide the work among pods"


def _no_node(reason: NoNode) -> str:
    if reason.too_small:
        return f"no node could ever take it: it requests {reason.too_small}"
    refused = ", ".join(f"{each.nodes} {name_rule(each.rule)}" for each in reason.counts)
    total = sum(each.nodes for each in reason.counts) + reason.no_room
    room = f", {reason.no_room} without a card that can make it" if reason.no_room else ""
    return f"0 of {total} nodes can take it: {refused}{room}"


def _full(reason: Full) -> str:
    wanted = name_profiles(reason.profiles)
    if is_device_profile(reason.profiles[0]):
        return f"{'fewer than' if len(reason.profiles) > 1 else 'no'} {wanted} free"
    if not reason.total or not reason.needed:
        return f"every card that it may use is full for {wanted}"
    return f"not enough free memory slots for {wanted}: {reason.total} free, {reason.needed} needed"


def _fragmented(reason: Fragmented) -> str:
    wanted = name_profiles(reason.profiles)
    if is_device_profile(reason.profiles[0]):
        return _devices_short(reason)
    free = f"{count_noun(reason.total, 'memory slot')} free, at most {reason.free_slots}"
    if not reason.needed:
        return f"{free} together, but not where NVIDIA allows {wanted} to start"
    where = "card" if len(reason.profiles) == 1 else "node"
    if reason.needed > reason.free_slots:
        return f"{free} on one {where}, and {wanted} needs {reason.needed}"
    return f"{free} on one {where}, but not at a start that NVIDIA allows for {wanted}"


def _devices_short(reason: Fragmented) -> str:
    """Too few free devices on each node."""
    name, count = reason.profiles[0], len(reason.profiles)
    if not reason.needed:
        return f"{name} is free on some nodes, but {name_profiles(reason.profiles)} on none"
    slots = reason.needed // count
    wanted = count_noun(count, "whole card") if slots == CARD_SLOTS else f"{count} {name}"
    return f"no node has {wanted} free; the most on one node is {reason.free_slots // slots}"


def _queue_full(reason: QueueFull) -> str:
    wanted = name_profiles(reason.profiles)
    if reason.never:
        return (
            f"{wanted} is more than queue {reason.queue} may hold at all (spec.maximum {reason.maximum}): ask for less,"
            " or have the Queue's maximum raised"
        )
    return (
        f"queue {reason.queue} may hold {reason.maximum} (spec.maximum), and holds {reason.held}: {wanted} waits until"
        " pods of the queue end"
    )


def _gang_incomplete(reason: GangIncomplete) -> str:
    if not reason.size:
        count = f"no PodGroup of this name says how many pods, at most {GANG_SIZE:d}, start together"
    elif reason.exist < reason.size:
        count = f"{reason.exist} of {reason.size} pods exist"
    else:
        count = f"all {reason.size} pods exist, but {reason.held} cannot be placed yet: other gates hold them, or they"
        count += " were refused"
    return f"gang {reason.gang}: {count}; its pods get their slices together, and hold none until then"


def _other_gate(gates: Sequence[str]) -> str:
    """Names the gates; whether their owners are in the cluster is not known."""
    names = ", ".join(gates)
    if any(gate.startswith("kueue.x-k8s.io/") for gate in gates):
        return f"Kueue holds it by the gate {names}"
    gate, its = ("gate", "its owner removes it") if len(gates) == 1 else ("gates", "their owners remove them")
    return f"it has the {gate} {names}, not Tessera's: {its}"


def _name_blocker(one: Blocker, indexes: Mapping[str, int]) -> str:
    return f"{one.pod} ({_place(one, indexes)})"


def _place(one: Blocker, indexes: Mapping[str, int]) -> str:
    if is_device_profile(one.profile):
        return one.profile
    card = f" on GPU {indexes[one.gpu]}" if one.gpu in indexes else ""
    return f"{one.profile}{card}, {name_slots(one.start, one.size)}"


def name_slots(start: int, size: int) -> str:
    """``memory slot 4``, or ``memory slots 4-7``, of a slice of a card."""
    return f"memory slots {start}-{start + size - 1}" if size > 1 else f"memory slot {start}"
