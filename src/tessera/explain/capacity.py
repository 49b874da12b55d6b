"""Explains the lack of a node for a pod with slices on demand.

Placement gives the reason (:mod:`tessera.placement.demand`). This module adds the facts a person needs: the rules
and the nodes that they refuse, how full the cards are, and the pods that are served first.
:mod:`tessera.explain.counterfactuals` adds the changes that would make room.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from tessera.api.instaslice import NodeGpu
from tessera.api.names import (
    MIG_CONFIG_DYNAMIC,
    MIG_CONFIG_LABEL,
    QUOTA_RESOURCE,
    STATEFUL_SET_POD_LABEL,
    NodeName,
    PodUid,
    is_on_demand,
    resource_of,
)
from tessera.api.nodes.agent_pod import AGENT_LABEL
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.messages import profiles_text
from tessera.controller.slicing.state.reservation import Reservation
from tessera.controller.slicing.state.reservation_rules import holders_of
from tessera.explain.counterfactuals import (
    changes_by_node,
    missing_profiles,
    room_elsewhere,
    room_for_smaller,
    room_if_ended,
)
from tessera.explain.explanation import Explanation
from tessera.explain.fixed_resources import explain_not_offered
from tessera.explain.node_refusals import nodes_by_rule, refusal_facts
from tessera.explain.offered_resources import explain_blocked_devices, is_mig
from tessera.explain.snapshot import ClusterView
from tessera.placement.demand import (
    Fragmented,
    Full,
    GangIncomplete,
    GangNoRoom,
    GangTooLarge,
    NeverFits,
    NoNode,
    QueueFull,
    Reason,
    Reserved,
    UnknownProfile,
    room_word,
)
from tessera.placement.moves import MOST_MOVES
from tessera.text import age, count_noun, list_names

_ALL_AT_ONCE = (
    "if its StatefulSet does not have podManagementPolicy: Parallel, make it anew with it; without it each pod is"
    " made only when the one before is ready"
)


def explain_no_room(view: ClusterView, slicer: Slicer, pod: PodInfo, reason: Reason) -> Explanation:
    """Explains the lack of a node for a pod.

    Args:
        view: the cluster as it was read.
        slicer: the controller's state, made from the snapshot.
        pod: the waiting pod.
        reason: the reason why the last plan has no place for it.
    """
    found = _explain_reason(view, slicer, pod, reason)
    blocked, steps = explain_blocked_devices(view, Counter(pod.devices))
    return msgspec.structs.replace(
        found, facts=(*found.facts, *blocked, *view.cordoned_cards()), help=(*steps, *found.help)
    )


def _explain_reason(view: ClusterView, slicer: Slicer, pod: PodInfo, reason: Reason) -> Explanation:
    match reason:
        case UnknownProfile() if pod.devices:
            return explain_not_offered(view, Counter(pod.devices), sorted(set(pod.devices)))
        case UnknownProfile(known=()):
            return _explain_no_card(view, pod)
        case UnknownProfile():
            return _unknown_profile(pod, reason)
        case NeverFits():
            return _from_reason(pod, "never-fits", reason, "request less in one pod, or add a node with more cards")
        case GangTooLarge():
            step = "make a smaller gang or request smaller slices, or add nodes"
            return _from_reason(pod, "gang-too-large", reason, step)
        case NoNode():
            return _no_node(view, slicer, pod, reason)
        case Full() | Fragmented():
            return _no_card(view, slicer, pod, reason)
        case Reserved():
            return _explain_reserved(view, slicer, pod, reason)
        case QueueFull():
            ends = "end pods of the queue, or wait until they end"
            step = "request fewer or smaller slices" if reason.never else ends
            look = f"see the queue: kubectl get queues.tessera.dev {reason.queue} -o yaml"
            return _from_reason(pod, "queue-full", reason, step, look, never=reason.never)
        case GangIncomplete() | GangNoRoom():
            return _explain_gang(view, slicer, pod, reason)


def _request(pod: PodInfo) -> str:
    return f"it requests {profiles_text(pod)}"


def _explain_no_card(view: ClusterView, pod: PodInfo) -> Explanation:
    labelled = [
        node.metadata.name
        for node in view.snapshot.nodes
        if is_on_demand(node.metadata.labels.get(MIG_CONFIG_LABEL, ""))
    ]
    if not labelled:
        return Explanation(
            case="no-node-joined",
            verdict="waits; no node is labelled for slices on demand",
            facts=(_request(pod), f"{count_noun(len(view.snapshot.nodes), 'node')}, none labelled {_LABEL}"),
            help=(f"add a node with MIG-capable GPUs: kubectl label node NODE {_LABEL}",),
        )
    records = {each.metadata.name: each.status.node_resources.node_gpus for each in view.snapshot.instaslices}
    faults = [f"{node}: {view.agent_fault(node) or _no_card_of(records.get(node))}" for node in labelled[:_NODES]]
    return Explanation(
        case="no-card-reported",
        verdict="waits; nodes are labelled for slices on demand, but none of them has reported a card",
        facts=(_request(pod), f"labelled {_LABEL}: {list_names(labelled)}", *faults),
        help=(
            f"read the agents' logs: kubectl logs -n tessera-system -l {'='.join(AGENT_LABEL)} --prefix",
            f"see the node's events, which name cards that are skipped: kubectl describe node {labelled[0]}",
        ),
    )


def _no_card_of(cards: Sequence[NodeGpu] | None) -> str:
    if cards is None:
        return "it has no Instaslice object"
    return "its Instaslice object lists no card" if not cards else "none of its cards has a profile"


#: Nodes that are told one by one.
_NODES = 5
_LABEL = f"{MIG_CONFIG_LABEL}={MIG_CONFIG_DYNAMIC}"


def _unknown_profile(pod: PodInfo, reason: UnknownProfile) -> Explanation:
    steps = [f"request {resource_of(reason.closest)} instead"] if reason.closest else []
    anew = "delete the pod and create it again: the resources of an existing pod cannot be changed"
    return _from_reason(pod, "no-such-profile", reason, *steps, f"add a node whose cards have {reason.profile}", anew)


def _from_reason(pod: PodInfo, case: str, reason: Reason, *steps: str, never: bool = True) -> Explanation:
    """A reason in the words of the controller's events."""
    found = "cannot run in this cluster" if never else "waits"
    return Explanation(case=case, verdict=f"{found}; {reason.text}", facts=(_request(pod),), help=steps)


