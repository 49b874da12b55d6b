"""What other pods allow: NodePorts, PodTopologySpread and InterPodAffinity, the scheduler's filters, as judges.

Pods that are promised a place count as if they were there, those of the batch that is being planned too. The answer for
a pod is a mask of nodes for each rule; it is made once for all nodes, and again when a pod comes or goes that the rule
means.

The promise pins a pod to its node by the node selector, and the scheduler counts a spread only over nodes that the
selector admits, unless the constraint says otherwise. It then sees one domain; so where a constraint asks for a number
of domains, the node itself must also be empty enough.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tessera.api.names import NodeName, PodUid
from tessera.controller.facts import PodFacts
from tessera.controller.node_index import NodeIndex
from tessera.controller.pod_index import PodIndex
from tessera.controller.relations import NONE, Labels, Relations, Spread, Term
from tessera.limits import NEIGHBOUR_STEPS, OPPOSING_TERMS

NO_PORTS = "node(s) didn't have free ports for the requested pod ports"
NO_LABEL = "node(s) didn't match pod topology spread constraints (missing required label)"
SKEWED = "node(s) didn't match pod topology spread constraints"
NO_AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"

#: A rule's nodes, and what is said of the others.
Verdict = tuple[int, str]
_Kind = tuple[str, Labels, Relations]


class HostPorts:
    """NodePorts. What the batch takes is counted by :class:`Neighbours`, which shares the pods."""

    of_cards = False

    def __init__(self, pods: PodIndex) -> None:
        self._pods = pods

    def refusal(self, pod: PodFacts, node: NodeName) -> str:
        """Whether a port of the pod is taken."""
        return NO_PORTS if pod.ports and self._pods.holds(node, pod.ports) else ""

    def kind(self, pod: PodFacts) -> Hashable:
        """The ports that it asks for."""
        return pod.ports

    def take(self, pod: PodFacts, node: NodeName) -> None:
        """Nothing to do."""

    def give_back(self, pod: PodFacts, node: NodeName) -> None:
        """Nothing to do."""


@dataclass(slots=True)
class _Answer:
    """What is known for one kind of pod, as of the index's ``changes``."""

    changes: int
    verdicts: tuple[Verdict, ...]


