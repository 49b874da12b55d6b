"""What one node should have, given what it has. Pure.

:mod:`tessera.driver.planning.strategy` chooses the best driver set for a node. This module decides whether the node
gets that set at once, through the rollout, or later. Rules:

1. A set on a node always fits its pool. A node whose kernel changed gets what fits its new one at once: nothing serves
   there, and its pods wait.
2. Two drivers never run on one node: between two sets the label says that it changes, until the old pod is gone. That
   none is seen does not end it: one may be on its way, for as long as the label names the set.
3. What serves is changed by the rollout only. A driver serves from the moment at which it was proven to work until the
   node boots.
4. A better way to the same driver is offered: the rollout takes it when the node is idle, or this module at the next
   boot. A worse way is never taken instead of one that is there.
5. Where no choice can be made now, or none is left, the node keeps what fits it.
6. No driver is taken away under pods that use it, even if nobody asks for it any more: it could not be unloaded, and
   the next one could not come. One whose own pod went and cannot come back under them is brought anew by the rollout,
   which has them leave first.
"""

import msgspec

from tessera.api.driver.driver_policy import DriverPolicy
from tessera.api.driver.node_status import DriverStatus, Phase, Rejected, Strategy
from tessera.driver.driver_sets import Choice, DriverSet
from tessera.driver.nodes.node_state import Seen, fault_of, may_validate, progress_of
from tessera.driver.nodes.pod_facts import Progress
from tessera.driver.nodes.upgrade_record import CHANGING
from tessera.driver.planning.strategy import Verdict
from tessera.driver.rollout.node_view import Wanted

#: Orders of strategies, best first; the second is that of a policy that wants built drivers.
_PRECOMPILED_FIRST = (
    Strategy.PREINSTALLED,
    Strategy.PRECOMPILED,
    Strategy.PRECOMPILED_BRANCH,
    Strategy.MIRROR,
    Strategy.BUILT,
    Strategy.BLOCKED,
)
_BUILT_FIRST = (
    Strategy.PREINSTALLED,
    Strategy.BUILT,
    Strategy.PRECOMPILED,
    Strategy.PRECOMPILED_BRANCH,
    Strategy.MIRROR,
    Strategy.BLOCKED,
)


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done about a node.

    Attributes:
        label: what its label should name; empty for no label.
        status: what it is told, without its date; None takes back what it was told.
        wanted: what the rollout should make of it.
        needs: the sets that must have a DaemonSet for this.
        validate: its driver is to be proven now.
    """

    label: str
    status: DriverStatus | None
    wanted: Wanted
    needs: tuple[DriverSet, ...] = ()
    validate: bool = False


def unmanaged(seen: Seen) -> NodePlan:
    """A node whose drivers are nobody's business here: what Tessera put there is taken away once nobody uses it."""
    return _left(seen, "No policy asks for a driver any more.") or NodePlan(
        label="", status=None, wanted=Wanted(policy="")
    )


def without(seen: Seen, reason: str) -> NodePlan:
    """A managed node that is to have no driver of Tessera's, for a reason that people gave."""
    return _left(seen, reason) or _none(seen, Strategy.BLOCKED, Phase.BLOCKED, reason)


def _left(seen: Seen, reason: str) -> NodePlan | None:
    """The driver that a node has, for as long as pods use it; None if none does."""
    current = seen.fitting
    if current is None or not seen.in_use:
        return None
    phase, progress = progress_of(seen, current)
    stays = f"Its driver stays until pod {seen.user} has ended."
    status = _status(seen, current, phase, f"{reason} {stays} {progress}".strip(), ())
    return NodePlan(label=current.id, status=msgspec.structs.replace(status, leaving=True), wanted=Wanted(policy=""))


