"""Explains pods that kube-scheduler places alone: whole cards, shares, fixed slices, devices of other vendors.

The explanation compares all that the pod requests, and all of its rules about nodes, with every node, as kube-scheduler
does. What it cannot compare (volumes, claims of devices) it takes from the scheduler's last word.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple

from tessera.api.names import SLICE_CONDITION, NodeName, PodUid
from tessera.api.nodes.node_marks import CARD_CONDITIONS
from tessera.api.resource_advice import advise
from tessera.api.slice_requests import find_excess
from tessera.controller.objects.pod_constraints import NO_RELATIONS, constraints_of, read_relations
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.controller.objects.resource_amounts import Amounts, amount_text, describe_amount
from tessera.controller.slicing.slicer import Slicer
from tessera.explain.explanation import Explanation
from tessera.explain.offered_resources import (
    dynamic_by_node,
    explain_blocked_devices,
    extended_requests,
    format_requests,
    nodes_by_rule,
    offer_facts,
    offered_resources,
    refusal_facts,
    remedies_by_node,
    remedy_for_rules,
    resources_of,
)
from tessera.explain.scheduler_words import (
    absence_facts,
    absent_scheduler,
    refused_everywhere,
    scheduler_facts,
    scheduler_name,
    scheduler_steps,
    scheduler_word,
    silence_step,
    unseen_cause,
)
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Pod
from tessera.kube.resources.meta import key_of
from tessera.limits import NEIGHBOUR_STEPS
from tessera.reasons.node_rules import NodeRule
from tessera.text import count_noun, list_names

#: The most pods that are named as those whose end makes room.
_MOST_ENDS = 4


class NodeComparison(NamedTuple):
    """The nodes as a pod meets them.

    Attributes:
        wanted: all that the pod requests, CPU and memory included.
        offered: what each node offers of that, when empty.
        used: what pods hold of it on each node.
        objections: the rules by which each node refuses the pod.
    """

    wanted: Amounts
    offered: Mapping[str, Mapping[str, int]]
    used: Mapping[str, Mapping[str, int]]
    objections: Mapping[str, Sequence[NodeRule]]

    def most(self, resource: str) -> int:
        """The most that one node offers."""
        return max((each[resource] for each in self.offered.values()), default=0)

    def amount(self, node: str, resource: str, whole: bool) -> int:
        """What a node offers, all of it or what is free."""
        offered = self.offered[node].get(resource, 0)
        return offered if whole else max(0, offered - self.used[node].get(resource, 0))

    def with_all(self) -> list[str]:
        """The nodes that have all that the pod requests, when empty."""
        return [name for name, has in self.offered.items() if all(has[r] >= n for r, n in self.wanted.items())]

    def facts(self, nodes: Sequence[str]) -> Iterator[str]:
        """The rules of these nodes."""
        rules = nodes_by_rule({name: self.objections[name] for name in nodes})
        return refusal_facts(rules, self.wanted, self.amount)

    def open(self) -> list[str]:
        """The nodes with all that the pod requests whose rules admit it, whatever is free."""
        return [name for name in self.with_all() if all(rule.is_shortage for rule in self.objections[name])]

    def free_behind_rules(self) -> list[str]:
        """The nodes that have free all that the pod requests, and refuse it by other rules."""
        found = self.objections.items()
        return sorted(name for name, rules in found if rules and not any(rule.is_shortage for rule in rules))

    def admitting(self) -> list[str]:
        """The nodes whose rules admit the pod, whatever they have."""
        return sorted(name for name, rules in self.objections.items() if all(rule.is_shortage for rule in rules))


def compare_nodes(view: ClusterView, slicer: Slicer, pod: Pod) -> NodeComparison | None:
    """Compares a pod that Tessera does not place with every node; equal pods share the comparison.

    None once the view has compared as many kinds of pods as it may.
    """
    facts = read_pod(pod)
    facts = replace(facts, constraints=constraints_of(pod), relations=read_relations(pod, wants_slices=True))
    return view.once(_kind_of(slicer, facts), partial(_compare, view, slicer, facts))


def _kind_of(slicer: Slicer, facts: PodInfo) -> Hashable:
    """All of a pod on which the comparison depends; labels matter where rules about pods are in force."""
    placed, relations = slicer.state.cluster.placed_pods, facts.relations
    alone = relations == NO_RELATIONS and not placed.opposing_terms(facts.namespace, facts.labels, int(NEIGHBOUR_STEPS))
    who = () if alone else (facts.namespace, facts.labels, relations)
    return who, tuple(sorted(facts.amounts.items())), facts.constraints, facts.ports


def _compare(view: ClusterView, slicer: Slicer, facts: PodInfo) -> NodeComparison | None:
    if view.comparisons <= 0:
        return None
    view.comparisons -= 1
    dynamic = dynamic_by_node(view)
    offered = {
        str(name): {r: 0 if r in dynamic[name] else node.allocatable.get(r, 0) for r in facts.amounts}
        for name, node in slicer.state.cluster.nodes.items()
    }
    used = {name: slicer.state.usage.used.get(NodeName(name), {}) for name in offered}
    objections = slicer.planner.scheduler_objections(facts, lambda node, resource: offered[node][resource])
    return NodeComparison(facts.amounts, offered, used, {str(name): rules for name, rules in objections.items()})


def enough_ends(view: ClusterView, node: str, nodes: NodeComparison) -> list[Pod]:
    """The fewest pods whose end makes room on a node, largest first; none if more than a few would have to end."""
    left = {each: count - nodes.amount(node, each, False) for each, count in nodes.wanted.items()}
    left = {each: count for each, count in left.items() if count > 0}
    on_node = view.once("pods by node", partial(_pods_by_node, view)).get(node, [])
    found: list[Pod] = []
    for each in sorted(on_node, key=lambda held: (-_gives(held[1], left), held[0].metadata.name)):
        if not any(count > 0 for count in left.values()) or len(found) == _MOST_ENDS or not _gives(each[1], left):
            break
        found.append(each[0])
        left = {name: count - each[1].get(name, 0) for name, count in left.items()}
    return found if all(count <= 0 for count in left.values()) else []


def _gives(amounts: Mapping[str, int], wanted: Mapping[str, int]) -> float:
    return sum(min(1.0, amounts.get(name, 0) / count) for name, count in wanted.items() if count > 0)


def _pods_by_node(view: ClusterView) -> Mapping[str, list[tuple[Pod, Amounts]]]:
    known = view.slicer.state.cluster.pods if view.slicer is not None else {}
    found: dict[str, list[tuple[Pod, Amounts]]] = {}
    for each in view.snapshot.pods:
        facts = known.get(PodUid(each.metadata.uid))
        if each.spec.node_name and facts is not None and not facts.finished:
            found.setdefault(each.spec.node_name, []).append((each, facts.amounts))
    return found


#: Waiting reasons of a container that starts normally.
_NORMAL = frozenset({"", "ContainerCreating", "PodInitializing"})
#: Nodes, pods and events that are listed one by one.
_SHOWN = 4
_DESCRIBE = "kubectl describe pod -n {pod}"


def explain_fixed_request(view: ClusterView, pod: Pod) -> Explanation:
    """Explains a pod that kube-scheduler places without Tessera."""
    wants = f"it requests {format_requests(extended_requests(pod))}"
    if pod.status.phase == "Running":
        return Explanation(case="runs", verdict=f"runs on node {pod.spec.node_name}", facts=(wants,))
    if pod.spec.node_name:
        return _explain_starting(view, pod, wants)
    found = explain_taken_back(view, pod) or explain_absent_scheduler(view, pod) or _explain_unplaced(view, pod)
    return replace_facts(found, wants, *found.facts, *scheduler_facts(view, pod))


def replace_facts(found: Explanation, *facts: str) -> Explanation:
    """The explanation with these facts, each of them once."""
    return Explanation(case=found.case, verdict=found.verdict, facts=tuple(dict.fromkeys(facts)), help=found.help)


def explain_taken_back(view: ClusterView, pod: Pod) -> Explanation | None:
    """Explains a pod whose promised cards or slices Tessera took back; None if it took none."""
    taken_back, absent = pod.status.condition(SLICE_CONDITION), absent_scheduler(view, pod)
    if taken_back is None or taken_back.status != "False":
        return None
    who = f"scheduler {absent}, and nothing shows that it runs" if absent else "a node that does not take it"
    return Explanation(
        case="taken-back",
        verdict=f"waits for {who}; Tessera gave its place to the next pod",
        facts=(taken_back.message,),
        help=(
            *(scheduler_steps(pod) if absent else ()),
            f"delete the pod and create it again: kubectl delete pod -n {_key(pod)}",
        ),
    )


def explain_absent_scheduler(view: ClusterView, pod: Pod) -> Explanation | None:
    """Explains a pod whose scheduler shows no sign of life; None if it does, or is Kubernetes' own."""
    name = absent_scheduler(view, pod)
    if not name:
        return None
    return Explanation(
        case="other-scheduler",
        verdict=f"waits for scheduler {name} (spec.schedulerName), and nothing shows that it runs",
        facts=tuple(absence_facts(view, pod)),
        help=scheduler_steps(pod),
    )