# Rules refuse the pod on every node


def _no_node(view: ClusterView, slicer: Slicer, pod: PodInfo, reason: NoNode) -> Explanation:
    missing = sorted(name for name in pod.amounts if "/" in name and not _offered_anywhere(slicer, name))
    if missing and not any(map(is_mig, missing)):
        asked = {name: count for name, count in pod.amounts.items() if "/" in name and name != QUOTA_RESOURCE}
        return explain_not_offered(view, asked, missing)
    refused = _refusals(slicer, pod)
    total = len(slicer.state.inventory.fleet.nodes)
    verdict = f"waits; {_no_node_text(total)}"
    return Explanation(
        case="never-fits" if reason.too_small else "no-node",
        verdict=f"cannot run in this cluster; {reason.text}" if reason.too_small else verdict,
        facts=(_request(pod), *_refusal_facts(slicer, pod, refused)),
        help=tuple(changes_by_node(view, slicer, pod)),
    )


def _offered_anywhere(slicer: Slicer, resource: str) -> bool:
    return resource == QUOTA_RESOURCE or any(
        node.allocatable_amount(resource) != 0 for node in slicer.state.cluster.nodes.values()
    )


def _no_node_text(total: int) -> str:
    if total == 1:
        return "the only node with sliced cards cannot take it"
    return f"none of the {total} nodes with sliced cards can take it"


def _refusals(slicer: Slicer, pod: PodInfo) -> dict[str, list[str]]:
    """Nodes with sliced cards whose rules refuse a pod, by rule; room on the cards is not considered."""
    rules = {
        str(name): _lack(slicer, pod, name) or objections for name, objections in slicer.planner.objections(pod).items()
    }
    return nodes_by_rule(rules)


def _lack(slicer: Slicer, pod: PodInfo, node: NodeName) -> Sequence[str]:
    lacks = missing_profiles(slicer, pod, node)
    return [f"node(s) had no card that can make {', '.join(lacks)}"] if lacks else []


