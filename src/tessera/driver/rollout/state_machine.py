"""Moves one node to another driver and, if that fails, back.

Sans-I/O: a view of the node goes in; one write, some evictions or a wait comes out.
:mod:`tessera.driver.rollout.fleet` decides which nodes may begin. Rules:

1. The node carries all state: upstream's label holds the state, Tessera's record the rest. Both change in one write
   that holds only for the node as it was seen. A controller may die anywhere; the next one continues from the node.
2. Pods with GPUs leave through the eviction API before anything of the driver is changed. A terminating pod is never
   evicted again. Pods of DaemonSets and static pods stay.
3. Users of GPUs are paused, and the node offers no GPU any more, before the label of the driver set changes. The old
   driver's pod is gone before the new one may start: two drivers never run on one node.
4. Tessera does not lift a cordon that was there before. If somebody lifts Tessera's cordon, it is not set again.
5. Before the label changes, a node can return to service at once. Afterwards it goes back to its previous set, and
   returns to service when that driver runs and was validated. The record shows the failure until another set is
   desired.

=====================  =============================================  =====================================
state                  what is done                                   what comes next
=====================  =============================================  =====================================
cordon-required        cordon, with our mark; note a foreign cordon   wait-for-jobs-required
wait-for-jobs-…        nothing; pods of the selector end, or timeout  pod-deletion-required
pod-deletion-required  evict pods with GPUs                           pod-restart-required; else
                                                                      drain-required or upgrade-failed
drain-required         evict all others, too (where enabled)          pod-restart-required, upgrade-failed
pod-restart-required   pause; take the label away; set the new one    validation-required, upgrade-failed
validation-required    wait for the proof; end the pause; wait until  uncordon-required, upgrade-failed
                       GPUs are offered again
uncordon-required      uncordon if it was us                          upgrade-done
upgrade-failed         back to the previous set, then as before       upgrade-required for another set
=====================  =============================================  =====================================

If both sets are the same, the pod of the set could not start under pods with GPUs: these leave, and then it is replaced
as by another set.
"""

from collections.abc import Mapping

import msgspec

from tessera.api.nodes.driver_status import PAUSE_LABEL, PAUSED
from tessera.driver.nodes.upgrade_record import (
    CHANGING,
    CORDONED_ANNOTATION,
    ENABLED_ANNOTATION,
    INITIAL_ANNOTATION,
    REQUESTED_ANNOTATION,
    UpgradeRecord,
    UpgradeState,
)
from tessera.driver.rollout.drain import cordon, drain_node, evict_gpu_pods, wait_for_jobs
from tessera.driver.rollout.instructions import FAILURE_CAUSE, NodeStep, PatchNode, abandon, patch_node, resume
from tessera.driver.rollout.node_view import NodeView
from tessera.driver.rollout.replacement import (
    adopt_set,
    await_validation,
    finish_upgrade,
    rest_after_failure,
    restart_driver,
    restore_previous,
    turn_back,
    turn_back_reason,
)
from tessera.gpu_operator.policies.driver_policy import UpgradePolicy


def mark_required(view: NodeView) -> PatchNode:
    """Marks a node upgrade-required; nothing else changes."""
    return patch_node(view, UpgradeState.REQUIRED, None)


def mark_done(view: NodeView) -> PatchNode:
    """Marks a node upgrade-done and removes a person's request."""
    return patch_node(view, UpgradeState.DONE, None, annotations={REQUESTED_ANNOTATION: None})


def begin_upgrade(view: NodeView, now: float) -> PatchNode:
    """Begins the upgrade of a node."""
    record = UpgradeRecord(
        previous=view.current,
        target=view.desired.set,
        since=now,
        began=now,
        deploy=view.pause_label,
        requested=view.requested,
        offered=view.offers_gpus,
    )
    cordoned = {INITIAL_ANNOTATION: "true"} if view.foreign_cordon else {}
    return patch_node(
        view,
        UpgradeState.CORDON,
        record,
        annotations={REQUESTED_ANNOTATION: None, ENABLED_ANNOTATION: "true", **cordoned},
        reason="DriverUpgrade",
        note=f"driver set {view.current} is {'brought back' if record.same_set else f'replaced by {view.desired.set}'}",
    )


def refuse_upgrade(view: NodeView, cause: str, now: float) -> PatchNode:
    """Marks a node failed before its driver was changed."""
    cause = cause[:FAILURE_CAUSE]
    record = UpgradeRecord(
        previous=view.current, target=view.desired.set, since=now, began=now, cause=cause, returning=True, restored=True
    )
    return patch_node(
        view,
        UpgradeState.FAILED,
        record,
        annotations={REQUESTED_ANNOTATION: None},
        reason="DriverUpgradeFailed",
        note=cause,
        warning=True,
    )


def next_step(
    view: NodeView,
    policy: UpgradePolicy,
    now: float,
    *,
    may_continue: bool = True,
    eviction_refusals: Mapping[str, str] | None = None,
) -> NodeStep:
    """Returns the step that is due for a node whose upgrade has begun.

    Args:
        view: the node.
        policy: the upgrade settings.
        now: seconds since 1970.
        may_continue: False turns back a node whose driver was not changed yet.
        eviction_refusals: why evictions were refused, by the pod's UID.
    """
    record = view.record
    if record is None:
        return _without_record(view)
    if view.state is UpgradeState.FAILED and record.restored:
        return NodeStep() if view.desired.undecided else rest_after_failure(view, record)
    if not view.state.active and view.state is not UpgradeState.FAILED:
        return NodeStep(patch=abandon(view, "somebody removed the label of its upgrade state"))
    if not view.desired.set:
        return NodeStep(patch=abandon(view, "no driver is to be installed on it any more"))
    if view.cordoned_by_us and not view.unschedulable:
        return NodeStep(patch=patch_node(view, view.state, record, annotations={CORDONED_ANNOTATION: None}))
    if view.current not in {record.previous, record.target, CHANGING, ""}:
        return NodeStep(patch=adopt_set(view, now))
    if record.returning:
        return restore_previous(view, record, now)
    why = turn_back_reason(view, record, may_continue=may_continue)
    if why:
        return NodeStep(patch=turn_back(view, why, now))
    return _in_state(view, record, policy, now, eviction_refusals or {})


def _without_record(view: NodeView) -> NodeStep:
    """Cleans a node without a record: removes the state that somebody left, or Tessera before its record was lost."""
    if view.state.active or view.cordoned_by_us:
        return NodeStep(patch=abandon(view, "its record was lost"))
    if view.paused and view.works:  # while a driver starts, NVIDIA's driver manager may have paused its users
        note = f"label {PAUSE_LABEL}={PAUSED} is removed: no driver of the node is being replaced"
        patch = patch_node(view, view.state, None, reason="DriverUpgrade", note=note)
        return NodeStep(patch=msgspec.structs.replace(patch, labels=resume(view), annotations={}))
    return NodeStep()


def _in_state(
    view: NodeView, record: UpgradeRecord, policy: UpgradePolicy, now: float, blocked: Mapping[str, str]
) -> NodeStep:
    match view.state:
        case UpgradeState.CORDON:
            return cordon(view, record, policy, now)
        case UpgradeState.JOBS:
            return wait_for_jobs(view, record, policy, now)
        case UpgradeState.PODS:
            return evict_gpu_pods(view, record, policy, now, blocked)
        case UpgradeState.DRAIN:
            return drain_node(view, record, policy, now, blocked)
        case UpgradeState.RESTART:
            return restart_driver(view, record, now)
        case UpgradeState.VALIDATION:
            return await_validation(view, record, now)
        case _:
            return finish_upgrade(view, record)