class Neighbours:
    """PodTopologySpread and InterPodAffinity for one batch.

    Args:
        pods: what stands on the nodes; what the batch takes is counted in it until :meth:`end`.
        nodes: the nodes.
        batch: the pods that are planned.
    """

    of_cards = False

    def __init__(self, pods: PodIndex, nodes: NodeIndex, batch: Iterable[PodFacts]) -> None:
        self._pods = pods
        self._nodes = nodes
        self._answers: dict[_Kind, _Answer] = {}
        self._taken: dict[PodUid, PodFacts] = {}
        self._spent: Counter[str] = Counter()
        namespaces = {pod.namespace for pod in batch}
        self._part = NEIGHBOUR_STEPS // max(1, len(namespaces))

    def refusal(self, pod: PodFacts, node: NodeName) -> str:
        """The first rule that the node breaks."""
        bit = self._nodes.bit(node)
        return next((why for mask, why in self.verdicts(pod) if not mask & bit), "")

    def kind(self, pod: PodFacts) -> Hashable:
        """Who the pod is to others; of a pod without rules of its own, what theirs say."""
        if pod.relations == NONE:
            return self.verdicts(pod)
        return (pod.namespace, pod.labels, pod.relations)

    def take(self, pod: PodFacts, node: NodeName) -> None:
        """Counts the pod there; one that is bound or promised a place is counted already."""
        if pod.uid not in self._pods:
            self._taken[pod.uid] = pod
            self._pods.put(pod, node)

    def give_back(self, pod: PodFacts, node: NodeName) -> None:
        """Counts it no more."""
        del node
        if self._taken.pop(pod.uid, None) is not None:
            self._pods.drop(pod.uid)

    def end(self) -> None:
        """Takes everything of the batch out again; what becomes a promise is counted as one."""
        for uid in list(self._taken):
            self._pods.drop(self._taken.pop(uid).uid)

    def verdicts(self, pod: PodFacts) -> tuple[Verdict, ...]:
        """Every rule that concerns the pod, with the nodes that keep it."""
        kind = (pod.namespace, pod.labels, pod.relations)
        known = self._answers.get(kind)
        if known is not None and known.changes == self._pods.changes:
            return known.verdicts
        if self._spent[pod.namespace] >= self._part:
            return known.verdicts if known is not None else ()
        before = self._pods.cost
        found = tuple(self._judge(pod))
        self._spent[pod.namespace] += 1 + self._pods.cost - before
        self._answers[kind] = _Answer(self._pods.changes, found)
        return found

    def _judge(self, pod: PodFacts) -> Iterator[Verdict]:
        relations = pod.relations
        for rule in relations.spread:
            yield self._labelled(rule.key), NO_LABEL
            yield self._spread(rule, pod), SKEWED
        if relations.near:
            yield self._near(relations.near, pod), NO_AFFINITY
        for term in relations.apart:
            yield ~self._domains(term.key, self._pods.counts(term.selection).all), ANTI_AFFINITY
        against = 0
        for term, holders in self._pods.opposed(pod.namespace, pod.labels, OPPOSING_TERMS):
            against |= self._domains(term.key, holders)
        if against:
            yield ~against, EXISTING_ANTI_AFFINITY

    # Affinity

    def _near(self, terms: tuple[Term, ...], pod: PodFacts) -> int:
        """Nodes beside a pod that all terms mean; any with the labels for the first pod of a group."""
        meant = self._meant_by_all(terms)
        allowed = -1
        for term in terms:
            allowed &= self._labelled(term.key)
        reached = [self._domains(term.key, meant) for term in terms]
        if not any(reached) and all(self._pods.means(term.selection, pod) for term in terms):
            return allowed
        for mask in reached:
            allowed &= mask
        return allowed

    def _meant_by_all(self, terms: tuple[Term, ...]) -> Counter[NodeName]:
        if len(terms) == 1:
            return self._pods.counts(terms[0].selection).all
        return self._pods.meant_by_all([term.selection for term in terms])

    # Spread

    def _spread(self, rule: Spread, pod: PodFacts) -> int:
        """Nodes whose domain may have one more."""
        counts = self._pods.counts(rule.selection).staying if rule.selection.tests else Counter()
        counted = self._counted(rule, pod)
        domains = {value: mask for value, mask in self._nodes.domains(rule.key).items() if mask & counted}
        self._pods.cost += len(domains) + len(counts)
        sums = dict.fromkeys(domains, 0)
        for value, count in self._values(rule.key, counts, counted):
            sums[value] += count
        own = int(self._pods.means(rule.selection, pod))
        least = min(sums.values(), default=0) if len(sums) >= rule.domains else 0
        allowed = self._labelled(rule.key)
        for value, count in sums.items():
            if count + own - least > rule.skew:
                allowed &= ~self._nodes.domains(rule.key)[value]
        if rule.honors_affinity and rule.domains > 1:
            for node, count in counts.items():
                if count + own > rule.skew:
                    allowed &= ~self._nodes.bit(node)
        return allowed

    def _counted(self, rule: Spread, pod: PodFacts) -> int:
        """Nodes whose pods and domains count: those with all labels that the pod's constraints name."""
        mask = -1
        for each in pod.relations.spread:
            mask &= self._labelled(each.key)
        if rule.honors_affinity:
            mask &= self._nodes.selected(pod.constraints)
        if rule.honors_taints:
            mask &= self._nodes.untainted(pod.constraints)
        return mask

    def _values(self, key: str, counts: Mapping[NodeName, int], counted: int) -> Iterator[tuple[str, int]]:
        """The domain of each node that counts, and its pods."""
        for node, count in counts.items():
            value = self._nodes.label(node, key)
            if value is not None and self._nodes.bit(node) & counted:
                yield value, count

    # Masks

    def _domains(self, key: str, nodes: Mapping[NodeName, int]) -> int:
        """All nodes in the same place as one of these."""
        self._pods.cost += len(nodes)
        values = {value for node in nodes if (value := self._nodes.label(node, key)) is not None}
        domains = self._nodes.domains(key)
        return self._union(domains[value] for value in values)

    def _labelled(self, key: str) -> int:
        """Nodes with a label of this key."""
        domains = self._nodes.domains(key)
        self._pods.cost += len(domains)
        return self._union(domains.values())

    @staticmethod
    def _union(masks: Iterable[int]) -> int:
        union = 0
        for mask in masks:
            union |= mask
        return union
