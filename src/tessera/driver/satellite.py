"""The driver part of the controller, a satellite: caches, planner, executor and rollout in one loop.

There is no polling. A round begins after a relevant change in a watch, after an answer or a build, or at a deadline
that the last round named. Everything kept between two rounds may be lost, but for the resolver, whose answers outlive a
term of leadership.

The rollout's patches hold only for the resourceVersion that it saw, so it writes a node first. The node's status
(:mod:`tessera.driver.executor`) waits while a patch of the rollout is unseen, and while the rollout's note has changed
in this round. Otherwise each write would invalidate the other.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.clock import Clock, until_set
from tessera.controller.satellite import Process, Task, Term
from tessera.driver.build.builds import BuildJobs
from tessera.driver.build.orders import BuildSettings, toolkit_image
from tessera.driver.build.states import BuildPhase
from tessera.driver.cluster_cache import ClusterCache
from tessera.driver.driver_sets import NAMESPACE, PART_OF, PoolKey
from tessera.driver.executor import DriverExecutor
from tessera.driver.images import Resolver
from tessera.driver.next_kernels import CoverageMetrics, KernelsInUse, NextKernels, kernels_in_use
from tessera.driver.planning.cluster_plan import plan_cluster
from tessera.driver.planning.interface import ClusterPlan, ClusterSnapshot, written_node
from tessera.driver.planning.strategy import BuildRequests, StrategyInputs, image_queries
from tessera.driver.pod_facts import DriverPodProgress, NodePods
from tessera.driver.policies import PolicySelection, PolicyWatcher
from tessera.driver.registry.client import RegistryOptions
from tessera.driver.registry.image_lookups import ImageLookups, ImagePullFailures
from tessera.driver.registry.resolver import open_image_resolver
from tessera.driver.rollout.executor import RolloutExecutor
from tessera.driver.rollout.node_view import DesiredDriver
from tessera.driver.rollout.rollout import Rollout, RolloutMetrics
from tessera.gpu_operator.driver_policy import DriverPolicy
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import DAEMONSETS, Node, Pod
from tessera.kube.retries import Backoff

#: Seconds after which the adapter checks again if a watch has shown a write, since that may cause no other event.
_LOOK_AGAIN = 5.0


class RolloutAdapter:
    """The rollout as the planner uses it: desired sets go in, notes and failed sets come back for the next plan.

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
        self._rollout, self._cache, self._problems = rollout, cache, problems
        self._clock, self._changed = clock, changed
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


class DriverOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of :class:`Drivers`.

    Attributes:
        identity: the pod that this process runs in; its image is Tessera's own.
        image: Tessera's own image, for init containers and validations; empty: that of the process's own pod.
        builds: settings for building images in the cluster.
    """

    identity: str = ""
    image: str = ""
    builds: BuildSettings = BuildSettings()


_log = logging.getLogger(__name__)

#: Seconds to wait for a registry that does not answer, before a node gets its driver in a slower way.
LOOKUP_TIMEOUT = 120.0
#: The pause after a round, as a share of the round's time, so that a large cluster's events do not fill a processor.
_REST = 4.0
_LONGEST_REST = 1.0


class Drivers:
    """Drivers of a whole cluster, while this process leads.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        resolver: looks images up.
        nodes: mirrors all nodes; run by the caller.
        pods: mirrors all pods; run by the caller.
        options: see :class:`DriverOptions`.
        events: writes events about nodes; run by the caller.
        metrics: the rollout's metrics; made once in a process, since a registry takes a metric only once.
        coverage: metrics of next kernels; made once in a process, too.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        *,
        resolver: Resolver,
        nodes: Informer[Node],
        pods: Informer[Pod],
        options: DriverOptions,
        events: EventRecorder,
        metrics: RolloutMetrics,
        coverage: CoverageMetrics,
    ) -> None:
        #: The last plan; empty before the first round. The next round reads the desired sets and the policies from it.
        self._plan = ClusterPlan()
        #: Pools and policies of the last round in which the policies could be read; see ``PolicySelection.frozen``.
        self._in_use = KernelsInUse()
        client, clock, rng = runtime.client, runtime.clock, runtime.rng
        self._clock = clock
        self._rng = rng
        self._recorders = runtime.recorders
        #: Set while a round is due. A round clears it before it reads anything, so no change is missed.
        self._woken = asyncio.Event()
        self._policies = PolicyWatcher(runtime, changed=self._wake)
        self._sets = Informer(
            client,
            DAEMONSETS,
            clock=clock,
            rng=rng,
            namespace=NAMESPACE,
            label_selector=",".join(f"{key}={value}" for key, value in PART_OF.items()),
        )
        self._mirrors = (nodes, pods, self._sets)
        self._cache = ClusterCache(nodes, pods, self._sets, changed=self._wake, pods_changed=self._note_pull_failures)
        self._builds = BuildJobs(runtime)
        self._builds.listen(self._on_build)
        self._build_requests = BuildRequests(self._builds, options.builds, clock)
        self._next_kernels = NextKernels(
            runtime,
            resolver=resolver,
            in_use=lambda: self._in_use,
            builds=self._builds,
            settings=options.builds,
            metrics=coverage,
        )
        self._lookups = ImageLookups(resolver, clock, rng=rng, answered=self._woken.set)
        self._pull_failures = ImagePullFailures(clock)
        self._executor = DriverExecutor(
            runtime,
            wake=self._woken.set,
            image=lambda: options.image or self._cache.own_image(options.identity),
            toolkit_spec=self._cache.toolkit_spec,
        )
        self._rollout = Rollout(
            runtime,
            RolloutExecutor(runtime, namespace=NAMESPACE, events=events),
            metrics=metrics,
            wake=self._woken.set,
        )
        self._rollout_adapter = RolloutAdapter(
            self._rollout,
            cache=self._cache,
            problems=self._executor.problems,
            clock=clock,
            changed=self._woken.set,
        )

    async def run(self) -> None:
        """Plans and acts until cancelled. It may be killed at any moment and started again."""
        with contextlib.ExitStack() as stack:
            for end in self._cache.start():
                stack.callback(end)
            stack.callback(self._executor.stop)
            async with asyncio.TaskGroup() as group:
                for part in (self._policies.run(), self._sets.run(), self._builds.run()):
                    group.create_task(part)
                await self._wait_ready()
                group.create_task(self._next_kernels.run())
                while True:
                    self._woken.clear()
                    began = self._clock.monotonic()
                    due = self._round(group)
                    await self._clock.sleep(min(_LONGEST_REST, _REST * (self._clock.monotonic() - began)))
                    await until_set(self._woken, due)

    async def _wait_ready(self) -> None:
        """Waits until every kind was listed, or does not exist, and the records of earlier rollouts were read."""
        for mirror in self._mirrors:
            await mirror.wait_synced()
        await self._policies.wait_read()
        backoff = Backoff(self._rng)
        while True:
            try:
                await self._rollout.load()
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("the records of earlier rollouts cannot be read: %s", error)
                await self._clock.sleep(backoff.next())
            else:
                return

    # One round

    def _round(self, group: asyncio.TaskGroup) -> float | None:
        """Plans, and starts the instructions; returns the seconds until it has to be called again."""
        self._cache.follow()
        labels = {name: facts.labels for name, facts in self._cache.facts.items() if facts.is_gpu}
        selection = self._policies.select_policy(labels)
        plan = self._plan = self._recorders.call("driver-plan", plan_cluster, self._snapshot(selection))
        self._look_up(plan, group)
        self._build_requests.request(plan.builds)
        self._update_kernels_in_use(selection)
        until = self._rollout_adapter.advance(plan, selection, group)
        for instruction in plan.instructions:
            if self._rollout_adapter.may_write(written_node(instruction)):
                self._executor.start(instruction, group)
        busy = plan.policies or plan.desired or plan.instructions or self._cache.existing_sets()
        if not busy and not self._cache.has_toolkit:
            self._cache.rest()
        return min((each for each in (until, *self._deadlines()) if each is not None), default=None)

    def _snapshot(self, selection: PolicySelection) -> ClusterSnapshot:
        return ClusterSnapshot(
            nodes=dict(self._cache.facts),
            pods={name: self._cache.pods_of(name) for name in self._cache.facts},
            selection=selection,
            sets=self._cache.existing_sets(),
            answers=self._lookups.answers,
            strategy_inputs=self._strategy_inputs(selection),
            unpullable=self._pull_failures.reasons,
            failed_sets=self._rollout_adapter.failed_sets(),
            rollout_notes=self._rollout_adapter.notes(self._plan.desired),
            nodes_in_use=self._cache.nodes_in_use(),
            has_toolkit=self._cache.has_toolkit,
            now=self._clock.now(),
        )

    def _strategy_inputs(self, selection: PolicySelection) -> dict[tuple[str, PoolKey], StrategyInputs]:
        """Inputs of each policy for each pool of its nodes."""
        found: dict[tuple[str, PoolKey], StrategyInputs] = {}
        for name, policy in selection.nodes.items():
            facts = self._cache.facts.get(name)
            if facts is None or facts.pool is None:
                continue
            if (key := (policy.full_name, facts.pool)) not in found:
                found[key] = self._inputs_for(policy, facts.pool)
        return found

    def _inputs_for(self, policy: DriverPolicy, pool: PoolKey) -> StrategyInputs:
        toolkit = toolkit_image(pool)
        return StrategyInputs(
            build=self._build_requests.progress(policy, pool),
            toolkit="" if toolkit in self._pull_failures.reasons else toolkit,
            may_wait=self._lookups.unanswered_for(image_queries(policy, pool)) < LOOKUP_TIMEOUT,
        )

    def _look_up(self, plan: ClusterPlan, group: asyncio.TaskGroup) -> None:
        pools = {facts.pool for facts in self._cache.facts.values() if facts.is_gpu and facts.pool is not None}
        self._lookups.retain(
            query for policy in plan.policies.values() for pool in pools for query in image_queries(policy, pool)
        )
        self._lookups.start(plan.lookups, group)

    def _update_kernels_in_use(self, selection: PolicySelection) -> None:
        use = self._in_use if selection.frozen else kernels_in_use(selection, self._cache.facts)
        if use != self._in_use:
            self._in_use = use
            self._next_kernels.wake()

    def _deadlines(self) -> Iterator[float | None]:
        """Seconds until something may begin, or until a wait ends."""
        yield from (each.seconds_until_due() for each in (self._lookups, self._pull_failures, self._build_requests))
        for policy in self._plan.policies.values():
            for pool in {facts.pool for facts in self._cache.facts.values() if facts.pool is not None}:
                silent = self._lookups.unanswered_for(image_queries(policy, pool))
                if 0.0 < silent < LOOKUP_TIMEOUT:
                    yield LOOKUP_TIMEOUT - silent

    # Changes in the watches

    def _wake(self, keys: Iterable[str]) -> None:
        self._executor.observe_change(*keys)
        self._woken.set()

    def _note_pull_failures(self, pods: NodePods) -> None:
        """Remembers images that kubelet could not pull, and looks them up in their registry again."""
        for driver in pods.drivers:
            for image, text in driver.unpullable:
                if self._pull_failures.add(image, text):
                    self._lookups.recheck_image(image)
            made = self._cache.existing_sets().get(driver.set) if driver.progress is DriverPodProgress.READY else None
            if made is not None:
                self._pull_failures.forget(made.set.image)

    def _on_build(self, target: str, phase: BuildPhase) -> None:
        if phase is BuildPhase.DONE:
            self._lookups.recheck_repository(target.rpartition("/")[0])
        self._woken.set()


@dataclass(frozen=True, kw_only=True)
class DriverSatellite:
    """Installs drivers, where a ClusterPolicy turns that on.

    Attributes:
        options: see :class:`DriverOptions`.
        registries: access to the registries of driver images.
        namespace: namespace of pull secrets and of the memory of images, the deployment's.
        resolver: looks images up; None asks registries.
    """

    options: DriverOptions = field(default_factory=DriverOptions)
    registries: RegistryOptions = field(default_factory=RegistryOptions)
    namespace: str = SYSTEM_NAMESPACE
    resolver: Resolver | None = None

    def open(self, process: Process) -> Callable[[Term], None]:
        """See :class:`~tessera.controller.satellite.Satellite`."""
        rollout, coverage = RolloutMetrics(process.registry), CoverageMetrics(process.registry)
        resolver = self.resolver or open_image_resolver(self.registries, self.namespace, process)

        def join(term: Term) -> None:
            drivers = Drivers(
                term.runtime,
                resolver=resolver,
                nodes=term.nodes,
                pods=term.pods,
                options=self.options,
                events=term.events,
                metrics=rollout,
                coverage=coverage,
            )
            term.tasks.append(Task(name="drivers", run=drivers.run, at_once=True))

        return join
