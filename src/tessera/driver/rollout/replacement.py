"""The replacement itself: pauses users, changes the driver set's label, and waits for the new driver and its proof."""

import msgspec

from tessera.api.driver.node_status import DRIVER_SET_LABEL, PAUSE_LABEL, PAUSED
from tessera.driver.nodes.upgrade_record import CHANGING, UpgradeRecord, UpgradeState
from tessera.driver.rollout.node_patches import (
    NodeStep,
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
        return _remove_old_driver(view, record, now)
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
    if record.offered and not view.offers_gpus and not record.restart_only:
        cause = f"driver set {record.target} was validated, but the node offers no cards {within}"
        return timeout_for(view, VALIDATION_SECONDS, cause, now, "the node is to offer its cards again")
    if view.cordoned_by_us:
        return NodeStep(patch=advance(view, UpgradeState.UNCORDON, now))
    return finish_upgrade(view, record)


def finish_upgrade(view: NodeView, record: UpgradeRecord) -> NodeStep:
    """Ends the upgrade."""
    return NodeStep(patch=finish(view, f"driver set {record.target} works"))


def _remove_old_driver(view: NodeView, record: UpgradeRecord, now: float) -> NodeStep:
    """Pauses the users of GPUs, then removes the old set's label."""
    if not record.restart_only:
        if view.gpu_pods:  # a pod came although the node is cordoned
            return NodeStep(patch=advance(view, UpgradeState.PODS, now))
        if not view.paused:
            return NodeStep(patch=set_label(view, PAUSE_LABEL, PAUSED, now, deploy=view.pause_label))
        if view.offers_gpus or view.agent_holds_gpus:
            still = "the node still offers cards" if view.offers_gpus else "the node's agent still has its cards open"
            cause = f"{still} {LET_GO_SECONDS:.0f} s after label {PAUSE_LABEL}={PAUSED}"
            return timeout_for(view, LET_GO_SECONDS, cause, now, "the users of its cards are to let go")
    patch = set_label(view, DRIVER_SET_LABEL, CHANGING, now, changed=True)
    return NodeStep(patch=msgspec.structs.replace(patch, without_gpu_pods=not record.restart_only))


def _await_driver(view: NodeView, record: UpgradeRecord, now: float) -> NodeStep:
    driver = view.driver
    if driver is not None and driver.fault:
        return fail(view, driver.fault, now)
    if driver is not None and driver.ready:
        return NodeStep(patch=advance(view, UpgradeState.VALIDATION, now))
    cause = f"the pod of driver set {record.target} was not ready within {START_SECONDS:.0f} s"
    return timeout_for(view, START_SECONDS, cause, now, _REPLACED)
