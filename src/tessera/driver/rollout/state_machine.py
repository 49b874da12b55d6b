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

The replacement pauses users, changes the label of the driver set, and waits for the new driver and its proof. The
rollback restores the previous set, and returns the node to service once that works.
"""

from collections.abc import Mapping

import msgspec

from tessera.api.nodes.node_marks import DRIVER_SET_LABEL, PAUSE_LABEL, PAUSED, UPGRADE_STATE_LABEL
from tessera.driver.node_facts import (
    CHANGING,
    CORDONED_ANNOTATION,
    ENABLED_ANNOTATION,
    INITIAL_ANNOTATION,
    RECORD_ANNOTATION,
    REQUESTED_ANNOTATION,
    UpgradeRecord,
    UpgradeState,
    encode_upgrade_record,
)
from tessera.driver.rollout.instructions import (
    FAILURE_CAUSE,
    NodeStep,
    PatchNode,
    abandon,
    advance,
    cordon,
    drain_node,
    evict_gpu_pods,
    fail,
    finish,
    patch_node,
    resume,
    set_label,
    timeout_for,
    wait_for_jobs,
)
from tessera.driver.rollout.node_view import NodeView
from tessera.gpu_operator.driver_policy import UpgradePolicy

#: Seconds for the users of GPUs to release them (k8s-driver-manager waits as long for each of them).
LET_GO_SECONDS = 300.0
#: Seconds for the old driver's pod to end, including unloading.
LEAVE_SECONDS = 300.0
#: Seconds for the new driver to be ready: upstream's startup probe gives up after 60 + 120 x 10 s.
START_SECONDS = 1260.0
#: Seconds for the proof that the driver works (k8s-operator-libs, validation timeout).
VALIDATION_SECONDS = 600.0

_REPLACED = "the driver is being replaced"


def restart_driver(view: NodeView, record: UpgradeRecord, now: float) -> NodeStep:
    """Removes the old driver, waits until its pod is gone, then starts the new one and waits until it is ready."""
    if view.current == record.target and (record.changed or not record.same_set):
        return _await_driver(view, record, now)
    if view.current == record.previous:
        return _remove_old_driver(view, now)
    if view.drivers:
        cause = f"the pod of driver set {view.drivers[0].set} did not end within {LEAVE_SECONDS:.0f} s"
        return timeout_for(view, LEAVE_SECONDS, cause, now, _REPLACED)
    return NodeStep(patch=set_label(view, DRIVER_SET_LABEL, record.target, now, changed=True))


def await_validation(view: NodeView, record: UpgradeRecord, now: float) -> NodeStep:
    """Waits until the driver was proven to work, its users are back, and the node offers GPUs as before."""
    driver, within = view.driver, f"within {VALIDATION_SECONDS:.0f} s"
    if driver is not None and driver.fault:
        return fail(view, driver.fault, now)
    if not view.works:
        cause = f"driver set {record.target} was not validated {within}"
        return timeout_for(view, VALIDATION_SECONDS, cause, now, "the new driver is being validated")
    if view.paused:
        return NodeStep(patch=patch_node(view, UpgradeState.VALIDATION, record, labels=resume(view)))
    if record.offered and not view.offers_gpus:
        cause = f"driver set {record.target} was validated, but the node offers no cards {within}"
        return timeout_for(view, VALIDATION_SECONDS, cause, now, "waiting for the node to offer its cards again")
    if view.cordoned_by_us:
        return NodeStep(patch=advance(view, UpgradeState.UNCORDON, now))
    return finish_upgrade(view, record)


def finish_upgrade(view: NodeView, record: UpgradeRecord) -> NodeStep:
    """Ends the upgrade."""
    return NodeStep(patch=finish(view, f"driver set {record.target} works"))


def _remove_old_driver(view: NodeView, now: float) -> NodeStep:
    """Pauses the users of GPUs, then removes the old set's label."""
    if view.gpu_pods:  # a pod came although the node is cordoned
        return NodeStep(patch=advance(view, UpgradeState.PODS, now))
    if not view.paused:
        return NodeStep(patch=set_label(view, PAUSE_LABEL, PAUSED, now, deploy=view.pause_label))
    if view.offers_gpus or view.agent_holds_gpus:
        still = "the node still offers cards" if view.offers_gpus else "the node's agent still has its cards open"
        cause = f"{still} {LET_GO_SECONDS:.0f} s after label {PAUSE_LABEL}={PAUSED}"
        return timeout_for(view, LET_GO_SECONDS, cause, now, "waiting for the users of its cards to release them")
    patch = set_label(view, DRIVER_SET_LABEL, CHANGING, now, changed=True)
    return NodeStep(patch=msgspec.structs.replace(patch, without_gpu_pods=True))


def _await_driver(view: NodeView, record: UpgradeRecord, now: float) -> NodeStep:
    driver = view.driver
    if driver is not None and driver.fault:
        return fail(view, driver.fault, now)
    if driver is not None and driver.ready:
        return NodeStep(patch=advance(view, UpgradeState.VALIDATION, now))
    cause = f"the pod of driver set {record.target} was not ready within {START_SECONDS:.0f} s"
    return timeout_for(view, START_SECONDS, cause, now, _REPLACED)


