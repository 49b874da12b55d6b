"""Compares all that a pod requests, and its rules about nodes, with every node, as kube-scheduler does."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_constraints import NO_RELATIONS, constraints_of, read_relations
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.controller.objects.resource_amounts import Amounts
from tessera.controller.slicing.slicer import Slicer
from tessera.explain.node_refusals import nodes_by_rule, refusal_facts
from tessera.explain.offered_resources import dynamic_by_node
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Pod
from tessera.limits.planning import NEIGHBOUR_STEPS
from tessera.reasons.node_rules import NodeRule

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
