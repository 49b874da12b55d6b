"""The driver part of the controller: mirrors what matters, decides, and lets the hands and the rollout act.

Nothing is looked at by the clock. A round begins when something that matters was seen to change, when an answer or a
build changed, or when a deadline that the round before named has come. Everything that is remembered between rounds
may be lost.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Iterator

import msgspec
from prometheus_client import CollectorRegistry

from tessera.api.driver.driver_policy import DriverPolicy
from tessera.clock import Clock, until_set
from tessera.driver.build.builds import BuildJobs
from tessera.driver.build.families import toolkit_image
from tessera.driver.build.settings import BuildSettings
from tessera.driver.build.states import BuildPhase
from tessera.driver.cluster_cache import Observed
from tessera.driver.coverage.next_kernels import CoverageMetrics, KernelsInUse, NextKernels, kernels_in_use
from tessera.driver.executor import Acting
from tessera.driver.images.image_lookups import ImageLookups
from tessera.driver.images.image_pull_failures import ImagePullFailures
from tessera.driver.manifests.names import NAMESPACE, PART_OF
from tessera.driver.nodes.pod_facts import NodePods, Progress
from tessera.driver.planning.build_requests import Building
from tessera.driver.planning.cluster_plan import decide
from tessera.driver.planning.cluster_snapshot import Decision, World
from tessera.driver.planning.instructions import node_of
from tessera.driver.planning.strategy import Situation, queries
from tessera.driver.policies.policy_selection import Governance
from tessera.driver.policies.policy_watcher import Policies
from tessera.driver.pool import PoolKey
from tessera.driver.resolution import Resolver
from tessera.driver.rollout.executor import Hands
from tessera.driver.rollout.rollout import Rollout, RolloutMetrics
from tessera.driver.rollout_link import Rolling
from tessera.kube.backoff import Backoff
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import DAEMONSETS, Node, Pod
from tessera.kube.watch.informer import Informer


class DriverOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of :class:`tessera.driver.run.Drivers`.

    Attributes:
        identity: the pod that this process runs in, from which Tessera's own image is known.
        image: Tessera's own image, for init containers and validations; empty: that of the process's own pod.
        builds: how images are built in the cluster.
    """

    identity: str = ""
    image: str = ""
    builds: BuildSettings = BuildSettings()


_log = logging.getLogger(__name__)

#: Seconds for which a registry that does not answer is waited for before a node goes a slower way.
SILENCE_PATIENCE = 120.0
#: After a round, the share of its own time that is rested: a large cluster's news must not fill a processor.
_REST = 4.0
_LONGEST_REST = 1.0


