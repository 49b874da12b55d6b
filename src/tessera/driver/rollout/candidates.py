"""Selects nodes that may begin an upgrade: those that want another set, their order, and one round's budget. Pure.

A node can want its current set *again*: its driver was unloaded while pods hold GPUs, and it cannot load under them.
Such a node begins like the others, but failures of the set on other nodes do not delay it.

Failures of driver sets by node are kept longer than the nodes exist. A set that failed too often is not tried again.

The ConfigMap ``driver-rollouts`` holds one entry per driver set. People can edit it: entries that cannot be decoded
are ignored, and the number and size of entries are bounded. No I/O here.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

from tessera.driver.node_facts import CHANGING, UpgradeState
from tessera.driver.rollout.instructions import FAILURE_CAUSE, ForgetFailures, RecordFailure, drain_obstacle
from tessera.driver.rollout.node_view import NodeView, PullProgress
from tessera.gpu_operator.driver_policy import UpgradePolicy
from tessera.gpu_operator.policy_status import AUTO_UPGRADE_OFF


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


#: Most characters: failures of one set in their ConfigMap; a longer entry is ignored. Twenty nodes with the longest
#: causes have a fifth of it.
FAILURES_TEXT = 64 * 1024

#: ConfigMap in Tessera's namespace.
FAILURES_CONFIG_MAP = "driver-rollouts"
#: Driver sets, and nodes of each, whose failures are kept; the latest stay. A roll-out stops at a few failures.
_SETS, _NODES = 32, 20


class NodeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """One node on which a set failed: why, and when in seconds since 1970."""

    cause: str
    at: float


class SetFailures(msgspec.Struct, frozen=True, kw_only=True):
    """The failures of one set.

    Attributes:
        policy: the policy object that asked for the set.
        nodes: failures by node.
    """

    policy: str
    nodes: Mapping[str, NodeFailure] = {}

    @property
    def latest(self) -> float:
        """The time of the last failure."""
        return max((each.at for each in self.nodes.values()), default=0.0)


#: Failures by the set's id.
Failures = Mapping[str, SetFailures]


def read_failures(data: Mapping[str, str]) -> dict[str, SetFailures]:
    """The valid entries of the ConfigMap."""
    found: dict[str, SetFailures] = {}
    for key, text in list(data.items())[:_SETS]:
        if len(text) > FAILURES_TEXT:
            continue
        try:
            found[key] = msgspec.json.decode(text, type=SetFailures)
        except (msgspec.DecodeError, RecursionError):
            continue
    return found


def add_failure(
    known: Failures,
    *,
    driver_set: str,
    policy: str,
    node: str,
    cause: str,
    at: float,
) -> dict[str, SetFailures]:
    """The failures with one added; the oldest are dropped if there are too many."""
    before = known.get(driver_set, SetFailures(policy=policy)).nodes
    nodes = {**before, node: NodeFailure(cause=cause[:FAILURE_CAUSE], at=at)}
    kept = dict(sorted(nodes.items(), key=lambda each: -each[1].at)[:_NODES])
    every = {**known, driver_set: SetFailures(policy=policy, nodes=kept)}
    return dict(sorted(every.items(), key=lambda each: -each[1].latest)[:_SETS])


def encode_failures(known: Failures) -> dict[str, str]:
    """The ConfigMap's data."""
    return {key: msgspec.json.encode(each).decode() for key, each in known.items()}


def failure_update(view: NodeView, known: Failures, now: float) -> RecordFailure | ForgetFailures | None:
    """The instruction that records a new failure or forgets one that is over; None if nothing changed."""
    record = view.record
    if record is not None and view.failure:
        if _has_failed(known, record.target, view.name):
            return None
        return RecordFailure(set=record.target, policy=view.desired.policy, node=view.name, cause=view.failure, at=now)
    works = view.state is UpgradeState.DONE and is_proven(view, view.current)
    return ForgetFailures(set=view.current) if works and _has_failed(known, view.current, view.name) else None


def reload_stop_reason(nodes: Iterable[NodeView], policy: UpgradePolicy) -> str:
    """Reason that no more nodes reload their own driver: the budget is used up by nodes whose driver did not return."""
    failed = [
        (view.name, view.record.cause)
        for view in nodes
        if view.state is UpgradeState.FAILED
        and view.record is not None
        and view.record.same_set
        and not view.record.occupied
    ]
    if len(failed) < max(1, policy.failure_budget):
        return ""
    name, cause = failed[0]
    return f"{len(failed)} did not get their driver back though no pod used the cards any more; node {name}: {cause}"


def _has_failed(known: Failures, set_: str, node: str) -> bool:
    return set_ in known and node in known[set_].nodes
