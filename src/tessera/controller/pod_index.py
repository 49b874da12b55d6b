"""Pods on nodes, by what other pods' rules may ask of them: labels, anti-affinity, host ports, claims.

Kept up to date pod by pod, so that a decision never walks over all pods. Pods of one namespace with equal labels are
one group. A selection (which pods does a rule mean?) is answered for groups once, when it is first asked, and counted
along from then on. A test for equality leads to its groups through an index; only a selection without any looks at
every group of its namespaces. Everything that is looked at is counted in ``cost``.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tessera.api.names import NodeName, PodUid
from tessera.controller.facts import PodFacts
from tessera.controller.relations import ANY_ADDRESS, HostPort, Labels, Selection, Term, Tests
from tessera.kube.selectors import Requirement
from tessera.limits import REMEMBERED_SELECTIONS

#: A namespace and the labels of its pods.
GroupKey = tuple[str, Labels]
_Pair = tuple[str, str]


class _Group:
    """Pods of one namespace with equal labels. ``selections`` are those answered so far that mean them."""

    __slots__ = ("all", "labels", "namespace", "selections", "staying")

    def __init__(self, key: GroupKey) -> None:
        self.namespace, self.labels = key[0], dict(key[1])
        self.all: Counter[NodeName] = Counter()
        self.staying: Counter[NodeName] = Counter()
        self.selections: dict[Selection, Counts] = {}


@dataclass(slots=True)
class Counts:
    """How many of the pods that a selection means are on each node: ``all``, and those not being deleted."""

    all: Counter[NodeName] = field(default_factory=Counter)
    staying: Counter[NodeName] = field(default_factory=Counter)
    groups: dict[GroupKey, None] = field(default_factory=dict)


class PodIndex:
    """Pods that run on a node or are promised a place there.

    Attributes:
        changes: grows with every change that may alter an answer about other pods.
        cost: groups and terms compared since it was made, and tests on labels.
        ports: host ports in use, by node; the port of any address is counted under an empty address too.
        claims: claims in use, by node.
        claim_users: pods that use a claim, on any node.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.cost = 0
        self.ports: dict[NodeName, Counter[HostPort]] = {}
        self.claims: dict[NodeName, Counter[str]] = {}
        self.claim_users: Counter[str] = Counter()
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._placed: dict[PodUid, tuple[NodeName, PodFacts]] = {}
        self._groups: dict[GroupKey, _Group] = {}
        self._by_namespace: dict[str, dict[GroupKey, None]] = {}
        self._by_label: dict[_Pair, dict[str, dict[GroupKey, None]]] = {}
        self._answers: dict[Selection, Counts] = {}
        self._holders: dict[Term, Counter[NodeName]] = {}
        self._terms: _Keyed[Term] = _Keyed()
        self._questions: _Keyed[Selection] = _Keyed()

    # What is there

    def __contains__(self, uid: object) -> bool:
        return uid in self._placed

    def put(self, pod: PodFacts, node: NodeName | None) -> None:
        """Counts a pod on this node and no other, on none if None."""
        before = self._placed.get(pod.uid)
        if before is not None:
            if before[0] == node and _same(before[1], pod):
                return
            self._count(*before, sign=-1)
            del self._placed[pod.uid]
        if node is not None:
            self._placed[pod.uid] = (node, pod)
            self._count(node, pod, sign=1)

    def drop(self, uid: PodUid) -> None:
        """Counts a pod no more."""
        before = self._placed.pop(uid, None)
        if before is not None:
            self._count(*before, sign=-1)

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Labels of a namespace; None for one that is gone."""
        if self._namespaces.get(name) == labels:
            return
        if labels is None:
            del self._namespaces[name]
        else:
            self._namespaces[name] = labels
        for selection in [each for each in self._answers if each.namespace_tests is not None]:
            self._forget(selection)
        self.changes += 1

    def _count(self, node: NodeName, pod: PodFacts, *, sign: int) -> None:
        group = self._group((pod.namespace, pod.labels))
        staying = 0 if pod.leaving else sign
        every: tuple[_Group | Counts, ...] = (group, *group.selections.values())
        for counts in every:
            _add(counts.all, node, sign)
            _add(counts.staying, node, staying)
        for term in pod.relations.apart:
            holders = self._holders.setdefault(term, Counter())
            if not holders:
                self._terms.add(term, term.selection.tests)
            _add(holders, node, sign)
            if not holders:
                del self._holders[term]
                self._terms.remove(term, term.selection.tests)
        for port in pod.ports:
            for each in (port, (port[0], "", port[2])):
                _add(self.ports.setdefault(node, Counter()), each, sign)
        for claim in pod.claims:
            _add(self.claims.setdefault(node, Counter()), claim, sign)
            _add(self.claim_users, claim, sign)
        if group.selections or pod.relations.apart or pod.ports or pod.claims:
            self.changes += 1
        if not group.all:
            self._remove_group((pod.namespace, pod.labels), group)

    # Groups

    def _group(self, key: GroupKey) -> _Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key)
            self._by_namespace.setdefault(group.namespace, {})[key] = None
            for pair in key[1]:
                self._by_label.setdefault(pair, {}).setdefault(group.namespace, {})[key] = None
            for selection in self._questions.about(group.labels):
                self.cost += 1
                if self._means(selection, group.namespace, group.labels):
                    self._link(selection, key, group)
        return group

    def _remove_group(self, key: GroupKey, group: _Group) -> None:
        del self._groups[key]
        _discard(self._by_namespace, group.namespace, key)
        for pair in key[1]:
            _discard(self._by_label[pair], group.namespace, key)
            if not self._by_label[pair]:
                del self._by_label[pair]
        for counts in group.selections.values():
            del counts.groups[key]

    def _link(self, selection: Selection, key: GroupKey, group: _Group) -> None:
        counts = group.selections[selection] = self._answers[selection]
        counts.groups[key] = None

    # Answers

    def holds(self, node: NodeName, ports: Iterable[HostPort]) -> bool:
        """Whether a pod of the node has one of these host ports."""
        taken = self.ports.get(node)
        if not taken:
            return False
        for protocol, address, number in ports:
            places = ("",) if address == ANY_ADDRESS else (address, ANY_ADDRESS)
            if any(taken[protocol, place, number] for place in places):
                return True
        return False

    def counts(self, selection: Selection) -> Counts:
        """The pods that a selection means."""
        known = self._answers.pop(selection, None)
        if known is not None:
            self._answers[selection] = known  # used last
            return known
        found = self._answers[selection] = Counts()
        self._questions.add(selection, selection.tests)
        for key in self._candidates(selection):
            group = self._groups[key]
            self.cost += 1 + len(selection.tests or ())
            if self._means(selection, group.namespace, group.labels):
                self._link(selection, key, group)
                found.all.update(group.all)
                found.staying.update(group.staying)
        if len(self._answers) > REMEMBERED_SELECTIONS:
            self._forget(next(iter(self._answers)))
        return found

    def meant_by_all(self, selections: Sequence[Selection]) -> Counter[NodeName]:
        """The pods that every one of these selections means."""
        answers = [self.counts(each) for each in selections]
        found: Counter[NodeName] = Counter()
        for key in min((each.groups for each in answers), key=len):
            self.cost += 1
            if all(key in each.groups for each in answers):
                found.update(self._groups[key].all)
        return found

    def opposed(self, namespace: str, labels: Labels, most: int) -> Iterator[tuple[Term, Counter[NodeName]]]:
        """Terms of anti-affinity of pods that are there which mean such a pod, and the nodes of their holders.

        Args:
            namespace: the pod's.
            labels: the pod's.
            most: terms that are compared at most.
        """
        if not self._holders:
            return
        own = dict(labels)
        for term in self._terms.about(own):
            if most <= 0:
                return
            most -= 1
            self.cost += 1 + len(term.selection.tests or ())
            if self._means(term.selection, namespace, own):
                yield term, self._holders[term]

    def means(self, selection: Selection, pod: PodFacts) -> bool:
        """Whether a selection means a pod."""
        return self._means(selection, pod.namespace, dict(pod.labels))

    def _means(self, selection: Selection, namespace: str, labels: Mapping[str, str]) -> bool:
        tests = selection.tests
        if tests is None or not all(test.matches(labels) for test in tests):
            return False
        return namespace in selection.namespaces or self._namespace_means(selection, namespace)

    def _namespace_means(self, selection: Selection, namespace: str) -> bool:
        tests = selection.namespace_tests
        return tests is not None and all(test.matches(self._namespaces.get(namespace, {})) for test in tests)

    def _candidates(self, selection: Selection) -> Iterator[GroupKey]:
        """Groups that a selection may mean."""
        if selection.tests is None:
            return
        pairs = _pairs(selection.tests)
        wide = selection.namespace_tests is not None
        places = [self._by_namespace] if pairs is None else [self._by_label.get(pair, {}) for pair in pairs]
        for place in places:
            for namespace in list(place) if wide else selection.namespaces & place.keys():
                yield from place[namespace]

    def _forget(self, selection: Selection) -> None:
        self._questions.remove(selection, selection.tests)
        for key in self._answers.pop(selection).groups:
            self._groups[key].selections.pop(selection, None)


_Rule = TypeVar("_Rule", bound=Hashable)
_Key = TypeVar("_Key")


class _Keyed(Generic[_Rule]):
    """Rules by a label that a pod must have for them to mean it; those without one are looked at for every pod."""

    def __init__(self) -> None:
        self._by_pair: dict[_Pair, dict[_Rule, None]] = {}
        self._others: dict[_Rule, None] = {}

    def add(self, rule: _Rule, tests: Tests) -> None:
        """Files a rule with these tests; one that means nothing is left out."""
        for place in self._places(tests):
            place[rule] = None

    def remove(self, rule: _Rule, tests: Tests) -> None:
        """Takes it out again."""
        for place in self._places(tests):
            place.pop(rule, None)
        for pair in (tests and _pairs(tests)) or ():
            if not self._by_pair[pair]:
                del self._by_pair[pair]

    def _places(self, tests: Tests) -> list[dict[_Rule, None]]:
        if tests is None:
            return []
        pairs = _pairs(tests)
        return [self._others] if pairs is None else [self._by_pair.setdefault(pair, {}) for pair in pairs]

    def about(self, labels: Mapping[str, str]) -> Iterator[_Rule]:
        """The rules that may mean a pod of these labels."""
        for pair in labels.items():
            yield from self._by_pair.get(pair, ())
        yield from self._others


def _pairs(tests: tuple[Requirement, ...]) -> list[_Pair] | None:
    """Labels of which a pod must have one, by the test for equality with the fewest values; None without any."""
    listed = [test for test in tests if test.operator == "In"]
    if not listed:
        return None
    shortest = min(listed, key=lambda test: len(test.values))
    return [(shortest.key, value) for value in dict.fromkeys(shortest.values)]


def _same(one: PodFacts, other: PodFacts) -> bool:
    return one is other or (one.labels, one.relations, one.ports, one.claims, one.leaving, one.namespace) == (
        other.labels,
        other.relations,
        other.ports,
        other.claims,
        other.leaving,
        other.namespace,
    )


def _add(counter: Counter[_Key], key: _Key, sign: int) -> None:
    if sign:
        counter[key] += sign
        if not counter[key]:
            del counter[key]


def _discard(index: dict[str, dict[GroupKey, None]], name: str, key: GroupKey) -> None:
    del index[name][key]
    if not index[name]:
        del index[name]