def _key(pod: Pod) -> str:
    return f"{pod.metadata.namespace} {pod.metadata.name}"


# On its node


def _explain_starting(view: ClusterView, pod: Pod, wants: str) -> Explanation:
    stuck = [each for each in waiting_containers(pod) if each]
    trouble = view.events_of(pod.metadata.uid, warnings=True)[-_SHOWN:]
    where = f"on node {pod.spec.node_name}"
    return Explanation(
        case="container-waits" if stuck else "starting",
        verdict=f"does not start {where}: {stuck[0]}" if stuck else f"is starting {where}",
        facts=(wants, *stuck[1:], *map(view.describe_event, trouble)),
        help=(_DESCRIBE.format(pod=_key(pod)),) if stuck or trouble else (),
    )


def waiting_containers(pod: Pod) -> Iterator[str]:
    """Yields the containers whose waiting reason does not pass by itself."""
    for each in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = each.state.waiting if each.state is not None else None
        if waiting is not None and waiting.reason not in _NORMAL:
            message = f": {waiting.message}" if waiting.message else ""
            yield f"container {each.name} waits with {waiting.reason}{message}"


# Without a node


def _explain_unplaced(view: ClusterView, pod: Pod) -> Explanation:
    slicer, excess = view.slicer, find_excess(pod.spec)
    if slicer is None or excess:
        unknown = view.snapshot.describe_missing() if slicer is None else excess
        return _by_its_word(view, pod, (unknown,))
    nodes = compare_nodes(view, slicer, pod)
    if nodes is None:
        return _by_its_word(view, pod, ("it was not compared with the nodes, since many other kinds of pods wait",))
    asked = extended_requests(pod)
    wanted = nodes.wanted if nodes.offered else asked  # without nodes, the cards that it asks for are what counts
    missing = sorted(each for each in wanted if each != "pods" and not nodes.most(each))
    if missing:
        return _explain_not_offered(view, asked, missing)
    word, kind = scheduler_word(view, pod), id(nodes)  # equal pods share the comparison, and what follows from it
    found = view.once(("lacks", kind), lambda: _explain_too_much(view, nodes) or _explain_refused(view, nodes))
    found = found or (unseen_cause(word, pod) if refused_everywhere(word) else None)
    found = found or view.once(("in use", kind), lambda: _explain_in_use(view, nodes))
    return found or _explain_admitted(view, pod, nodes)


