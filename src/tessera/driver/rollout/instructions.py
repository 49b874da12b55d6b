"""Instructions of the rollout to its executor, as values. Each can be lost, or carried out twice, without harm."""

from collections.abc import Mapping
from enum import Enum

import msgspec


class PatchNode(msgspec.Struct, frozen=True, kw_only=True):
    """One write of a node: labels, annotations and the cordon change together or not at all.

    The write holds only for the node's state at the time of the decision, so a decision on an old view has no effect.

    Attributes:
        node: name of the node.
        uid: UID of the Node object.
        version: its resourceVersion at the time of the decision.
        labels: labels to set, or to remove (None).
        annotations: annotations to set, or to remove (None).
        unschedulable: cordon or uncordon; None changes nothing.
        without_gpu_pods: check with the API server first, and write nothing if pods with GPUs are there.
        reason: reason of the event on the node; empty for no event.
        note: message of the event.
        warning: True if somebody should look at it.
    """

    node: str
    uid: str
    version: str
    labels: Mapping[str, str | None] = {}
    annotations: Mapping[str, str | None] = {}
    unschedulable: bool | None = None
    without_gpu_pods: bool = False
    reason: str = ""
    note: str = ""
    warning: bool = False

    def body(self) -> dict[str, object]:
        """The merge patch."""
        metadata: dict[str, object] = {}
        if self.labels:
            metadata["labels"] = dict(self.labels)
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        spec = {} if self.unschedulable is None else {"spec": {"unschedulable": self.unschedulable or None}}
        return {"metadata": metadata, **spec}


class EvictPod(msgspec.Struct, frozen=True, kw_only=True):
    """Evicts one pod; another pod of the same name is left alone."""

    node: str
    namespace: str
    name: str
    uid: str


class PullImage(msgspec.Struct, frozen=True, kw_only=True):
    """Pulls a set's image onto a node while the old driver serves."""

    node: str
    node_uid: str
    set: str
    image: str
    secrets: tuple[str, ...] = ()


class DeletePull(msgspec.Struct, frozen=True, kw_only=True):
    """Deletes a pull pod."""

    namespace: str
    name: str
    uid: str


class RecordFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Records that a set failed on a node; the record outlives the node."""

    set: str
    policy: str
    node: str
    cause: str
    at: float


class ForgetFailures(msgspec.Struct, frozen=True, kw_only=True):
    """Forgets a set's failures, since the set was proven to work."""

    set: str


Instruction = PatchNode | EvictPod | PullImage | DeletePull | RecordFailure | ForgetFailures


class InstructionOutcome(Enum):
    """How an instruction ended."""

    DONE = "done"
    #: The object has changed since the decision, or is gone; the watch will show this.
    OUTDATED = "outdated"
    #: The server refused for now, or did not answer.
    REFUSED = "refused"
