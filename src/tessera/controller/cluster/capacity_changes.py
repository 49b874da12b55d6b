"""Changes of nodes that may have made room, and the pods that planning refused since.

A refusal answers for all pods of its *kind*: pods that planning cannot tell apart except by name and age. So of a kind
only the first pods are planned again, as many as might fit, and the cost of a freed slot does not grow with the number
of waiting pods.
"""

import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo

#: A count of changes that is never reached.
_NOT_DUE = sys.maxsize


class CapacityChanges:
    """Counts changes of nodes that may have made room, and remembers each refused pod or kind with its count.

    After planning has refused a pod, it plans the pod again only on nodes that changed since. It plans waiting pods in
    rounds: a pod that was refused in a round is not planned again before the next round, however often room grows
    meanwhile. So no pod starves behind pods that go first and are refused each time. A round ends once those that were
    due at its start are decided; pods that come later do not prolong it, or they would get room before older pods.
    """

    def __init__(self) -> None:
        #: Number of changes so far.
        self._count = 0
        #: ``_count`` at the last change of each node, in the order of the counts.
        self._nodes: dict[NodeName, int] = {}
        #: ``_count`` at the last change that concerns all nodes.
        self._everywhere = 0
        #: ``_count`` when each pod was refused, for pods that are of no kind; ``_NOT_DUE`` for one that waits for no
        #: room.
        self._refused: dict[PodUid, int] = {}
        #: The other refused pods, by kind.
        self._kinds = _Kinds()
        #: ``_count`` when the present round began.
        self._round = 0
        #: Pods that were due when it began, without those that were refused since.
        self._members: set[PodUid] = set()
        #: Remembered answers: nodes that changed after a count. Emptied by each change of a node.
        self._since: dict[int, frozenset[NodeName]] = {}

    # Changes of nodes and pods

    def room_may_have_grown(self, node: NodeName) -> None:
        """Notes that room may have grown on a node."""
        self._count += 1
        self._nodes.pop(node, None)
        self._nodes[node] = self._count
        self._since.clear()

    def room_may_have_grown_anywhere(self) -> None:
        """Notes that room may have grown on any node: every waiting pod is planned again on all nodes."""
        self._count += 1
        self._everywhere = self._count

    def remove_node(self, node: NodeName) -> None:
        """Forgets a node that is gone."""
        self._nodes.pop(node, None)
        self._since.clear()

    def note_refusal(self, pod: PodUid) -> None:
        """Notes that a pod found no place on any node that changed up to now."""
        self._kinds.discard(pod)
        self._refused[pod] = self._count
        self._members.discard(pod)

    def note_refusal_of_kind(self, pod: PodInfo, kind: Hashable) -> None:
        """Notes the same for a pod and all refused pods of its kind."""
        self._refused.pop(pod.uid, None)
        self._kinds.put(pod, kind, self._count)

    def note_limit(self, pod: PodUid) -> None:
        """Notes that a refused pod waits for something else than room: it is planned again once that is forgotten."""
        self._kinds.discard(pod)
        self._refused[pod] = _NOT_DUE

    def forget_refusal(self, pod: PodUid) -> None:
        """Forgets a refusal: the pod will be planned on all nodes, or never again."""
        self._refused.pop(pod, None)
        self._kinds.discard(pod)

    def separate(self, pod: PodUid) -> None:
        """Takes a pod out of its kind; its refusal counts further."""
        count = self._kinds.refused(pod)
        if count is not None:
            self._kinds.discard(pod)
            self._refused[pod] = count

    # Pods to plan next

    def pods_of_kind(self, kind: Hashable) -> Sequence[PodUid]:
        """Returns the refused pods of a kind, oldest first."""
        return list(self._kinds.pods(kind))

    def nodes_changed_since_refusal(self, pod: PodUid) -> frozenset[NodeName] | None:
        """Returns the nodes that changed since a pod was refused; None if the pod must be planned on all nodes."""
        return self.nodes_changed_since(self._refused_at(pod))

    @property
    def count(self) -> int:
        """Number of changes so far."""
        return self._count

    def nodes_changed_since(self, count: int) -> frozenset[NodeName] | None:
        """Returns the nodes that changed since :attr:`count` had this value; None if any may have, or it is below 0."""
        if count < self._everywhere or count < 0:
            return None
        if count not in self._since:
            found = []
            for node, changed in reversed(self._nodes.items()):
                if changed <= count:
                    break
                found.append(node)
            self._since[count] = frozenset(found)
        return self._since[count]

    def is_refused_on(self, node: NodeName, pod: PodUid) -> bool:
        """True if planning has refused a pod since the last change of a node."""
        return self._refused_at(pod) >= max(self._nodes.get(node, 0), self._everywhere, 0)

    def is_due(self, pod: PodUid) -> bool:
        """True if a change concerns this pod since planning refused it, whatever the round."""
        return self._refused_at(pod) < self._count

    def concerns_any_of(self, waiting: Iterable[PodUid]) -> bool:
        """True if one of these pods, which are all that wait, must be planned again."""
        if self._kinds.are_due(self._count):
            return True
        return any(self._refused.get(pod, -1) < self._count for pod in self._kinds.others(waiting))

    def candidates(self, waiting: Iterable[PodUid], most: Callable[[Hashable], int]) -> list[PodUid]:
        """Returns the pods to plan next: the rest of this round, or the first of a new one.

        Args:
            waiting: all waiting pods.
            most: returns how many pods of a kind might fit at most, and one more.
        """
        others = list(self._kinds.others(waiting))
        found = self._due_in_round(others, most)
        if self._round < self._count and self._members.isdisjoint(found):
            self._round = self._count
            found = self._due_in_round(others, most)
            self._members = set(found)
        return found

    def _due_in_round(self, others: Iterable[PodUid], most: Callable[[Hashable], int]) -> list[PodUid]:
        due = [pod for pod in others if self._refused.get(pod, -1) < self._round]
        return [*due, *self._kinds.due(self._round, most)]

    def _refused_at(self, pod: PodUid) -> int:
        count = self._kinds.refused(pod)
        return self._refused.get(pod, -1) if count is None else count


