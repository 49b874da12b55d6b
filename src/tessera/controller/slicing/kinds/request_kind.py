# ruff: noqa: ARG002 - a method that a kind does not have ignores its arguments
"""A kind of request, as the cycle sees it. A further kind needs no change in the steps of the cycle.

Planning sees all kinds alike: a request is a list of profiles, and what serves it are cards with geometries. A kind
puts its cards into the fleet, and finds what pods hold already.
"""

from collections.abc import Iterable

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.allocation import Allocation


class RequestKind:
    """One kind. A method that a kind does not have does nothing."""

    def observe_pod(self, pod: PodInfo) -> None:
        """Takes in a pod as it is now."""

    def observe_namespace(self, name: str) -> None:
        """Takes in a namespace whose labels may have changed."""

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

    def adopt(self, pod: PodInfo) -> Allocation | None:
        """Returns what a pod holds without an allocation, its slots occupied; None if there is none."""
        return None

    def count(self, uid: PodUid, pod: PodInfo | None, home: NodeName | None, left: NodeName | None) -> None:
        """Counts what a pod holds besides slots on its node, and not any more on the node that it left."""

    def refresh(self) -> None:
        """Brings estimates up to date after pods were absorbed."""

    def prepare(self) -> None:
        """Brings estimates up to date after nodes were absorbed, and before pods are planned."""
