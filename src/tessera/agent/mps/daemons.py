"""The MPS daemons of a node: one for each resource that shares cards by MPS.

The plans come from the offer in force and from ResourceClaims, the running daemons from the record of an earlier agent;
each gets a :class:`DaemonSupervisor`. Supervision begins with the first plans: until then
daemons of an earlier agent go on serving their clients.

This module does not know pods. The advertiser reads the health of each share from :meth:`MpsDaemons.ready`, and does
not allocate :meth:`MpsDaemons.fenced_devices` in another form.

A supervisor keeps the MPS daemon of one resource running, with the limits of its plan. Rules:

1. Cards are in the mode ``EXCLUSIVE_PROCESS`` before the daemon starts, and return to the default mode after it ended.
2. A share is ready only once the daemon answers and its limits are set, and no longer once the daemon died.
3. A daemon that died, or does not answer, is started again after a pause that grows with each failure. Servers that it
   left are ended first: they hold the cards, so that no new server could start. Their clients lose their work.
4. Other limits are set while the daemon runs, for clients that connect from then on.
5. Other cards need another daemon, since a server sees the cards that it was started with. A new daemon costs every
   client its work, so it waits until none is connected. So does the end of a daemon without a plan. A card that cannot
   be taken yet, or refuses a call, does not delay the others: it joins them later.
6. An agent that stops leaves its daemons alone; the next one takes over those that it would start.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.settings import ContainerEdits, ServicePlan
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.mps.state import (
    ControlFailed,
    DaemonId,
    DaemonLauncher,
    DaemonRecord,
    DaemonSpec,
    ExclusiveCards,
    LaunchFailed,
    MpsDaemon,
    MpsPaths,
    MpsState,
    container_edits,
    count_clients,
    list_servers,
    set_limits,
)
from tessera.kube.retries import Backoff
from tessera.nvml.errors import NvmlError

#: Seconds between two checks that a daemon still answers.
CHECK_INTERVAL = 5.0
#: Seconds that a daemon may take from its start to its first answer.
START_TIMEOUT = 15.0
#: Seconds between two checks of a daemon that starts.
START_CHECK_INTERVAL = 0.05
#: First and longest pause before a daemon is started again, seconds.
SHORTEST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
#: Seconds that a daemon must run so that its end no longer counts as a failed start: the next pause is short again.
STABLE = 60.0

_log = logging.getLogger(__name__)

_FAILURES = (ControlFailed, LaunchFailed, NvmlError, OSError)


class DaemonSupervisor:
    """The daemon of one resource.

    Args:
        resource: the resource whose shares it serves.
        runtime: learns when :attr:`served_cards` or :attr:`problem` changed, or a card was released.
        launcher: starts and finds daemons.
        cards: sets compute modes.
        record: the record that survives a restart of the agent.
        wake: shared by all supervisors of a node; notified when a plan or a card's owner changed.

    Attributes:
        problem: the difference from the plan, for people; empty if there is none.
        served_cards: UUIDs of the cards whose shares can be used now.
    """

    def __init__(
        self,
        resource: str,
        runtime: AgentRuntime,
        *,
        launcher: DaemonLauncher,
        cards: ExclusiveCards,
        record: MpsState,
        wake: ChangeNotifier,
    ) -> None:
        self._resource = resource
        self._launcher = launcher
        self._cards = cards
        self._record = record
        self._wake = wake
        self._changes = runtime.changes
        self._clock = runtime.clock
        self._backoff = Backoff(runtime.rng, shortest=SHORTEST_PAUSE, longest=LONGEST_PAUSE)
        #: The desired daemon; ``None`` if it must end.
        self._plan: ServicePlan | None = None
        #: Cards whose shares can be used now; a part of the cards of the running daemon.
        self.served_cards: frozenset[str] = frozenset()
        #: The difference from the plan, for people; empty if there is none.
        self.problem = "the MPS daemon is being started"
        #: Why a card could not be released at the last attempt; empty if every card was.
        self._refusal = ""
        #: Time from which the daemon has served a card, monotonic seconds; ``None`` while it serves none.
        self._up_since: float | None = None

    def set_plan(self, plan: ServicePlan | None) -> None:
        """Sets the plan of the daemon; ``None`` to end it."""
        if plan != self._plan:
            self._plan = plan
            self._wake.notify()

    async def run(self) -> None:
        """Keeps the daemon as planned; returns once there is no plan and every card was released."""
        daemon = self._find_leftover()
        while True:
            try:
                if daemon is None:
                    await self._end_leftover()
                    daemon = await self._next()
                if daemon is None:
                    return
                await self._run_daemon(daemon)
            except _FAILURES as error:
                await self._pause_after_failure(str(error))
            daemon = None

    def _find_leftover(self) -> MpsDaemon | None:
        left = self._record.daemons.get(self._resource)
        return None if left is None else self._launcher.find(self._resource, left.mark)

    async def _end_leftover(self) -> None:
        """Ends a daemon that a former agent left, and its servers."""
        left = self._record.daemons.get(self._resource)
        if left is None:
            await self._launcher.quit_unknown(self._resource)
            return
        if (daemon := self._launcher.find(self._resource, left.mark)) is not None:
            await daemon.end()
        await self._launcher.end_leftovers(left.mark)
        self._record.remove_daemon(self._resource)

    async def _next(self) -> MpsDaemon | None:
        """Starts the planned daemon; ``None`` without a plan, once there is no more to do."""
        while True:
            count = self._wake.count
            plan = self._plan
            if plan is None:
                await self._release_cards(keep=())
            else:
                await self._try_to_release_cards(keep=plan.cards)
            if self._plan is not plan:
                continue
            if plan is None:
                return None
            obstacles = await self._cards.obstacles(self._resource, plan.cards)
            if cards := tuple(card for card in plan.cards if card not in obstacles):
                if (daemon := await self._start(cards)) is not None:
                    return daemon
                continue
            self._publish(frozenset(), _join_texts(obstacles))
            await self._wake.wait(count, CHECK_INTERVAL)

    async def _release_cards(self, keep: tuple[str, ...]) -> None:
        if spare := self._cards.cards_of(self._resource).difference(keep):
            try:
                await self._cards.release(spare)
            finally:  # of several cards, only some may have refused
                self._wake.notify()
                self._changes.notify(Fact.MPS)

    async def _try_to_release_cards(self, keep: tuple[str, ...]) -> None:
        """Releases cards that are not needed; one that refuses stays taken, and is tried again later."""
        refusal = ""
        try:
            await self._release_cards(keep)
        except NvmlError as error:
            refusal = str(error)
        if refusal and refusal != self._refusal:
            _log.warning("%s: a card cannot be set back to the default compute mode: %s", self._resource, refusal)
        self._refusal = refusal

    async def _start(self, cards: tuple[str, ...]) -> MpsDaemon | None:
        """Starts a daemon on the cards that can be taken; ``None`` if none can."""
        if missing := self._launcher.find_obstacle():
            raise LaunchFailed(missing)
        taken = await self._cards.take(self._resource, cards)
        if not taken:
            return None

        def note(mark: DaemonId) -> None:
            self._record.add_daemon(self._resource, DaemonRecord(mark, taken))

        return await self._launcher.start(DaemonSpec(self._resource, taken), note)

    async def _run_daemon(self, daemon: MpsDaemon) -> None:
        """Follows the plan; returns when the daemon must end.

        Raises:
            LaunchFailed: the daemon ended by itself.
            ControlFailed: the daemon does not answer, or refuses.
            OSError: the record cannot be written.
        """
        cards = self._record.daemons[self._resource].cards
        ended = asyncio.ensure_future(daemon.wait_ended())
        ended.add_done_callback(lambda _: self._wake.notify())
        try:
            if self._plan is not None:
                await self._cards.take(self._resource, [card for card in cards if card in self._plan.devices])
            await self._wait_first_answer(daemon, ended)
            await self._follow(daemon, cards, ended)
        finally:
            ended.cancel()

    async def _wait_first_answer(self, daemon: MpsDaemon, ended: "asyncio.Future[str]") -> None:
        deadline = self._clock.monotonic() + START_TIMEOUT
        while True:
            try:
                await list_servers(daemon)
            except ControlFailed:
                self._check_alive(ended)
                if self._clock.monotonic() >= deadline:
                    raise
                await self._clock.sleep(START_CHECK_INTERVAL)
            else:
                return

    async def _follow(self, daemon: MpsDaemon, cards: tuple[str, ...], ended: "asyncio.Future[str]") -> None:
        """Follows the plan with a daemon that answers, until another daemon is needed."""
        in_force: ServicePlan | None = None
        checked_at = self._clock.monotonic()
        while True:
            count = self._wake.count
            self._check_alive(ended)
            plan = self._plan
            obstacles = await self._find_obstacles(plan, cards)
            change = _required_change(plan, cards, obstacles)
            if change and not await count_clients(daemon):
                self._publish(frozenset(), change)
                return
            limits = _restrict(plan, cards)
            if limits is not None and limits != in_force:
                await set_limits(daemon, limits)
                in_force = limits
            self._check_alive(ended)
            self._publish(
                frozenset(cards), f"{change}, once its clients have ended" if change else _join_texts(obstacles)
            )
            await self._wake.wait(count, max(0.0, checked_at + CHECK_INTERVAL - self._clock.monotonic()))
            if self._clock.monotonic() >= checked_at + CHECK_INTERVAL and not ended.done():
                await list_servers(daemon)
                checked_at = self._clock.monotonic()
                await self._try_to_release_cards(keep=(*(() if plan is None else plan.cards), *cards))

    async def _find_obstacles(self, plan: ServicePlan | None, cards: tuple[str, ...]) -> dict[str, str]:
        """The planned cards that the daemon does not serve and that cannot be taken, with the reasons."""
        missing = [] if plan is None else [card for card in plan.cards if card not in cards]
        return await self._cards.obstacles(self._resource, missing)

    def _check_alive(self, ended: "asyncio.Future[str]") -> None:
        if ended.done():
            raise LaunchFailed(f"the MPS daemon ended: {ended.result()}")

    async def _pause_after_failure(self, text: str) -> None:
        if self._up_since is not None and self._clock.monotonic() - self._up_since >= STABLE:
            self._backoff.reset()
        pause = self._backoff.next()
        self._publish(frozenset(), text)
        await self._wake.wait_differs(lambda: self._plan, self._plan, pause)

    def _publish(self, served: frozenset[str], why: str) -> None:
        if bool(served) != bool(self.served_cards):
            self._up_since = self._clock.monotonic() if served else None
        if (served, why) != (self.served_cards, self.problem):
            self.served_cards, self.problem = served, why
            self._changes.notify(Fact.MPS)


def _restrict(plan: ServicePlan | None, cards: tuple[str, ...]) -> ServicePlan | None:
    """The part of a plan that concerns these cards; ``None`` if there is none."""
    shares = {} if plan is None else {card: share for card, share in plan.devices.items() if card in cards}
    return ServicePlan(shares, plan.replicas) if plan is not None and shares else None


def _required_change(plan: ServicePlan | None, cards: tuple[str, ...], obstacles: Mapping[str, str]) -> str:
    """The required change of a daemon that serves these cards; empty if none is required."""
    if plan is None:
        return "the MPS daemon ends"
    possible = [card for card in plan.cards if card not in obstacles]
    if frozenset(possible) == frozenset(cards):
        return ""
    return f"the MPS daemon changes from cards {', '.join(cards)} to {', '.join(possible) or 'none'}"


def _join_texts(obstacles: Mapping[str, str]) -> str:
    return "; ".join(obstacles.values())


class MpsDaemons:
    """The daemons of a node.

    Args:
        runtime: the cards, whose compute mode is set, and the MPS root as kubelet sees it.
        launcher: starts daemons: real ones for real cards.
        describe_occupant: returns why the card of a UUID cannot be taken, such as a pod that holds all of it; empty if
            it can. A card on which a process computes is never taken.

    Attributes:
        exclusive_gpus: UUIDs of the cards that a daemon has, or whose compute mode is not the default one again; always
            those of now.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        launcher: DaemonLauncher,
        describe_occupant: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._runtime = runtime
        self._launcher = launcher
        self._record = MpsState(runtime.state_file("mps.json"))
        self._cards = ExclusiveCards(runtime.hardware, self._record, runtime.clock, describe_occupant)
        self._host = MpsPaths(runtime.options.mps_root)
        self._wake = ChangeNotifier()
        self.exclusive_gpus: AbstractSet[str] = self._record.exclusive.keys()
        #: The desired daemons of the offer by resource; ``None`` before the first plans are set.
        self._offered: Mapping[str, ServicePlan] | None = None
        #: The desired daemons of ResourceClaims.
        self._claimed: Mapping[str, ServicePlan] = {}
        #: The supervisor of each resource with a daemon or a plan. It ends after its daemon, once it has no plan.
        self._supervisors: dict[str, DaemonSupervisor] = {}

    def set_plans(self, plans: Mapping[str, ServicePlan]) -> None:
        """Sets the desired daemons of the offer, by resource; all others end once their clients have ended."""
        if plans != self._offered:
            self._offered = dict(plans)
            self._wake.notify()

    def set_claim_plans(self, plans: Mapping[str, ServicePlan]) -> None:
        """Sets the desired daemons of ResourceClaims, by a name for each claim."""
        if plans != self._claimed:
            self._claimed = dict(plans)
            self._wake.notify()

    @property
    def _plans(self) -> Mapping[str, ServicePlan] | None:
        """All desired daemons; ``None`` before those of the offer are known."""
        return None if self._offered is None else {**self._offered, **self._claimed}

    def ready(self, resource: str, gpu: str | None = None) -> bool:
        """True if shares can be used now: those of one card, or of every card in the resource's plan.

        A card that must join a daemon with clients is not ready until these have ended; the others stay ready.
        """
        served = self._supervisors[resource].served_cards if resource in self._supervisors else frozenset()
        if gpu is not None:
            return gpu in served
        plan = (self._plans or {}).get(resource)
        return bool(served) and (plan is None or served.issuperset(plan.cards))

    def problem(self, resource: str) -> str:
        """The difference from the plan of a resource, for people; empty if there is none."""
        if resource in self._supervisors and (why := self._supervisors[resource].problem):
            return why
        planned = resource in (self._plans or {})
        return "" if self.ready(resource) or not planned else "the MPS daemon does not serve all cards of its plan yet"

    def container_edits(self, resource: str) -> ContainerEdits:
        """Edits that make a container of the resource a client of the daemon, besides its devices."""
        return container_edits(resource, self._host)

    def fenced_devices(self) -> frozenset[str]:
        """UUIDs of cards that MPS still holds without a plan. They must not be allocated in another form yet."""
        if self._plans is None:
            return frozenset()
        planned = {card for plan in self._plans.values() for card in plan.cards}
        return frozenset(self._record.exclusive).difference(planned)

    @property
    def needs_host(self) -> bool | None:
        """True if the node needs an MPS host: a daemon is desired or may run; ``None`` before plans are known."""
        if self._plans or self._supervisors or self._record.daemons:
            return True
        return None if self._plans is None else False

    def summary(self) -> Mapping[str, str]:
        """Every resource that has a daemon or a plan, with its difference from the plan; empty text for none.

        For the node condition ``GpuMpsReady``, which a node has only while this names a resource.
        """
        return {each: self.problem(each) for each in sorted({*(self._plans or {}), *self._supervisors})}

    async def run(self) -> None:
        """Keeps the daemons as planned until cancelled. After that they go on without the agent."""
        while self._plans is None:
            await self._wake.wait(self._wake.count)
        async with asyncio.TaskGroup() as group:
            while True:
                count, plans = self._wake.count, self._plans
                for resource in {*plans, *self._record.daemons, *self._record.exclusive.values()}:
                    if resource not in self._supervisors:
                        self._supervisors[resource] = self._supervisor(resource)
                        group.create_task(self._supervise(resource), name=f"MPS daemon {resource}")
                for resource, supervisor in self._supervisors.items():
                    supervisor.set_plan(plans.get(resource))
                await self._wake.wait(count)

    @property
    def recorded_resources(self) -> frozenset[str]:
        """Resources with a daemon, or with cards in the compute mode for one; also of a former process."""
        return frozenset({*self._record.daemons, *self._record.exclusive.values()})

    async def release_cards(self) -> None:
        """Sets the cards back to the default compute mode. The daemons have ended.

        Raises:
            NvmlError: a card refuses.
            OSError: the record cannot be written.
        """
        await self._cards.release(list(self._record.exclusive))

    async def end_all(self) -> None:
        """Ends every daemon, even with busy clients, so that none keeps the driver in use. :meth:`run` has ended.

        The cards stay recorded as taken: their compute mode ends with the driver, and the next agent reads the record.

        Raises:
            ControlFailed: a daemon does not accept the command.
            OSError: a daemon cannot get a signal, or the record cannot be written.
        """
        for resource, left in list(self._record.daemons.items()):
            if (daemon := self._launcher.find(resource, left.mark)) is not None:
                await daemon.end()
            await self._launcher.end_leftovers(left.mark)
            self._record.remove_daemon(resource)

    async def _supervise(self, resource: str) -> None:
        await self._supervisors[resource].run()
        del self._supervisors[resource]
        self._wake.notify()
        self._runtime.changes.notify(Fact.MPS)

    def _supervisor(self, resource: str) -> DaemonSupervisor:
        return DaemonSupervisor(
            resource, self._runtime, launcher=self._launcher, cards=self._cards, record=self._record, wake=self._wake
        )