def _explain_not_offered(view: ClusterView, asked: Mapping[str, int], missing: Sequence[str]) -> Explanation:
    """Explains a pod that requests what no node offers.

    Args:
        view: the cluster as it was read.
        asked: the pod's :func:`~tessera.explain.offered_resources.extended_requests`.
        missing: the resources that no node offers.
    """
    return Explanation(
        case="not-offered",
        verdict=f"waits for {list_names(missing)}, which no node offers",
        facts=(f"it requests {format_requests(asked)}", *not_offered_facts(view)),
        help=advise(offered_resources(view), asked, missing),
    )


def not_offered_facts(view: ClusterView) -> Iterator[str]:
    """What nodes offer instead, and nodes that might offer more."""
    yield from offer_facts(view)
    yield from _nodes_at_fault(view)


def _explain_too_much(view: ClusterView, nodes: NodeComparison) -> Explanation | None:
    many = [each for each, count in sorted(nodes.wanted.items()) if nodes.most(each) < count]
    if many:
        return Explanation(
            case="too-many",
            verdict=f"waits for {_amounts(nodes.wanted, many)}, more than any node offers",
            facts=(
                *(f"the most on one node is {describe_amount(each, nodes.most(each))}" for each in many),
                *_nodes_at_fault(view),
            ),
            help=(f"request at most {_amounts({each: nodes.most(each) for each in many}, many)}",),
        )
    if nodes.with_all():
        return None
    return Explanation(
        case="too-many",
        verdict="waits; no node has all that it requests, even when empty",
        facts=tuple(nodes.facts(list(nodes.offered))),
        help=("request less, or less of it in one pod; or add a node that has all of it",),
    )


