"""What a node that was begun teaches about a driver set, for all that come after it. Pure."""

from collections.abc import Iterable

from tessera.api.driver.policy import UpgradePolicy
from tessera.driver.nodes.upgrade_record import State
from tessera.driver.rollout.failure_history import Failures
from tessera.driver.rollout.instructions import Forget, Remember
from tessera.driver.rollout.limits import proven
from tessera.driver.rollout.node_view import NodeView


def lesson(view: NodeView, known: Failures, now: float) -> Remember | Forget | None:
    """A failure that is not known yet, or the proof that one that is known is over; None if there is nothing new."""
    record = view.record
    if record is not None and view.failure:
        if _failed(known, record.target, view.name):
            return None
        return Remember(set=record.target, policy=view.wanted.policy, node=view.name, cause=view.failure, at=now)
    works = view.state is State.DONE and proven(view, view.current)
    return Forget(set=view.current) if works and _failed(known, view.current, view.name) else None


def stalled(nodes: Iterable[NodeView], policy: UpgradePolicy) -> str:
    """Why no node gets its own driver anew: as many did not get theirs, though their pods had left, as may fail."""
    failed = [
        (view.name, view.record.cause)
        for view in nodes
        if view.state is State.FAILED and view.record is not None and view.record.again and not view.record.occupied
    ]
    if len(failed) < max(1, policy.failure_budget):
        return ""
    name, cause = failed[0]
    return f"{len(failed)} did not get their driver back though no pod used the cards any more; node {name}: {cause}"


def _failed(known: Failures, set_: str, node: str) -> bool:
    return set_ in known and node in known[set_].nodes
