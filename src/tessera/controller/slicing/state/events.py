"""Events that the slicer takes in, as values: observations of the cluster, and outcomes of the slicer's writes.

These events and the calls of :meth:`Slicer.decide` and :meth:`Slicer.pop_writes` determine everything the slicer does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName, PodUid
from tessera.api.queues import Queue
from tessera.controller.cluster.storage import StorageObject
from tessera.controller.cluster.waiting_ages import Owner
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.instructions import Ungate, Write


@dataclass(frozen=True, slots=True)
class PodObserved:
    """A pod as it is now; ignored if a newer state was seen."""

    pod: PodInfo


@dataclass(frozen=True, slots=True)
class PodDeleted:
    """A pod does not exist any more."""

    uid: PodUid


@dataclass(frozen=True, slots=True)
class LastGatesObserved:
    """The gates whose owners exist in the cluster and remove them only when they are the last."""

    gates: frozenset[str]


@dataclass(frozen=True, slots=True)
class NodeObserved:
    """A node as it is now."""

    node: NodeInfo


@dataclass(frozen=True, slots=True)
class NodeDeleted:
    """A node does not exist any more; its Instaslice object must be deleted."""

    name: NodeName


@dataclass(frozen=True, slots=True)
class InstasliceObserved:
    """A node's Instaslice object as it is now; ignored if a newer state was seen."""

    item: Instaslice


@dataclass(frozen=True, slots=True)
class InstasliceDeleted:
    """A node's Instaslice object does not exist any more."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class InstasliceUnreadable:
    """A node's Instaslice object cannot be decoded, for this error; None once it can be again."""

    node: NodeName
    error: str | None


@dataclass(frozen=True, slots=True)
class PodVersionsReset:
    """Versions of pods went back: the next observation of each pod counts at any version."""


@dataclass(frozen=True, slots=True)
class InstasliceVersionsReset:
    """Versions of Instaslice objects went back: the next observation of each counts at any version."""


@dataclass(frozen=True, slots=True)
class NamespaceObserved:
    """Labels of a namespace, which rules about pods may test; None if the namespace is gone."""

    name: str
    labels: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class QueueObserved:
    """A Queue object as it is now; ignored if a newer state was seen."""

    queue: Queue


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """A Queue object does not exist any more."""

    name: str


@dataclass(frozen=True, slots=True)
class PodGroupObserved:
    """The number of pods of a gang that start together, as a PodGroup object states it; None once that is gone."""

    key: str
    size: int | None


@dataclass(frozen=True, slots=True)
class PodGroupsListed:
    """All PodGroups were observed, or the cluster has no such kind (``served`` is False)."""

    served: bool


@dataclass(frozen=True, slots=True)
class StorageObserved:
    """A claim, volume, class or CSI node as it is now, or its last state before its deletion."""

    item: StorageObject
    deleted: bool


@dataclass(frozen=True, slots=True)
class StorageListed:
    """All claims, volumes, classes and CSI nodes were listed: the slicer tests pods' claims from now on."""


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The server accepted a write. The slicer has already observed the resulting object."""

    write: Write


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """The server refused a write; a later try may succeed. Its key stays busy until :class:`RetryDue`.

    Attributes:
        write: the write.
        reason: the server's sentence; empty in older records.
    """

    write: Write
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WriteOutcomeUnknown:
    """No answer shows if the server accepted a write, or it was too busy for an eviction and asked for another try.

    The key stays busy until :class:`RetryDue`.
    """

    write: Write


@dataclass(frozen=True, slots=True)
class RetryDue:
    """The pause after a failed write is over; the slicer returns the writes of this key that are due now."""

    write: Write


@dataclass(frozen=True, slots=True)
class UngateDenied:
    """The server will never ungate the pod with this write; the slicer ignores the pod until it changes.

    Attributes:
        write: the write.
        reason: the server's message.
    """

    write: Ungate
    reason: str


@dataclass(frozen=True, slots=True)
class DenialExpired:
    """The slicer may ungate a pod again that it ignored after :class:`UngateDenied`."""

    uid: PodUid


@dataclass(frozen=True, slots=True)
class OwnerLookedUp:
    """Whether an owner exists that waiting pods name: one of :attr:`WaitingAges.unknown_owners`."""

    owner: Owner
    exists: bool


@dataclass(frozen=True, slots=True)
class RefusalTimedOut:
    """A pod with slices could not start for too long; if it is still refused, another pod gets its slices.

    The slicer evicts a pod that a controller owns; the pod's allocation ends with it. Any other pod stays, without
    slices, and gets a condition that says so. If the scheduler still binds that pod later, the slicer plans it like any
    bound pod: it gets slices if it is its turn and there is room, and is evicted if there is none. A pod that is bound
    already keeps its slices: it starts once the agent serves.

    An owner's next pods need not avoid a node whose agent is down: the slicer allocates nothing there.

    Attributes:
        uid: the pod.
        avoid_until: time until which pods of the owner avoid the node, in seconds of the clock of :class:`TimePassed`.
    """

    uid: PodUid
    avoid_until: float


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Gives the present time: nodes that were avoided long enough are open again, and pods get reservations.

    Attributes:
        now: seconds of a clock that never goes back.
        date: seconds since 1970; 0 if unknown, and then no pod gets a reservation.
    """

    now: float
    date: float = 0.0


@dataclass(frozen=True, slots=True)
class EndsExpected:
    """Leases are expected to end at other times than before, by how long such leases lasted.

    Attributes:
        ends: by pod, seconds since 1970; pods that are left out keep what was expected of them.
    """

    ends: Mapping[PodUid, float]


@dataclass(frozen=True, slots=True)
class DecisionDue:
    """Events have arrived; decide on them."""


@dataclass(frozen=True, slots=True)
class WritesDue:
    """The executor is ready for the writes that are due."""


SlicerEvent = (
    PodObserved
    | PodDeleted
    | LastGatesObserved
    | NodeObserved
    | NodeDeleted
    | InstasliceObserved
    | InstasliceDeleted
    | InstasliceUnreadable
    | PodVersionsReset
    | InstasliceVersionsReset
    | NamespaceObserved
    | QueueObserved
    | QueueDeleted
    | PodGroupObserved
    | PodGroupsListed
    | StorageObserved
    | StorageListed
    | WriteDone
    | WriteRefused
    | WriteOutcomeUnknown
    | RetryDue
    | UngateDenied
    | DenialExpired
    | OwnerLookedUp
    | RefusalTimedOut
    | TimePassed
    | EndsExpected
    | DecisionDue
    | WritesDue
)
