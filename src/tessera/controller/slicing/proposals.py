"""What one decision does, as values, and who proposes it.

A proposer yields one proposal after the other; the step *settle*
(:mod:`tessera.controller.slicing.cycle.settle`) carries each out before the next is made. So a proposer sees what its
proposals have changed, and changes nothing itself.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import Owner, PodInfo, Workload
from tessera.controller.slicing.batch_placement import Placed
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.instructions import Evict
from tessera.controller.slicing.state.node_records import Reservation
from tessera.reasons.reason import Reason


class Refusal(msgspec.Struct, frozen=True):
    """A waiting pod gets no slices now.

    Attributes:
        pod: the pod.
        reason: why; None repeats the last reason.
        dependent: a change of other pods or volumes alone may lift the refusal.
        of_kind: it answers for all pods of the pod's kind.
        by_all: all nodes refuse the pod, whatever ends on their cards.
        until_relief: room on a node does not lift it.
    """

    pod: PodInfo
    reason: Reason | None
    dependent: bool = False
    of_kind: bool = False
    by_all: bool = False
    until_relief: bool = False


class KindRefusal(msgspec.Struct, frozen=True):
    """The refused pods of a kind that were not asked get the reason of one that was."""

    kind: Hashable
    reason: Reason


class Return(msgspec.Struct, frozen=True):
    """A pod gives its slices back."""

    allocation: Allocation


class Withdrawal(msgspec.Struct, frozen=True):
    """A pod is told that it has no slices. A bound one keeps them, and starts once its node's agent serves."""

    pod: PodInfo
    allocation: Allocation
    text: str


class Backfill(msgspec.Struct, frozen=True):
    """A pod gets slots of reservations and leaves them before they begin."""

    uid: PodUid
    reservations: tuple[Reservation, ...]


class NewReservation(msgspec.Struct, frozen=True):
    """Slots are reserved for a waiting pod, or for the next pod of an owner.

    Attributes:
        pod: the pod; None as long as no pod waits for the slots.
        reservation: the reservation.
    """

    pod: PodInfo | None
    reservation: Reservation


class EndOfReservation(msgspec.Struct, frozen=True):
    """A reservation ends, and those of its gang."""

    reservation: Reservation


class Eviction(msgspec.Struct, frozen=True):
    """A pod is evicted."""

    evict: Evict


class FailedUpdate(msgspec.Struct, frozen=True):
    """A pod of a Deployment's new revision has failed, so the revision gets no slots of old pods any more.

    Attributes:
        pod: the pod.
        revision: the revision.
        node: the node whose object records it.
    """

    pod: PodInfo
    revision: int
    node: NodeName


class Notice(msgspec.Struct, frozen=True):
    """An Event on a pod."""

    pod: PodInfo
    reason: str
    text: str
    warning: bool = False


Proposal = (
    Placed
    | Refusal
    | KindRefusal
    | Return
    | Withdrawal
    | Backfill
    | NewReservation
    | EndOfReservation
    | Eviction
    | FailedUpdate
    | Notice
)


class Proposer:
    """One feature of the cycle. One that is off is not in the slicer's list.

    A proposer is asked only while pods wait for room, something is reserved or moved, or its time has come.

    Attributes:
        has_news: it has taken in something on which :meth:`review` has not acted.
        next_due: time at which it may propose something though nothing changes, seconds since 1970; None if never.
        follows: :meth:`observe` takes in changed pods that have a value of this attribute; empty if it takes in none.
        keeps_slots: it keeps slots for pods that have not come, so it proposes before reservations are made.
        asks: it wants to know something of others: :attr:`unknown_owners`, or what its satellite finds out.
    """

    has_news: bool = False
    next_due: float | None = None
    follows: str = ""
    keeps_slots: bool = False
    asks: bool = False

    @property
    def unknown_owners(self) -> Iterable[Owner]:
        """The owners about which somebody should ask the API server."""
        return ()

    def has_pods_of(self, _owner: str) -> bool:
        """True if it knows pods of the owner with this UID."""
        return False

    def observe(self, uid: PodUid) -> None:
        """Takes in a pod that changed, or is gone."""

    def note_owner(self, owner: Owner, workload: Workload | None) -> None:
        """Takes in what the API server says of an owner."""

    @property
    def pulls(self) -> Mapping[PodUid, NodeName]:
        """By pod whose images somebody should bring to a node, the node."""
        return {}

    def note_images(self, uid: PodUid, node: NodeName, refusal: str) -> None:
        """Takes in an :class:`.ImagesPulled`."""

    def note_refusal(self, _uid: PodUid, _reason: str) -> Iterable[Proposal]:
        """Takes in that the server refused an eviction, by a PodDisruptionBudget or another policy, and its reason."""
        return ()

    def note_no_answer(self, uid: PodUid) -> None:
        """Takes in that the server did not answer an eviction, or that it asked for another try."""

    def review(self, _nodes: AbstractSet[NodeName]) -> Iterable[Proposal]:
        """Proposes, before pods are planned, what of earlier decisions ends, now that these nodes have changed."""
        return ()

    def propose(self) -> Iterable[Proposal]:
        """Proposes what to do once the decision's pods are planned."""
        return ()


def evict(pod: PodInfo, *, version: int = 0, grace: int | None = None) -> Iterator[Proposal]:
    """Proposes to evict a pod; see :class:`~tessera.controller.slicing.state.instructions.Evict`."""
    yield Eviction(Evict(uid=pod.uid, namespace=pod.namespace, name=pod.name, version=version, grace=grace))