def _amounts(amounts: Mapping[str, int], names: Sequence[str]) -> str:
    return " and ".join(describe_amount(each, amounts[each]) for each in names)


def _explain_refused(view: ClusterView, nodes: NodeComparison) -> Explanation | None:
    able = nodes.with_all()
    if nodes.open():
        return None
    none = f"none of the {len(able)} nodes that offer what it requests may take it"
    verdict = f"waits; {'the only node that offers what it requests may not take it' if len(able) == 1 else none}"
    return Explanation(
        case="no-node",
        verdict=verdict,
        facts=(*nodes.facts(able), *_lacking(nodes)),
        help=(*remedies_by_node({name: nodes.objections[name] for name in able}, _SHOWN), *_instead(view, nodes)),
    )


def _lacking(nodes: NodeComparison) -> Iterator[str]:
    """The nodes that the pod's rules let it onto, which lack what it requests even when empty."""
    for name in nodes.admitting()[:_SHOWN]:
        lacks = [each for each, count in sorted(nodes.wanted.items()) if nodes.offered[name][each] < count]
        yield f"its rules let it onto node {name}, which has too little even when empty: {list_names(lacks)}"


def _instead(view: ClusterView, nodes: NodeComparison) -> Iterator[str]:
    """What the nodes have that the pod's rules let it onto."""
    has = {name: sorted(resources_of(view, name)) for name in nodes.admitting()}
    for name, resources in [each for each in has.items() if each[1]][:1]:
        yield f"or request what node {name} has: {list_names(resources)}"


def _explain_in_use(view: ClusterView, nodes: NodeComparison) -> Explanation | None:
    able = nodes.open()
    if not all(nodes.objections[name] for name in able):
        return None
    short = sorted(
        {each for name in able for each in nodes.wanted if nodes.amount(name, each, False) < nodes.wanted[each]}
    )
    others = [name for name in nodes.with_all() if name not in able]
    blocked, steps = explain_blocked_devices(view, {each: nodes.wanted[each] for each in short})
    has = "the node that may take it has" if len(able) == 1 else f"the {len(able)} nodes that may take it have"
    lack = (
        "kube-scheduler leaves the free ones empty, for pods on withheld cards" if steps else f"{has} too little free"
    )
    return Explanation(
        case="in-use",
        verdict=f"waits for {list_names(short)}: {lack}",
        facts=(*blocked, *_use(able, nodes, short), *nodes.facts(others), *_nodes_at_fault(view)),
        help=(
            *steps,
            *_ends(view, able, nodes),
            *_elsewhere(nodes),
            _ON_NODE.format(node=able[0]),
        ),
    )


