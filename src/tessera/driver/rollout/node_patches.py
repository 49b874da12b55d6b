"""The steps of one node's state machine, and the writes that they consist of."""

from collections.abc import Mapping

import msgspec

from tessera.api.driver.node_status import PAUSE_LABEL, PAUSED, UPGRADE_STATE_LABEL
from tessera.driver.nodes.upgrade_record import (
    CORDONED_ANNOTATION,
    INITIAL_ANNOTATION,
    RECORD_ANNOTATION,
    UpgradeRecord,
    UpgradeState,
    encode_upgrade_record,
)
from tessera.driver.rollout.instructions import EvictPod, PatchNode
from tessera.driver.rollout.node_view import NodeView
from tessera.limits.drivers import FAILURE_CAUSE


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
