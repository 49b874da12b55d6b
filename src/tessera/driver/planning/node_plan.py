"""Plans one node: which driver it should have, given the one it has. Pure.

:mod:`tessera.driver.planning.strategy` chooses the best driver set for a node. This module decides whether the node
gets that set at once, through the rollout, or later. Rules:

1. A set on a node always fits its pool. A node whose kernel changed gets a set for the new kernel at once: nothing
   serves there, and its pods wait.
2. Two drivers never run on one node: between two sets the label says ``changing`` until the old pod is gone. While the
   label names a set, one of its pods may be about to start, even if the watch shows none.
3. Only the rollout changes a driver that serves. A driver serves from its validation until the node boots.
4. A better way to the same driver is offered: the rollout takes it when the node is idle, or this module at the next
   boot. A worse way never replaces a working one.
5. If no choice is possible now, or none is left, the node keeps a set that fits it.
6. No driver is removed under pods that use it, even if nobody asks for it any more: it could not be unloaded, and the
   next one could not load. If its own pod is gone and cannot load the driver under these pods, the rollout evicts
   them and then reloads the driver.
"""

import msgspec

from tessera.api.nodes.node_marks import DriverPhase, DriverStatus, DriverStrategy, RejectedStrategy
from tessera.driver.driver_sets import DriverChoice, DriverSet
from tessera.driver.node_facts import CHANGING
from tessera.driver.node_status import NodeState, can_validate, driver_fault, driver_progress
from tessera.driver.planning.strategy import StrategyResult, image_queries
from tessera.driver.pod_facts import DriverPodProgress
from tessera.driver.rollout.node_view import DesiredDriver
from tessera.gpu_operator.driver_policy import DriverPolicy


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for one node.

    Attributes:
        label: the set that its label should name; empty for no label.
        status: its new status, without date; None removes it.
        desired: the driver that the rollout should bring to it.
        needs: the sets that must have a DaemonSet for this plan.
        validate: True if its driver should be validated now.
    """

    label: str
    status: DriverStatus | None
    desired: DesiredDriver
    needs: tuple[DriverSet, ...] = ()
    validate: bool = False


def plan_unmanaged(state: NodeState) -> NodePlan:
    """Plan for a node that no policy selects: remove Tessera's driver once unused."""
    return _keep_while_in_use(state, "No policy asks for a driver any more.") or NodePlan(
        label="", status=None, desired=DesiredDriver(policy="")
    )


def plan_without_driver(state: NodeState, reason: str) -> NodePlan:
    """Plan for a managed node without a driver of Tessera's; ``reason`` is the administrator's."""
    return _keep_while_in_use(state, reason) or _plan_no_set(state, DriverStrategy.BLOCKED, DriverPhase.BLOCKED, reason)


def _keep_while_in_use(state: NodeState, reason: str) -> NodePlan | None:
    """Keeps the current driver while pods use it; None if no pod does."""
    current = state.fitting_set
    if current is None or not state.in_use:
        return None
    phase, progress = driver_progress(state, current)
    stays = "Its driver stays while pods use its cards."
    status = _status(state, current, phase, f"{reason} {stays} {progress}".strip(), ())
    return NodePlan(
        label=current.id, status=msgspec.structs.replace(status, leaving=True), desired=DesiredDriver(policy="")
    )


def plan_waiting(state: NodeState, policy: DriverPolicy, reason: str) -> NodePlan:
    """Plan for a node that gets no driver before something is known."""
    return _keep_without_choice(state, policy, DriverPhase.WAITING, reason)


def plan_node(state: NodeState, policy: DriverPolicy, result: StrategyResult) -> NodePlan:
    """Plan for a node that a policy selects.

    Args:
        state: the node.
        policy: the policy that selects the node.
        result: the best strategy now.
    """
    made = _plan_choice(state, policy, result)
    if made.status is None:
        return made
    known = {**state.sets, **{each.id: each for each in made.needs}}
    current = known.get(made.status.set)
    wanted = _wanted_driver(state, policy, current, result.choice) if current is not None else ""
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, wanted=wanted))


def _plan_choice(state: NodeState, policy: DriverPolicy, result: StrategyResult) -> NodePlan:
    choice = result.choice
    if choice is None and result.lookups and state.status is not None:
        return _keep_status(state, policy, state.status)
    if choice is None:
        return _keep_without_choice(state, policy, DriverPhase.WAITING, result.waiting)
    if choice.strategy is DriverStrategy.PREINSTALLED:
        phase = DriverPhase.READY if state.facts.offers_gpus else DriverPhase.WAITING
        waits = "" if state.facts.offers_gpus else " The node offers no cards yet."
        kept = (
            _keep_while_in_use(state, choice.reason) if state.serves else None
        )  # else pods use the host's driver already
        return kept or _plan_no_set(state, DriverStrategy.PREINSTALLED, phase, choice.reason + waits)
    if choice.set is None:
        return _keep_without_choice(state, policy, DriverPhase.BLOCKED, choice.reason, choice)
    return _plan_target(state, policy, choice, choice.set)


