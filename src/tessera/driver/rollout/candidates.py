"""Which nodes want another driver, and why one that does is not begun. Pure.

A node that has the set that it should have may want it *anew*: where pods hold cards that their driver left, it cannot
come back under them. Such a node is begun as others are, but what was learnt of the set elsewhere does not hold it up.
"""

from tessera.api.driver.policy import UpgradePolicy
from tessera.driver.nodes.upgrade_record import CHANGING, State
from tessera.driver.rollout.limits import in_progress
from tessera.driver.rollout.node_view import NodeView, Pull
from tessera.driver.rollout.pods import obstacle


def content(view: NodeView) -> bool:
    """Whether a node has what it should have, or should have nothing."""
    return not view.wanted.set or (view.current == view.wanted.set and not view.wanted.again)


def wants(view: NodeView) -> bool:
    """Whether another set is wanted on a node that serves or rests, or its own anew."""
    if in_progress(view) or view.current in {"", CHANGING} or content(view):
        return False
    return view.requested or not _rests(view)


def refusal(view: NodeView, policy: UpgradePolicy, *, stopped: str, failed: str) -> str:
    """Why a node that wants a set is not begun; empty if nothing but the limits is in the way.

    Args:
        view: the node.
        policy: how.
        stopped: why nothing more like it is begun; empty if more is.
        failed: why the set failed on this node before; empty if it did not.
    """
    wanted = view.wanted
    what = "its driver can come back" if wanted.again else f"driver set {wanted.set} is available"
    if view.keeps_out:
        return f"{what}; {view.keeps_out}"
    if not policy.auto_upgrade and not view.requested:
        return f"{what}; upgradePolicy.autoUpgrade is off"
    if stopped:
        return stopped
    if failed and not (view.requested or wanted.again):
        return f"driver set {wanted.set} failed here: {failed}"
    if wanted.obstacle:
        return f"driver set {wanted.set} cannot come yet: {wanted.obstacle}"
    if not view.ready:
        return "the node is not ready"
    return "" if wanted.restart_only or not view.gpu_pods else _in_use(view, policy)


def order(view: NodeView) -> tuple[bool, bool, int, bool, str]:
    """Requested first, those that a person keeps out of service last, then by pods with cards."""
    pulled = view.pull in {Pull.PRESENT, Pull.PULLING}
    return (not view.requested, view.foreign_cordon, len(view.gpu_pods), not pulled, view.name)


def _rests(view: NodeView) -> bool:
    """Whether a node has failed with what it should have; one that was only occupied is tried anew when it is not."""
    record = view.record
    if view.state is not State.FAILED or record is None or record.target != view.wanted.set:
        return False
    return bool(view.gpu_pods) or not record.occupied


def _in_use(view: NodeView, policy: UpgradePolicy) -> str:
    if view.foreign_cordon:
        return f"somebody cordoned the node, and pod {view.gpu_pods[0].text} uses its cards"
    if view.wanted.when_idle and not view.requested:
        return f"driver set {view.wanted.set} comes when no pod uses its cards"
    return obstacle(view, policy)
