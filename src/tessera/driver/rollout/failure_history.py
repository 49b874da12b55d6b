"""Failures of driver sets by node, kept longer than the nodes exist. A set that failed too often is not tried again.

The ConfigMap ``driver-rollouts`` holds one entry per driver set. People can edit it: entries that cannot be decoded
are ignored, and the number and size of entries are bounded. No I/O here.
"""

from collections.abc import Iterable, Mapping

import msgspec

from tessera.driver.nodes.upgrade_record import UpgradeState
from tessera.driver.rollout.candidates import is_proven
from tessera.driver.rollout.instructions import FAILURE_CAUSE, ForgetFailures, RecordFailure
from tessera.driver.rollout.node_view import NodeView
from tessera.gpu_operator.policies.driver_policy import UpgradePolicy

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
