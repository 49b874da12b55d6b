"""Explains the lack of a place for a pod that Tessera places.

The reason is the controller's, in the words of :mod:`tessera.reasons.words`. This module adds the facts that a person
needs: the rules and the nodes that they refuse, how full the cards are, the pods that are served first, and changes
after which the pod can run: of rules of a node, of other pods, or of its request.

Each named change is sufficient: after it, the pod gets its place. For one node, this is *every* rule that refuses the
pod and, if its cards have no room, the owners of the slices that must end. The node with the fewest changes comes
first.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
    profile_of,
    resource_of,
)
from tessera.api.nodes.node_marks import AGENT_LABEL
from tessera.api.resource_advice import advise
from tessera.controller.objects.pod_info import CLAIMS, PodInfo
from tessera.controller.slicing.batch_placement import Placed
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.allocation import FOREIGN
from tessera.controller.slicing.state.messages import profiles_text
from tessera.controller.slicing.state.node_records import Reservation
from tessera.controller.slicing.state.reservation_rules import holders_of, kind_of
from tessera.explain.explanation import Explanation
from tessera.explain.fixed_resources import not_offered_facts
from tessera.explain.offered_resources import (
    explain_blocked_devices,
    is_mig,
    nodes_by_rule,
    offered_resources,
    refusal_facts,
    remedy_for_rules,
)
from tessera.explain.snapshot import ClusterView
from tessera.placement.cards import SPARE_OF
from tessera.placement.demand import complete
from tessera.placement.explain import RefusalExplainer
from tessera.placement.moves import MOST_MOVES
from tessera.placement.node_fit import fit_in_parts
from tessera.reasons.node_rules import NodeRule, RuleKind
from tessera.reasons.reason import (
    Blocker,
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
from tessera.reasons.words import NO_ENDS_STEP, name_blockers, sentence, steps, verdict
from tessera.text import count_noun, list_names

#: Alternative profiles, and nodes with different changes, that one explanation lists.
_ALTERNATIVES = 3
_MOST_NODES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObstacles:
    """The obstacles between a pod and one node whose cards could make its slices.

    Attributes:
        node: the node's name.
        rules: rules that refuse the pod there (:meth:`tessera.controller.slicing.planner.Planner.objections`).
        has_room: its cards have room without any change.
    """

    node: str
    rules: tuple[NodeRule, ...]
    has_room: bool

    @property
    def count(self) -> int:
        """The number of obstacles."""
        return len(self.rules) + (not self.has_room)


def obstacles_by_node(slicer: Slicer, pod: PodInfo) -> list[NodeObstacles]:
    """Every node that could make the slices, the one with the fewest obstacles first; of equals, fewest rules first.

    Args:
        slicer: the controller's state.
        pod: the pod.
    """
    fleet, objections = slicer.state.inventory.fleet, slicer.planner.objections(pod)
    able = {name: rules for name, rules in objections.items() if not missing_profiles(slicer, pod, name)}
    nodes = {node.name: node for node in fleet.emptiest_nodes()}
    fits = {name: complete(fit_in_parts(nodes[name], pod.profiles, spread=pod.spread)) for name in able}
    found = [NodeObstacles(node=name, rules=rules, has_room=fits[name] is not None) for name, rules in able.items()]
    return sorted(found, key=lambda each: (each.count, len(each.rules), each.node))


def missing_profiles(slicer: Slicer, pod: PodInfo, node: NodeName | str) -> list[str]:
    """The pod's profiles that no card of a node has."""
    tables = {card.table for card in slicer.state.inventory.fleet.cards(node)}
    return [each for each in dict.fromkeys(pod.profiles) if not any(table.name_of(each) for table in tables)]


def allocations_to_end(slicer: Slicer, pod: PodInfo, obstacles: NodeObstacles) -> tuple[Blocker, ...]:
    """Slices on one node whose end makes room there.

    Returns:
        The slices; empty if the node has room, or if more than a few would have to end.
    """
    if obstacles.has_room:
        return ()
    explainer = RefusalExplainer(slicer.state.inventory.fleet, lambda _demand, _node: None, {})
    return explainer.no_room(pod.profiles, (obstacles.node,)).frees


# The changes in words


