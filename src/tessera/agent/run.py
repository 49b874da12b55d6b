"""Puts the parts of an agent together and runs them.

Start: mirror the node, its pods and its Instaslice object; read the cards; only then decide anything. From there all
parts work side by side and wake each other through one signal. Nothing here waits for the API server while a container
waits for its slice, except when a promise was not seen yet.
"""

import asyncio
import logging
import random

from tessera.agent.http import serve_http
from tessera.agent.metrics import Metrics
from tessera.agent.mirror import Mirror
from tessera.agent.ondemand.side import OnDemand
from tessera.agent.options import AgentOptions
from tessera.agent.roles import Role, Roles
from tessera.agent.stock import StockTaker
from tessera.agent.wakeup import Changes
from tessera.api.names import MIG_CONFIG_LABEL, is_on_demand
from tessera.clock import Clock
from tessera.kube.cache import Event
from tessera.kube.client import Client
from tessera.kube.events import EventRecorder
from tessera.kube.resources import Node, Pod
from tessera.kubelet.seam import Kubelet
from tessera.nvml.errors import NotSupported, NvmlError
from tessera.nvml.worker import AsyncNvml

_log = logging.getLogger(__name__)

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
) -> None:
    """Runs one node's agent until cancelled. It may be killed at any moment and started again.

    Args:
        options: which node, which folders.
        client: the API server; its identity needs what ``deploy/`` grants to the agent.
        hardware: the node's cards, already entered (``async with``); the caller closes it.
        kubelet: the node's kubelet.
        clock: the time.
        rng: for jitter; seeded in tests.

    Raises:
        NvmlError: the cards cannot be listed at all.
        ExceptionGroup: a part failed in a way that only a fresh start can mend.
    """
    agent = Agent(options, client, hardware, kubelet, clock, rng=rng or random.Random())
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
    ) -> None:
        self._options = options
        self._hardware = hardware
        self._clock = clock
        self._changes = Changes()
        self._metrics = Metrics()
        self._events = EventRecorder(
            client, component="tessera-agent", instance=options.node_name, clock=clock, rng=rng
        )
        self._mirror = Mirror(client, node_name=options.node_name, namespace=options.namespace, clock=clock, rng=rng)
        self._stock = StockTaker(hardware, self._changes)
        self._roles = Roles(options.state_dir / "roles.json")
        self._on_demand = OnDemand(
            options,
            client=client,
            hardware=hardware,
            kubelet=kubelet,
            mirror=self._mirror,
            roles=self._roles,
            unfit=lambda _uuid: False,
            events=self._events,
            changes=self._changes,
            clock=clock,
            metrics=self._metrics,
            rng=rng,
        )
        self._mirror.nodes.add_handler(self._seen)
        self._mirror.pods.add_handler(self._seen)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run())
            if self._options.http_port is not None:
                group.create_task(
                    serve_http(self._options.http_port, self._metrics.registry, lambda: self._on_demand.ready)
                )
            await self._mirror.start(group)
            await self._stock.refresh()
            self._decide()
            group.create_task(self._on_demand.run())
            group.create_task(self._watch_hardware())

    def _decide(self) -> None:
        node = self._mirror.node()
        label = node.metadata.labels.get(MIG_CONFIG_LABEL, "") if node is not None else ""
        self._roles.wish(
            {
                card.uuid: Role.ON_DEMAND if card.info.mig_capable and is_on_demand(label) else Role.STATIC
                for card in self._stock.stock.cards
            }
        )

    def _seen(self, _event: Event[Node] | Event[Pod]) -> None:
        if self._roles.decided:
            self._decide()
        self._changes.notify()

    async def _watch_hardware(self) -> None:
        while True:
            try:
                event = await self._hardware.wait_event(_EVENT_WAIT)
            except NotSupported as error:
                _log.warning("hardware events are not watched, a lost card shows at the next call only: %s", error)
                return
            except NvmlError as error:
                _log.warning("hardware events cannot be watched, again in %.0f s: %s", _EVENT_WAIT, error)
                await self._clock.sleep(_EVENT_WAIT)
                continue
            if event is not None:
                self._on_demand.suspect(event.gpu)
