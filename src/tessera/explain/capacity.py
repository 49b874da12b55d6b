"""There is no place for a pod: which rule or which other pod is in the way, and what would make room.

The reason is placement's own (:mod:`tessera.placement.reasons`); this room adds what a person wants to know beside it:
how each node stands, who is ahead, and what would fit at once.
"""

from collections.abc import Iterator
from dataclasses import replace

from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL, NodeName, profile_of, resource_of
from tessera.clock import parse_rfc3339
from tessera.controller.objects.pod_info import PodFacts
from tessera.controller.slicing.batch_placement import Placed
from tessera.controller.slicing.fleet_inventory import FOREIGN
from tessera.controller.slicing.messages import wanted_text
from tessera.controller.slicing.slicer import Slicer
from tessera.explain.counterfactuals import Way, ends, missing, ways
from tessera.explain.explanation import Answer, age, counted, listed
from tessera.explain.snapshot import AGENT_LABEL, View
from tessera.placement.cards import Allocation
from tessera.placement.reasons import Fragmented, Full, NeverFits, NoNode, NoSuchProfile, Reason

#: Numbers of alternative profiles, and of ways to a node, that an answer lists.
_ALTERNATIVES = 3
_WAYS = 3

#: What helps against a rule, by the beginning of its text (:mod:`tessera.controller.filters.node_filters`).
_REMEDIES = (
    ("node(s) had untolerated taint", "let the pod tolerate the taint, or remove it: kubectl taint node NODE KEY-"),
    ("node(s) were unschedulable", "open the node again: kubectl uncordon NODE"),
    ("node(s) were not ready", "see why the node is not ready: kubectl describe node NODE"),
    (
        "node(s) had no agent",
        "see what keeps the node's agent: kubectl get pods -n tessera-system --field-selector spec.nodeName=NODE",
    ),
    ("node(s) didn't match", "change the pod's nodeSelector or node affinity, or the node's labels"),
    ("Insufficient", "ask for less of it, or end other pods on the node: kubectl describe node NODE"),
    ("Too many pods", "end other pods on the node"),
)


def no_room(view: View, slicer: Slicer, pod: PodFacts, reason: Reason) -> Answer:
    """Why no node takes a pod.

    Args:
        view: what was read.
        slicer: the controller's state in it.
        pod: who waits.
        reason: placement's, of the last plan.
    """
    match reason:
        case NoSuchProfile(known=()):
            return _nobody_joined(view, pod)
        case NoSuchProfile():
            return _unknown_profile(reason)
        case NeverFits():
            return Answer(
                case="never-fits",
                verdict=f"cannot run in this cluster; no node has room for {wanted_text(pod)}, even when empty",
                facts=("all slices of a pod are made on one node",),
                help=("ask for fewer or smaller slices in one pod, or join a node with more cards",),
            )
        case NoNode():
            return _no_node(view, slicer, pod)
        case Full() | Fragmented():
            return _no_card(view, slicer, pod, reason)


def _wants(pod: PodFacts) -> str:
    return f"it asks for {wanted_text(pod)}"


def _nobody_joined(view: View, pod: PodFacts) -> Answer:
    labelled = [
        node.metadata.name
        for node in view.sight.nodes
        if node.metadata.labels.get(MIG_CONFIG_LABEL) == MIG_CONFIG_DYNAMIC
    ]
    if not labelled:
        return Answer(
            case="no-node-joined",
            verdict="waits; no node gives its cards to slicing on demand",
            facts=(_wants(pod), f"{counted(len(view.sight.nodes), 'node')}, none labelled {_LABEL}"),
            help=(f"join a node that has MIG-capable GPUs: kubectl label node NODE {_LABEL}",),
        )
    faults = [f"{node}: {view.agent_fault(node) or 'its agent runs but reports no card'}" for node in labelled]
    return Answer(
        case="no-card-reported",
        verdict="waits; nodes are given to slicing on demand, but none of them has reported a card",
        facts=(_wants(pod), f"labelled {_LABEL}: {listed(labelled)}", *faults[:5]),
        help=(
            f"see what the agents say: kubectl logs -n tessera-system -l {'='.join(AGENT_LABEL)} --prefix",
            f"see the node's events, which name cards that are skipped: kubectl describe node {labelled[0]}",
        ),
    )


_LABEL = f"{MIG_CONFIG_LABEL}={MIG_CONFIG_DYNAMIC}"


def _unknown_profile(reason: NoSuchProfile) -> Answer:
    meant = [reason.closest] if reason.closest else []
    return Answer(
        case="no-such-profile",
        verdict=f'cannot run in this cluster; no card has the profile "{reason.profile}"',
        facts=(f"the cards have {', '.join(reason.known)}", *(f'the closest is "{each}"' for each in meant)),
        help=(
            *(f"ask for {resource_of(each)} instead" for each in meant),
            f"join a node whose cards have {reason.profile}",
            "delete the pod and make it anew: the resources of a pod that exists cannot be changed",
        ),
    )


