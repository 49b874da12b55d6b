"""Explains the lack of a place for a pod that Tessera places.

The reason is the controller's, in the words of :mod:`tessera.reasons.words`. This module adds the facts that a person
needs: the rules and the nodes that they refuse, how full the cards are, and the pods that are served first. What would
help comes from :mod:`tessera.explain.changes`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from tessera.api.instaslice import NodeGpu
from tessera.api.names import (
    MIG_CONFIG_DYNAMIC,
    MIG_CONFIG_LABEL,
    QUOTA_RESOURCE,
    STATEFUL_SET_POD_LABEL,
    NodeName,
    PodUid,
    is_on_demand,
)
from tessera.api.nodes.node_marks import AGENT_LABEL
from tessera.api.resource_advice import advise
from tessera.controller.objects.node_info import AgentState
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.messages import profiles_text
from tessera.controller.slicing.state.node_records import Reservation
from tessera.controller.slicing.state.reservation_rules import holders_of, kind_of
from tessera.explain.changes import (
    changes_by_node,
    missing_profiles,
    room_by_ends,
    room_elsewhere,
    room_for_others,
    room_if_ended,
)
from tessera.explain.explanation import Explanation
from tessera.explain.fixed_resources import not_offered_facts
from tessera.explain.offered_resources import (
    explain_blocked_devices,
    is_mig,
    nodes_by_rule,
    offered_resources,
    refusal_facts,
)
from tessera.explain.snapshot import ClusterView
from tessera.placement.cards import SPARE_OF, FleetCard
from tessera.placement.moves import MOST_MOVES
from tessera.reasons.node_rules import NodeRule, RuleKind
from tessera.reasons.reason import (
    CardsAway,
    Fragmented,
    Full,
    GangIncomplete,
    GangNoRoom,
    NoNode,
    OldPods,
    Reason,
    Reserved,
    UnknownProfile,
)
from tessera.reasons.words import name_blockers, sentence, steps, verdict
from tessera.text import count_noun, list_names

_ALL_AT_ONCE = (
    "if its StatefulSet does not have podManagementPolicy: Parallel, make it anew with it; without it each pod is"
    " made only when the one before is ready"
)


def explain_no_room(view: ClusterView, pod: PodInfo, reason: Reason) -> Explanation:
    """Explains the lack of a place for a pod: the reason, what is known of it, and what would help.

    Args:
        view: the cluster as it was read.
        pod: the waiting pod.
        reason: what the controller says; where none answers, why a plan has no place for it.
    """
    blocked, unblock = explain_blocked_devices(view, Counter(pod.devices))
    return Explanation(
        case=reason.case,
        verdict=verdict(reason),
        facts=(f"it requests {profiles_text(pod)}", *_facts(view, pod, reason), *blocked, *view.cordoned_cards()),
        help=(*unblock, *_help(view, pod, reason), *steps(reason, pod.namespace)),
    )


def _facts(view: ClusterView, pod: PodInfo, reason: Reason) -> Iterator[str]:
    match reason:
        case UnknownProfile() if pod.devices:
            yield from not_offered_facts(view)
        case UnknownProfile(known=(), missing_kind=""):
            yield from _unreported_cards(view)
        case GangNoRoom(member=member, reason=of):
            yield f"{member} finds no place beside the others"
            yield from _facts(view, pod, of) if of is not None else ()
        case CardsAway(reason=of):
            yield from _facts(view, pod, of)
        case OldPods(reason=of):
            yield name_blockers(reason, view.indexes)
            yield from (f"else: {sentence(of)}", *_facts(view, pod, of)) if of is not None else ()
        case NoNode() if view.slicer is not None:
            yield from not_offered_facts(view) if _missing(view.slicer, pod) else ()
            yield from _refusal_facts(view.slicer, pod)
        case Full() | Fragmented() | Reserved() if view.slicer is not None:
            yield from _room_facts(view, view.slicer, pod, reason)
        case _:
            yield from (name_blockers(reason, view.indexes),) if reason.blockers else ()


def _room_facts(view: ClusterView, slicer: Slicer, pod: PodInfo, reason: Reason) -> Iterator[str]:
    yield from _own_reservation(view, slicer, pod)
    if isinstance(reason, Reserved):
        yield from (name_blockers(reason, view.indexes),) if reason.keys else ()
        for each in slicer.state.reservations.values():
            if each.key in reason.keys or each.key.removeprefix(SPARE_OF) in reason.spare:
                yield _goes_first(view, slicer, each)
    yield from view.for_kind(pod, "usage", lambda: tuple(_usage_facts(view, slicer, pod)))
    yield from view.for_kind(pod, "refusals", lambda: tuple(_refusal_facts(slicer, pod)))
    yield from _pods_ahead(view, slicer, pod)
    yield from _polite(pod)


def _help(view: ClusterView, pod: PodInfo, reason: Reason) -> Iterator[str]:
    """What would help, by planning anew."""
    match reason:
        case UnknownProfile() if pod.devices:
            yield from advise(offered_resources(view), Counter(pod.devices), sorted(set(pod.devices)))
        case UnknownProfile(known=(), missing_kind=""):
            yield from _card_steps(view)
        case GangIncomplete() if _of_stateful_set(pod) and reason.exist < reason.size:
            yield _ALL_AT_ONCE
        case GangNoRoom(reason=of) | CardsAway(reason=of) if of is not None:
            yield from _help(view, pod, of)
        case NoNode() if view.slicer is not None:
            if missing := _missing(view.slicer, pod):
                asked = {name: count for name, count in pod.amounts.items() if "/" in name and name != QUOTA_RESOURCE}
                yield from advise(offered_resources(view), asked, missing)
            else:
                yield from changes_by_node(view, view.slicer, pod)
        case Full() | Fragmented() | Reserved():
            yield from _room_steps(view, pod, reason)


def _room_steps(view: ClusterView, pod: PodInfo, reason: Full | Fragmented | Reserved) -> Iterator[str]:
    slicer = view.slicer
    if not isinstance(reason, Reserved) and reason.frees:
        yield room_if_ended(view, reason.frees) if slicer is None else room_by_ends(view, slicer, pod, reason.frees)
    if slicer is None:
        return
    yield from _room_by_moves(view, slicer, pod, reason)
    yield from view.for_kind(pod, "others", lambda: tuple(room_for_others(slicer, pod)))
    yield from view.for_kind(pod, "elsewhere", lambda: tuple(room_elsewhere(slicer, pod)))


# No card


#: Nodes that are told one by one.
_NODES = 5
_LABEL = f"{MIG_CONFIG_LABEL}={MIG_CONFIG_DYNAMIC}"


def _labelled(view: ClusterView) -> list[str]:
    nodes = view.snapshot.nodes
    return [each.metadata.name for each in nodes if is_on_demand(each.metadata.labels.get(MIG_CONFIG_LABEL, ""))]


def _unreported_cards(view: ClusterView) -> Iterator[str]:
    labelled = _labelled(view)
    if not labelled:
        yield f"{count_noun(len(view.snapshot.nodes), 'node')}, none labelled {_LABEL}"
        return
    records = {each.metadata.name: each.status.node_resources.node_gpus for each in view.snapshot.instaslices}
    yield f"labelled {_LABEL}: {list_names(labelled)}"
    for node in labelled[:_NODES]:
        yield f"{node}: {view.agent_fault(node) or _no_card_of(records.get(node))}"


def _card_steps(view: ClusterView) -> Iterator[str]:
    labelled = _labelled(view)
    if not labelled:
        yield f"add a node with MIG-capable GPUs: kubectl label node NODE {_LABEL}"
        return
    yield f"read the agents' logs: kubectl logs -n tessera-system -l {'='.join(AGENT_LABEL)} --prefix"
    yield f"see the node's events, which name cards that are skipped: kubectl describe node {labelled[0]}"


def _no_card_of(cards: Sequence[NodeGpu] | None) -> str:
    if cards is None:
        return "it has no Instaslice object"
    return "its Instaslice object lists no card" if not cards else "none of its cards has a profile"


# Rules refuse the pod on every node


def _missing(slicer: Slicer, pod: PodInfo) -> list[str]:
    """The resources that the pod requests and no node offers, unless some of them are slices."""
    missing = sorted(name for name in pod.amounts if "/" in name and not _offered_anywhere(slicer, name))
    return [] if any(map(is_mig, missing)) else missing


def _offered_anywhere(slicer: Slicer, resource: str) -> bool:
    return resource == QUOTA_RESOURCE or any(
        node.allocatable_amount(resource) != 0 for node in slicer.state.cluster.nodes.values()
    )


def _refusal_facts(slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    """All nodes that refuse a pod whatever is free on their cards: by rule, and the number of those without cards."""
    rules = {
        str(name): _lack(slicer, pod, name) or objections for name, objections in slicer.planner.objections(pod).items()
    }
    others = [node for name, node in slicer.state.cluster.nodes.items() if str(name) not in rules]
    with_cards = [
        each
        for each in others
        if each.agent is not AgentState.UNKNOWN or any(name.startswith("nvidia.com/") for name in each.allocatable)
    ]
    for each in with_cards:  # one rule of each: its cards are not there for such pods at all
        closed = each.closed_reasons(pod.constraints.devices)
        rules[each.name] = [next(closed, NodeRule(RuleKind.NO_CARD, ", ".join(dict.fromkeys(pod.profiles))))]
    yield from refusal_facts(nodes_by_rule(rules), pod.amounts, partial(_amount_of, slicer))
    if without := len(others) - len(with_cards):
        yield f"{count_noun(without, 'node')} {'offers' if without == 1 else 'offer'} no cards"


def _lack(slicer: Slicer, pod: PodInfo, node: NodeName) -> Sequence[NodeRule]:
    lacks = missing_profiles(slicer, pod, node)
    return [NodeRule(RuleKind.NO_CARD, ", ".join(lacks))] if lacks else []


def _amount_of(slicer: Slicer, name: str, resource: str, whole: bool) -> int:
    """What of a resource a node has free, or has at all."""
    node = slicer.state.cluster.nodes[NodeName(name)]
    held = 0 if whole else slicer.state.usage.used.get(node.name, {}).get(resource, 0)
    return max(0, node.allocatable.get(resource, 0) - held)  # a node may offer less than its pods were promised


# The cards have no room


def _room_by_moves(view: ClusterView, slicer: Slicer, pod: PodInfo, reason: Reason) -> Iterator[str]:
    """Yields the moves that would make room for a pod, if there are some that are worth their price."""
    if not isinstance(reason, Fragmented) or view.move_searches <= 0:
        return
    view.move_searches -= 1
    found = slicer.rooms.find(pod, MOST_MOVES)
    if found is not None and found.worth.is_positive:
        names = [move.allocation.owner for move in found.room.moves]
        verb = "moves" if len(names) == 1 else "move"
        yield f"it fits on node {found.room.placement.node} if {list_names(names)} {verb}: tessera defrag --plan"


def _of_stateful_set(pod: PodInfo) -> bool:
    return any(key == STATEFUL_SET_POD_LABEL for key, _ in pod.labels)


def _own_reservation(view: ClusterView, slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    found = slicer.state.reservations.get(pod.uid)
    if found is not None:
        yield f"slots are reserved for it: {_reservation_text(view, slicer, found)}"


def _goes_first(view: ClusterView, slicer: Slicer, found: Reservation) -> str:
    """Whose slots these are."""
    if found.kept_for is None:
        return f"{found.key} goes first: {_reservation_text(view, slicer, found)}"
    place = f"{view.slices(found.slices)}, on node {found.node}"
    if found.is_spare:
        when = _reservation_text(view, slicer, found)
        _, why = slicer.state.ledger.reckoned.get(kind_of(found), (0, ""))
        number = f" ({why})" if why else ""
        return f"queue {found.queue[0]} keeps this spare for pods of its services{number}: {when}"
    return f"{found.key} leaves its slots to the next pod of {found.kept_for.maker.lower()}: {place}"


def _reservation_text(view: ClusterView, slicer: Slicer, found: Reservation) -> str:
    """The place of a reservation, and what it waits for; the controller's forecast alone says when."""
    holders = sorted({each.owner for each in holders_of(slicer.state, found)})
    place = f"{view.slices(found.slices)}, on node {found.node}"
    if not holders:
        return f"{place}, which are free"
    return f"{place}; it waits for the end of {list_names(holders)}"


