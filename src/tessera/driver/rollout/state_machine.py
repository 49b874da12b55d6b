"""One node's way to another driver and, where that does not work, back.

Sans-I/O: a view of the node goes in, one write or some evictions or a wait comes out. Which nodes may begin is decided
in :mod:`tessera.driver.rollout.fleet`. Rules:

1. The node carries everything: its state in upstream's label, the rest in our record, and both change in one write
   that holds only for the node as it was seen. A controller may die anywhere; the next one goes on from the labels.
2. Pods with cards leave before anything of the driver is touched, through the eviction API. A pod that is ending is
   never evicted again. DaemonSets' and static pods stay.
3. Users of cards are paused, and the node offers no card any more, before the label of the driver set changes. The old
   driver's pod is gone before the new one may come: two drivers never run on one node.
4. A cordon that was there when we came is not lifted by us. One of ours that somebody lifted is not set again.
5. Before the label changed, a node can be given back at once. Afterwards it comes back by way of its previous set, and
   is given back when that driver runs and was validated. What failed is told in the record until another set is wanted.

=====================  =============================================  =====================================
state                  what is done                                   what comes next
=====================  =============================================  =====================================
cordon-required        cordon, with our mark; note a foreign cordon   wait-for-jobs-required
wait-for-jobs-…        nothing; pods of the selector end, or timeout  pod-deletion-required
pod-deletion-required  evict pods with cards                          pod-restart-required; else
                                                                      drain-required or upgrade-failed
drain-required         evict all others, too (where enabled)          pod-restart-required, upgrade-failed
pod-restart-required   pause; take the label away; set the new one    validation-required, upgrade-failed
validation-required    wait for the proof; end the pause; wait until  uncordon-required, upgrade-failed
                       cards are offered again
uncordon-required      uncordon if it was us                          upgrade-done
upgrade-failed         back to the previous set, then as before       upgrade-required for another set
=====================  =============================================  =====================================

Where both sets run the same driver, only its pod is replaced: no eviction, no pause. Where both are the same set, its
pod could not come back under pods with cards: these leave, and it goes and comes as another one would.
"""

from collections.abc import Mapping

import msgspec

from tessera.api.driver.driver_policy import UpgradePolicy
from tessera.api.driver.node_status import PAUSE_LABEL, PAUSED
from tessera.driver.nodes.upgrade_record import (
    CHANGING,
    CORDONED_ANNOTATION,
    ENABLED_ANNOTATION,
    INITIAL_ANNOTATION,
    REQUESTED_ANNOTATION,
    UpgradeRecord,
    UpgradeState,
)
from tessera.driver.rollout.drain import cordon, drain, jobs, pods
from tessera.driver.rollout.instructions import PatchNode
from tessera.driver.rollout.node_patches import Step, abandon, unpaused, write
from tessera.driver.rollout.node_view import NodeView
from tessera.driver.rollout.replacement import restart, uncordon, validation
from tessera.driver.rollout.rollback import adopt, go_back, rest, turn_back, turns_back
from tessera.limits import FAILURE_CAUSE

__all__ = ["Step", "begin", "refuse", "require", "settle", "step"]


def require(view: NodeView) -> PatchNode:
    """Tells that another driver is wanted; nothing else happens to the node."""
    return write(view, UpgradeState.REQUIRED, None)


def settle(view: NodeView) -> PatchNode:
    """Tells that nothing is wanted any more."""
    return write(view, UpgradeState.DONE, None, annotations={REQUESTED_ANNOTATION: None})


def begin(view: NodeView, now: float) -> PatchNode:
    """Takes a node into the upgrade."""
    record = UpgradeRecord(
        previous=view.current,
        target=view.wanted.set,
        since=now,
        began=now,
        deploy=view.deploy,
        requested=view.requested,
        restart_only=view.wanted.restart_only,
        offered=view.offers,
    )
    cordoned = {INITIAL_ANNOTATION: "true"} if view.foreign_cordon else {}
    return write(
        view,
        UpgradeState.CORDON,
        record,
        annotations={REQUESTED_ANNOTATION: None, ENABLED_ANNOTATION: "true", **cordoned},
        reason="DriverUpgrade",
        note=f"driver set {view.current} is {'brought back' if record.same_set else f'replaced by {view.wanted.set}'}",
    )


def refuse(view: NodeView, cause: str, now: float) -> PatchNode:
    """Notes that a node's upgrade failed before it was touched."""
    cause = cause[:FAILURE_CAUSE]
    record = UpgradeRecord(
        previous=view.current, target=view.wanted.set, since=now, began=now, cause=cause, returning=True, restored=True
    )
    return write(
        view,
        UpgradeState.FAILED,
        record,
        annotations={REQUESTED_ANNOTATION: None},
        reason="DriverUpgradeFailed",
        note=cause,
        warning=True,
    )


def step(
    view: NodeView,
    policy: UpgradePolicy,
    now: float,
    *,
    goes_on: bool = True,
    blocked: Mapping[str, str] | None = None,
) -> Step:
    """What is due for a node that was begun.

    Args:
        view: the node.
        policy: how.
        now: seconds since 1970.
        goes_on: whether a node that was not changed yet may still be.
        blocked: why evictions were refused, by the pod's UID.
    """
    record = view.record
    if record is None:
        return _without_record(view)
    if view.state is UpgradeState.FAILED and record.restored:
        return Step() if view.wanted.undecided else rest(view, record)
    if not view.state.active and view.state is not UpgradeState.FAILED:
        return Step(patch=abandon(view, "somebody took away the label of its state"))
    if not view.wanted.set:
        return Step(patch=abandon(view, "nothing is to be installed on it any more"))
    if view.cordoned_by_us and not view.unschedulable:
        return Step(patch=write(view, view.state, record, annotations={CORDONED_ANNOTATION: None}))
    if view.current not in {record.previous, record.target, CHANGING, ""}:
        return Step(patch=adopt(view, now))
    if record.returning:
        return go_back(view, record, now)
    why = turns_back(view, record, goes_on=goes_on)
    if why:
        return Step(patch=turn_back(view, why, now))
    return _in_state(view, record, policy, now, blocked or {})


def _without_record(view: NodeView) -> Step:
    """A node that is not ours to change; what somebody left on it, or we before the record was lost, is taken away."""
    if view.state.active or view.cordoned_by_us:
        return Step(patch=abandon(view, "its record was lost"))
    if view.paused and view.works:  # while a driver comes, NVIDIA's driver manager may have paused its users
        note = f"label {PAUSE_LABEL}={PAUSED} is taken back: no driver of the node is being replaced"
        patch = write(view, view.state, None, reason="DriverUpgrade", note=note)
        return Step(patch=msgspec.structs.replace(patch, labels=unpaused(view), annotations={}))
    return Step()


def _in_state(
    view: NodeView, record: UpgradeRecord, policy: UpgradePolicy, now: float, blocked: Mapping[str, str]
) -> Step:
    match view.state:
        case UpgradeState.CORDON:
            return cordon(view, record, policy, now)
        case UpgradeState.JOBS:
            return jobs(view, record, policy, now)
        case UpgradeState.PODS:
            return pods(view, record, policy, now, blocked)
        case UpgradeState.DRAIN:
            return drain(view, record, policy, now, blocked)
        case UpgradeState.RESTART:
            return restart(view, record, now)
        case UpgradeState.VALIDATION:
            return validation(view, record, now)
        case _:
            return uncordon(view, record)