# By their rules, nodes refuse


def _no_node(view: View, slicer: Slicer, pod: PodFacts) -> Answer:
    refused = refusals(slicer, pod)
    total = len(slicer.inventory.fleet.nodes)
    return Answer(
        case="no-node",
        verdict=f"waits; {_none_of(total)} with sliced cards can take it",
        facts=(_wants(pod), *_refused_lines(slicer, pod, refused)),
        help=tuple(_ways_out(view, slicer, pod)),
    )


def _ways_out(view: View, slicer: Slicer, pod: PodFacts) -> Iterator[str]:
    """For the nodes that least keeps the pod from: everything that has to be done there, once for alike nodes."""
    told: set[tuple[tuple[str, ...], bool]] = set()
    for way in ways(slicer, pod):
        if (way.rules, way.room) not in told:
            told.add((way.rules, way.room))
            yield _way_out(view, slicer, pod, way)
        if len(told) == _WAYS:
            return


def _way_out(view: View, slicer: Slicer, pod: PodFacts, way: Way) -> str:
    """One line with all that keeps a pod from a node."""
    steps = [remedy(rule, way.node) for rule in way.rules]
    if not way.room:
        steps += _ends(view, tuple(ends(slicer, pod, way)))
    return "; and ".join(steps)


def remedy(rule: str, node: str) -> str:
    """Names the step that lifts a rule on a node; the rule itself where no step is known."""
    for beginning, text in _REMEDIES:
        if rule.startswith(beginning):
            return text.replace("NODE", node).replace("KEY", rule.partition("{")[2].partition(":")[0])
    return f"on node {node}: {rule.removeprefix('node(s) ')}"


def _none_of(total: int) -> str:
    return "not even the one node" if total == 1 else f"none of the {total} nodes"


def refusals(slicer: Slicer, pod: PodFacts) -> dict[str, list[str]]:
    """Nodes with sliced cards that could not run the pod even with room on their cards, by rule, most frequent first.

    A node stands under each rule that refuses the pod there.

    Args:
        slicer: the controller's state.
        pod: the pod.
    """
    found: dict[str, list[str]] = {}
    for name, rules in sorted(slicer.objections(pod).items()):
        lacks = missing(slicer, pod, name)
        for rule in [f"node(s) had no card that can make {', '.join(lacks)}"] if lacks else rules:
            found.setdefault(rule, []).append(name)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def _refused_lines(slicer: Slicer, pod: PodFacts, refused: dict[str, list[str]]) -> Iterator[str]:
    for rule, names in refused.items():
        nodes = counted(len(names), "node")
        short = rule.removeprefix("Insufficient ")
        if short != rule:
            free = listed([f"{name} has {_free(slicer, short, name)} free" for name in names])
            yield f"{nodes} with too little {short}: it asks for {_amount(short, pod.amounts[short])}; {free}"
        elif rule.startswith("node(s)"):
            said = rule.removeprefix("node(s)")
            yield f"{nodes}{said.replace(' were ', ' was ', 1) if len(names) == 1 else said}: {listed(names)}"
        else:
            yield f"{nodes}: {rule}: {listed(names)}"


def _free(slicer: Slicer, resource: str, name: str) -> str:
    node = slicer.nodes[NodeName(name)]
    return _amount(resource, node.allocatable.get(resource, 0) - slicer.used.get(node.name, {}).get(resource, 0))


def _amount(resource: str, value: int) -> str:
    """An amount in the unit that people think in: cores, Gi, pieces."""
    if resource == "cpu":
        return f"{value / 1000:g}"
    return f"{value / 2**30:.4g}Gi" if resource in {"memory", "ephemeral-storage"} else str(value)


# Cards have no room


def _no_card(view: View, slicer: Slicer, pod: PodFacts, reason: Full | Fragmented) -> Answer:
    wanted = wanted_text(pod)
    if isinstance(reason, Full):
        case, verdict = "full", f"waits for room; every card that could make {wanted} is full"
    else:
        where = "card" if len(pod.profiles) == 1 else "node"
        case = "fragmented"
        verdict = (
            f"waits for room; {counted(reason.total, 'memory slot')} free, at most {reason.free_slots} on one {where},"
            f" but nowhere at a start that is legal for {wanted}"
        )
    refused = refusals(slicer, pod)
    if refused:
        verdict += ", of those that may take it"
    return Answer(
        case=case,
        verdict=verdict,
        facts=(
            _wants(pod),
            *_usage(slicer, pod),
            *_refused_lines(slicer, pod, refused),
            *_queue(slicer, pod),
        ),
        help=(*_ends(view, reason.frees), *_smaller(slicer, pod), *_elsewhere(slicer, pod)),
    )


