"""What the state machine asks the act layer to do, as values.

Every instruction but :class:`Tell` is answered to the machine, by what the server made of it or by a failure; until
then nothing else is asked for the same ``key``. That is what coalesces: whatever becomes due for a node meanwhile is in
its next patch.
"""

from dataclasses import dataclass
from typing import Literal

from tessera.api.instaslice import AllocationRequest, AllocationResult
from tessera.api.names import HOSTNAME_LABEL, NodeName, PodUid

#: What is never written by two requests at a time: a half of a node's object, or a pod.
WriteKey = tuple[Literal["spec", "status", "pod", "object", "condition", "pod-condition"], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchRequests:
    """Sets and removes entries of a node's ``spec.podAllocationRequests``."""

    node: NodeName
    put: dict[PodUid, AllocationRequest]
    drop: tuple[PodUid, ...] = ()

    @property
    def key(self) -> WriteKey:
        """The node's spec."""
        return ("spec", self.node)

    def body(self) -> dict[str, object]:
        """The merge patch of the main resource."""
        entries: dict[PodUid, object] = {**self.put, **dict.fromkeys(self.drop)}
        return {"spec": {"podAllocationRequests": entries}}


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchResults:
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
        """The node's status."""
        return ("status", self.node)

    def body(self) -> dict[str, object]:
        """The merge patch of the status subresource."""
        entries: dict[PodUid, object] = {**self.put, **dict.fromkeys(self.drop)}
        for uid, state in self.state.items():
            entries[uid] = {"allocationStatus": {"allocationStatusController": state}}
        return {"status": {"podAllocationResults": entries}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ungate:
    """Pins a pod to its node and opens the last gate, in one patch of that life of the pod.

    Attributes:
        uid: the pod.
        namespace: where it is.
        name: its name.
        hostname: of its node; empty for a pod that the scheduler places, since nodes with a fixed layout serve it.
    """

    uid: PodUid
    namespace: str
    name: str
    hostname: str = ""

    @property
    def key(self) -> WriteKey:
        """The pod."""
        return ("pod", self.uid)

    def body(self) -> dict[str, object]:
        """The merge patch of the pod."""
        pin = {"nodeSelector": {HOSTNAME_LABEL: self.hostname}} if self.hostname else {}
        return {"spec": {**pin, "schedulingGates": []}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Ends a pod that cannot start where it was pinned, so that its owner makes it anew.

    Attributes:
        uid: the pod.
        namespace: where it is.
        name: its name.
        version: the state in which it was refused; one that was bound since is left alone.
    """

    uid: PodUid
    namespace: str
    name: str
    version: int

    @property
    def key(self) -> WriteKey:
        """The pod."""
        return ("pod", self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteObject:
    """Removes the Instaslice object of a node that is gone."""

    node: NodeName
    uid: str

    @property
    def key(self) -> WriteKey:
        """The node's object."""
        return ("object", self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNodeCondition:
    """Says on a Node, by a condition and an event, whether its Instaslice object can be followed.

    Attributes:
        node: the node.
        text: what is wrong with the object and what to do; empty if nothing is.
    """

    node: NodeName
    text: str

    @property
    def key(self) -> WriteKey:
        """The node's condition."""
        return ("condition", self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPodCondition:
    """Says on a pod, by a condition, whether the slices that it was promised are there for it.

    Attributes:
        uid: the pod.
        namespace: where it is.
        name: its name.
        reason: of the condition.
        text: why the slices are not there for it and what to do; empty once they are again.
    """

    uid: PodUid
    namespace: str
    name: str
    reason: str
    text: str

    @property
    def key(self) -> WriteKey:
        """The pod's condition."""
        return ("pod-condition", self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEvent:
    """An Event on a pod. Best effort: it is not answered."""

    uid: PodUid
    namespace: str
    name: str
    reason: str
    message: str
    warning: bool = False


Write = PatchRequests | PatchResults | Ungate | Evict | DeleteObject | ReportNodeCondition | ReportPodCondition
Instruction = Write | RecordEvent
