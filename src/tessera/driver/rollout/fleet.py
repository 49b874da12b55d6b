"""Decides which nodes change their driver now: one round over all nodes, without I/O.

Rules, per policy object:

1. Canary: if a driver set is new here, ``canary`` nodes get it first and alone, until they serve with it. A node that
   came up with the set counts.
2. Order: nodes that a person requested, then idle nodes, then those with the fewest pods that use GPUs.
3. The image is on the node before the node is changed. If the image does not arrive, the node failed unchanged.
4. At most ``maxParallelUpgrades`` nodes are in progress and at most ``maxUnavailable`` are out of service. Nodes that
   somebody else cordoned are not counted. They are upgraded only when no pod on them uses GPUs, and stay cordoned.
5. A node with pods that cannot be evicted is skipped, with the reason, instead of failing half way.
6. A failed node rolls back by itself and does not count as in progress, so others continue. After ``failureBudget``
   failed nodes of the desired sets no more nodes begin, and nodes whose driver was not changed yet roll back. Another
   desired set starts the count again. A person's request for a node is tried anyway; if it succeeds, the set's failures
   are forgotten. A node whose pods could not leave failed too, but not because of the driver: it counts against
   nothing, and is retried when no pod uses its GPUs.
7. Without ``autoUpgrade`` only requested nodes change.
8. A node whose own driver cannot load under pods changes too, from a set to the same set. Its result says nothing
   about the set.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tessera.driver.node_facts import UpgradeState
from tessera.driver.rollout.candidates import (
    Budget,
    Failures,
    failure_update,
    is_in_progress,
    is_proven,
    is_up_to_date,
    refusal_reason,
    reload_stop_reason,
    upgrade_order,
    usage_reason,
    wants_upgrade,
)
from tessera.driver.rollout.instructions import DeletePull, Instruction, NodeStep, PullImage
from tessera.driver.rollout.node_view import NodeView, PullProgress
from tessera.driver.rollout.state_machine import (
    begin_upgrade,
    mark_done,
    mark_required,
    next_step,
    refuse_upgrade,
)
from tessera.gpu_operator.driver_policy import UpgradePolicy


class RolloutSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one round depends on.

    Attributes:
        views: all nodes with GPUs.
        policies: upgrade settings by the object that nodes' ``desired.policy`` names; a missing one has upstream's
            defaults.
        failures: the recorded failures.
        now: seconds since 1970.
        busy: names of nodes with a write that no watch has shown yet; they get no instructions.
        eviction_refusals: reasons why evictions were refused, by the pod's UID.
    """

    views: tuple[NodeView, ...]
    policies: Mapping[str, UpgradePolicy]
    failures: Failures
    now: float
    busy: frozenset[str] = frozenset()
    eviction_refusals: Mapping[str, str] = {}


class UpgradeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of a policy by upgrade state; see :mod:`tessera.driver.rollout.rollout`."""

    in_progress: int = 0
    done: int = 0
    failed: int = 0
    available: int = 0
    pending: int = 0


class RolloutDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions and notes of one round.

    Attributes:
        instructions: the instructions to carry out.
        notes: what each node waits for, by node; one sentence for its status.
        until: when to decide again even if nothing changes, seconds since 1970; None for never.
        stopped: reasons that no more nodes begin, by policy.
        counts: nodes by upgrade state, by policy.
    """

    instructions: tuple[Instruction, ...] = ()
    notes: Mapping[str, str] = {}
    until: float | None = None
    stopped: Mapping[str, str] = {}
    counts: Mapping[str, UpgradeCounts] = {}


def decide_rollout(snapshot: RolloutSnapshot) -> RolloutDecision:
    """Decides one round."""
    groups: dict[str, list[NodeView]] = {}
    for view in sorted(snapshot.views, key=lambda view: view.name):
        groups.setdefault(view.desired.policy, []).append(view)
    rounds = [_PolicyRound(nodes, name, snapshot) for name, nodes in groups.items()]
    for each in rounds:
        each.run()
    names = tuple(groups)
    return RolloutDecision(
        instructions=tuple(one for each in rounds for one in each.instructions),
        notes={name: note for each in rounds for name, note in each.notes.items()},
        until=min((each.until for each in rounds if each.until is not None), default=None),
        stopped={name: each.stopped for name, each in zip(names, rounds, strict=True) if each.stopped},
        counts={name: each.counts() for name, each in zip(names, rounds, strict=True)},
    )