def _usage(slicer: Slicer, pod: PodFacts) -> Iterator[str]:
    able = [
        card for card in slicer.inventory.fleet.cards() if any(card.table.name_of(profile) for profile in pod.profiles)
    ]
    slots = sum(card.geometry.slots for card in able)
    used = sum(each.placement.size for card in able for each in card.allocations.values())
    nodes = len({card.node.name for card in able})
    yield (
        f"{counted(len(able), 'card')} on {counted(nodes, 'node')} can make it; {used} of their {slots} memory slots"
        " are taken or promised"
    )


def _elsewhere(slicer: Slicer, pod: PodFacts) -> Iterator[str]:
    """A node with room that refuses the pod: another way, for whoever set the rule."""
    way = next((each for each in ways(slicer, pod) if each.room and each.rules), None)
    if way is not None and slicer.home_of(pod) is None:
        yield f"or use node {way.node}, which has room: {'; and '.join(remedy(rule, way.node) for rule in way.rules)}"


def _queue(slicer: Slicer, pod: PodFacts) -> Iterator[str]:
    def rank(one: PodFacts) -> tuple[int, str, str]:
        return (-one.priority, one.created, one.key)

    rivals = (uid for uid, why in slicer.waiting.items() if uid != pod.uid and isinstance(why, Full | Fragmented))
    ahead = [uid for uid in rivals if rank(slicer.pods[uid]) < rank(pod)]
    if ahead:
        who = "another pod waits" if len(ahead) == 1 else f"{len(ahead)} other pods wait"
        yield f"{who} with higher priority or for longer, and {'is' if len(ahead) == 1 else 'are'} served first"


def _ends(view: View, frees: tuple[Allocation, ...]) -> Iterator[str]:
    """Who must end; all of them stand on one node."""
    if not frees:
        yield "several other pods on one node would have to end: tessera map shows who is where"
        return
    owners = dict.fromkeys(one.owner for one in frees)
    parts = [_end(view, owner, [one for one in frees if one.owner == owner]) for owner in owners]
    verb = "this ends" if len(parts) == 1 else f"these {len(parts)} end"
    yield f"there is room as soon as {verb}, on node {frees[0].placement.node}: " + " and ".join(parts)


def _end(view: View, owner: str, held: list[Allocation]) -> str:
    where = "; ".join(view.position(at.profile, at.gpu, at.start, at.size) for at in (one.placement for one in held))
    if owner == FOREIGN:
        return f"{FOREIGN} ({where}): nvidia-smi mig -dci, -dgi on that node, if nobody needs it"
    return f"pod {owner} ({where}{_since(view, owner)})"


def _since(view: View, owner: str) -> str:
    pod = view.pod(owner)
    if pod is None:
        return ", gone; its slice is being removed"
    if pod.metadata.deletion_timestamp is not None:
        return ", being deleted"
    if pod.status.phase in {"Succeeded", "Failed"}:
        return ", has ended; its slice is being removed"
    if pod.status.phase != "Running" or not pod.status.start_time:
        return f", {pod.status.phase or 'not started'}"
    return f", on its node for {age(view.sight.now - parse_rfc3339(pod.status.start_time))}"


def _smaller(slicer: Slicer, pod: PodFacts) -> Iterator[str]:
    """Smaller profiles that would get a place at once, after everything that waits now."""
    if len(pod.profiles) != 1 or slicer.home_of(pod) is not None:
        return
    fitting = [name for name in _below(slicer, pod.profiles[0]) if _fits(slicer, pod, name)][:_ALTERNATIVES]
    if fitting:
        yield f"a smaller slice would find room now: {', '.join(resource_of(name) for name in fitting)}"


def _below(slicer: Slicer, wanted: str) -> list[str]:
    """Profiles that are smaller than the wanted one on some card that has it, largest first."""
    sizes: dict[str, tuple[int, int]] = {}
    for table in slicer.inventory.fleet.tables:
        own = table.geometry.find(wanted)
        for row in table.geometry.profiles if own is not None else ():
            if own is not None and row.size <= own.size and row.compute_slices < own.compute_slices:
                sizes[row.name] = max(sizes.get(row.name, (0, 0)), (row.size, row.compute_slices))
    return sorted(sizes, key=lambda name: (*(-each for each in sizes[name]), len(name), name))


def _fits(slicer: Slicer, pod: PodFacts, profile: str) -> bool:
    amounts = {name: amount for name, amount in pod.amounts.items() if not profile_of(name)}
    amounts[resource_of(profile)] = 1
    other = replace(pod, profiles=(profile.replace("+", "."),), amounts=amounts)
    return isinstance(slicer.placed([other])[0], Placed)
