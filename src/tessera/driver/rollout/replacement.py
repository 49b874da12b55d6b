"""The change itself: the pause, the label of the driver set, the new driver's start and its proof."""

import msgspec

from tessera.api.driver.node_status import DRIVER_SET_LABEL, PAUSE_LABEL, PAUSED
from tessera.driver.nodes.upgrade_record import CHANGING, UpgradeRecord, UpgradeState
from tessera.driver.rollout.node_patches import Step, fail, finish, onward, patience, relabel, unpaused, write
from tessera.driver.rollout.node_view import NodeView

#: Seconds for the users of cards to let go (k8s-driver-manager waits as long for each of them).
LET_GO_SECONDS = 300.0
#: Seconds for the old driver's pod to end, its unloading included.
LEAVE_SECONDS = 300.0
#: Seconds for the new driver to be ready: upstream's startup probe gives up after 60 + 120 x 10 s.
START_SECONDS = 1260.0
#: Seconds for the proof that it works (k8s-operator-libs, validation timeout).
VALIDATION_SECONDS = 600.0

_REPLACED = "the driver is being replaced"


def restart(view: NodeView, record: UpgradeRecord, now: float) -> Step:
    """Old driver away, nothing left of it, new driver there and ready."""
    if view.current == record.target and (record.changed or not record.same_set):
        return _starting(view, record, now)
    if view.current == record.previous:
        return _leave(view, record, now)
    if view.drivers:
        cause = f"the pod of driver set {view.drivers[0].set} did not end within {LEAVE_SECONDS:.0f} s"
        return patience(view, LEAVE_SECONDS, cause, now, _REPLACED)
    return Step(patch=relabel(view, DRIVER_SET_LABEL, record.target, now, changed=True))


def validation(view: NodeView, record: UpgradeRecord, now: float) -> Step:
    """The driver was proven to work, its users are there again, and the node offers cards as before."""
    driver, within = view.driver, f"within {VALIDATION_SECONDS:.0f} s"
    if driver is not None and driver.fault:
        return fail(view, driver.fault, now)
    if not view.works:
        cause = f"driver set {record.target} was not validated {within}"
        return patience(view, VALIDATION_SECONDS, cause, now, "the new driver is being validated")
    if view.paused:
        return Step(patch=write(view, UpgradeState.VALIDATION, record, labels=unpaused(view)))
    if record.offered and not view.offers and not record.restart_only:
        cause = f"driver set {record.target} was validated, but the node offers no cards {within}"
        return patience(view, VALIDATION_SECONDS, cause, now, "the node is to offer its cards again")
    if view.cordoned_by_us:
        return Step(patch=onward(view, UpgradeState.UNCORDON, now))
    return uncordon(view, record)


def uncordon(view: NodeView, record: UpgradeRecord) -> Step:
    """The end of the upgrade."""
    return Step(patch=finish(view, f"driver set {record.target} works"))


def _leave(view: NodeView, record: UpgradeRecord, now: float) -> Step:
    """Pauses the users of cards, then takes the label away from the old set."""
    if not record.restart_only:
        if view.gpu_pods:  # came although the node is cordoned
            return Step(patch=onward(view, UpgradeState.PODS, now))
        if not view.paused:
            return Step(patch=relabel(view, PAUSE_LABEL, PAUSED, now, deploy=view.deploy))
        if view.offers or view.held:
            still = "the node still offers cards" if view.offers else "the node's agent still has its cards open"
            cause = f"{still} {LET_GO_SECONDS:.0f} s after label {PAUSE_LABEL}={PAUSED}"
            return patience(view, LET_GO_SECONDS, cause, now, "the users of its cards are to let go")
    patch = relabel(view, DRIVER_SET_LABEL, CHANGING, now, changed=True)
    return Step(patch=msgspec.structs.replace(patch, without_gpu_pods=not record.restart_only))


def _starting(view: NodeView, record: UpgradeRecord, now: float) -> Step:
    driver = view.driver
    if driver is not None and driver.fault:
        return fail(view, driver.fault, now)
    if driver is not None and driver.ready:
        return Step(patch=onward(view, UpgradeState.VALIDATION, now))
    cause = f"the pod of driver set {record.target} was not ready within {START_SECONDS:.0f} s"
    return patience(view, START_SECONDS, cause, now, _REPLACED)
