"""The replacement of a node's driver, and the rollback.

The replacement pauses users, changes the label of the driver set, and waits for the new driver and its proof. The
rollback restores the previous set, and returns the node to service once that works.
"""

import msgspec

from tessera.api.nodes.driver_status import DRIVER_SET_LABEL, PAUSE_LABEL, PAUSED, UPGRADE_STATE_LABEL
from tessera.driver.nodes.upgrade_record import (
    CHANGING,
    RECORD_ANNOTATION,
    UpgradeRecord,
    UpgradeState,
    encode_upgrade_record,
)
from tessera.driver.rollout.instructions import (
    NodeStep,
    PatchNode,
    advance,
    fail,
    finish,
    patch_node,
    resume,
    set_label,
    timeout_for,
)
from tessera.driver.rollout.node_view import NodeView

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