def _usage_facts(view: ClusterView, slicer: Slicer, pod: PodInfo) -> Iterator[str]:
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
    names = sorted({card.node.name for card in able})
    yield (
        f"{count_noun(len(able), 'card')} on {count_noun(len(names), 'node')} can make it: {list_names(names)};"
        f" {used} of {'its' if len(able) == 1 else 'their'} {slots} memory slots are in use or promised"
        f"{'; '.join(['', *_rest_of_slots(view, able, slots - used)])}"
    )


def _rest_of_slots(view: ClusterView, cards: Sequence[FleetCard], rest: int) -> Iterator[str]:
    """What the memory slots without a slice are worth, by the count that the reason has."""
    free = {card: card.table.usable_slots(card.occupancy) for card in cards}
    total = sum(free.values())
    kept = sum(card.table.usable_slots(card.instances) for card in cards) - total
    if kept > 0:
        yield f"{kept} of the others {'is' if kept == 1 else 'are'} reserved"
    if total:
        most = max(free, key=lambda card: free[card])
        on = f"on {view.card(most.gpu)} of {most.node.name}"
        together = "" if free[most] == total else f"at most {free[most]} together, "
        yield f"{total} {'is' if total == 1 else 'are'} free, {together}{on}"
    if (lost := rest - total - max(0, kept)) > 0:
        yield f"no further slice can use the other {lost}"


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
