"""Instructions of the slicer to its executor, as values.

The executor answers every instruction but :class:`RecordEvent` with its outcome. Until then the slicer returns no other
instruction with the same ``key``. So changes that become due for a node meanwhile go into the node's next patch.
"""

from typing import Any, Literal

import msgspec

from tessera.api.instaslice import AllocationRequest, AllocationResult
from tessera.api.names import HOSTNAME_LABEL, PINNED_ANNOTATION, NodeName, PodUid

#: One half of a node's object, or a pod: at most one request writes it at a time.
WriteKey = tuple[Literal["spec", "status", "pod", "object", "condition", "pod-condition", "queue", "record"], str]


class PatchRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Sets and removes entries of a node's ``spec.podAllocationRequests``, and its annotations.

    Attributes:
        node: the node.
        put: entries to set.
        drop: entries to remove.
        annotations: annotations to set; one with None is removed.
    """

    node: NodeName
    put: dict[PodUid, AllocationRequest]
    drop: tuple[PodUid, ...] = ()
    annotations: dict[str, str | None] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> WriteKey:
        """Returns the key of the node's spec."""
        return ("spec", self.node)

    def body(self) -> dict[str, object]:
        """Returns the merge patch of the main resource."""
        entries: dict[PodUid, object] = {**self.put, **dict.fromkeys(self.drop)}
        body: dict[str, object] = {"spec": {"podAllocationRequests": entries}} if entries else {}
        return body | ({"metadata": {"annotations": self.annotations}} if self.annotations else {})


class PatchResults(msgspec.Struct, frozen=True, kw_only=True):
    """Sets, changes and removes entries of a node's ``status.podAllocationResults``.

    Attributes:
        node: the node.
        put: whole new entries.
        state: new controller states of existing entries.
        drop: entries to remove.
    """

    node: NodeName
    put: dict[PodUid, AllocationResult]
    state: dict[PodUid, str]
    drop: tuple[PodUid, ...] = ()

    @property
    def key(self) -> WriteKey:
        """Returns the key of the node's status."""
        return ("status", self.node)

    def body(self) -> dict[str, object]:
        """Returns the merge patch of the status subresource."""
        entries: dict[PodUid, object] = {**self.put, **dict.fromkeys(self.drop)}
        for uid, state in self.state.items():
            entries[uid] = {"allocationStatus": {"allocationStatusController": state}}
        return {"status": {"podAllocationResults": entries}}


class Ungate(msgspec.Struct, frozen=True, kw_only=True):
    """Pins a pod to its node and removes our gate, in one patch that names the pod's UID.

    Attributes:
        uid: the pod.
        namespace: its namespace.
        name: its name.
        hostname: the node's hostname; empty for a pod whose claims name the node, and for one that the scheduler
            places, since nodes with a fixed layout serve it.
        gates: the gates of operators that go after us; they stay.
        marked: the pin is the only record of the pod's place, so the pod is marked as pinned by Tessera.
    """

    uid: PodUid
    namespace: str
    name: str
    hostname: str = ""
    gates: tuple[str, ...] = ()
    marked: bool = False

    @property
    def key(self) -> WriteKey:
        """Returns the key of the pod."""
        return ("pod", self.uid)

    def body(self) -> dict[str, object]:
        """Returns the merge patch of the pod."""
        mark = {"metadata": {"annotations": {PINNED_ANNOTATION: self.uid}}} if self.marked else {}
        pin = {"nodeSelector": {HOSTNAME_LABEL: self.hostname}} if self.hostname else {}
        return {**mark, "spec": {**pin, "schedulingGates": [{"name": gate} for gate in self.gates]}}


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """Evicts a pod: it cannot start on its node, others need its place, or it stays beyond its deadline.

    Attributes:
        uid: the pod.
        namespace: its namespace.
        name: its name.
        version: the pod's version when it was refused; a pod that changed since (was bound) is not evicted.
        grace: seconds that it may take to end; None for those of its spec.
    """

    uid: PodUid
    namespace: str
    name: str
    version: int
    grace: int | None = None

    @property
    def key(self) -> WriteKey:
        """Returns the key of the pod."""
        return ("pod", self.uid)


class PatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Writes, or removes, the record of a pod's place where an object of its kind of request has it.

    Attributes:
        kind: the kind of request.
        node: the node of the place.
        uid: the pod.
        namespace: the object's namespace.
        name: the object's name.
        object_uid: the object's UID; another object of the name is not written.
        patch: the merge patch.
        subresource: the part that the patch is of; None for the object itself.
        drop: it removes the record.
        version: the object's version that the patch follows from; empty if any will do.
    """

    kind: str
    node: NodeName
    uid: PodUid
    namespace: str
    name: str
    object_uid: str
    patch: dict[str, Any]
    subresource: str | None = None
    drop: bool = False
    version: str = ""

    @property
    def key(self) -> WriteKey:
        """Returns the key of the object."""
        return ("record", f"{self.kind}/{self.namespace}/{self.name}")


class DeleteObject(msgspec.Struct, frozen=True, kw_only=True):
    """Deletes the Instaslice object of a node that is gone."""

    node: NodeName
    uid: str

    @property
    def key(self) -> WriteKey:
        """Returns the key of the node's object."""
        return ("object", self.node)


class ReportNodeCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Sets a Node's condition about its Instaslice object, and records an Event.

    Attributes:
        node: the node.
        text: the fault of the object and the remedy; empty if there is none.
    """

    node: NodeName
    text: str

    @property
    def key(self) -> WriteKey:
        """Returns the key of the node's condition."""
        return ("condition", self.node)


class ReportPodCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Sets a pod's condition about its promised slices.

    Attributes:
        uid: the pod.
        namespace: its namespace.
        name: its name.
        reason: the condition's reason.
        text: the reason that the slices are not available, and the remedy; empty if they are available.
    """

    uid: PodUid
    namespace: str
    name: str
    reason: str
    text: str

    @property
    def key(self) -> WriteKey:
        """Returns the key of the pod's condition."""
        return ("pod-condition", self.uid)


class ReportQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Sets the status of a Queue object.

    Attributes:
        name: the queue.
        status: the whole status.
    """

    name: str
    status: dict[str, Any]

    @property
    def key(self) -> WriteKey:
        """Returns the key of the queue."""
        return ("queue", self.name)


class RecordEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An Event on a pod, or on a record of a kind of request. Best effort: the executor does not answer it.

    Attributes:
        uid: the pod's, or the record's.
        namespace: its namespace.
        name: its name.
        reason: short, CamelCase.
        message: a sentence for people.
        warning: a person should act.
        kind: the kind of request of whose records it is; empty for a pod.
    """

    uid: str
    namespace: str
    name: str
    reason: str
    message: str
    warning: bool = False
    kind: str = ""


Write = (
    PatchRequests
    | PatchResults
    | Ungate
    | Evict
    | PatchRecord
    | DeleteObject
    | ReportNodeCondition
    | ReportPodCondition
    | ReportQueue
)
Instruction = Write | RecordEvent