def plan(seen: Seen, policy: DriverPolicy, verdict: Verdict) -> NodePlan:
    """A node that a policy governs.

    Args:
        seen: the node.
        policy: what governs it.
        verdict: what would be best now.
    """
    choice = verdict.choice
    if choice is None and verdict.ask and seen.told is not None:
        return _undecided(seen, policy, seen.told)
    if choice is None:
        return _keep(seen, policy, Phase.WAITING, verdict.waiting)
    if choice.strategy is Strategy.PREINSTALLED:
        phase = Phase.READY if seen.facts.offers else Phase.WAITING
        waits = "" if seen.facts.offers else " The node offers no cards yet."
        ours = _left(seen, choice.reason) if seen.serves else None  # else the pods use the host's already
        return ours or _none(seen, Strategy.PREINSTALLED, phase, choice.reason + waits)
    if choice.set is None:
        return _keep(seen, policy, Phase.BLOCKED, choice.reason, choice)
    return _towards(seen, policy, choice, choice.set)


def _towards(seen: Seen, policy: DriverPolicy, choice: Choice, target: DriverSet) -> NodePlan:
    coming = seen.upgrading
    if coming is not None:
        begun = seen.begun
        if begun is not None and begun.same_driver(target):
            target = begun
        return _told(seen, coming, _rollout(policy, target), needs=(target,), choice=choice)
    current = seen.fitting
    if current is None:
        return _change(seen, policy, choice, target)
    broken = _is_broken(seen)
    if current.id == target.id or (current.same_driver(target) and not broken):
        return _stay(seen, policy, current, choice)
    updated = _is_update(current, target)
    better = _rank(policy, target.strategy) < _rank(policy, current.strategy)
    if not seen.serves:
        if updated or broken or (better and seen.rebooted):
            if seen.in_use:  # the rollout has the pods leave first
                return _told(seen, current, _rollout(policy, target), needs=(target,), choice=choice)
            return _change(seen, policy, choice, target)
        return _stay(seen, policy, current, choice, offered=target if better else None)
    if updated:
        return _told(seen, current, _rollout(policy, target), needs=(target,), choice=choice)
    if not better and _rank(policy, target.strategy) > _rank(policy, current.strategy):
        return _stay(seen, policy, current, choice)
    wanted = _rollout(policy, target, when_idle=True)
    return _told(seen, current, wanted, needs=(target,), choice=choice, offered=target)


def _is_update(current: DriverSet, target: DriverSet) -> bool:
    """Whether the administrator asked for something else, rather than a registry having something else."""
    return (current.settings, current.version) != (target.settings, target.version)


def _is_broken(seen: Seen) -> bool:
    """Whether the driver does not come: its image is not pulled, or its container ends again and again."""
    driver = seen.driver
    return driver is not None and (driver.progress is Progress.FAILED or bool(driver.fault))


def _rank(policy: DriverPolicy, strategy: Strategy) -> int:
    return (_PRECOMPILED_FIRST if policy.use_precompiled else _BUILT_FIRST).index(strategy)


# Plans


def _change(seen: Seen, policy: DriverPolicy, choice: Choice, target: DriverSet) -> NodePlan:
    """Another set now: nothing serves. The old pod goes first, even one that is only just being made."""
    others = [each for each in seen.pods.drivers if each.set != target.id]
    named = seen.current is not None and seen.current.id != target.id
    label = CHANGING if others or named else target.id
    reason = f"{choice.reason} The pod of the driver before is ending." if others else choice.reason
    phase, more = (Phase.STARTING, "") if label == CHANGING else progress_of(seen, target)
    status = _status(seen, target, phase, f"{reason} {more}".strip(), choice.rejected)
    left_alone = Wanted(policy=_name(policy))  # what the rollout began with another kernel is over
    return NodePlan(label=label, status=status, wanted=left_alone, needs=(target,))


def _stay(
    seen: Seen, policy: DriverPolicy, current: DriverSet, choice: Choice, offered: DriverSet | None = None
) -> NodePlan:
    return _told(seen, current, _same(seen, policy, current), choice=choice, offered=offered)


def _undecided(seen: Seen, policy: DriverPolicy, told: DriverStatus) -> NodePlan:
    """A registry is being asked, as after a start of the controller: until it has answered, nothing new is said."""
    kept = _keep(seen, policy, told.phase, told.reason)
    wanted = msgspec.structs.replace(kept.wanted, undecided=True)
    return msgspec.structs.replace(kept, wanted=wanted, status=told, validate=False)