def _wanted_driver(state: NodeState, policy: DriverPolicy, current: DriverSet, choice: DriverChoice | None) -> str:
    """The driver that the policy names, if it is another than the set's; empty if it is the set's."""
    source = policy.source
    if current.version != source.version:
        return source.version or source.image
    if current.settings != policy.settings_digest:
        return f"{source.version or source.image} with the settings of {policy.full_name}"
    if not source.verbatim and _is_policys_place(policy, current):
        return ""
    if choice is None or choice.set is None:  # a registry is asked; after a restart nothing new is known
        return state.status.wanted if state.status is not None and state.status.set == current.id else ""
    if choice.set.same_driver(current):
        return ""
    return source.image if source.verbatim else f"{source.version} from {source.repository}/{source.image}"


def _is_policys_place(policy: DriverPolicy, current: DriverSet) -> bool:
    """True if a set's image is in a repository that the policy names, a mirror and the cluster's builds included."""
    places = {f"{each.source.repository}/{each.source.image}" for each in image_queries(policy, current.pool)}
    return current.image.partition("@")[0] in places


def _plan_target(state: NodeState, policy: DriverPolicy, choice: DriverChoice, target: DriverSet) -> NodePlan:
    coming = state.upgrading_set
    if coming is not None:
        begun = state.upgrade_target
        if begun is not None and begun.same_driver(target):
            target = begun
        return _plan_with_set(state, coming, _desired_driver(policy, target), needs=(target,), choice=choice)
    current = state.fitting_set
    if current is None:
        return _switch_now(state, policy, choice, target)
    broken = _is_broken(state)
    if current.id == target.id or (current.same_driver(target) and not broken):
        return _keep_set(state, policy, current, choice)
    updated = _is_update(current, target)
    better = _rank(policy, target.strategy) < _rank(policy, current.strategy)
    if not state.serves:
        if updated or broken or (better and state.rebooted):
            if state.in_use:  # the rollout evicts the pods first
                return _plan_with_set(state, current, _desired_driver(policy, target), needs=(target,), choice=choice)
            return _switch_now(state, policy, choice, target)
        return _keep_set(state, policy, current, choice, offered=target if better else None)
    if updated:
        return _plan_with_set(state, current, _desired_driver(policy, target), needs=(target,), choice=choice)
    if not better and _rank(policy, target.strategy) > _rank(policy, current.strategy):
        return _keep_set(state, policy, current, choice)
    desired = _desired_driver(policy, target, when_idle=True)
    return _plan_with_set(state, current, desired, needs=(target,), choice=choice, offered=target)


def _is_update(current: DriverSet, target: DriverSet) -> bool:
    """True if the administrator asked for something else; False if only the registry's image changed."""
    return (current.settings, current.version) != (target.settings, target.version)


def _is_broken(state: NodeState) -> bool:
    """True if the driver cannot start: its image cannot be pulled, or its container keeps ending."""
    driver = state.driver_pod
    return driver is not None and (driver.progress is DriverPodProgress.FAILED or bool(driver.fault))


def _rank(policy: DriverPolicy, strategy: DriverStrategy) -> float:
    """Lower is better; a policy may prefer built drivers to all but pre-installed ones."""
    if strategy is DriverStrategy.BUILT and not policy.use_precompiled:
        return _RANKS[DriverStrategy.PREINSTALLED] + 0.5
    return _RANKS[strategy]


_RANKS = {strategy: float(rank) for rank, strategy in enumerate(DriverStrategy)}


# Plans


def _switch_now(state: NodeState, policy: DriverPolicy, choice: DriverChoice, target: DriverSet) -> NodePlan:
    """Another set now, since nothing serves. The old pod goes first, even one that is just being created."""
    others = [each for each in state.pods.drivers if each.set != target.id]
    named = state.current_set is not None and state.current_set.id != target.id
    label = CHANGING if others or named else target.id
    reason = f"{choice.reason} The pod of the driver before is ending." if others else choice.reason
    phase, more = (DriverPhase.STARTING, "") if label == CHANGING else driver_progress(state, target)
    status = _status(state, target, phase, f"{reason} {more}".strip(), choice.rejected)
    left_alone = DesiredDriver(policy=policy.full_name)  # the rollout's upgrade for the old kernel is over
    return NodePlan(label=label, status=status, desired=left_alone, needs=(target,))