class _PolicyRound:
    """One policy's nodes in one round."""

    def __init__(self, nodes: Sequence[NodeView], policy: str, snapshot: RolloutSnapshot) -> None:
        self.instructions: list[Instruction] = []
        self.notes: dict[str, str] = {}
        self.until: float | None = None
        self._nodes = nodes
        self._policy = snapshot.policies.get(policy, UpgradePolicy())
        self._snapshot = snapshot
        #: Causes of failures of the desired sets, by node; grows within the round, never shrinks.
        self._failed = self._failed_nodes()
        #: Names of nodes that may keep their pull pod.
        self._keep_pull_pods: set[str] = set()

    def run(self) -> None:
        """Decides; upgrades in progress come first, since they may use up the failure budget."""
        steps = self._steps()
        failing = {name: each for name, each in steps.items() if each.cause}
        self._failed |= {name: each.cause for name, each in failing.items()}
        if failing and self.stopped:
            steps = {**self._steps(), **failing}
        for view in self._nodes:
            if view.name not in self._snapshot.busy:
                self._apply_step(view, steps[view.name])
        self._begin()
        for view in self._nodes:
            self._delete_pull_pods(view)

    @property
    def stopped(self) -> str:
        """Reason that no further node begins; empty while the failure budget lasts."""
        budget = max(1, self._policy.failure_budget)
        if len(self._failed) < budget:
            return ""
        node, cause = next(iter(self._failed.items()))
        return f"the rollout was stopped: {len(self._failed)} failed, the budget is {budget}; node {node}: {cause}"

    def counts(self) -> UpgradeCounts:
        """Counts the nodes of the policy by upgrade state."""
        wanting = [view for view in self._nodes if wants_upgrade(view)]
        return UpgradeCounts(
            in_progress=sum(view.state.active for view in self._nodes),
            done=sum(
                is_up_to_date(view) and view.desired.set != "" and not is_in_progress(view) for view in self._nodes
            ),
            failed=sum(view.state is UpgradeState.FAILED for view in self._nodes),
            available=sum(not self._may_begin(view) for view in wanting),
            pending=sum(self._may_begin(view) for view in wanting),
        )

    def _failed_nodes(self) -> dict[str, str]:
        """Causes of failures of the desired sets, by node."""
        desired = {view.desired.set for view in self._nodes}
        causes = {
            node: failure.cause
            for set_ in sorted(desired & self._snapshot.failures.keys())
            for node, failure in self._snapshot.failures[set_].nodes.items()
        }
        for view in self._nodes:
            record = view.record
            if record is not None and view.failure and record.target in desired:
                causes[view.name] = view.failure
            elif is_proven(view, view.desired.set):
                causes.pop(view.name, None)
        return causes

    # Nodes in progress

    def _steps(self) -> dict[str, NodeStep]:
        return {
            view.name: next_step(
                view,
                self._policy,
                self._snapshot.now,
                may_continue=self._may_continue(view),
                eviction_refusals=self._snapshot.eviction_refusals,
            )
            for view in self._nodes
        }

    def _may_continue(self, view: NodeView) -> bool:
        """True if an upgrade that has not changed the driver yet may continue."""
        again = view.record is not None and view.record.same_set
        return self._policy.auto_upgrade and (again or not self.stopped)

    def _apply_step(self, view: NodeView, due: NodeStep) -> None:
        if due.patch is not None:
            self.instructions.append(due.patch)
        self.instructions += due.evict
        if due.waits:
            self.notes[view.name] = due.waits
        self._look_again(due.until)
        learnt = failure_update(view, self._snapshot.failures, self._snapshot.now)
        if learnt is not None:
            self.instructions.append(learnt)

    # Nodes that may begin

    def _begin(self) -> None:
        room = Budget(self._policy, self._nodes, self._snapshot.busy)
        for view in sorted(self._candidates(), key=upgrade_order):
            takes, prepares = self._reserve(view, room)
            if (takes or prepares) and view.desired.image and view.pull is PullProgress.FAILED:
                self._refuse(view)
                continue
            self._keep_pull_pods.add(view.name)
            has_image = (takes or prepares) and self._has_image(view)
            if self._stop_reason(view):
                self.notes[view.name] = self._stop_reason(view)
            elif takes and has_image:
                self.instructions.append(begin_upgrade(view, self._snapshot.now))
            elif view.state is not UpgradeState.REQUIRED:
                self.instructions.append(mark_required(view))

    def _reserve(self, view: NodeView, room: Budget) -> tuple[bool, bool]:
        """True if a node may begin now; and True if it is one of the next and may pull the image already."""
        if room.waits_for_canary(view):
            self.notes[view.name] = f"driver set {view.desired.set} is proven on other nodes first"
            return False, False
        if room.has_capacity(view):
            room.reserve(view)
            return True, False
        self.notes[view.name] = "waits for a place in the rollout"
        return False, room.reserve_pull(view)

    def _candidates(self) -> list[NodeView]:
        """Nodes that could begin now; the others get a note that says why they cannot."""
        found: list[NodeView] = []
        for view in self._nodes:
            if view.name in self._snapshot.busy or not wants_upgrade(view):
                self._mark_done(view)
                continue
            why = refusal_reason(
                view, self._policy, stopped=self._stop_reason(view), failed=self._failed.get(view.name, "")
            )
            if not why and (why := usage_reason(view, self._policy)):
                self._hold(view)
            if why:
                self.notes[view.name] = why
                self._reset_state(view)
            else:
                found.append(view)
        return found

    def _hold(self, view: NodeView) -> None:
        """Marks a node that its pods hold back, and keeps its image: the first moment without them may be short."""
        self._keep_pull_pods.add(view.name)
        if view.state in {UpgradeState.NONE, UpgradeState.DONE} and not view.desired.when_idle:
            self.instructions.append(mark_required(view))

    def _reset_state(self, view: NodeView) -> None:
        """Removes a waiting node's upgrade state or failure if its request is over or nobody wants the set."""
        automatic, failed = self._policy.auto_upgrade, view.state is UpgradeState.FAILED
        outdated = failed or (view.state is UpgradeState.REQUIRED and not automatic)
        if outdated and not view.requested and not view.desired.undecided:
            self.instructions.append(mark_required(view) if automatic else mark_done(view))

    def _mark_done(self, view: NodeView) -> None:
        """Marks an up-to-date node upgrade-done."""
        known = view.name not in self._snapshot.busy and not view.desired.undecided
        failed = view.state is UpgradeState.FAILED
        idle = known and not is_in_progress(view) and (not failed or view.record is None)
        left_by_others = failed and view.works
        if idle and is_up_to_date(view) and (view.state is UpgradeState.REQUIRED or view.requested or left_by_others):
            self.instructions.append(mark_done(view))

    def _may_begin(self, view: NodeView) -> bool:
        return not view.skip_reason and not self._stop_reason(view) and (view.requested or self._policy.auto_upgrade)

    def _stop_reason(self, view: NodeView) -> str:
        """Reason that no more nodes like this one begin; empty if they do. A requested node begins anyway."""
        if view.requested:
            return ""
        return reload_stop_reason(self._nodes, self._policy) if view.desired.reload else self.stopped

    def _refuse(self, view: NodeView) -> None:
        """Marks a node failed because its image cannot be pulled; its driver was not changed."""
        fault = view.pull_pod.fault if view.pull_pod is not None else ""
        cause = f"image {view.desired.image} did not arrive on the node: {fault}"
        self._failed[view.name] = cause
        self.instructions.append(refuse_upgrade(view, cause, self._snapshot.now))

    def _has_image(self, view: NodeView) -> bool:
        """True if the desired image is on the node; starts a pull pod if it is not."""
        desired, pod = view.desired, view.pull_pod
        if not desired.image or view.pull is PullProgress.PRESENT:
            return True
        self.notes[view.name] = f"image {desired.image} is being pulled"
        if pod is None:
            self.instructions.append(
                PullImage(
                    node=view.name,
                    node_uid=view.uid,
                    set=desired.set,
                    image=desired.image,
                    secrets=desired.pull_secrets,
                )
            )
        elif pod.until > self._snapshot.now:
            self._look_again(pod.until)
        return False

    def _delete_pull_pods(self, view: NodeView) -> None:
        """Deletes pull pods that no node needs."""
        for each in view.pulls:
            needed = view.name in self._keep_pull_pods and each.set == view.desired.set
            if not needed and not each.terminating and view.name not in self._snapshot.busy:
                self.instructions.append(DeletePull(namespace=each.namespace, name=each.name, uid=each.uid))

    def _look_again(self, until: float | None) -> None:
        if until is not None:
            self.until = until if self.until is None else min(self.until, until)