def turn_back_reason(view: NodeView, record: UpgradeRecord, *, may_continue: bool) -> str:
    """Reason that a node turns back; empty if it goes on. An upgrade that was validated is finished."""
    if view.state is UpgradeState.UNCORDON:
        return ""
    if view.desired.set != record.target:
        return f"driver set {view.desired.set} is wanted now, not {record.target}"
    if not may_continue and not record.changed and not record.requested:
        return "autoUpgrade was switched off, or the rollout was stopped"
    if view.state is UpgradeState.CORDON and view.cordoned_before and not view.unschedulable:
        return "it was begun because somebody had cordoned it, and is in service again"
    return ""


def turn_back(view: NodeView, why: str, now: float) -> PatchNode:
    """Returns a node that did not fail to its previous set."""
    patch = advance(view, UpgradeState.UNCORDON, now, returning=True)
    note = f"the node goes back to its driver: {why}"
    return msgspec.structs.replace(patch, reason="DriverUpgrade", note=note)


def adopt_set(view: NodeView, now: float) -> PatchNode:
    """Accepts a set that somebody gave the node, as after a boot into another kernel; a rollback is then impossible."""
    return advance(
        view,
        UpgradeState.RESTART,
        now,
        previous="",
        target=view.current,
        changed=True,
        returning=False,
        cause="",
        occupied=False,
    )


def restore_previous(view: NodeView, record: UpgradeRecord, now: float) -> NodeStep:
    """Restores the node's previous set, and returns the node to service once that works."""
    back = record.previous
    if back and view.current == record.target != back:
        return _remove_target(view, record, now)
    if back and view.current != back:
        if view.drivers:
            return NodeStep(waits=f"waiting for the pod of driver set {view.drivers[0].set} to end")
        return NodeStep(patch=set_label(view, DRIVER_SET_LABEL, back, now))
    if record.changed and not view.works:
        return _await_previous(view, record, now)
    if record.cause and back:
        return NodeStep(patch=_return_failed(view, record))
    return NodeStep(patch=finish(view, f"driver set {view.current} works"))


def rest_after_failure(view: NodeView, record: UpgradeRecord) -> NodeStep:
    """Waits, on a failed node, until the desired set is its own set, or until its own driver works again."""
    content = view.desired.set == view.current and not view.desired.reload and (view.works or not record.same_set)
    if content or not view.desired.set:
        return NodeStep(patch=finish(view, ""))
    if record.same_set:
        return NodeStep(waits=f"its driver did not return: {record.cause}")
    if record.occupied:
        return NodeStep(
            waits=f"driver set {record.target} is installed when no pod uses the node's cards: {record.cause}"
        )
    return NodeStep(waits=f"driver set {record.target} failed here: {record.cause}")


def _remove_target(view: NodeView, record: UpgradeRecord, now: float) -> NodeStep:
    if not view.paused:
        return NodeStep(patch=set_label(view, PAUSE_LABEL, PAUSED, now))
    until = record.since + LET_GO_SECONDS
    if view.offers_gpus and now < until:  # later without waiting: a failed driver cannot be asked for ever
        return NodeStep(until=until, waits="waiting for the users of its cards to release them")
    return NodeStep(patch=set_label(view, DRIVER_SET_LABEL, CHANGING, now))


def _await_previous(view: NodeView, record: UpgradeRecord, now: float) -> NodeStep:
    """Waits for the previous driver. If it does not start and another set is desired, that set follows."""
    until = record.since + START_SECONDS
    other = view.desired.set not in {record.target, view.current}
    broken = view.driver is not None and bool(view.driver.fault)
    if other and (broken or now >= until):
        return NodeStep(
            patch=advance(
                view,
                UpgradeState.RESTART,
                now,
                previous=view.current,
                target=view.desired.set,
                returning=False,
                cause="",
                occupied=False,
            )
        )
    fault = f": {view.driver.fault}" if view.driver is not None and broken else ""
    waits = f"waiting for driver set {view.current} to run and to be validated{fault}"
    return NodeStep(until=until if other else None, waits=waits)


def _return_failed(view: NodeView, record: UpgradeRecord) -> PatchNode:
    """Back in service, still marked failed; or still without its own driver, which pods may block."""
    absent = record.same_set and not view.works
    patch = finish(view, f"driver set {record.previous} is {'not back yet' if absent else 'back'}: {record.cause}")
    kept = encode_upgrade_record(msgspec.structs.replace(record, restored=True))
    return msgspec.structs.replace(
        patch,
        labels={**patch.labels, UPGRADE_STATE_LABEL: UpgradeState.FAILED.value},
        annotations={**patch.annotations, RECORD_ANNOTATION: kept},
        reason="DriverUpgradeFailed" if absent else "DriverRolledBack",
        warning=True,
    )


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
