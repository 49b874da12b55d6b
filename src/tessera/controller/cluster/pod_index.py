"""Pods on nodes, by the attributes that rules of other pods may test: labels, anti-affinity, host ports, claims.

The index is updated pod by pod, so that a decision never walks over all pods. Pods of one namespace with equal labels
are one group. The index remembers the groups that a selection selects; it compares a newer group with a selection only
when a caller asks for that selection again. So a pod that comes or goes costs little, however many rules there are.
Each comparison is counted in ``cost`` for the pod whose rule needs it.

Groups of pods, and terms of anti-affinity, are indexed by namespace and label, which limits comparisons: a selector is
compared with few groups of pods, and a pod with few terms.

A selector that tests a label for equality selects only pods with one of the listed values. So the index lists a pod
under each of its labels, and a selector under each value of its shortest list, both together with the namespace; each
finds the other by a key that they share. ``None`` in a key stands for any namespace, or for any label.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_constraints import HostPort, Labels, PodAffinityRule, PodRelations, PodSelection
from tessera.controller.objects.pod_info import PodInfo

#: Values up to which a list's selector has a key for each value; a longer one is compared with its whole namespace.
_LISTED = 16

#: Namespace, and a label with its value.
Key = tuple[str | None, tuple[str, str] | None]


class PodGroup:
    """Pods of one namespace with equal labels.

    Attributes:
        all: number of these pods on each node.
        leaving: number of these pods on each node that are being deleted.
        created: the index's version when the group was added.
        changed: the index's version when the group's counts last changed.
    """

    __slots__ = ("all", "changed", "created", "labels", "leaving", "namespace")

    def __init__(self, namespace: str, labels: Labels, version: int) -> None:
        self.namespace, self.labels = namespace, dict(labels)
        self.all: Counter[NodeName] = Counter()
        self.leaving: Counter[NodeName] = Counter()
        self.created = self.changed = version


class TermHolders:
    """A term of anti-affinity, and the number of pods on each node that have it; versions as in :class:`PodGroup`."""

    __slots__ = ("changed", "created", "nodes", "term")

    def __init__(self, term: PodAffinityRule, version: int) -> None:
        self.term = term
        self.nodes: Counter[NodeName] = Counter()
        self.created = self.changed = version


_Item = TypeVar("_Item", PodGroup, TermHolders)


class SelectorIndex(Generic[_Item]):
    """Items by key, in the order in which they were created."""

    def __init__(self) -> None:
        self._items: dict[Key, dict[_Item, None]] = {}

    def add(self, item: _Item, keys: Iterable[Key]) -> None:
        """Adds the newest item under these keys."""
        for key in keys:
            self._items.setdefault(key, {})[item] = None

    def remove(self, item: _Item, keys: Iterable[Key]) -> None:
        """Removes an item from these keys, under which it was added."""
        for key in keys:
            items = self._items[key]
            del items[item]
            if not items:
                del self._items[key]

    def since(self, version: int, keys: Iterable[Key]) -> Iterator[_Item]:
        """Yields the items under these keys that are newer than a version: key by key, the newest first."""
        for key in keys:
            for item in reversed(self._items.get(key, {})):
                if item.created <= version:
                    break
                yield item


def pod_keys(namespace: str, labels: Mapping[str, str]) -> list[Key]:
    """Returns the keys of a pod, those of its own namespace first."""
    pairs = [*labels.items(), None]
    return [*((namespace, pair) for pair in pairs), *((None, pair) for pair in pairs)]


def selection_keys(selection: PodSelection) -> list[Key]:
    """Returns the keys of a selection. A selected pod has exactly one of them; no keys if no pod can match."""
    tests, named = selection.tests, selection.namespaces
    if tests is None:
        return []
    namespace = next(iter(named)) if len(named) == 1 and selection.namespace_tests is None else None
    listed = [test for test in tests if test.operator == "In" and len(test.values) <= _LISTED]
    if not listed:
        return [(namespace, None)]
    shortest = min(listed, key=lambda test: len(test.values))
    return [(namespace, (shortest.key, value)) for value in dict.fromkeys(shortest.values)]


#: Most terms of other pods' anti-affinity that one slice pod is compared with. A namespace has a few such terms for
#: each application; terms beyond are left to the scheduler.
OPPOSING_TERMS = 1_000
#: Most entries: the controller's cache for selectors of pods: an entry for each selector, each of its nodes and label
#: sets. 200 workloads of 50,000 pods take 76,000, of about 100 bytes; the longest unused is computed again when needed.
REMEMBERED_SELECTIONS = 500_000
#: Most answers: different sets of pods' labels for which the controller caches the terms of anti-affinity that select
#: them. More kinds of pods than wait at once; the longest unused is forgotten, and compared again when needed.
REMEMBERED_OPPOSITION = 4_096

#: Groups that can be passed over, or looked up, at the cost of one comparison.
_LOOKUPS_A_STEP = 8


@dataclass(slots=True)
class SelectedPods:
    """The pods of one selection.

    Attributes:
        all: number of these pods on each node.
        staying: the same without the pods that are being deleted.
        groups: the groups of these pods.
        compared: the index's version up to which groups were compared.
        version: the index's version of ``all`` and ``staying``; equal versions mean equal counts.
        size: entries that this value takes of the memory limit.
    """

    all: Counter[NodeName] = field(default_factory=Counter)
    staying: Counter[NodeName] = field(default_factory=Counter)
    groups: list[PodGroup] = field(default_factory=list)
    compared: int = 0
    version: int = 0
    size: int = 0


@dataclass(slots=True)
class OpposingTerms:
    """Terms of anti-affinity of pods on nodes that select the pods of one namespace with equal labels.

    Attributes:
        holders: the terms, with the nodes of the pods that have them.
        compared: the index's version up to which terms were compared.
    """

    holders: list[TermHolders] = field(default_factory=list)
    compared: int = 0


class PodIndex:
    """Pods that run on a node or are promised a place there.

    Attributes:
        version: grows with every change.
        changes: grows with every change that may open a node to a waiting pod (:meth:`watch`).
        cost: comparisons made since this index was made.
        ports: host ports in use, by node; a port of any address is counted under an empty address too.
        claims: claims in use, by node.
        claim_users: pods that use a claim, on any node.
        holders: the anti-affinity terms of these pods; no term is without pods.
        replicas: by :attr:`PodInfo.replica_of` and node, the pods with slices that stay; none is without pods.
    """

    def __init__(self) -> None:
        self.version = 1
        self.changes = 0
        self.cost = 0
        self.ports: dict[NodeName, Counter[HostPort]] = {}
        self.claims: dict[NodeName, Counter[str]] = {}
        self.claim_users: Counter[str] = Counter()
        self.replicas: dict[tuple[str, str], dict[NodeName, set[PodUid]]] = {}
        #: Labels of the namespaces.
        self._namespaces: dict[str, Mapping[str, str]] = {}
        #: The counted pods: exactly these are counted in ``ports``, ``claims``, ``_groups`` and ``holders``.
        self._placed: dict[PodUid, tuple[NodeName, PodInfo]] = {}
        #: True once a rule has asked for pods by their labels; before, the pods are in no groups.
        self._is_grouped = False
        #: The groups of these pods, by both keys. No group is empty.
        self._groups: dict[tuple[str, Labels], PodGroup] = {}
        self._groups_by_label: SelectorIndex[PodGroup] = SelectorIndex()
        #: ``version`` when the newest group and the newest term were added.
        self._last_group = self._last_term = 0
        #: The anti-affinity terms of these pods, by both keys.
        self.holders: dict[PodAffinityRule, TermHolders] = {}
        self._holders_by_label: SelectorIndex[TermHolders] = SelectorIndex()
        #: Remembered answers, the last used at the end, and the sum of their sizes.
        self._selected: dict[PodSelection, SelectedPods] = {}
        self._size = 0
        #: Remembered terms that select pods of a namespace with these labels, the last used at the end.
        self._opposing: dict[tuple[str, Labels], OpposingTerms] = {}
        #: Relations of the pods of :meth:`watch`, and the keys of their selections.
        self._watching: dict[PodUid, PodRelations] = {}
        self._watched: Counter[Key] = Counter()

    # Pods

    def __contains__(self, uid: object) -> bool:
        return uid in self._placed

    def put(self, pod: PodInfo, node: NodeName | None) -> None:
        """Counts a pod on this node and no other; on none if None."""
        before = self._placed.get(pod.uid)
        if before is not None:
            if before[0] == node and _is_counted_alike(before[1], pod):
                return
            self._count(*before, sign=-1)
            del self._placed[pod.uid]
        if node is not None:
            self._placed[pod.uid] = (node, pod)
            self._count(node, pod, sign=1)

    def drop(self, uid: PodUid) -> None:
        """Removes a pod from the counts."""
        before = self._placed.pop(uid, None)
        if before is not None:
            self._count(*before, sign=-1)

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Takes in the labels of a namespace; None if the namespace is gone."""
        if self._namespaces.get(name) == labels:
            return
        if labels is None:
            del self._namespaces[name]
        else:
            self._namespaces[name] = labels
        for selection in [each for each in self._selected if each.namespace_tests is not None]:
            self._forget(selection)
        self._opposing.clear()
        self.version += 1
        self.changes += 1

    def namespace_label(self, namespace: str, key: str) -> str:
        """Returns a label's value of a namespace; empty if it has none."""
        return self._namespaces.get(namespace, {}).get(key, "")

    def watch(self, uid: PodUid, relations: PodRelations) -> None:
        """Watches for a waiting pod: a change of pods that one of its rules may select counts in ``changes``."""
        if uid in self._watching:
            return
        self._watching[uid] = relations
        self._watched.update(key for each in relations.selections for key in selection_keys(each))

    def unwatch(self, uid: PodUid) -> None:
        """Ends the watch for a pod that no longer waits."""
        relations = self._watching.pop(uid, None)
        for selection in relations.selections if relations is not None else ():
            for key in selection_keys(selection):
                _add(self._watched, key, -1)

    def _count(self, node: NodeName, pod: PodInfo, *, sign: int) -> None:
        self.version += 1
        if self._is_grouped:
            self._count_in_group(node, pod, sign)
        self._count_replica(node, pod, sign)
        for term in pod.relations.anti_affinity:
            self._count_holder(term, node, sign)
        for port in pod.ports:
            for each in (port, (port[0], "", port[2])):
                _add(self.ports.setdefault(node, Counter()), each, sign)
        for claim in pod.claims:
            _add(self.claims.setdefault(node, Counter()), claim, sign)
            _add(self.claim_users, claim, sign)
        opens = sign < 0 and bool(pod.relations.anti_affinity or pod.ports or pod.claims)
        if opens or (self._watched and self._is_watched(pod)):
            self.changes += 1

    def _count_replica(self, node: NodeName, pod: PodInfo, sign: int) -> None:
        owner = pod.replica_of
        if owner is None or pod.terminating or not (pod.profiles or pod.devices or pod.device_claims):
            return
        placed = self.replicas.setdefault(owner, {})
        if sign > 0:
            placed.setdefault(node, set()).add(pod.uid)
        elif node in placed:
            placed[node].discard(pod.uid)
            if not placed[node]:
                del placed[node]
        if not placed:
            del self.replicas[owner]

    def _is_watched(self, pod: PodInfo) -> bool:
        watched, own = self._watched, pod.namespace
        return any((own, pair) in watched or (None, pair) in watched for pair in (*pod.labels, None))

    def _count_in_group(self, node: NodeName, pod: PodInfo, sign: int) -> None:
        group = self._group(pod.namespace, pod.labels)
        group.changed = self.version
        _add(group.all, node, sign)
        if pod.terminating:
            _add(group.leaving, node, sign)
        if not group.all:
            self._groups_by_label.remove(group, pod_keys(group.namespace, group.labels))
            del self._groups[pod.namespace, pod.labels]

    def _count_all_in_groups(self) -> None:
        self._is_grouped = True
        for node, pod in self._placed.values():
            self._count_in_group(node, pod, 1)

    def _group(self, namespace: str, labels: Labels) -> PodGroup:
        group = self._groups.get((namespace, labels))
        if group is None:
            self._last_group = self.version
            group = self._groups[namespace, labels] = PodGroup(namespace, labels, self.version)
            self._groups_by_label.add(group, pod_keys(namespace, group.labels))
        return group

    def _count_holder(self, term: PodAffinityRule, node: NodeName, sign: int) -> None:
        holders = self.holders.get(term)
        if holders is None:
            self._last_term = self.version
            holders = self.holders[term] = TermHolders(term, self.version)
            self._holders_by_label.add(holders, selection_keys(term.selection))
        _add(holders.nodes, node, sign)
        holders.changed = self.version
        if not holders.nodes:
            del self.holders[term]
            self._holders_by_label.remove(holders, selection_keys(term.selection))

    # Answers

    def uses_host_port(self, node: NodeName, conflicts: AbstractSet[HostPort]) -> bool:
        """True if a pod of the node uses one of these host ports; the cost grows with the shorter list."""
        taken = self.ports.get(node)
        return taken is not None and not taken.keys().isdisjoint(conflicts)

    def select(self, selection: PodSelection, most: int) -> SelectedPods | None:
        """Returns the pods that a selection selects.

        Args:
            selection: the selection.
            most: comparisons that it may take.

        Returns:
            The pods, valid until the next call; None if finding them would take more comparisons.
        """
        if not self._is_grouped:
            self._count_all_in_groups()
        found = self._selected.pop(selection, None) or SelectedPods()
        limit = self.cost + most
        if found.compared < self.version and not self._update_selected(selection, found, limit):
            self._size -= found.size
            return None
        self._selected[selection] = found  # the last used
        while self._size > REMEMBERED_SELECTIONS and len(self._selected) > 1:
            self._forget(next(iter(self._selected)))
        return found

    def _update_selected(self, selection: PodSelection, found: SelectedPods, limit: int) -> bool:
        """Compares the newer groups, and counts again if a group changed; False once that costs too much."""
        self.cost += 1 + len(found.groups) // _LOOKUPS_A_STEP
        came: list[PodGroup] = []
        new = self._last_group > found.compared
        for group in self._groups_by_label.since(found.compared, selection_keys(selection)) if new else ():
            came.append(group)
            if self.cost + len(came) * selection.weight > limit:
                self.cost += len(came) // _LOOKUPS_A_STEP
                return False
        self.cost += len(came) * selection.weight
        came = [group for group in came if self._selects(selection, group.namespace, group.labels)]
        if came or any(group.changed > found.version for group in found.groups):
            found.groups = [group for group in (*found.groups, *came) if group.all]
            if not self._count_groups(found, limit):
                return False
            self._size -= found.size
            found.size = 1 + len(found.groups) + len(found.all)
            self._size += found.size
            found.version = self.version
        found.compared = self.version
        return True

    def _count_groups(self, found: SelectedPods, limit: int) -> bool:
        self.cost += sum(len(group.all) for group in found.groups)
        if self.cost > limit:
            return False
        found.all = _sum_counters(group.all for group in found.groups)
        found.staying = found.all
        if any(group.leaving for group in found.groups):
            found.staying = found.all - _sum_counters(group.leaving for group in found.groups)
        return True

    def count_in_all(self, selected: Sequence[SelectedPods]) -> Counter[NodeName]:
        """Counts on each node the pods that all of these selections select."""
        groups = dict.fromkeys(selected[0].groups)
        for each in selected[1:]:
            self.cost += 1 + len(each.groups) // _LOOKUPS_A_STEP
            groups = {group: None for group in each.groups if group in groups}
        self.cost += sum(len(group.all) for group in groups)
        return _sum_counters(group.all for group in groups)

    def opposing_terms(self, namespace: str, labels: Labels, most: int) -> Sequence[TermHolders]:
        """Returns anti-affinity terms of pods on nodes that select such a pod; terms of its own namespace come first.

        Args:
            namespace: the pod's.
            labels: the pod's.
            most: comparisons that it may take; terms beyond them, or beyond ``OPPOSING_TERMS``, are left out.
        """
        key = (namespace, labels)
        found = self._opposing.pop(key, None) or OpposingTerms()
        self._opposing[key] = found  # the last used
        if found.compared < self.version:
            found.holders = [each for each in found.holders if each.nodes]
            own, limit = dict(labels), self.cost + most
            keys = pod_keys(namespace, own) if self._last_term > found.compared else ()
            for each in islice(self._holders_by_label.since(found.compared, keys), OPPOSING_TERMS):
                self.cost += each.term.selection.weight
                if self.cost > limit:
                    break
                if self._selects(each.term.selection, namespace, own):
                    found.holders.append(each)
            found.compared = self.version
            if len(self._opposing) > REMEMBERED_OPPOSITION:
                del self._opposing[next(iter(self._opposing))]
        self.cost += len(found.holders)
        return found.holders

    def selects(self, selection: PodSelection, pod: PodInfo) -> bool:
        """True if a selection selects a pod."""
        self.cost += selection.weight
        return self._selects(selection, pod.namespace, dict(pod.labels))

    def _selects(self, selection: PodSelection, namespace: str, labels: Mapping[str, str]) -> bool:
        tests = selection.tests
        if tests is None or not all(test.matches(labels) for test in tests):
            return False
        return namespace in selection.namespaces or self._selects_namespace(selection, namespace)

    def _selects_namespace(self, selection: PodSelection, namespace: str) -> bool:
        tests = selection.namespace_tests
        return tests is not None and all(test.matches(self._namespaces.get(namespace, {})) for test in tests)

    def _forget(self, selection: PodSelection) -> None:
        self._size -= self._selected.pop(selection).size


_K = TypeVar("_K")


def _sum_counters(counters: Iterable[Counter[NodeName]]) -> Counter[NodeName]:
    total: Counter[NodeName] = Counter()
    for each in counters:
        total.update(each)
    return total


def _is_counted_alike(one: PodInfo, other: PodInfo) -> bool:
    return one is other or (one.labels, one.relations, one.ports, one.claims, one.terminating, one.namespace) == (
        other.labels,
        other.relations,
        other.ports,
        other.claims,
        other.terminating,
        other.namespace,
    )


def _add(counter: Counter[_K], key: _K, sign: int) -> None:
    counter[key] += sign
    if not counter[key]:
        del counter[key]
