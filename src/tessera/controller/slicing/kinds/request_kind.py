# ruff: noqa: ARG002 - a method that a kind does not have ignores its arguments
"""A kind of request, as the cycle sees it. A further kind needs no change in the steps of the cycle.

Planning sees all kinds alike: a request is a list of profiles, and what serves it are cards with geometries. A kind
puts its cards into the fleet, finds what pods hold already, and writes the record of a place if no other part does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import KindOfRequest, PodInfo
from tessera.controller.slicing.state.allocation import Allocation, AllocationStep
from tessera.controller.slicing.state.instructions import PatchRecord
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kube.resources import Resource


class RequestKind:
    """One kind. A method that a kind does not have does nothing.

    Attributes:
        kind: what other parts know of it.
        records: the objects that record places; None if the kind writes none.
        used: False while nobody asks for it: then the cycle passes it by until :meth:`wake`.
    """

    kind: ClassVar[KindOfRequest]
    records: ClassVar[Resource[Any] | None] = None
    used: bool = True

    def wake(self) -> None:
        """Begins to be used: a pod behind the gate asks for it, or :meth:`observe_namespace` says so."""

    def read(self, pod: PodInfo) -> PodInfo:
        """Returns a pod with what it asks for, where its own spec does not say it."""
        return pod

    def reread(self) -> Sequence[PodInfo]:
        """Returns pods, as they were observed, whose requests :meth:`read` may see in another way now."""
        return ()

    def let_go(self) -> Iterable[PodInfo]:
        """Returns pods at the gate that ask for nothing: others place them."""
        return ()

    def followers(self) -> Iterable[tuple[PodInfo, PodInfo]]:
        """Returns pods that wait for what another asks for first, with what they will have; and each one's other."""
        return ()

    def forget(self, uid: PodUid) -> None:
        """Takes in that a pod does not exist any more."""

    def observe(self, item: Any, *, deleted: bool) -> None:
        """Takes in an object that only this kind knows, such as a record; the last state of one that is gone."""

    def note_listed(self) -> None:
        """Takes in that all such objects were observed."""

    def observe_namespace(self, name: str) -> bool:
        """True if the kind is to be used, now that the labels of a namespace may have changed."""
        return False

    def observe_node(self, node: NodeName) -> None:
        """Takes in that a node was observed, also without a change that wakes a pod."""

    def absorb_node(self, node: NodeName, *, renewed: bool) -> Iterable[Allocation]:
        """Brings the node's cards in line with its present state.

        Args:
            node: the node.
            renewed: its object records allocations that are new to this process.

        Returns:
            Allocations that collide with others.
        """
        return ()

    def profiles(self, node: NodeName) -> frozenset[str]:
        """Returns the profiles that a node's cards of this kind serve."""
        return frozenset()

    def recount(self) -> Iterable[Allocation]:
        """Returns allocations that are dropped, since what their pods hold is counted anew."""
        return ()

    def outgrown(self, pod: PodInfo) -> Allocation | None:
        """Returns an allocation that is dropped, since its pod may hold more now."""
        return None

    def refused(self, pod: PodInfo) -> Allocation | None:
        """Returns an allocation that its pod gives up, since the node does not take the pod."""
        return None

    def adopt(self, pod: PodInfo) -> Allocation | None:
        """Returns what a pod holds without an allocation, its slots occupied; None if there is none."""
        return None

    def freed(self, allocation: Allocation) -> None:
        """Takes in that others may have the slots of an allocation of this kind."""

    def record(self, allocation: Allocation, step: AllocationStep) -> PatchRecord | None:
        """Returns the write of a step, if an object of this kind records the allocation; None if none is due."""
        return None

    def accompany(self, allocation: Allocation, step: AllocationStep) -> tuple[Sequence[PatchRecord], bool]:
        """Returns the due writes beside a record in the node's object, and True if the step may be taken."""
        return (), True

    def lost(self, node: NodeName) -> Sequence[PatchRecord]:
        """Returns the due writes that take back what no allocation on a node has any more."""
        return ()

    def count(self, uid: PodUid, pod: PodInfo | None, home: NodeName | None, left: NodeName | None) -> None:
        """Counts what a pod holds besides slots on its node, and not any more on the node that it left."""

    def refresh(self) -> None:
        """Brings estimates up to date after pods were absorbed."""

    def prepare(self) -> None:
        """Brings estimates up to date after nodes were absorbed, and before pods are planned."""


class Kinds:
    """The kinds that a cluster may use.

    Args:
        kinds: make them, in the order in which the cycle asks them; of two with one name the later one counts.
        state: the slicer's state.

    Attributes:
        having: by the name of a method of :class:`RequestKind`, the used kinds that have one of their own.
        asleep: the others, by name; the steps of the cycle do not ask them.
        by_name: all of them.
    """

    def __init__(self, kinds: Sequence[Callable[[SlicerState], RequestKind]], state: SlicerState) -> None:
        found = [make(state) for make in kinds]
        self.by_name = {each.kind.name: each for each in found}
        self.asleep = {name: each for name, each in self.by_name.items() if not each.used}
        self.having: Mapping[str, Sequence[RequestKind]] = {}
        self._sort()

    def _sort(self) -> None:
        used = [each for each in self.by_name.values() if each.used]
        methods = {name: method for name, method in vars(RequestKind).items() if callable(method)}
        self.having = {
            name: [each for each in used if getattr(type(each), name) is not method] for name, method in methods.items()
        }

    def wake(self, name: str) -> None:
        """Begins to use a kind."""
        kind = self.asleep.pop(name)
        kind.used = True
        self._sort()
        kind.wake()

    def observe_namespace(self, name: str) -> None:
        """Wakes the kinds that are to be used since a namespace has changed."""
        for kind in [each for each in self.asleep.values() if each.observe_namespace(name)]:
            self.wake(kind.kind.name)