def changes_by_node(view: ClusterView, slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    """One line for each node that needs the fewest changes; nodes that need the same changes share a line."""
    shown: set[tuple[tuple[NodeRule, ...], bool]] = set()
    for each in obstacles_by_node(slicer, pod):
        if (each.rules, each.has_room) not in shown:
            shown.add((each.rules, each.has_room))
            yield _changes(view, slicer, pod, each)
        if len(shown) == _MOST_NODES:
            return


def _changes(view: ClusterView, slicer: Slicer, pod: PodInfo, obstacles: NodeObstacles) -> str:
    steps = [remedy_for_rules(obstacles.rules, obstacles.node, alone=obstacles.has_room)] if obstacles.rules else []
    if not obstacles.has_room:
        ends = allocations_to_end(slicer, pod, obstacles)
        steps.append(room_if_ended(view, ends) if ends else NO_ENDS_STEP)
    return "; and ".join(steps)


def room_elsewhere(slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    """Names a node that has room but refuses the pod, and the steps that lift its rules."""
    found = next((each for each in obstacles_by_node(slicer, pod) if each.has_room and each.rules), None)
    if found is not None and slicer.state.cluster.required_node(pod) is None:
        yield f"or use node {found.node}, which has room: {remedy_for_rules(found.rules, found.node)}"


def room_if_ended(view: ClusterView, slices: tuple[Blocker, ...]) -> str:
    """Names the holders of slices, all on one node, whose end makes room."""
    pods = dict.fromkeys(one.pod for one in slices)
    parts = [_holder(view, pod, [one for one in slices if one.pod == pod]) for pod in pods]
    verb = "this ends" if len(parts) == 1 else f"these {len(parts)} end"
    return f"there is room as soon as {verb}, on node {slices[0].node}: " + " and ".join(parts)


def _holder(view: ClusterView, pod: str, held: list[Blocker]) -> str:
    where = view.positions((one.profile, one.gpu, one.start, one.size) for one in held)
    if pod == FOREIGN:
        return f"{FOREIGN} ({where}): nvidia-smi mig -dci, -dgi on that node, if no program needs it"
    return f"pod {pod} ({where}{view.progress(pod)})"


def room_for_smaller(slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    """Names smaller profiles that would get a place at once, after all pods that wait now got theirs."""
    if len(pod.profiles) != 1 or slicer.state.cluster.required_node(pod) is not None:
        return
    fitting = [name for name in _smaller_profiles(slicer, pod.profiles[0]) if _is_placed_with(slicer, pod, name)]
    if fitting:
        names = ", ".join(name if pod.kind is CLAIMS else resource_of(name) for name in fitting[:_ALTERNATIVES])
        yield f"a smaller slice has room now: {names}"


def _smaller_profiles(slicer: Slicer, wanted: str) -> list[str]:
    """Profiles that are smaller than the wanted one on some card that has it, largest first."""
    sizes: dict[str, tuple[int, int]] = {}
    for table in slicer.state.inventory.fleet.tables:
        own = table.geometry.find(wanted)
        for row in table.geometry.profiles if own is not None else ():
            if own is not None and row.size <= own.size and row.compute_slices < own.compute_slices:
                sizes[row.name] = max(sizes.get(row.name, (0, 0)), (row.size, row.compute_slices))
    return sorted(sizes, key=lambda name: (*(-each for each in sizes[name]), len(name), name))


def _is_placed_with(slicer: Slicer, pod: PodInfo, profile: str) -> bool:
    amounts = {name: amount for name, amount in pod.amounts.items() if not profile_of(name)}
    amounts[resource_of(profile)] = 1
    other = replace(pod, profiles=(profile.replace("+", "."),), amounts=amounts)
    return isinstance(slicer.planner.plan_alone([other])[0], Placed)


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
        case UnknownProfile(known=()):
            yield from _unreported_cards(view)
        case GangNoRoom(member=member, reason=of):
            yield f"{member} finds no place beside the others"
            yield from _facts(view, pod, of) if of is not None else ()
        case CardsAway(reason=of):
            yield from _facts(view, pod, of)
        case OldPods(reason=of):
            yield name_blockers(reason)
            yield from (f"else: {sentence(of)}", *_facts(view, pod, of)) if of is not None else ()
        case NoNode() if view.slicer is not None:
            yield from not_offered_facts(view) if _missing(view.slicer, pod) else ()
            yield from _refusal_facts(view.slicer, pod)
        case Full() | Fragmented() | Reserved() if view.slicer is not None:
            yield from _room_facts(view, view.slicer, pod, reason)
        case _:
            yield from (name_blockers(reason),) if reason.blockers else ()


def _room_facts(view: ClusterView, slicer: Slicer, pod: PodInfo, reason: Reason) -> Iterator[str]:
    yield from _own_reservation(view, slicer, pod)
    if isinstance(reason, Reserved):
        yield from (name_blockers(reason),) if reason.keys else ()
        for each in slicer.state.reservations.values():
            if each.key in reason.keys or each.key.removeprefix(SPARE_OF) in reason.spare:
                yield _goes_first(view, slicer, each)
    yield from view.for_kind(pod, "usage", lambda: tuple(_usage_facts(slicer, pod)))
    yield from view.for_kind(pod, "refusals", lambda: tuple(_refusal_facts(slicer, pod)))
    yield from _pods_ahead(view, slicer, pod)
    yield from _polite(pod)


def _help(view: ClusterView, pod: PodInfo, reason: Reason) -> Iterator[str]:
    """What would help, by planning anew."""
    match reason:
        case UnknownProfile() if pod.devices:
            yield from advise(offered_resources(view), Counter(pod.devices), sorted(set(pod.devices)))
        case UnknownProfile(known=()):
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
    if not isinstance(reason, Reserved) and reason.frees:
        yield room_if_ended(view, reason.frees)
    slicer = view.slicer
    if slicer is None:
        return
    yield from _room_by_moves(view, slicer, pod, reason)
    yield from view.for_kind(pod, "smaller", lambda: tuple(room_for_smaller(slicer, pod)))
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
    """Nodes with sliced cards whose rules refuse a pod, by rule; room on the cards is not considered."""
    rules = {
        str(name): _lack(slicer, pod, name) or objections for name, objections in slicer.planner.objections(pod).items()
    }
    return refusal_facts(nodes_by_rule(rules), pod.amounts, partial(_amount_of, slicer))


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
