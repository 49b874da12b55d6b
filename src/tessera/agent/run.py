"""Puts the parts of an agent together and runs them.

Start: mirror the node, its pods and its Instaslice object, read what administrators wish, read the cards; only then
decide who shall have which card, and only then act. From there all parts work side by side and wake each other through
one signal. A part that fails in a way that it cannot mend ends the process, which Kubernetes starts anew.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from tessera.agent.health.policy import HealthPolicy
from tessera.agent.health.resets import CardResets
from tessera.agent.health.watch import HealthWatch
from tessera.agent.http import serve_http
from tessera.agent.layouts.evictions import Evictor
from tessera.agent.layouts.reconciler import LayoutReconciler
from tessera.agent.layouts.status import LayoutStatus
from tessera.agent.memory.limits import Rules
from tessera.agent.memory.processes import ProcessTable
from tessera.agent.memory.watch import MemoryWatch
from tessera.agent.metrics import Metrics
from tessera.agent.mirror import Mirror
from tessera.agent.mps.children import ChildLauncher
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.mps.simulated import SimulatedLauncher
from tessera.agent.ondemand.side import OnDemand
from tessera.agent.options import AgentOptions
from tessera.agent.report import Report
from tessera.agent.roles import Role, Roles
from tessera.agent.settings.following import Following
from tessera.agent.sharing.answers import AnswerOptions
from tessera.agent.sharing.holders import Holders
from tessera.agent.sharing.shelf import Shelf
from tessera.agent.sharing.stale import forget_patch
from tessera.agent.stock import StockCard, StockTaker, fixed_gib
from tessera.agent.telling.facts import SIMULATED_MACHINE, read_machine
from tessera.agent.telling.vgpu import read_vgpu
from tessera.agent.telling.writer import NodeTeller
from tessera.agent.wakeup import Changes
from tessera.clock import Clock
from tessera.kube.cache import Event
from tessera.kube.client import Client
from tessera.kube.events import EventRecorder, reference_to
from tessera.kube.resources import NODES, PODS, Node, Pod
from tessera.kubelet.seam import Kubelet
from tessera.nvml.errors import NotSupported, NvmlError
from tessera.nvml.worker import AsyncNvml, InlineNvml

_log = logging.getLogger(__name__)

#: Seconds before a kubelet that did not answer at the start is asked again.
_KUBELET_PAUSE = 0.5
#: Seconds of one wait for hardware events; the call is made again at once.
_EVENT_WAIT = 60.0


async def run(
    options: AgentOptions,
    client: Client,
    hardware: AsyncNvml,
    kubelet: Kubelet,
    clock: Clock,
    *,
    rng: random.Random | None = None,
    reboot: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Runs one node's agent until cancelled. It may be killed at any moment and started again.

    Args:
        options: which node, which folders.
        client: the API server; its identity needs what ``deploy/`` grants to the agent.
        hardware: the node's cards, already entered (``async with``); the caller closes it.
        kubelet: the node's kubelet.
        clock: the time.
        rng: for jitter; seeded in tests.
        reboot: reboots the node, where the options allow it; raises OSError if it cannot.

    Raises:
        NvmlError: the cards cannot be listed at all.
        ExceptionGroup: a part failed in a way that only a fresh start can mend.
    """
    agent = Agent(options, client, hardware, kubelet, clock, rng=rng or random.Random(), reboot=reboot)
    await agent.run()


