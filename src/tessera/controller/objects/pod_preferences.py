"""What a pod prefers of its place: node affinity, affinity to pods, soft spread constraints; and replicas go apart.

Among places that cost the packing nothing more, the controller takes one on a node that meets most of them by weight.
Kubernetes' scheduler adds further scores, and gets no choice: the controller pins the pod to its node. That scheduler
spreads the replicas of a ReplicaSet or a StatefulSet over nodes, so the controller does the same, over nodes first and
then over cards. What the manifest prefers counts before that, and the packing before all of it.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice

from tessera.api.names import MODEL_LABEL, NodeName, PodUid
from tessera.api.slice_requests import selector_values
from tessera.controller.objects.pod_constraints import (
    NAME_FIELD,
    Labels,
    NodeConstraints,
    PodAffinityRule,
    TopologySpread,
    read_spreads,
    read_term,
)
from tessera.kube.resources import NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinity
from tessera.limits import POD_AFFINITY_TERMS, SELECTOR_VALUES

#: Weight of a soft spread constraint, which has none of its own: that of the strongest preference.
SPREAD_WEIGHT = 100
#: Label of Fluid's nodes with a worker of a dataset, ``fluid.io/s-NAMESPACE-NAME: "true"``; from so many characters on
#: it is a hash (Fluid, ``pkg/utils/label.go``).
_FLUID_WORKER, _FLUID_LABEL = "fluid.io/s-", 63
#: Label by KServe: the namespace, if a LocalModelNamespaceCache has a pod's model.
_MODEL_NAMESPACE = f"{MODEL_LABEL}-namespace"
#: Most preferences of one kind that count, the first ones.
PREFERENCES = 16


@dataclass(frozen=True, slots=True)
class Preference:
    """A preference of a pod.

    Attributes:
        weight: from 1 to 100.
        rule: nodes that are preferred, pods beside which the pod prefers to run, or a spread.
        repels: True if the pod prefers to run apart from those pods.
        text: what its author wrote, for messages.
    """

    weight: int
    rule: NodeConstraints | PodAffinityRule | TopologySpread
    repels: bool = False
    text: str = ""


def read_preferences(pod: Pod) -> tuple[Preference, ...]:
    """Reads the preferences of a pod that has an affinity or spreads."""
    try:
        return tuple(_preferences(pod))
    except ValueError:  # an operator that no API server lets through
        return ()


def dataset_preferences(claims: Sequence[str], has_label: Callable[[str], bool]) -> Iterator[Preference]:
    """Yields Fluid's preference for nodes with a worker of the dataset of each claim, as its webhook writes it.

    A dataset has a claim of its name. Fluid's webhook is on for labelled namespaces and pods only.

    Args:
        claims: the pod's claims, as ``namespace/name``.
        has_label: tells if some node has a label of this key.
    """
    for claim in islice(claims, PREFERENCES):
        key = f"{_FLUID_WORKER}{claim.replace('/', '-', 1)}"
        if len(key) < _FLUID_LABEL and has_label(key):
            test = NodeSelectorRequirement(key=key, operator="In", values=("true",))
            rule = NodeConstraints(terms=(NodeSelectorTerm(match_expressions=(test,)),))
            yield Preference(SPREAD_WEIGHT, rule, text=f"nodes with the cache of dataset {claim} (Fluid)")


def model_preferences(namespace: str, labels: Labels, models: Mapping[str, Container[str]]) -> Iterator[Preference]:
    """Yields a preference for the nodes that have a pod's model. KServe itself asks for the cache's node group only.

    A cache of a namespace is for its own pods. Labels are written by tenants, who learn nothing of others' caches.

    Args:
        namespace: the pod's.
        labels: the pod's.
        models: by node, the models that it has.
    """
    found = dict(labels)
    cached_in, name = found.get(_MODEL_NAMESPACE), found.get(MODEL_LABEL)
    if not name or (cached_in and cached_in != namespace):
        return
    model = f"{cached_in}/{name}" if cached_in else name
    if nodes := tuple(sorted(node for node, has in models.items() if model in has)):
        test = NodeSelectorRequirement(key=NAME_FIELD, operator="In", values=nodes)
        rule = NodeConstraints(terms=(NodeSelectorTerm(match_fields=(test,)),))
        yield Preference(SPREAD_WEIGHT, rule, text=f"nodes with the cached model {model} (KServe)")


def _preferences(pod: Pod) -> Iterator[Preference]:
    affinity = pod.spec.affinity
    if affinity is not None:
        preferred = affinity.node_affinity.preferred if affinity.node_affinity is not None else ()
        for each in islice(preferred, PREFERENCES):
            tests = sum(len(one.values) for one in each.preference.match_expressions)
            if each.weight > 0 and tests <= SELECTOR_VALUES:
                keys = ", ".join(one.key for one in each.preference.match_expressions) or "the node's name"
                yield Preference(each.weight, NodeConstraints(terms=(each.preference,)), text=f"nodes by {keys}")
        yield from _pod_preferences(affinity.pod_affinity, pod.metadata.namespace, repels=False)
        yield from _pod_preferences(affinity.pod_anti_affinity, pod.metadata.namespace, repels=True)
    for rule in islice(read_spreads(pod, "ScheduleAnyway"), PREFERENCES):
        yield Preference(SPREAD_WEIGHT, rule, text=f"its like spread over {rule.key}")


def _pod_preferences(rule: PodAffinity | None, namespace: str, *, repels: bool) -> Iterator[Preference]:
    for each in islice(rule.preferred if rule is not None else (), min(PREFERENCES, POD_AFFINITY_TERMS)):
        term = each.pod_affinity_term
        if each.weight > 0 and selector_values(term) <= SELECTOR_VALUES:
            text = f"{'apart from' if repels else 'beside'} pods by {term.topology_key}"
            yield Preference(each.weight, read_term(term, namespace), repels=repels, text=text)


#: Replicas that are told apart: on a node, and on a card, which has at most seven slices.
_ON_NODE, _ON_CARD = 255, 15
#: What a place is worth that has no other replica.
APART = _ON_NODE * (_ON_CARD + 1) + _ON_CARD


#: By node and pod, the UUIDs of the cards of the pod's slices there, one for each slice.
CardsOf = Callable[[NodeName, PodUid], Iterable[str]]


class ReplicaPlaces:
    """The replicas of one owner, by node and card; a batch adds those that it places by node only.

    Args:
        placed: by node, the pods.
        cards_of: finds their cards.
    """

    def __init__(self, placed: Mapping[NodeName, AbstractSet[PodUid]], cards_of: CardsOf) -> None:
        self._placed = placed
        self._cards_of = cards_of
        #: Replicas that the batch has placed, by node.
        self._added: Counter[NodeName] = Counter()
        #: Their slices by UUID of the card, for each node that somebody asked about.
        self._cards: dict[NodeName, Counter[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._placed or self._added)

    def add(self, node: NodeName, count: int) -> None:
        """Counts replicas that the batch places on a node, or takes from it."""
        self._added[node] += count

    def total(self) -> int:
        """Returns the number of all."""
        return sum(map(len, self._placed.values())) + self._added.total()

    def on_node(self, node: NodeName) -> int:
        """Returns the number of those on a node."""
        return len(self._placed.get(node, ())) + self._added[node]

    def on_card(self, node: NodeName, gpu: str) -> int:
        """Returns the number of their slices on a card."""
        if node not in self._cards:
            self._cards[node] = Counter(gpu for uid in self._placed.get(node, ()) for gpu in self._cards_of(node, uid))
        return self._cards[node][gpu]

    def worth(self, node: NodeName, gpu: str = "") -> int:
        """What a place is worth: the fewer replicas on the node, then on the card, the more; :data:`APART` at most."""
        on_node = _ON_NODE - min(_ON_NODE, self.on_node(node))
        return on_node * (_ON_CARD + 1) + _ON_CARD - (min(_ON_CARD, self.on_card(node, gpu)) if gpu else 0)
