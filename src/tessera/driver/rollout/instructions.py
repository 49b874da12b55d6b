"""Instructions of the rollout to its executor, as values, and the steps of one node's state machine that make them.

Each instruction can be lost, or carried out twice, without harm.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.api.nodes.node_marks import PAUSE_LABEL, PAUSED, UPGRADE_STATE_LABEL
from tessera.driver.node_facts import (
    CORDONED_ANNOTATION,
    INITIAL_ANNOTATION,
    RECORD_ANNOTATION,
    UpgradeRecord,
    UpgradeState,
    encode_upgrade_record,
)
from tessera.driver.rollout.node_view import NodeView

#: Most characters: cause of a failed driver change, in a record and in a status. A sentence with a container's last
#: words fits.
FAILURE_CAUSE = 500


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
    """Outcome of an instruction."""

    DONE = "done"
    #: The object has changed since the decision, or is gone; the watch will show this.
    OUTDATED = "outdated"
    #: The server refused for now, or did not answer.
    REFUSED = "refused"


class NodeStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step for a node.

    Attributes:
        patch: one write of the node.
        evict: pods to evict.
        until: when to look again even if nothing changes; None for never.
        waits: what it waits for; empty if it does not wait.
        cause: why the patch marks its driver set as failed; empty if it does not.
    """

    patch: PatchNode | None = None
    evict: tuple[EvictPod, ...] = ()
    until: float | None = None
    waits: str = ""
    cause: str = ""


def patch_node(
    view: NodeView,
    state: UpgradeState,
    record: UpgradeRecord | None,
    *,
    labels: Mapping[str, str | None] | None = None,
    annotations: Mapping[str, str | None] | None = None,
    unschedulable: bool | None = None,
    reason: str = "",
    note: str = "",
    warning: bool = False,
) -> PatchNode:
    """Patch with the state and record of a node, and related changes; ``reason`` and ``note`` make an event."""
    kept = None if record is None else encode_upgrade_record(record)
    return PatchNode(
        node=view.name,
        uid=view.uid,
        version=view.version,
        labels={UPGRADE_STATE_LABEL: state.value or None, **(labels or {})},
        annotations={RECORD_ANNOTATION: kept, **(annotations or {})},
        unschedulable=unschedulable,
        reason=reason,
        note=note,
        warning=warning,
    )


def advance(view: NodeView, state: UpgradeState, now: float, **changes: object) -> PatchNode:
    """Patch to the next state, with ``changes`` of the record."""
    assert view.record is not None
    return patch_node(view, state, msgspec.structs.replace(view.record, since=now, **changes))


def set_label(view: NodeView, label: str, value: str, now: float, **changes: object) -> PatchNode:
    """Patch that sets one label and keeps the state, with ``changes`` of the record."""
    patch = advance(view, view.state, now, **changes)
    return msgspec.structs.replace(patch, labels={**patch.labels, label: value})


def fail(view: NodeView, cause: str, now: float, *, occupied: bool = False) -> NodeStep:
    """Marks the node failed and rolls it back; ``occupied`` if the only cause is that its pods could not leave."""
    assert view.record is not None
    cause = cause[:FAILURE_CAUSE]
    record = msgspec.structs.replace(view.record, since=now, cause=cause, occupied=occupied, returning=True)
    return NodeStep(
        patch=patch_node(view, UpgradeState.FAILED, record, reason="DriverUpgradeFailed", note=cause, warning=True),
        cause=cause if record.blames_set else "",
    )


def finish(view: NodeView, note: str) -> PatchNode:
    """Returns the node to service: no pause, no cordon of Tessera's, no record. An empty ``note`` writes no event."""
    return patch_node(
        view,
        UpgradeState.DONE,
        None,
        labels=resume(view) if view.paused else {},
        annotations={CORDONED_ANNOTATION: None, INITIAL_ANNOTATION: None},
        unschedulable=False if view.cordoned_by_us and view.unschedulable else None,
        reason="DriverUpgrade" if note else "",
        note=note,
    )


def abandon(view: NodeView, why: str) -> PatchNode:
    """Returns a node to service that the rollout cannot continue; the rollout does not decide which set it gets."""
    return finish(view, f"its upgrade ends: {why}")


def resume(view: NodeView) -> dict[str, str | None]:
    """Restores the label that pauses users of GPUs; nodes that had no label get ``true``, as upstream's do."""
    before = view.record.deploy if view.record is not None else ""
    return {PAUSE_LABEL: "true" if before in {"", PAUSED} else before}


def timeout_for(view: NodeView, seconds: float, cause: str, now: float, waits: str) -> NodeStep:
    """Waits, and fails with the cause once the state has lasted too long."""
    assert view.record is not None
    until = view.record.since + seconds
    return fail(view, cause, now) if now >= until else NodeStep(until=until, waits=waits)