def _keep_set(
    state: NodeState, policy: DriverPolicy, current: DriverSet, choice: DriverChoice, offered: DriverSet | None = None
) -> NodePlan:
    return _plan_with_set(state, current, _keep_current(state, policy, current), choice=choice, offered=offered)


def _keep_status(state: NodeState, policy: DriverPolicy, status: DriverStatus) -> NodePlan:
    """Keeps the status while a registry lookup is open, as after a start of the controller."""
    kept = _keep_without_choice(state, policy, status.phase, status.reason)
    desired = msgspec.structs.replace(kept.desired, undecided=True)
    return msgspec.structs.replace(kept, desired=desired, status=status, validate=False)


def _keep_without_choice(
    state: NodeState, policy: DriverPolicy, phase: DriverPhase, reason: str, choice: DriverChoice | None = None
) -> NodePlan:
    """Plan without a better choice: keeps a set that fits, and removes one that does not."""
    current = state.upgrading_set or state.fitting_set
    rejected = choice.rejected if choice is not None else ()
    if current is None:
        return _plan_no_set(state, DriverStrategy.BLOCKED, phase, reason, policy=policy, rejected=rejected)
    begun = state.upgrade_target if state.upgrading_set is not None else None
    desired = _keep_current(state, policy, current) if begun is None else _desired_driver(policy, begun)
    if state.record is None and _is_broken(state):
        status = _status(state, current, DriverPhase.FAILED, f"{driver_fault(state)} {reason}", rejected)
        return NodePlan(label=current.id, status=status, desired=desired)
    return _plan_with_set(state, current, desired, choice=choice, more=reason)


def _plan_with_set(
    state: NodeState,
    current: DriverSet,
    desired: DesiredDriver,
    *,
    needs: tuple[DriverSet, ...] = (),
    choice: DriverChoice | None,
    offered: DriverSet | None = None,
    more: str = "",
) -> NodePlan:
    """Plan for a node that keeps its set."""
    phase, progress = driver_progress(state, current)
    if state.record is not None:
        phase = DriverPhase.UPGRADING
    progress = " ".join(each for each in (_sentence(state.rollout_note), progress) if each)
    same = choice is not None and choice.set is not None and choice.set.strategy is current.strategy
    chosen = choice.reason if choice is not None and same else more
    before = state.status.rejected if state.status is not None and state.status.set == current.id else ()
    rejected = choice.rejected if choice is not None and same else before
    reason = " ".join(each for each in (progress, chosen) if each)
    status = _status(state, current, phase, reason, rejected)
    if offered is not None:
        status = msgspec.structs.replace(status, offered=f"{offered.strategy.value}: {offered.image}")
    validate = state.facts.driver_set == current.id and can_validate(state, current)
    return NodePlan(label=state.facts.driver_set, status=status, desired=desired, needs=needs, validate=validate)


def _plan_no_set(
    state: NodeState,
    strategy: DriverStrategy,
    phase: DriverPhase,
    reason: str,
    *,
    policy: DriverPolicy | None = None,
    rejected: tuple[RejectedStrategy, ...] = (),
) -> NodePlan:
    """Plan for a node without a set; with the policy that asks for a driver, if one does."""
    status = DriverStatus(
        strategy=strategy,
        phase=phase,
        since="",
        version=policy.source.version if policy is not None else "",
        pool=state.facts.pool.text if state.facts.pool is not None else "",
        reason=reason,
        rejected=rejected,
        boot=state.status_boot,
    )
    name = policy.full_name if policy is not None else ""
    return NodePlan(label="", status=status, desired=DesiredDriver(policy=name))


def _status(
    state: NodeState, of: DriverSet, phase: DriverPhase, reason: str, rejected: tuple[RejectedStrategy, ...]
) -> DriverStatus:
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
        boot=state.status_boot,
    )


def _desired_driver(policy: DriverPolicy, target: DriverSet, *, when_idle: bool = False) -> DesiredDriver:
    return DesiredDriver(
        policy=policy.full_name,
        set=target.id,
        image=target.image,
        pull_secrets=policy.source.pull_secrets,
        when_idle=when_idle,
    )


def _keep_current(state: NodeState, policy: DriverPolicy, current: DriverSet) -> DesiredDriver:
    """The set that the node has; the rollout reloads it if its driver cannot load under pods."""
    return DesiredDriver(policy=policy.full_name, set=current.id, reload=state.unload_blocked)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}." if text else ""
