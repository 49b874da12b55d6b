"""Runs one node's agent from its start to its end, over drivers that come late, go, and are replaced by others.

While a driver is there, :mod:`tessera.agent.main.run` runs an agent. From one driver to the next everything is made
anew from hardware, files and the API server, as after a restart of the process. The differences from a restart:

1. first, the lists that kubelet has become empty, so that the node's capacity is right at once;
2. MPS daemons end with the driver, whatever their clients compute, since they would keep it in use;
3. NVML is closed before the Node shows that the driver is released (:mod:`tessera.agent.driver.ready_condition`).

``/healthz`` is served all the time: a late driver is no reason to restart the process.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

from prometheus_client import CollectorRegistry

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.marker_files import MarkerFiles
from tessera.agent.base.metrics import serve_http
from tessera.agent.base.node_objects import node_informer
from tessera.agent.base.options import AgentOptions
from tessera.agent.driver.gate import DriverGate, OpenDriver
from tessera.agent.driver.hardware import DriverBackend
from tessera.agent.driver.kubelet_gate import GatedKubelet
from tessera.agent.driver.ready_condition import ReadyConditionWriter
from tessera.agent.main.run import run_components
from tessera.agent.main.wiring import Components
from tessera.agent.mps.interfaces import ControlFailed
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import Node
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.errors import NvmlError
from tessera.replay.service import Recorders, serve_records

_log = logging.getLogger(__name__)


async def run_lifecycle(
    options: AgentOptions,
    client: Client,
    driver: DriverBackend,
    kubelet: Kubelet,
    clock: Clock,
    *,
    rng: random.Random | None = None,
    reboot: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Runs one node's agent until cancelled. It may be killed at any moment and started again.

    Args:
        options: the node's name, folders and settings.
        client: the API server; its identity needs the rights that ``deploy/`` grants to the agent.
        driver: finds the node's driver and opens it.
        kubelet: the node's kubelet.
        clock: the time.
        rng: for jitter; seeded in tests.
        reboot: reboots the node, if the options allow it; raises OSError on failure.

    Raises:
        ExceptionGroup: a part failed, and only a fresh start can help.
    """
    await _Lifecycle(options, client, driver, kubelet, clock, rng=rng or random.Random(), reboot=reboot).run()


