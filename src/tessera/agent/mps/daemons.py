"""The MPS daemons of a node: one for each resource that shares cards by MPS.

The plans come from the offer in force and from ResourceClaims, the running daemons from the record of an earlier agent;
each gets a supervisor (:mod:`tessera.agent.mps.supervisor`). Supervision begins with the first plans: until then
daemons of an earlier agent go on serving their clients.

This module does not know pods. The advertiser reads the health of each share from :meth:`MpsDaemons.ready`, and does
not allocate :attr:`MpsDaemons.fenced_devices` in another form.
"""

import asyncio
from collections.abc import Callable, Mapping

from tessera.agent.base.change_notifier import ChangeNotifier, Fact
from tessera.agent.base.desired_config import ContainerEdits, ServicePlan
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.mps.interfaces import DaemonLauncher, MpsPaths, container_edits
from tessera.agent.mps.state import ExclusiveCards, MpsState
from tessera.agent.mps.supervisor import DaemonSupervisor


class MpsDaemons:
    """The daemons of a node.

    Args:
        runtime: the cards, whose compute mode is set, and the MPS root as kubelet sees it.
        launcher: starts daemons: real ones for real cards.
        describe_occupant: returns why the card of a UUID cannot be taken, such as a pod that holds all of it; empty if
            it can. A card on which a process computes is never taken.
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

    def has_card(self, gpu: str) -> bool:
        """True if a daemon serves a card, or its compute mode is not the default one again."""
        return gpu in self._record.exclusive

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

    @property
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