class Agent:
    """All parts of one node's agent."""

    def __init__(
        self,
        options: AgentOptions,
        client: Client,
        hardware: AsyncNvml,
        kubelet: Kubelet,
        clock: Clock,
        *,
        rng: random.Random,
        reboot: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._options = options
        self._client = client
        self._hardware = hardware
        self._kubelet = kubelet
        self._clock = clock
        self._rng = rng
        self._simulated = isinstance(hardware, InlineNvml)
        self._changes = Changes()
        self._metrics = Metrics()
        self._mirror = Mirror(client, node_name=options.node_name, namespace=options.namespace, clock=clock, rng=rng)
        self._events = EventRecorder(
            client, component="tessera-agent", instance=options.node_name, clock=clock, rng=rng
        )
        self._stock = StockTaker(hardware, self._changes)
        self._roles = Roles(options.state_dir / "roles.json")
        self._following = self._made_following()
        self._health = self._made_health()
        self._mps = self._made_mps()
        self._layouts = self._made_layouts(reboot if options.mig_reboot else None)
        self._on_demand = self._made_on_demand()
        self._holders = Holders(kubelet, self._mirror.live)
        self._shelf = self._made_shelf()
        self._memory = self._made_memory()
        self._report = Report(
            following=self._following,
            shelf=self._shelf,
            layouts=self._layouts,
            health=self._health,
            mps=self._mps,
            mig_strategy=options.mig_strategy,
        )
        self._teller = self._made_teller()
        self._mirror.nodes.add_handler(self._seen)
        self._mirror.pods.add_handler(self._seen)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run())
            if self._options.http_port is not None:
                group.create_task(serve_http(self._options.http_port, self._metrics.registry, self._is_ready))
            group.create_task(self._following.run())
            await self._mirror.start(group)
            await self._following.first_look()
            await self._take_stock()
            await self._note_holders()
            group.create_task(self._watch_hardware())
            for part in (self._layouts, self._mps, self._health, self._teller, self._memory):
                group.create_task(part.run(), name=type(part).__name__)
            while not self._roles.decided:
                await self._changes.wait(self._changes.count)
            group.create_task(self._on_demand.run())
            group.create_task(self._shelf.run())

    def _is_ready(self) -> bool:
        return self._on_demand.ready and self._shelf.serves

    def _seen(self, _event: Event[Node] | Event[Pod]) -> None:
        self._changes.notify()

    async def _take_stock(self) -> None:
        stock = await self._stock.refresh()
        self._health.cards(card.info for card in stock.cards)

    async def _note_holders(self) -> None:
        """Leaves cards that pods hold on the static side where no file says who has them: MIG mode is not theirs."""
        parents = {each: card.uuid for card in self._stock.stock.cards for each in (card.uuid, *card.mig_attributes)}
        while any(not self._roles.knows(card) for card in parents.values()):
            try:
                held = {parents[uuid] for uuid in await self._holders.now() if uuid in parents}
            except ConnectionError as error:
                _log.warning("nothing is done to the cards before kubelet says which pods hold them: %s", error)
                await self._clock.sleep(_KUBELET_PAUSE)
                continue
            self._roles.begin({card: Role.STATIC for card in held if not self._roles.knows(card)})
            return

    async def _watch_hardware(self) -> None:
        while True:
            try:
                event = await self._hardware.wait_event(_EVENT_WAIT)
                self._health.happened(event)
                if event is not None:
                    await self._look_again(event.gpu)
            except NotSupported as error:
                _log.warning("hardware events are not watched, a lost card shows at the next probe only: %s", error)
                return
            except NvmlError as error:
                _log.warning("hardware events cannot be watched, again in %.0f s: %s", _EVENT_WAIT, error)
                self._health.broken(str(error))
                await self._clock.sleep(_EVENT_WAIT)

    async def _look_again(self, gpu: str | None) -> None:
        """Something happened to a card, or to any one: what is known of it is read anew."""
        self._on_demand.suspect(gpu)
        try:
            await self._take_stock()
        except NvmlError as error:
            _log.warning("the cards cannot be listed, what was last known of them holds: %s", error)

    # The parts --------------------------------------------------------------------------------------------------

    def _made_following(self) -> Following:
        return Following(
            self._client,
            node=self._mirror.node,
            profiles=self._options.sharing_config,
            profile_default=self._options.sharing_default,
            layouts=self._options.mig_config,
            layout_default=self._options.mig_default,
            state_dir=self._options.state_dir,
            changes=self._changes,
            clock=self._clock,
            rng=self._rng,
        )

    def _made_health(self) -> HealthWatch:
        return HealthWatch(
            hardware=self._hardware,
            policy=HealthPolicy.from_environment(self._options.environment),
            marks_file=self._options.state_dir / "health.json",
            boot_id=self._boot_id,
            clock=self._clock,
            changes=self._changes,
            tell=self._tell_node,
            metrics=self._metrics,
            resets=CardResets(hardware=self._hardware, free=self._nobody_has, done=self._look_again, clock=self._clock),
        )

    def _made_mps(self) -> MpsDaemons:
        root = self._options.mps_root
        real = ChildLauncher(root=self._options.mps_mount or root)
        return MpsDaemons(
            hardware=self._hardware,
            launcher=SimulatedLauncher(self._clock) if self._simulated else real,
            state_file=self._options.state_dir / "mps.json",
            host_root=root,
            changes=self._changes,
            clock=self._clock,
            occupied=self._occupied,
            rng=self._rng,
        )

    def _made_layouts(self, reboot: Callable[[], Awaitable[None]] | None) -> LayoutReconciler:
        return LayoutReconciler(
            hardware=self._hardware,
            stocktaker=self._stock,
            roles=self._roles,
            wish=lambda: self._following.layout,
            kubelet=self._kubelet,
            live=self._mirror.live,
            bound=self._mirror.bound,
            evictor=Evictor(self._client) if self._options.mig_evict else None,
            reboot=reboot,
            boot_id=self._boot_id,
            journal=self._options.state_dir / "layout.json",
            told=self._layout_told,
            lately_given=lambda: self._shelf.lately_given,
            was_reset=self._health.reset,
            instance_gone=self._health.instance_gone,
            overcounted=lambda: self._shelf.overcounted,
            changes=self._changes,
            clock=self._clock,
        )

    def _made_on_demand(self) -> OnDemand:
        return OnDemand(
            self._options,
            client=self._client,
            hardware=self._hardware,
            kubelet=self._kubelet,
            mirror=self._mirror,
            roles=self._roles,
            unfit=self._health.unfit,
            take_stock=self._stock.refresh,
            fixed_gib=lambda: fixed_gib(self._static_cards()),
            events=self._events,
            changes=self._changes,
            clock=self._clock,
            metrics=self._metrics,
            rng=self._rng,
        )

    def _made_shelf(self) -> Shelf:
        return Shelf(
            kubelet=self._kubelet,
            cards=self._static_cards,
            wish=lambda: self._following.sharing,
            settled=self._following.in_force,
            mig_strategy=self._options.mig_strategy,
            verdict=self._health.verdict,
            fenced=lambda: self._layouts.fenced | self._mps.fenced,
            changing=lambda: self._layouts.fenced,
            taken=self._on_demand.resources,
            mps=self._mps,
            hardware=self._hardware,
            holders=self._holders,
            options=AnswerOptions(
                list_strategies=self._options.device_list_strategies,
                ids_are_uuids=self._options.device_ids_are_uuids,
                pass_device_specs=self._options.pass_device_specs,
            ),
            cdi_dir=self._options.cdi_dir,
            names_file=self._options.state_dir / "resources.json",
            node=self._mirror.node,
            forget=self._forget,
            changes=self._changes,
            clock=self._clock,
        )

    def _made_memory(self) -> MemoryWatch:
        return MemoryWatch(
            hardware=self._hardware,
            processes=ProcessTable(),
            rules=Rules(mode=self._options.memory_limits),
            offer=lambda: self._shelf.offer,
            holders=self._holders.now,
            pods=self._mirror.live,
            evictor=Evictor(self._client),
            api_reachable=lambda: not self._mirror.nodes.reflector.failures,
            shares_file=self._options.state_dir / "shares.json",
            tell=self._tell_pod,
            metrics=self._metrics,
            changes=self._changes,
            clock=self._clock,
        )

    def _made_teller(self) -> NodeTeller:
        return NodeTeller(
            self._client,
            node_name=self._options.node_name,
            node=self._mirror.node,
            stock=lambda: self._stock.stock,
            sharing=self._report.sharing,
            on_demand=self._roles.on_demand,
            leaving=self._leaving,
            mig_state=self._report.mig_state,
            conditions=self._report.conditions,
            machine=SIMULATED_MACHINE if self._simulated else read_machine(),
            vgpu=None if self._simulated else read_vgpu(),
            events=self._events,
            changes=self._changes,
            clock=self._clock,
            rng=self._rng,
        )

    # What the parts ask of each other ---------------------------------------------------------------------------

    def _boot_id(self) -> str:
        node = self._mirror.node()
        return node.status.node_info.boot_id if node is not None else ""

    def _leaving(self) -> frozenset[str]:
        return frozenset(card.uuid for card in self._stock.stock.cards if self._roles.leaving(card.uuid))

    async def _nobody_has(self, uuid: str) -> bool:
        """Whether no pod has any part of a card, nor is about to get one."""
        card = self._stock.stock.card(uuid)
        parts = {uuid, *(card.mig_attributes if card is not None else ())}
        if self._on_demand.busy(uuid) or not parts.isdisjoint(self._shelf.lately_given):
            return False
        return parts.isdisjoint(await self._holders.now())

    def _occupied(self, uuid: str) -> str:
        return self._shelf.occupied(uuid)

    def _static_cards(self) -> Sequence[StockCard]:
        held = self._roles.static()
        return [card for card in self._stock.stock.cards if card.uuid in held and not self._roles.leaving(card.uuid)]

    async def _forget(self, resources: Sequence[str]) -> None:
        patch = forget_patch(resources)
        await self._client.merge_patch(NODES, self._options.node_name, patch, subresource="status")

    def _layout_told(self, status: LayoutStatus) -> None:
        _log.info("layout %s: %s, %s", status.layout or "(none)", status.state.value, status.message)
        self._changes.notify()

    def _tell_node(self, reason: str, text: str, kind: Literal["Normal", "Warning"]) -> None:
        node = self._mirror.node()
        about = reference_to(NODES, self._options.node_name, uid=node.metadata.uid if node is not None else "")
        self._events.record(about, reason, text, type=kind)

    def _tell_pod(self, pod: Pod, reason: str, text: str, kind: Literal["Normal", "Warning"]) -> None:
        about = reference_to(PODS, pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)
        self._events.record(about, reason, text, type=kind)