class _Lifecycle:
    def __init__(
        self,
        options: AgentOptions,
        client: Client,
        driver: DriverBackend,
        kubelet: Kubelet,
        clock: Clock,
        *,
        rng: random.Random,
        reboot: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._options = options
        self._client = client
        self._driver = driver
        self._kubelet = kubelet
        self._clock = clock
        self._rng = rng
        self._reboot = reboot
        self._changes = ChangeNotifier()
        self._markers = MarkerFiles(options.markers_dir)
        self._nodes = node_informer(client, options.node_name, clock=clock, rng=rng)
        self._events = EventRecorder(
            client, component="tessera-agent", instance=options.node_name, clock=clock, rng=rng
        )
        self._teller = ReadyConditionWriter(
            client,
            node_name=options.node_name,
            node=self._node,
            events=self._events,
            clock=clock,
            rng=rng,
        )
        self._gate = DriverGate(
            options,
            driver=driver,
            markers=self._markers,
            condition=self._teller,
            changes=self._changes,
            clock=clock,
            rng=rng,
        )
        self._parts: Components | None = None
        self._recorders = Recorders(options.record)
        self._nodes.add_handler(self._node_seen)

    def _node_seen(self, event: WatchEvent[Node]) -> None:
        self._gate.node_changed(None if event.kind is EventKind.DELETED else event.object)
        self._teller.node_changed()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._options.http_port is not None:
                group.create_task(serve_http(self._options.http_port, self._registry, self._waits))
            group.create_task(serve_records(self._recorders, self._options.record_socket))
            for part in (self._events.run(), self._nodes.run(), self._teller.run()):
                group.create_task(part)
            group.create_task(_follow(self._markers.follow(self._changes.notify)))
            group.create_task(_follow(self._driver.watch(self._changes.notify)))
            await self._nodes.wait_synced()
            while True:
                trouble = ""
                async with AsyncExitStack() as stack:
                    opened = await self._gate.open_driver(stack)
                    if await self._gate.wait_validated(opened):
                        trouble = await self._use(opened)
                self._gate.released()
                if trouble:
                    await self._gate.nvml_failed(trouble)

    async def _use(self, opened: OpenDriver) -> str:
        """Runs an agent on a driver until it must be released; returns NVML's error, empty if NVML did not fail."""
        advertising = GatedKubelet(self._kubelet, self._changes, self._clock)
        parts = self._parts = self._made(opened, advertising)
        agent = asyncio.create_task(run_components(parts))
        over = asyncio.create_task(self._over(opened, parts, advertising))
        try:
            await asyncio.wait({agent, over}, return_when=asyncio.FIRST_COMPLETED)
            trouble = _nvml_failure(agent)
            if agent.done() and not trouble:
                agent.result()
            _log.info("the driver is let go of%s", f": {opened.hardware.gone}" if opened.hardware.gone else "")
            await advertising.close()
        finally:
            self._parts = None
            parts.leave()
            await _ended(agent, over)
        await _end_daemons(parts)
        return "" if opened.hardware.gone else trouble

    async def _over(self, opened: OpenDriver, parts: Components, advertising: GatedKubelet) -> None:
        """Returns when a driver must be released; before that, reports once that kubelet has published the cards.

        The report then holds for as long as this driver is used: other conditions report later changes of cards and of
        kubelet's counts.
        """
        published = False
        while self._gate.is_usable(opened):
            seen = self._changes.count
            taken = parts.ready and advertising.accepted and (advertising.devices or not parts.has_devices)
            if taken and not published:
                node = self._node()
                published = node is not None and advertising.is_published(node.status.allocatable)
                self._gate.advertised(published=published)
            await self._changes.wait(seen)

    def _made(self, opened: OpenDriver, kubelet: Kubelet) -> Components:
        return Components(
            self._options,
            self._client,
            opened.hardware,
            kubelet,
            self._clock,
            rng=self._rng,
            reboot=self._reboot,
            nodes=self._nodes,
            changes=self._changes,
            driver_root=self._driver.root(opened.found.home),
            recorders=self._recorders,
        )

    def _node(self) -> Node | None:
        return self._nodes.cache.get(self._options.node_name)

    # State for the HTTP server ----------------------------------------------------------------------------------

    def _registry(self) -> CollectorRegistry:
        return CollectorRegistry() if self._parts is None else self._parts.metrics.registry

    def _waits(self) -> str:
        if self._parts is not None:
            return "" if self._parts.ready else "cards not read yet"
        return "cards not read yet" if self._teller.desired is None else self._teller.desired.message


async def _follow(events: Coroutine[Any, Any, None]) -> None:
    try:
        await events
    except OSError as error:
        raise OSError(f"changes on the node cannot be followed, see fs.inotify.max_user_instances: {error}") from error


def _nvml_failure(agent: "asyncio.Task[None]") -> str:
    """NVML's error, if it alone ended an agent; empty if the agent runs on or ended for another reason."""
    if not agent.done():
        return ""
    failed = agent.exception()
    if not isinstance(failed, BaseExceptionGroup):
        return ""
    nvml, other = failed.split(NvmlError)
    return "; ".join(_texts(nvml)) if nvml is not None and other is None else ""


def _texts(group: BaseExceptionGroup[BaseException]) -> Iterator[str]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _texts(error)
        else:
            yield str(error)


async def _ended(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _end_daemons(parts: Components) -> None:
    try:
        await parts.mps.end_all()
    except (ControlFailed, OSError) as error:
        _log.warning("an MPS daemon cannot be ended, it keeps the driver in use: %s", error)
