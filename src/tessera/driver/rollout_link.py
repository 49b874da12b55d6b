"""Connects the planner with the rollout: desired sets go in, notes and failed sets come back for the next plan.

The rollout's patches hold only for the resourceVersion that it saw, so it writes a node first. The node's status
(:mod:`tessera.driver.executor`) waits while a patch of the rollout is unseen, and while the rollout's note has changed
in this round. Otherwise each write would invalidate the other.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import msgspec

from tessera.clock import Clock
from tessera.driver.cluster_cache import ClusterCache
from tessera.driver.planning.interface import ClusterPlan
from tessera.driver.policies.policy_selection import PolicySelection
from tessera.driver.rollout.node_view import DesiredDriver
from tessera.driver.rollout.rollout import Rollout

#: Seconds after which the adapter checks again if a watch has shown a write, since that may cause no other event.
_LOOK_AGAIN = 5.0


class RolloutAdapter:
    """The rollout as the planner uses it.

    Args:
        rollout: the rollout, which replaces drivers.
        cache: nodes, pods and DaemonSets as the watches show them.
        problems: why a set's DaemonSet cannot be made, by the set's id.
        clock: the time.
        changed: called when a node's note has changed.
    """

    def __init__(
        self,
        rollout: Rollout,
        *,
        cache: ClusterCache,
        problems: Mapping[str, str],
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._rollout = rollout
        self._cache = cache
        self._problems = problems
        self._clock = clock
        self._changed = changed
        self._notes: Mapping[str, str] = {}
        self._new_notes: frozenset[str] = frozenset()

    def failed_sets(self) -> dict[str, str]:
        """Sets that failed on a node, with one of the causes."""
        failed = {key: self._rollout.failures_of(key) for key in self._cache.existing_sets()}
        return {key: next(iter(causes.values())) for key, causes in failed.items() if causes}

    def notes(self, desired: Mapping[str, DesiredDriver]) -> dict[str, str]:
        """Notes on nodes: the rollout's, or why the DaemonSet of a node's set cannot be made."""
        found = dict(self._notes)
        for name, each in desired.items() if self._problems else ():
            facts = self._cache.facts.get(name)
            text = self._problems.get(each.set) or self._problems.get(facts.driver_set if facts is not None else "")
            if text:
                found[name] = text
        return found

    def may_write(self, node: str) -> bool:
        """True if others may write a node: the rollout has no write in flight there, and its note has not changed."""
        return node not in self._rollout.busy and node not in self._new_notes

    def advance(self, plan: ClusterPlan, selection: PolicySelection, group: asyncio.TaskGroup) -> float | None:
        """Runs one round of the rollout.

        Args:
            plan: the plan of this round.
            selection: the policy selection that the plan is based on.
            group: owns the tasks that write.

        Returns:
            Seconds until this has to be called again even if no watch shows a change; None for never.
        """
        if selection.frozen:
            return None
        policies = {name: policy.upgrade for name, policy in plan.policies.items()}
        desired = dict(self._with_obstacles(plan.desired))
        found = self._rollout.advance(list(self._cache.node_views(desired, self._clock.now())), policies, group)
        before, self._notes = self._notes, found.notes
        self._new_notes = frozenset(name for name in plan.desired if before.get(name) != found.notes.get(name))
        if before != found.notes:
            self._changed()
        times = [] if found.until is None else [max(0.0, found.until - self._clock.now())]
        return min([*times, *([_LOOK_AGAIN] if self._rollout.busy else [])], default=None)

    def _with_obstacles(self, desired: Mapping[str, DesiredDriver]) -> Iterator[tuple[str, DesiredDriver]]:
        """The desired sets with their obstacles: no node is emptied for a set whose DaemonSet does not exist."""
        existing = self._cache.existing_sets()
        for name, each in desired.items():
            if each.set in existing or not each.set:
                yield name, each
            else:
                obstacle = self._problems.get(each.set, "its DaemonSet is not there yet")
                yield name, msgspec.structs.replace(each, obstacle=obstacle)
