"""The driver part of the controller: mirrors what matters, decides, and lets the hands and the rollout act.

Nothing is looked at by the clock. A round begins when something that matters was seen to change, when an answer or a
build changed, or when a deadline that the round before named has come. Everything that is remembered between rounds
may be lost.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from tessera.api.driver.objects import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.api.driver.policy import DriverPolicy
from tessera.clock import Clock
from tessera.driver.acting import Acting
from tessera.driver.asking import Asking
from tessera.driver.build.builds import Builds
from tessera.driver.build.families import toolkit_image
from tessera.driver.build.states import BuildPhase
from tessera.driver.building import build_view
from tessera.driver.coverage.metrics import CoverageMetrics
from tessera.driver.coverage.next_kernels import NextKernels
from tessera.driver.governance import Governance, Objects, govern
from tessera.driver.machine import Decision, World, decide
from tessera.driver.manifests.names import NAMESPACE, PART_OF
from tessera.driver.observed import Observed
from tessera.driver.options import DriverOptions
from tessera.driver.podfacts import NodePods, Progress
from tessera.driver.policymemory import PolicyMemory
from tessera.driver.pool import PoolKey
from tessera.driver.resolution import Resolver
from tessera.driver.rollout.acting import Hands
from tessera.driver.rollout.metrics import RolloutMetrics
from tessera.driver.rollout.rollout import Rollout
from tessera.driver.rollout.views import Wanted
from tessera.driver.strategy import Situation, queries
from tessera.kube.backoff import Backoff
from tessera.kube.cache import Event
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.events import EventRecorder
from tessera.kube.informer import Informer
from tessera.kube.resources import DAEMONSETS, Node, Pod

_log = logging.getLogger(__name__)

#: Seconds for which a registry that does not answer is waited for before a node goes a slower way.
SILENCE_PATIENCE = 120.0
#: Seconds for which an image counts as not there after a kubelet could not pull it.
UNPULLABLE_FOR = 600.0
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

    Attributes:
        builds: builds of images; others may want some, too.
        next_kernels: the gate in front of kernels that are to come.
        decision: the latest.
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
        self.decision = Decision()
        self._clock = clock
        self._options = options
        self._rng = rng
        self._stirred = asyncio.Event()
        self._policies = Informer(client, CLUSTER_POLICIES, clock=clock, rng=rng)
        self._drivers = Informer(client, NVIDIA_DRIVERS, clock=clock, rng=rng)
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
        self.builds = Builds(client, clock, rng=rng, may_act=may_act, changed=self._build_changed)
        self._in_use: tuple[tuple[PoolKey, DriverPolicy], ...] = ()
        self._everywhere: tuple[DriverPolicy, ...] = ()
        self.next_kernels = NextKernels(
            client,
            clock,
            rng=rng,
            resolver=resolver,
            in_use=lambda: self._in_use,
            policies=lambda: self._everywhere,
            builds=self.builds,
            settings=options.builds,
            metrics=coverage,
            may_act=may_act,
        )
        self._asking = Asking(resolver, clock, rng=rng, changed=self._stirred.set)
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
        self._memory = PolicyMemory(client, clock, namespace=NAMESPACE, rng=rng, may_act=may_act)
        self._notes: Mapping[str, str] = {}
        self._unpullable: dict[str, tuple[str, float]] = {}
        self._waiting_since: dict[tuple[str, PoolKey], float] = {}

    async def run(self) -> None:
        """Decides and acts until cancelled. It may be killed at any moment and started again."""
        with contextlib.ExitStack() as stack:
            ends = self._observed.begin()
            ends += [each.add_handler(self._policy_seen) for each in (self._policies, self._drivers)]
            for end in ends:
                stack.callback(end)
            async with asyncio.TaskGroup() as group:
                for each in (self._policies, self._drivers, self._sets):
                    group.create_task(each.run())
                group.create_task(self.builds.run())
                await self._ready()
                group.create_task(self.next_kernels.run())
                group.create_task(self._memory.run())
                self._stirred.set()
                while True:
                    await self._stirred.wait()
                    self._stirred.clear()
                    began = self._clock.monotonic()
                    due = self._round(group)
                    await self._clock.sleep(min(_LONGEST_REST, _REST * (self._clock.monotonic() - began)))
                    await self._pause(due)

    async def _ready(self) -> None:
        """Everything was listed, or is known not to exist; what earlier rollouts left behind was read."""
        for mirror in self._mirrors:
            await mirror.wait_synced()
        for optional in (self._policies, self._drivers):
            while not optional.synced and not _is_absent(optional):
                optional.reflector.looked.clear()
                await optional.reflector.looked.wait()
        await self._memory.load()
        backoff = Backoff(self._rng)
        while True:
            try:
                await self._rollout.recall()
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("what earlier rollouts left behind cannot be read: %s", error)
                await self._clock.sleep(backoff.next())
            else:
                return

    async def _pause(self, seconds: float | None) -> None:
        """Sleeps until something changes, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
        self._stirred.set()

    # One round

    def _round(self, group: asyncio.TaskGroup) -> float | None:
        """Decides and begins what follows; returns the seconds until it has to be called again."""
        governance = self._govern()
        self._expire()
        decision = self.decision = decide(self._world(governance))
        self._keep_asking(decision, group)
        self._order(decision)
        self._note_use(governance)
        for instruction in decision.instructions:
            self._acting.start(instruction, group)
        until = self._roll(decision, governance, group)
        times = [self._acting.due(), self._asking.due(), *self._deadlines(), until]
        return min((each for each in times if each is not None), default=None)

    def _govern(self) -> Governance:
        objects = Objects(
            cluster_policies=self._objects(self._policies),
            nvidia_drivers=self._objects(self._drivers),
            followed=self._memory.followed,
        )
        labels = {name: facts.labels for name, facts in self._observed.facts.items() if facts.is_gpu}
        governance = govern(objects, labels)
        self._memory.follow(governance.followed)
        return governance

    @staticmethod
    def _objects(informer: Informer[dict[str, Any]]) -> list[dict[str, Any]] | None:
        """All objects of a kind; None where the API server has no such kind."""
        return list(informer.cache.values()) if informer.synced else None

    def _world(self, governance: Governance) -> World:
        return World(
            nodes=self._observed.facts,
            pods={name: self._observed.pods_of(name) for name in self._observed.facts},
            governance=governance,
            sets=self._observed.existing(),
            answers=self._asking.answer,
            situation=self._situation,
            unpullable={image: text for image, (text, _) in self._unpullable.items()},
            failed=self._failed(),
            notes=self._told_notes(),
            user=self._observed.user_of,
            toolkit=self._observed.toolkit,
            now=self._clock.now(),
        )

    def _failed(self) -> dict[str, str]:
        """Sets that failed somewhere, with one of the causes."""
        failed = {key: self._rollout.failed_on(key) for key in self._observed.existing()}
        return {key: next(iter(causes.values())) for key, causes in failed.items() if causes}

    def _told_notes(self) -> dict[str, str]:
        """What the rollout says of nodes, and why the DaemonSet of a node's set cannot be made."""
        problems = self._acting.problems
        found = dict(self._notes)
        for name, wanted in self.decision.wanted.items() if problems else ():
            facts = self._observed.facts.get(name)
            text = problems.get(wanted.set) or problems.get(facts.driver_set if facts is not None else "")
            if text:
                found[name] = text
        return found

    def _situation(self, policy: DriverPolicy, pool: PoolKey) -> Situation:
        toolkit = toolkit_image(pool)
        patient = self._asking.silent_for(queries(policy, pool)) < SILENCE_PATIENCE
        situation = Situation(toolkit="" if toolkit in self._unpullable else toolkit, patient=patient)
        if not policy.build_repository:
            return situation
        now = self._clock.now()
        build, _ = build_view(
            policy,
            pool,
            self._options.builds,
            self.builds.state,
            wanted_since=self._waiting_since.get((policy.source.version, pool), now),
            now=now,
        )
        return msgspec.structs.replace(situation, build=build)

    def _keep_asking(self, decision: Decision, group: asyncio.TaskGroup) -> None:
        pools = {facts.pool for facts in self._observed.facts.values() if facts.is_gpu and facts.pool is not None}
        self._asking.keep(
            query for policy in decision.used.values() for pool in pools for query in queries(policy, pool)
        )
        self._asking.start(decision.ask, group)

    def _note_use(self, governance: Governance) -> None:
        """Which pools come under which policy: what kernels that are to come are held against."""
        if governance.frozen:
            return
        found: dict[tuple[PoolKey, str], tuple[PoolKey, DriverPolicy]] = {}
        for name, policy in governance.nodes.items():
            facts = self._observed.facts.get(name)
            if facts is not None and facts.pool is not None and not facts.preinstalled and not facts.opted_out:
                found[facts.pool, f"{policy.kind}/{policy.name}"] = (facts.pool, policy)
        in_use = tuple(found[key] for key in sorted(found))
        cluster = governance.cluster
        everywhere = () if cluster is None or cluster.use_driver_crd else (cluster,)
        if (in_use, everywhere) != (self._in_use, self._everywhere):
            self._in_use, self._everywhere = in_use, everywhere
            self.next_kernels.stir()

    def _order(self, decision: Decision) -> None:
        now = self._clock.now()
        orders = []
        for policy, pool in decision.build:
            since = self._waiting_since.setdefault((policy.source.version, pool), now)
            _, made = build_view(policy, pool, self._options.builds, self.builds.state, wanted_since=since, now=now)
            if made is not None:
                orders.append(made)
        wanted = {(policy.source.version, pool) for policy, pool in decision.build}
        self._waiting_since = {key: since for key, since in self._waiting_since.items() if key in wanted}
        self.builds.want(orders, by="nodes")

    def _possible(self, wanted: Mapping[str, Wanted]) -> Iterator[tuple[str, Wanted]]:
        """What is wanted, with what stands in its way: no node is emptied for a set whose DaemonSet is not there."""
        existing = self._observed.existing()
        for name, each in wanted.items():
            if each.set in existing or not each.set:
                yield name, each
            else:
                obstacle = self._acting.problems.get(each.set, "its DaemonSet is not there yet")
                yield name, msgspec.structs.replace(each, obstacle=obstacle)

    def _roll(self, decision: Decision, governance: Governance, group: asyncio.TaskGroup) -> float | None:
        if governance.frozen:
            return None
        policies = {name: policy.upgrade for name, policy in decision.used.items()}
        wanted = dict(self._possible(decision.wanted))
        found = self._rollout.see(list(self._observed.views(wanted, self._clock.now())), policies, group)
        if found.notes != self._notes:
            self._notes = found.notes
            self._stirred.set()
        return None if found.until is None else max(0.0, found.until - self._clock.now())

    def _deadlines(self) -> Iterator[float]:
        """Seconds until patience with something ends."""
        now = self._clock.monotonic()
        yield from (max(0.0, until - now) for _, until in self._unpullable.values())
        for policy in self.decision.used.values():
            for pool in {facts.pool for facts in self._observed.facts.values() if facts.pool is not None}:
                silent = self._asking.silent_for(queries(policy, pool))
                if 0.0 < silent < SILENCE_PATIENCE:
                    yield SILENCE_PATIENCE - silent
        if self._waiting_since:
            yield 60.0

    def _expire(self) -> None:
        now = self._clock.monotonic()
        self._unpullable = {image: known for image, known in self._unpullable.items() if known[1] > now}

    # What is seen

    def _stir(self, keys: Iterable[str]) -> None:
        self._acting.seen(*keys)
        self._stirred.set()

    def _policy_seen(self, event: Event[dict[str, Any]]) -> None:
        name = event.object["metadata"]["name"]
        self._stir(f"policy/{each.kind}/{name}" for each in (CLUSTER_POLICIES, NVIDIA_DRIVERS))

    def _note_pulls(self, pods: NodePods) -> None:
        """Remembers images that do not come, and asks their registry what has become of them."""
        until = self._clock.monotonic() + UNPULLABLE_FOR
        for driver in pods.drivers:
            for image, text in driver.unpullable:
                if image not in self._unpullable:
                    self._asking.doubt_image(image)
                self._unpullable[image] = (text, until)
            made = self._observed.existing().get(driver.set) if driver.progress is Progress.READY else None
            if made is not None:
                self._unpullable.pop(made.set.image, None)

    def _build_changed(self, target: str, phase: BuildPhase) -> None:
        if phase is BuildPhase.DONE:
            self._asking.doubt_repository(target.rpartition("/")[0])
        self._stirred.set()


def _is_absent(informer: Informer[Any]) -> bool:
    """Whether the API server said that there is no such kind."""
    return isinstance(informer.reflector.error, NotFound)
