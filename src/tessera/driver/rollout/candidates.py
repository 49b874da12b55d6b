"""Selects nodes that may begin an upgrade: those that want another set, their order, and one round's budget. Pure.

A node can want its current set *again*: its driver was unloaded while pods hold GPUs, and it cannot load under them.
Such a node begins like the others, but failures of the set on other nodes do not delay it.
"""

import math
from collections.abc import Iterable

from tessera.driver.nodes.upgrade_record import CHANGING, UpgradeState
from tessera.driver.rollout.drain import drain_obstacle
from tessera.driver.rollout.node_view import NodeView, PullProgress
from tessera.gpu_operator.policies.driver_policy import UpgradePolicy
from tessera.gpu_operator.policies.policy_status import AUTO_UPGRADE_OFF


def is_in_progress(view: NodeView) -> bool:
    """True if a node is being upgraded or rolled back."""
    record = view.record
    failed = view.state is UpgradeState.FAILED and record is not None and not record.restored
    return view.state.active or failed or view.current == CHANGING


def is_unavailable(view: NodeView) -> bool:
    """True if a node is out of service, because of Tessera or by itself.

    A node that a person keeps out of service is not counted: the rollout does not lose it, and counting it would stop
    the rollout for as long as the person likes.
    """
    if view.foreign_cordon:
        return False
    return is_in_progress(view) or view.cordoned_by_us or not view.ready


def is_proven(view: NodeView, set_: str) -> bool:
    """True if a node serves with a set whose driver was validated."""
    return view.current == set_ and view.works and view.ready and not is_in_progress(view)


def unavailable_limit(policy: UpgradePolicy, total: int) -> int:
    """Nodes that may be unavailable: ``maxUnavailable``; a percentage is rounded up, an invalid value is 1."""
    limit = policy.max_unavailable
    if isinstance(limit, int):
        return max(0, limit)
    text = limit.strip()
    if text.endswith("%") and text[:-1].isdecimal() and len(text) <= 6:
        return math.ceil(total * int(text[:-1]) / 100)
    return int(text) if text.isdecimal() and len(text) <= 6 else 1


class Budget:
    """The places left in one round: in parallel, unavailable, and canary.

    Args:
        policy: the limits.
        views: all nodes of the policy.
        busy: names of nodes with a write that no watch has shown yet; they count as in progress.
    """

    def __init__(self, policy: UpgradePolicy, views: Iterable[NodeView], busy: frozenset[str]) -> None:
        nodes = list(views)
        under_way = [view for view in nodes if view.state.active or view.name in busy]
        out = [view for view in nodes if is_unavailable(view) or (view.name in busy and not view.foreign_cordon)]
        self._parallel = policy.max_parallel - len(under_way) if policy.max_parallel > 0 else len(nodes)
        self._unavailable = unavailable_limit(policy, len(nodes)) - len(out)
        self._ahead = policy.max_parallel if policy.max_parallel > 0 else len(nodes)
        self._canary: dict[str, int] = {}
        for desired in {view.desired.set for view in nodes}:
            good = sum(is_proven(view, desired) for view in nodes)
            if good < policy.canary:
                begun = sum(_moves_to(view, desired) for view in under_way)
                self._canary[desired] = policy.canary - good - begun

    def waits_for_canary(self, view: NodeView) -> bool:
        """True if the first nodes with the set have to be proven before this one begins."""
        return self._canary.get(view.desired.set, 1) <= 0

    def has_capacity(self, view: NodeView) -> bool:
        """True if the node may be taken out of service. A node that a person keeps out of service uses no capacity."""
        return self._parallel > 0 and (view.foreign_cordon or self._unavailable > 0)

    def reserve(self, view: NodeView) -> None:
        """Takes a place for the node."""
        self._parallel -= 1
        self._unavailable -= not view.foreign_cordon
        if view.desired.set in self._canary:
            self._canary[view.desired.set] -= 1

    def reserve_pull(self, view: NodeView) -> bool:
        """True if the node is one of the next and may pull the image; only once the first nodes were proven."""
        if self._ahead <= 0 or view.desired.set in self._canary:
            return False
        self._ahead -= 1
        return True


def _moves_to(view: NodeView, set_: str) -> bool:
    record = view.record
    if record is None or not view.state.active:
        return view.desired.set == set_
    return record.target == set_ and not record.returning


def is_up_to_date(view: NodeView) -> bool:
    """True if a node has the desired set, or no set is desired."""
    return not view.desired.set or (view.current == view.desired.set and not view.desired.reload)


def wants_upgrade(view: NodeView) -> bool:
    """True if a node that is not being upgraded wants another set, or a reload of its own."""
    if is_in_progress(view) or view.current in {"", CHANGING} or is_up_to_date(view):
        return False
    return view.requested or not _failed_here(view)


def refusal_reason(view: NodeView, policy: UpgradePolicy, *, stopped: str, failed: str) -> str:
    """Reason that a node may not begin with the set that it wants; empty if only its pods or the limits may stop it.

    Args:
        view: the node.
        policy: the upgrade settings.
        stopped: reason that no more nodes like this one begin; empty if they do.
        failed: cause of the set's earlier failure on this node; empty if it did not fail.
    """
    desired = view.desired
    event = "its driver can be reloaded" if desired.reload else f"driver set {desired.set} is available"
    if view.skip_reason:
        return f"{event}; {view.skip_reason}"
    if not policy.auto_upgrade and not view.requested:
        return f"{event}; upgradePolicy.{AUTO_UPGRADE_OFF}"
    if stopped:
        return stopped
    if failed and not (view.requested or desired.reload):
        return f"driver set {desired.set} failed here: {failed}"
    if desired.obstacle:
        return f"driver set {desired.set} cannot be installed yet: {desired.obstacle}"
    if not view.ready:
        return "the node is not ready"
    return ""


def upgrade_order(view: NodeView) -> tuple[bool, bool, int, bool, str]:
    """Sort key: requested nodes first, nodes that a person keeps out of service last, then by pods with GPUs."""
    pulled = view.pull in {PullProgress.PRESENT, PullProgress.PULLING}
    return (not view.requested, view.foreign_cordon, len(view.gpu_pods), not pulled, view.name)


def _failed_here(view: NodeView) -> bool:
    """True if a node has failed with its desired set. A node that was only in use is tried again later."""
    record = view.record
    if view.state is not UpgradeState.FAILED or record is None or record.target != view.desired.set:
        return False
    return bool(view.gpu_pods) or not record.occupied


def usage_reason(view: NodeView, policy: UpgradePolicy) -> str:
    """Reason that a node may not begin now because of its pods with cards; empty if they may be evicted."""
    if not view.gpu_pods:
        return ""
    if view.foreign_cordon:
        return "somebody cordoned the node, and pods use its cards"
    if view.desired.when_idle and not view.requested:
        return f"driver set {view.desired.set} is installed when no pod uses its cards"
    return drain_obstacle(view, policy)