def _keep(seen: Seen, policy: DriverPolicy, phase: Phase, reason: str, choice: Choice | None = None) -> NodePlan:
    """Nothing better is known: what fits stays, and what does not is taken away."""
    current = seen.upgrading or seen.fitting
    rejected = choice.rejected if choice is not None else ()
    if current is None:
        strategy = Strategy.BLOCKED
        status = DriverStatus(
            strategy=strategy,
            phase=phase,
            since="",
            version=policy.source.version,
            pool=seen.facts.pool.text if seen.facts.pool is not None else "",
            reason=reason,
            rejected=rejected,
            boot=seen.boot,
        )
        return NodePlan(label="", status=status, wanted=Wanted(policy=_name(policy)))
    begun = seen.begun if seen.upgrading is not None else None
    wanted = _same(seen, policy, current) if begun is None else _rollout(policy, begun)
    if seen.record is None and _is_broken(seen):
        status = _status(seen, current, Phase.FAILED, f"{fault_of(seen)} {reason}", rejected)
        return NodePlan(label=current.id, status=status, wanted=wanted)
    return _told(seen, current, wanted, choice=choice, more=reason)


def _told(
    seen: Seen,
    current: DriverSet,
    wanted: Wanted,
    *,
    needs: tuple[DriverSet, ...] = (),
    choice: Choice | None,
    offered: DriverSet | None = None,
    more: str = "",
) -> NodePlan:
    """A node that has a set, which goes on."""
    phase, progress = progress_of(seen, current)
    if seen.record is not None:
        phase = Phase.UPGRADING
    progress = " ".join(each for each in (_sentence(seen.rollout), progress) if each)
    same = choice is not None and choice.set is not None and choice.set.strategy is current.strategy
    chosen = choice.reason if choice is not None and same else more
    before = seen.told.rejected if seen.told is not None and seen.told.set == current.id else ()
    rejected = choice.rejected if choice is not None and same else before
    reason = " ".join(each for each in (progress, chosen) if each)
    status = _status(seen, current, phase, reason, rejected)
    if offered is not None:
        status = msgspec.structs.replace(status, offered=f"{offered.strategy.value}: {offered.image}")
    validate = seen.facts.driver_set == current.id and may_validate(seen, current)
    return NodePlan(label=seen.facts.driver_set, status=status, wanted=wanted, needs=needs, validate=validate)


def _none(seen: Seen, strategy: Strategy, phase: Phase, reason: str) -> NodePlan:
    status = DriverStatus(
        strategy=strategy,
        phase=phase,
        since="",
        pool=seen.facts.pool.text if seen.facts.pool is not None else "",
        reason=reason,
        boot=seen.boot,
    )
    return NodePlan(label="", status=status, wanted=Wanted(policy=""))


def _status(seen: Seen, of: DriverSet, phase: Phase, reason: str, rejected: tuple[Rejected, ...]) -> DriverStatus:
    return DriverStatus(
        strategy=of.strategy,
        phase=phase,
        since="",
        image=of.image,
        tag=of.tag,
        version=of.version,
        pool=of.pool.text,
        set=of.id,
        reason=reason,
        rejected=rejected,
        boot=seen.boot,
    )


def _rollout(policy: DriverPolicy, target: DriverSet, *, when_idle: bool = False) -> Wanted:
    return Wanted(
        policy=_name(policy),
        set=target.id,
        image=target.image,
        pull_secrets=policy.source.pull_secrets,
        when_idle=when_idle,
    )


def _same(seen: Seen, policy: DriverPolicy, current: DriverSet) -> Wanted:
    """The set that the node has; anew, by way of the rollout, if its driver cannot come back under pods."""
    return Wanted(policy=_name(policy), set=current.id, again=seen.held)


def _name(policy: DriverPolicy) -> str:
    return f"{policy.kind}/{policy.name}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}." if text else ""
