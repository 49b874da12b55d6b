"""Events that the slicer takes in, as values: observations of the cluster, and outcomes of the slicer's writes.

These events and the calls of :meth:`Slicer.decide` and :meth:`Slicer.pop_writes` determine everything the slicer does.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName, PodUid
from tessera.api.queues import Queue
from tessera.controller.cluster.volumes import StorageObject
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import Owner, PodInfo, Workload
from tessera.controller.slicing.state.instructions import Ungate, Write


class PodObserved(msgspec.Struct, frozen=True):
    """A pod as it is now; ignored if a newer state was seen."""

    pod: PodInfo


class PodDeleted(msgspec.Struct, frozen=True):
    """A pod does not exist any more."""

    uid: PodUid


class LastGatesObserved(msgspec.Struct, frozen=True):
    """The gates whose owners exist in the cluster and remove them only when they are the last."""

    gates: frozenset[str]


class NodeObserved(msgspec.Struct, frozen=True):
    """A node as it is now."""

    node: NodeInfo


class NodeDeleted(msgspec.Struct, frozen=True):
    """A node does not exist any more; its Instaslice object must be deleted."""

    name: NodeName


class InstasliceObserved(msgspec.Struct, frozen=True):
    """A node's Instaslice object as it is now; ignored if a newer state was seen."""

    item: Instaslice


class InstasliceDeleted(msgspec.Struct, frozen=True):
    """A node's Instaslice object does not exist any more."""

    node: NodeName


class InstasliceUnreadable(msgspec.Struct, frozen=True):
    """A node's Instaslice object cannot be decoded, for this error; None once it can be again."""

    node: NodeName
    error: str | None


class RecordObserved(msgspec.Struct, frozen=True):
    """An object that only one kind of request knows, as it is now, or its last state before its deletion."""

    kind: str
    item: Any
    deleted: bool = False


class RecordsListed(msgspec.Struct, frozen=True):
    """All objects that only one kind of request knows were observed."""

    kind: str


class PodVersionsReset(msgspec.Struct, frozen=True):
    """Versions of pods went back: the next observation of each pod counts at any version."""


class InstasliceKindMissing(msgspec.Struct, frozen=True):
    """The API server does not know the kind Instaslice, so nodes cannot report cards; or it knows the kind again."""

    missing: bool


class InstasliceVersionsReset(msgspec.Struct, frozen=True):
    """Versions of Instaslice objects went back: the next observation of each counts at any version."""


class NamespaceObserved(msgspec.Struct, frozen=True):
    """Labels of a namespace, which rules about pods may test; None if the namespace is gone."""

    name: str
    labels: Mapping[str, str] | None


class QueueObserved(msgspec.Struct, frozen=True):
    """A Queue object as it is now; ignored if a newer state was seen."""

    queue: Queue


class QueueDeleted(msgspec.Struct, frozen=True):
    """A Queue object does not exist any more."""

    name: str


class PodGroupObserved(msgspec.Struct, frozen=True):
    """The number of pods of a gang that start together, as a PodGroup object states it; None once that is gone."""

    key: str
    size: int | None


class PodGroupsListed(msgspec.Struct, frozen=True):
    """All PodGroups were observed, or the cluster has no such kind (``served`` is False)."""

    served: bool


class StorageObserved(msgspec.Struct, frozen=True):
    """A claim, volume, class or CSI node as it is now, or its last state before its deletion."""

    item: StorageObject
    deleted: bool


class StorageListed(msgspec.Struct, frozen=True):
    """All claims, volumes, classes and CSI nodes were listed: the slicer tests pods' claims from now on."""


class WriteDone(msgspec.Struct, frozen=True):
    """The server accepted a write. The slicer has already observed the resulting object."""

    write: Write


class WriteRefused(msgspec.Struct, frozen=True):
    """The server refused a write; a later try may succeed. Its key stays busy until :class:`RetryDue`.

    Attributes:
        write: the write.
        reason: the server's sentence; empty in older records.
    """

    write: Write
    reason: str = ""


class WriteOutcomeUnknown(msgspec.Struct, frozen=True):
    """No answer shows if the server accepted a write, or it was too busy for an eviction and asked for another try.

    The key stays busy until :class:`RetryDue`.
    """

    write: Write


class RetryDue(msgspec.Struct, frozen=True):
    """The pause after a failed write is over; the slicer returns the writes of this key that are due now."""

    write: Write


class UngateDenied(msgspec.Struct, frozen=True):
    """The server will never ungate the pod with this write; the slicer ignores the pod until it changes.

    Attributes:
        write: the write.
        reason: the server's message.
    """

    write: Ungate
    reason: str


class DenialExpired(msgspec.Struct, frozen=True):
    """The slicer may ungate a pod again that it ignored after :class:`UngateDenied`."""

    uid: PodUid


class OwnerLookedUp(msgspec.Struct, frozen=True):
    """What the API server says of an owner that somebody asked about.

    Attributes:
        owner: the owner.
        workload: what it belongs to; None if no such owner exists.
    """

    owner: Owner
    workload: Workload | None


class RefusalTimedOut(msgspec.Struct, frozen=True):
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


class TimePassed(msgspec.Struct, frozen=True):
    """Gives the present time: nodes that were avoided long enough are open again, and pods get reservations.

    Attributes:
        now: seconds of a clock that never goes back.
        date: seconds since 1970; 0 if unknown, and then no pod gets a reservation.
    """

    now: float
    date: float = 0.0


class EndsExpected(msgspec.Struct, frozen=True):
    """Leases are expected to end at other times than before, by how long such leases lasted.

    Attributes:
        ends: by pod, seconds since 1970; pods that are left out keep what was expected of them.
    """

    ends: Mapping[PodUid, float]


class ImagesPulled(msgspec.Struct, frozen=True):
    """The images of a waiting pod are on a node, or Tessera cannot bring them there.

    Attributes:
        uid: the pod.
        node: the node.
        refusal: what kubelet says of an image that it does not get, so the pod would not start there; empty otherwise.
    """

    uid: PodUid
    node: NodeName
    refusal: str = ""


class DecisionDue(msgspec.Struct, frozen=True):
    """Events have arrived; decide on them."""


class WritesDue(msgspec.Struct, frozen=True):
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
    | RecordObserved
    | RecordsListed
    | PodVersionsReset
    | InstasliceVersionsReset
    | InstasliceKindMissing
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
    | ImagesPulled
    | DecisionDue
    | WritesDue
)