def _refusal_facts(slicer: Slicer, pod: PodInfo, refused: dict[str, list[str]]) -> Iterator[str]:
    return refusal_facts(refused, pod.amounts, partial(_amount_of, slicer))


def _amount_of(slicer: Slicer, name: str, resource: str, whole: bool) -> int:
    """What of a resource a node has free, or has at all."""
    node = slicer.state.cluster.nodes[NodeName(name)]
    held = 0 if whole else slicer.state.usage.used.get(node.name, {}).get(resource, 0)
    return max(0, node.allocatable.get(resource, 0) - held)  # a node may offer less than its pods were promised


# The cards have no room


def _no_card(view: ClusterView, slicer: Slicer, pod: PodInfo, reason: Full | Fragmented) -> Explanation:
    wanted = profiles_text(pod)
    case = "full" if isinstance(reason, Full) else "fragmented"
    verdict = f"waits for room; {reason.shortage}"
    if isinstance(reason, Full) and not pod.devices and not reason.total:
        verdict = f"waits for room; every card that could make {wanted} is full"
    refused = view.for_kind(pod, "refusals", lambda: _refusals(slicer, pod))
    if refused:
        verdict += ", on the nodes that may take it"
    return Explanation(
        case=case,
        verdict=verdict,
        facts=(
            _request(pod),
            *_own_reservation(view, slicer, pod),
            *view.for_kind(pod, "usage", lambda: tuple(_usage_facts(slicer, pod))),
            *_refusal_facts(slicer, pod, refused),
            *_pods_ahead(view, slicer, pod),
            *_polite(pod),
        ),
        help=(
            *room_if_ended(view, reason.frees),
            *_room_by_moves(view, slicer, pod, reason),
            *view.for_kind(pod, "smaller", lambda: tuple(room_for_smaller(slicer, pod))),
            *view.for_kind(pod, "elsewhere", lambda: tuple(room_elsewhere(slicer, pod))),
        ),
    )


def _room_by_moves(view: ClusterView, slicer: Slicer, pod: PodInfo, reason: Full | Fragmented) -> Iterator[str]:
    """Yields the moves that would make room for a pod, if there are some that are worth their price."""
    if not isinstance(reason, Fragmented) or view.move_searches <= 0:
        return
    view.move_searches -= 1
    found = slicer.rooms.find(pod, MOST_MOVES)
    if found is not None and found.worth.is_positive:
        names = [move.allocation.owner for move in found.room.moves]
        verb = "moves" if len(names) == 1 else "move"
        yield f"it fits on node {found.room.placement.node} if {list_names(names)} {verb}: tessera defrag --plan"


def _explain_reserved(view: ClusterView, slicer: Slicer, pod: PodInfo, reason: Reserved) -> Explanation:
    """Explains that free slots are kept for pods that go first."""
    firsts = [each for each in slicer.state.reservations.values() if each.key in reason.keys]
    room = room_word(pod.profiles)
    return Explanation(
        case="reserved",
        verdict=f"waits for room; the free {room} that would do are reserved for {list_names(reason.keys)}",
        facts=(
            _request(pod),
            *_own_reservation(view, slicer, pod),
            *(f"{each.key} goes first: {_reservation_text(view, slicer, each)}" for each in firsts),
            *view.for_kind(pod, "usage", lambda: tuple(_usage_facts(slicer, pod))),
            *_pods_ahead(view, slicer, pod),
        ),
        help=(
            "a pod that ends before these slots are expected to be free may use them: set activeDeadlineSeconds",
            *view.for_kind(pod, "smaller", lambda: tuple(room_for_smaller(slicer, pod))),
        ),
    )