#: Sort key of the pods of one kind.
_Entry = tuple[str, str, PodUid]


class _Kinds:
    """Refused pods by kind, each kind's oldest first."""

    def __init__(self) -> None:
        #: By kind, its pods; no list is empty.
        self._pods: dict[Hashable, list[_Entry]] = {}
        #: By kind with pods, the count of changes when it was refused.
        self._refused: dict[Hashable, int] = {}
        #: Of the same pods, the kind and the entry there.
        self._entries: dict[PodUid, tuple[Hashable, _Entry]] = {}

    def put(self, pod: PodInfo, kind: Hashable, count: int) -> None:
        """Adds a pod that was refused now, or moves it to another kind; its kind is refused too."""
        entry = (pod.created, pod.key, pod.uid)
        if self._entries.get(pod.uid) != (kind, entry):
            self.discard(pod.uid)
            self._entries[pod.uid] = (kind, entry)
            insort(self._pods.setdefault(kind, []), entry)
        self._refused[kind] = count

    def discard(self, uid: PodUid) -> None:
        """Removes a pod; an unknown one is no error."""
        known = self._entries.pop(uid, None)
        if known is None:
            return
        kind, entry = known
        entries = self._pods[kind]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self._pods[kind], self._refused[kind]

    def refused(self, uid: PodUid) -> int | None:
        """Returns the count at which a pod's kind was refused; None for a pod of no kind."""
        known = self._entries.get(uid)
        return None if known is None else self._refused[known[0]]

    def others(self, waiting: Iterable[PodUid]) -> Iterable[PodUid]:
        """Returns the waiting pods that are of no kind."""
        return (pod for pod in waiting if pod not in self._entries)

    def pods(self, kind: Hashable) -> Iterator[PodUid]:
        """Yields the pods of a kind, oldest first."""
        return (uid for _, _, uid in self._pods.get(kind, ()))

    def are_due(self, count: int) -> bool:
        """True if a kind was refused before this count."""
        return any(refused < count for refused in self._refused.values())

    def due(self, count: int, most: Callable[[Hashable], int]) -> Iterator[PodUid]:
        """Yields the first pods of each kind that was refused before this count."""
        for kind, refused in self._refused.items():
            if refused < count:
                yield from islice(self.pods(kind), most(kind))
