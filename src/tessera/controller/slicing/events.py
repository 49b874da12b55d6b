"""Events that the slicer takes in, as values: observations of the cluster, and the outcomes of its writes.

Together with the calls of :meth:`Slicer.decide` and :meth:`Slicer.pop_writes` they determine all that the slicer does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.storage import StorageObject
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.instructions import Ungate, Write


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod as it is now; ignored if a newer state was seen."""

    pod: PodInfo


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod does not exist any more."""

    uid: PodUid


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node as it is now."""

    node: NodeInfo


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node does not exist any more; its Instaslice object is to be deleted."""

    name: NodeName


@dataclass(frozen=True, slots=True)
class ObjectSeen:
    """A node's Instaslice object as it is now; ignored if a newer state was seen."""

    item: Instaslice


@dataclass(frozen=True, slots=True)
class ObjectGone:
    """A node's Instaslice object does not exist any more."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class ObjectUnreadable:
    """A node's Instaslice object cannot be decoded, as ``error`` says; None once it can be again."""

    node: NodeName
    error: str | None


@dataclass(frozen=True, slots=True)
class PodsRewound:
    """Versions of pods went back: the next observation of each counts, whatever its version."""


@dataclass(frozen=True, slots=True)
class ObjectsRewound:
    """The same for Instaslice objects."""


@dataclass(frozen=True, slots=True)
class NamespaceSeen:
    """Labels of a namespace, which rules about pods may test; None for one that is gone."""

    name: str
    labels: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class StorageSeen:
    """A claim, volume, class or CSI node as it is now, or as it was before it was deleted."""

    item: StorageObject
    deleted: bool


@dataclass(frozen=True, slots=True)
class StorageListed:
    """Claims, volumes, classes and CSI nodes are all there: pods are judged by them from now on."""


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The server did a write. The object that resulted has been observed before."""

    write: Write


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """The server did not do a write, for a reason that passes. Its key stays busy until :class:`RetryDue`."""

    write: Write


@dataclass(frozen=True, slots=True)
class WriteOutcomeUnknown:
    """Nobody knows whether the server did a write. Its key stays busy until :class:`RetryDue`."""

    write: Write


@dataclass(frozen=True, slots=True)
class RetryDue:
    """The pause after a failed write is over; the slicer asks again for what is still due."""

    write: Write


@dataclass(frozen=True, slots=True)
class UngateDenied:
    """The server will never ungate the pod like that; the pod is left alone until it changes.

    Attributes:
        write: the write.
        why: the server's message.
    """

    write: Ungate
    why: str


@dataclass(frozen=True, slots=True)
class DenialExpired:
    """A pod that was left alone after :class:`UngateDenied` may be tried again."""

    uid: PodUid


@dataclass(frozen=True, slots=True)
class RefusalTimedOut:
    """A pod could not start for too long where it has slices; they go to another pod, if it is refused still.

    A pod that a controller owns is evicted; its allocation ends with it. Any other pod stays, without slices, and has a
    condition that says so. If the scheduler binds it after all, it is planned like any pod that is bound: it gets
    slices if there is room. A pod that is bound already keeps its slices: it starts once the agent serves.

    No owner avoids a node because its agent is gone: nothing is allocated there until the agent serves again.

    Attributes:
        uid: the pod.
        avoid_until: up to when its owner's pods avoid the node, seconds of the clock that :class:`TimePassed` has.
    """

    uid: PodUid
    avoid_until: float


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It is this time now: nodes that were avoided long enough are open again."""

    now: float


SlicerEvent = (
    PodSeen
    | PodGone
    | NodeSeen
    | NodeGone
    | ObjectSeen
    | ObjectGone
    | ObjectUnreadable
    | PodsRewound
    | ObjectsRewound
    | NamespaceSeen
    | StorageSeen
    | StorageListed
    | WriteDone
    | WriteRefused
    | WriteOutcomeUnknown
    | RetryDue
    | UngateDenied
    | DenialExpired
    | RefusalTimedOut
    | TimePassed
)