def _elsewhere(nodes: NodeComparison) -> Iterator[str]:
    for name in nodes.free_behind_rules()[:1]:
        yield f"or use node {name}, which has it free: {remedy_for_rules(nodes.objections[name], name)}"


_ON_NODE = "see the pods on a node: kubectl get pods -A --field-selector spec.nodeName={node}"


def _use(names: Sequence[str], nodes: NodeComparison, resources: Sequence[str]) -> Iterator[str]:
    for name in sorted(names)[:_SHOWN]:
        for each in resources:
            total = nodes.amount(name, each, True)
            used = amount_text(each, min(total, nodes.used[name].get(each, 0)))
            yield f"node {name}: {used} of {amount_text(each, total)} {each} in use"
    if len(names) > _SHOWN:
        yield f"and {count_noun(len(names) - _SHOWN, 'more node')}"


def _ends(view: ClusterView, able: Sequence[str], nodes: NodeComparison) -> Iterator[str]:
    """The fewest pods of one node whose end makes room, largest first, if these are few."""
    best: tuple[str, list[Pod]] | None = None
    for name in sorted(able):
        found = enough_ends(view, name, nodes)
        if found and (best is None or len(found) < len(best[1])):
            best = name, found
    if best is not None:
        name, ending = best
        verb = "this ends" if len(ending) == 1 else f"these {len(ending)} end"
        yield f"there is room as soon as {verb}, on node {name}: {' and '.join(_holder(view, each) for each in ending)}"


def _holder(view: ClusterView, pod: Pod) -> str:
    held = format_requests(extended_requests(pod))
    return f"pod {key_of(pod)} ({held or 'CPU and memory'}{view.progress(key_of(pod))})"


def _explain_admitted(view: ClusterView, pod: Pod, nodes: NodeComparison) -> Explanation:
    """Explains a pod that a node would take, as far as can be compared."""
    free = min(name for name, rules in nodes.objections.items() if not rules)
    fits = f"node {free} has all that it requests free, and its labels and taints let it in"
    return _by_its_word(view, pod, (fits,))


def _by_its_word(view: ClusterView, pod: Pod, facts: Sequence[str]) -> Explanation:
    """Explains a pod by what its scheduler last said, or by the scheduler's silence."""
    word = scheduler_word(view, pod)
    unseen = unseen_cause(word, pod)
    if unseen is not None:
        return replace_facts(unseen, *facts)
    who = scheduler_name(pod)
    return Explanation(
        case="unscheduled",
        verdict=f"waits for {who}, which has not bound it yet",
        facts=tuple(facts) if word else (*facts, f"{who} has said nothing about it yet"),
        help=(_DESCRIBE.format(pod=_key(pod)) if word else silence_step(pod),),
    )


def _nodes_at_fault(view: ClusterView) -> Iterator[str]:
    """Nodes whose cards are not as configured; they may offer more later."""
    yield from islice(_faulty_nodes(view), _SHOWN)
    yield from view.cordoned_cards()


def _faulty_nodes(view: ClusterView) -> Iterator[str]:
    for node in view.snapshot.nodes:
        wrong = [
            each.reason for each in node.status.conditions if each.type in CARD_CONDITIONS and each.status == "False"
        ]
        if wrong:
            name = node.metadata.name
            yield f"node {name} is not as configured ({', '.join(wrong)}): tessera why node/{name}"