class Drivers:
    """Drivers of a whole cluster, while this process leads.

    Args:
        client: the API server; its identity needs what ``deploy/rbac.yaml`` grants to the controller.
        clock: the time.
        resolver: looks images up.
        nodes: mirrors all nodes; run by the caller.
        pods: mirrors all pods; run by the caller.
        options: see there.
        events: tells about nodes; run by the caller.
        rng: for jitter.
        may_act: whether this process still leads; asked before each write.
        metrics: numbers of the rollout; made once a process, since a registry takes a metric once.
        coverage: numbers of kernels that are to come; likewise.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        resolver: Resolver,
        nodes: Informer[Node],
        pods: Informer[Pod],
        options: DriverOptions,
        events: EventRecorder,
        rng: random.Random,
        may_act: Callable[[], bool],
        metrics: RolloutMetrics | None = None,
        coverage: CoverageMetrics | None = None,
    ) -> None:
        self._decision = Decision()
        self._use = KernelsInUse()
        self._clock = clock
        self._rng = rng
        self._stirred = asyncio.Event()
        self._policies = Policies(client, clock, rng=rng, may_act=may_act, stirred=self._stir)
        self._sets = Informer(
            client,
            DAEMONSETS,
            clock=clock,
            rng=rng,
            namespace=NAMESPACE,
            label_selector=",".join(f"{key}={value}" for key, value in PART_OF.items()),
        )
        self._mirrors = (nodes, pods, self._sets)
        self._observed = Observed(nodes, pods, self._sets, stirred=self._stir, pods_changed=self._note_pulls)
        self._builds = BuildJobs(client, clock, rng=rng, may_act=may_act, changed=self._build_changed)
        self._building = Building(self._builds, options.builds, clock)
        self._next_kernels = NextKernels(
            client,
            clock,
            rng=rng,
            resolver=resolver,
            in_use=lambda: self._use.pools,
            policies=lambda: self._use.everywhere,
            builds=self._builds,
            settings=options.builds,
            metrics=coverage,
            may_act=may_act,
        )
        self._asking = ImageLookups(resolver, clock, rng=rng, answered=self._stirred.set)
        self._unpullable = ImagePullFailures(clock)
        self._acting = Acting(
            client,
            clock,
            rng=rng,
            may_act=may_act,
            wake=self._stirred.set,
            image=lambda: options.image or self._observed.own_image(options.identity),
            toolkit_spec=self._observed.toolkit_spec,
        )
        self._rollout = Rollout(
            Hands(client, namespace=NAMESPACE, events=events, clock=clock, may_act=may_act),
            metrics=metrics or RolloutMetrics(CollectorRegistry()),
            clock=clock,
            wake=self._stirred.set,
            rng=rng,
        )
        self._rolling = Rolling(
            self._rollout,
            observed=self._observed,
            problems=self._acting.problems,
            clock=clock,
            changed=self._stirred.set,
        )

    async def run(self) -> None:
        """Decides and acts until cancelled. It may be killed at any moment and started again."""
        with contextlib.ExitStack() as stack:
            for end in self._observed.begin():
                stack.callback(end)
            async with asyncio.TaskGroup() as group:
                for part in (self._policies.run(), self._sets.run(), self._builds.run()):
                    group.create_task(part)
                await self._ready()
                group.create_task(self._next_kernels.run())
                while True:
                    self._stirred.clear()
                    began = self._clock.monotonic()
                    due = self._round(group)
                    await self._clock.sleep(min(_LONGEST_REST, _REST * (self._clock.monotonic() - began)))
                    await until_set(self._stirred, due)

    async def _ready(self) -> None:
        """Everything was listed, or is known not to exist; what earlier rollouts left behind was read."""
        for mirror in self._mirrors:
            await mirror.wait_synced()
        await self._policies.wait_read()
        backoff = Backoff(self._rng)
        while True:
            try:
                await self._rollout.recall()
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("what earlier rollouts left behind cannot be read: %s", error)
                await self._clock.sleep(backoff.next())
            else:
                return

    # One round

    def _round(self, group: asyncio.TaskGroup) -> float | None:
        """Decides and begins what follows; returns the seconds until it has to be called again."""
        labels = {name: facts.labels for name, facts in self._observed.facts.items() if facts.is_gpu}
        governance = self._policies.govern(labels)
        decision = self._decision = decide(self._world(governance))
        self._ask(decision, group)
        self._building.order(decision.build)
        self._note_use(governance)
        until = self._rolling.see(decision, governance, group)
        for instruction in decision.instructions:
            if self._rolling.settled(node_of(instruction)):
                self._acting.start(instruction, group)
        return min((each for each in (until, *self._deadlines()) if each is not None), default=None)

    def _world(self, governance: Governance) -> World:
        return World(
            nodes=self._observed.facts,
            pods={name: self._observed.pods_of(name) for name in self._observed.facts},
            governance=governance,
            sets=self._observed.existing(),
            answers=self._asking.answer,
            situation=self._situation,
            unpullable=self._unpullable.reasons,
            failed=self._rolling.failed(),
            notes=self._rolling.notes(self._decision.wanted),
            user=self._observed.user_of,
            toolkit=self._observed.toolkit,
            now=self._clock.now(),
        )

    def _situation(self, policy: DriverPolicy, pool: PoolKey) -> Situation:
        toolkit = toolkit_image(pool)
        return Situation(
            build=self._building.view(policy, pool),
            toolkit="" if toolkit in self._unpullable.reasons else toolkit,
            patient=self._asking.unanswered_for(queries(policy, pool)) < SILENCE_PATIENCE,
        )

    def _ask(self, decision: Decision, group: asyncio.TaskGroup) -> None:
        pools = {facts.pool for facts in self._observed.facts.values() if facts.is_gpu and facts.pool is not None}
        self._asking.retain(
            query for policy in decision.used.values() for pool in pools for query in queries(policy, pool)
        )
        self._asking.start(decision.ask, group)

    def _note_use(self, governance: Governance) -> None:
        use = self._use if governance.frozen else kernels_in_use(governance, self._observed.facts)
        if use != self._use:
            self._use = use
            self._next_kernels.wake()

    def _deadlines(self) -> Iterator[float | None]:
        """Seconds until something may be begun, or patience with something ends."""
        yield from (each.seconds_until_due() for each in (self._acting, self._asking, self._unpullable, self._building))
        for policy in self._decision.used.values():
            for pool in {facts.pool for facts in self._observed.facts.values() if facts.pool is not None}:
                silent = self._asking.unanswered_for(queries(policy, pool))
                if 0.0 < silent < SILENCE_PATIENCE:
                    yield SILENCE_PATIENCE - silent

    # What is seen

    def _stir(self, keys: Iterable[str]) -> None:
        self._acting.seen(*keys)
        self._stirred.set()

    def _note_pulls(self, pods: NodePods) -> None:
        """Remembers images that do not come, and asks their registry what has become of them."""
        for driver in pods.drivers:
            for image, text in driver.unpullable:
                if self._unpullable.add(image, text):
                    self._asking.recheck_image(image)
            made = self._observed.existing().get(driver.set) if driver.progress is Progress.READY else None
            if made is not None:
                self._unpullable.forget(made.set.image)

    def _build_changed(self, target: str, phase: BuildPhase) -> None:
        if phase is BuildPhase.DONE:
            self._asking.recheck_repository(target.rpartition("/")[0])
        self._stirred.set()
