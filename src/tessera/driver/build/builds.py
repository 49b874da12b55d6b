"""Runs the ordered builds as Jobs. Each image is built once, even with many requesters and after a controller crash.

All state is in Jobs and their pods; :mod:`tessera.driver.build.states` decides from them. After a failed write the
decision is made again, after a pause.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

import msgspec

from tessera.clock import until_set
from tessera.driver.build.job import APP, APP_LABEL, build_config_map, build_job, job_name
from tessera.driver.build.orders import BuildOrder
from tessera.driver.build.states import (
    BuildAttempt,
    BuildPhase,
    BuildRetries,
    BuildState,
    StartBuild,
    build_state,
    decide_builds,
    read_attempt,
)
from tessera.driver.driver_sets import NAMESPACE
from tessera.kube.errors import AlreadyExists, ApiError
from tessera.kube.informer import EventKind, Informer, WatchEvent
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, JOBS, PODS, Job, Pod, key
from tessera.kube.retries import Backoff

_log = logging.getLogger(__name__)

#: Seconds after which a created Job that never appeared in the watch counts as lost.
_UNSEEN = 60.0
#: First and longest pause after a failed write, seconds.
_SHORTEST, _LONGEST = 1.0, 60.0


class BuildJobs:
    """All builds of a cluster.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        retries: how failed builds are repeated.
    """

    def __init__(self, runtime: KubeRuntime, *, retries: BuildRetries | None = None) -> None:
        client, clock, rng = runtime.client, runtime.clock, runtime.rng
        self._client = client
        self._clock = clock
        self._may_act = runtime.may_act
        self._retries = retries or BuildRetries()
        self._listeners: list[Callable[[str, BuildPhase], None]] = []
        #: Orders by requester; a requester replaces its own entry only.
        self._wanted: dict[str, tuple[BuildOrder, ...]] = {}
        #: Attempts that were created and have not appeared in the watch, with the monotonic time; by Job name.
        self._created: dict[str, tuple[BuildAttempt, float]] = {}
        #: The reason why the API server refused a Job, by the order's key; only wanted orders.
        self._refused: dict[str, str] = {}
        #: The attempt that listeners were last notified of, by Job name.
        self._reported: dict[str, BuildAttempt] = {}
        self._changed = asyncio.Event()
        #: The monotonic time before which nothing is written, since the last write failed.
        self._paused_until = 0.0
        self._backoff = Backoff(rng, shortest=_SHORTEST, longest=_LONGEST)
        selector = f"{APP_LABEL}={APP}"
        self._jobs: Informer[Job] = Informer(
            client, JOBS, clock=clock, rng=rng, namespace=NAMESPACE, label_selector=selector
        )
        self._pods: Informer[Pod] = Informer(
            client,
            PODS,
            clock=clock,
            rng=rng,
            namespace=NAMESPACE,
            label_selector=selector,
            indexes={"owner": lambda pod: [owner.uid for owner in pod.metadata.owner_references]},
        )

    def listen(self, changed: Callable[[str, BuildPhase], None]) -> None:
        """Calls ``changed`` with target and phase after each change of a build's state from now on. Must not raise.

        The image of a finished build can be looked up then.
        """
        self._listeners.append(changed)

    def set_orders(self, orders: Iterable[BuildOrder], *, by: str = "nodes") -> None:
        """Sets the builds that one requester wants; several requesters may want the same order.

        Args:
            orders: all orders that this requester wants now. An order that it leaves out is not started or retried any
                more; a running build goes on.
            by: name of the requester; the orders of other requesters stay.
        """
        self._wanted[by] = tuple(orders)
        self._changed.set()

    def state(self, order: BuildOrder) -> BuildState:
        """The known state of a build; FAILED also while the API server refuses its Job."""
        found = build_state(order, self._attempts().values(), self._retries)
        refused = self.refusal(order)
        if refused and found.phase in {BuildPhase.NONE, BuildPhase.FAILED}:
            return msgspec.structs.replace(found, phase=BuildPhase.FAILED, text=refused)
        return found

    def refusal(self, order: BuildOrder) -> str:
        """The reason why the API server refuses a build's Job now; empty if it accepts, or was not asked."""
        return self._refused.get(order.key, "")

    async def wait_synced(self) -> None:
        """Returns once the existing Jobs are listed; before that every state is NONE."""
        await self._jobs.wait_synced()
        await self._pods.wait_synced()

    async def run(self) -> None:
        """Starts ordered builds until cancelled."""
        self._jobs.add_handler(self._on_job)
        self._pods.add_handler(self._on_pod)
        async with asyncio.TaskGroup() as group:
            for informer in (self._jobs, self._pods):
                group.create_task(informer.run())
                await informer.wait_synced()
            while True:
                self._changed.clear()
                await until_set(self._changed, await self._act())

    async def _act(self) -> float | None:
        """Carries out everything that is due; returns the seconds until the next thing is due."""
        now = self._clock.now()
        wanted = [order for orders in self._wanted.values() for order in orders]
        self._forget_refusals(wanted)
        starts, due = decide_builds(wanted, self._attempts(), now, self._retries)
        quiet = self._paused_until - self._clock.monotonic()
        if starts and quiet > 0:  # a repeated request must not shorten the pause after a failed write
            return quiet
        made = [await self._start(start) for start in starts if self._may_act()]
        if not all(made):
            pause = self._backoff.next()
            self._paused_until = self._clock.monotonic() + pause
            return pause
        self._backoff.reset()
        return None if due is None else max(0.0, due - now)

    def _forget_refusals(self, wanted: Collection[BuildOrder]) -> None:
        keys = {order.key for order in wanted}
        self._refused = {key: text for key, text in self._refused.items() if key in keys}

    async def _start(self, start: StartBuild) -> bool:
        """Makes the ConfigMap and the Job; both may exist already. Returns True if both exist now."""
        order = start.order
        try:
            await self._create_files(order)
            if not self._may_act():
                return True
            await self._create_job(start)
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("build of %s: its Job cannot be made: %s", order.target, error)
            self._refused[order.key] = f"Job {job_name(order, start.attempt)} cannot be made: {error}"
            self._notify(order.target, BuildPhase.FAILED)
            return False
        self._refused.pop(order.key, None)
        return True

    async def _create_files(self, order: BuildOrder) -> None:
        try:
            await self._client.create(CONFIGMAPS.as_dicts(), build_config_map(order.family), NAMESPACE)
        except AlreadyExists:
            return

    async def _create_job(self, start: StartBuild) -> None:
        name = job_name(start.order, start.attempt)
        try:
            made = await self._client.create(JOBS, build_job(start.order, start.attempt), NAMESPACE)
        except AlreadyExists:
            _log.info("build of %s: Job %s is there already", start.order.target, name)
            return
        _log.info("build of %s for %s: Job %s", start.order.target, start.order.pool.text, name)
        attempt = read_attempt(made, ())
        if attempt is not None and key(NAMESPACE, name) not in self._jobs.cache:
            self._created[name] = (attempt, self._clock.monotonic())

    def _attempts(self) -> dict[str, BuildAttempt]:
        """All Jobs by name: those in the watch, and those created just now."""
        late = self._clock.monotonic() - _UNSEEN
        self._created = {name: found for name, found in self._created.items() if found[1] > late}
        found = {name: attempt for name, (attempt, _) in self._created.items()}
        for each in self._jobs.cache.values():
            attempt = self._read_attempt(each)
            if attempt is not None:
                found[each.metadata.name] = attempt
        return found

    def _read_attempt(self, each: Job) -> BuildAttempt | None:
        return read_attempt(each, self._pods.cache.by_index("owner", each.metadata.uid))

    def _on_job(self, event: WatchEvent[Job]) -> None:
        name = event.object.metadata.name
        self._created.pop(name, None)
        if event.kind is EventKind.DELETED:
            gone = self._reported.pop(name, None)
            if gone is not None:
                self._notify(gone.target, BuildPhase.NONE)
        else:
            self._report_changes(event.object)
        self._changed.set()

    def _on_pod(self, event: WatchEvent[Pod]) -> None:
        for owner in event.object.metadata.owner_references:
            found = self._jobs.cache.get(key(NAMESPACE, owner.name))
            if found is not None and found.metadata.uid == owner.uid:
                self._report_changes(found)

    def _report_changes(self, each: Job) -> None:
        attempt = self._read_attempt(each)
        if attempt is not None and self._reported.get(each.metadata.name) != attempt:
            self._reported[each.metadata.name] = attempt
            self._notify(attempt.target, attempt.phase)

    def _notify(self, target: str, phase: BuildPhase) -> None:
        for listener in self._listeners:
            listener(target, phase)
