"""Instructions of the rollout to its executor, as values. Each can be lost, or carried out twice, without harm."""

from collections.abc import Mapping
from enum import Enum

import msgspec


class PatchNode(msgspec.Struct, frozen=True, kw_only=True):
    """One write of a node: labels, annotations and the cordon change together or not at all.

    It holds only for the state of the node that it was decided on, so a decision on an old view does nothing.

    Attributes:
        node: the node.
        uid: this life of it.
        version: its resourceVersion when this was decided.
        labels: to set, or to remove (None).
        annotations: likewise.
        unschedulable: cordon or uncordon; None leaves it.
        without_gpu_pods: the API server is asked first whether pods with cards are there; then nothing is written.
        reason: of the event on the node; empty for none.
        note: its sentence.
        warning: whether somebody should look.
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
    """Asks for one pod's eviction; another life of that name is left alone."""

    node: str
    namespace: str
    name: str
    uid: str


class PullImage(msgspec.Struct, frozen=True, kw_only=True):
    """Brings a set's image to a node while the old driver serves."""

    node: str
    node_uid: str
    set: str
    image: str
    secrets: tuple[str, ...] = ()


class DeletePull(msgspec.Struct, frozen=True, kw_only=True):
    """Removes a pod that brought an image."""

    namespace: str
    name: str
    uid: str


class RecordFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Keeps that a set failed on a node, longer than the node lives."""

    set: str
    policy: str
    node: str
    cause: str
    at: float


class ForgetFailures(msgspec.Struct, frozen=True, kw_only=True):
    """A set that had failed was proven to work."""

    set: str


Instruction = PatchNode | EvictPod | PullImage | DeletePull | RecordFailure | ForgetFailures


class InstructionOutcome(Enum):
    """What became of an instruction."""

    DONE = "done"
    #: The object is not as it was when this was decided, or is gone; what is seen will change.
    OUTDATED = "outdated"
    #: The server refuses for now, or did not answer.
    REFUSED = "refused"