def _explain_gang(view: ClusterView, slicer: Slicer, pod: PodInfo, reason: GangIncomplete | GangNoRoom) -> Explanation:
    """Explains that a pod waits for the pods of its gang, or with them."""
    if isinstance(reason, GangIncomplete) and not reason.size:
        return Explanation(
            case="gang-incomplete",
            verdict=f"waits for its gang {reason.gang}; no PodGroup says how many pods start together",
            facts=(_request(pod), reason.text),
            help=(
                f"look at it: kubectl get podgroups.scheduling.x-k8s.io -n {pod.namespace} {reason.gang}",
                "or write the size on the pods, as annotation tessera.dev/gang-size",
            ),
        )
    if isinstance(reason, GangIncomplete):
        missing = reason.size - reason.exist
        held = f"{count_noun(reason.held, 'pod')} of the gang cannot be placed yet: see them with tessera why"
        return Explanation(
            case="gang-incomplete",
            verdict=f"waits for its gang {reason.gang}; {reason.exist} of {reason.size} pods exist",
            facts=(
                _request(pod),
                "the pods of a gang get their slices together, and hold none until then",
                *((held,) if reason.held else ()),
            ),
            help=(
                f"create the missing {count_noun(missing, 'pod')} with the same gang, or set the size to the number of"
                " pods that start together"
                if missing > 0
                else "see what holds the other pods of the gang: tessera queue",
                *((_ALL_AT_ONCE,) if missing > 0 and _of_stateful_set(pod) else ()),
            ),
        )
    inner = explain_no_room(view, slicer, pod, reason.reason) if reason.reason is not None else None
    return Explanation(
        case="gang-no-room",
        verdict=f"waits for room for its whole gang {reason.gang}; {reason.fit} of {reason.size} pods have a place now",
        facts=(_request(pod), f"{reason.member} finds no place beside the others: {reason.text}")
        if inner is None
        else (f"{reason.member} finds no place beside the others; it {inner.verdict}", *inner.facts),
        help=inner.help if inner is not None else ("make a smaller gang",),
    )


def _of_stateful_set(pod: PodInfo) -> bool:
    return any(key == STATEFUL_SET_POD_LABEL for key, _ in pod.labels)


def _own_reservation(view: ClusterView, slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    found = slicer.state.reservations.get(pod.uid)
    if found is not None:
        yield f"slots are reserved for it: {_reservation_text(view, slicer, found)}"


def _reservation_text(view: ClusterView, slicer: Slicer, found: Reservation) -> str:
    """The place of a reservation, and what it waits for."""
    holders = sorted({each.owner for each in holders_of(slicer.state, found)})
    place = f"{view.slices(found.slices)}, on node {found.node}"
    if not holders:
        return f"{place}, which are free"
    left = found.until - slicer.state.now
    when = f"expected in about {age(left)}" if left > 0 else f"expected {age(-left)} ago"
    return f"{place}; it waits for the end of {list_names(holders)}, {when}"


def _usage_facts(slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    able = [
        card
        for card in slicer.state.inventory.fleet.cards()
        if any(card.table.name_of(profile) for profile in pod.profiles)
    ]
    if pod.devices:
        taken = sum(bool(card.allocations) for card in able)
        nodes = len({card.node.name for card in able})
        yield f"{count_noun(nodes, 'node')} {'has' if nodes == 1 else 'have'} {len(able)} of them; pods hold {taken}"
        return
    slots = sum(card.geometry.slots for card in able)
    used = sum(each.placement.size for card in able for each in card.allocations.values())
    nodes = len({card.node.name for card in able})
    yield (
        f"{count_noun(len(able), 'card')} on {count_noun(nodes, 'node')} can make it; {used} of"
        f" {'its' if len(able) == 1 else 'their'} {slots} memory slots are in use or promised"
    )


def _polite(pod: PodInfo) -> Iterator[str]:
    if pod.priority > 0 and not pod.preempts:
        yield f"its priority {pod.priority} puts it before others, and ends none of them (preemptionPolicy: Never)"


def _pods_ahead(view: ClusterView, slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    own = view.snapshot.page is not None and any(each.uid == pod.uid for each in view.snapshot.page.pods)
    ahead = 0 if own else view.once("ahead", lambda: _blocked_before(slicer)).get(pod.uid, 0)
    if ahead:
        who = "another pod waits" if ahead == 1 else f"{ahead} other pods wait"
        share = ", in a queue with a smaller share," if slicer.state.cluster.queues else ""
        yield f"{who} with higher priority{share} or for longer, and {'is' if ahead == 1 else 'are'} served first"


def _blocked_before(slicer: Slicer) -> dict[PodUid, int]:
    """By waiting pod, the number of pods before it in the order that found no place."""
    found: dict[PodUid, int] = {}
    count = 0
    for each in slicer.order.all():
        found[each.uid] = count
        count += each.uid in slicer.state.pods.blocked
    return found
