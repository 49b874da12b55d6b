"""Runs one node's agent from its start to its end, over drivers that come late, go, and are replaced by others.

While a driver is there, :mod:`tessera.agent.run` runs an agent. From one driver to the next everything is made
anew from hardware, files and the API server, as after a restart of the process. The differences from a restart:

1. first, the lists that kubelet has become empty, so that the node's capacity is right at once;
2. MPS daemons end with the driver, whatever their clients compute, since they would keep it in use;
3. NVML is closed before the Node shows that the driver is released (:mod:`tessera.agent.driver.gate`).

When an annotation of the Node asks Tessera to leave it, the agent does so (:mod:`tessera.agent.removal`), and does
not begin again while the annotation is there.

``/healthz`` is served all the time: a late driver is no reason to restart the process.

An agent that ends because a label keeps Tessera off the node takes its devices from kube-scheduler first, and lets the
pods arrive that are on their way: kubelet would fail them for good.

Another agent of the node, of a version before, may still run. Then this one waits for its turn
(:mod:`tessera.agent.run`), and counts as ready meanwhile: an update removes the other one only then.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from tessera.access.page_reader import AGENT_AUDIENCE
from tessera.access.reviewer import PageGuard, Reviewer
from tessera.agent.base.host import ProcessTable, RunOnHost
from tessera.agent.base.node_files import MarkerFiles, find_newer_file
from tessera.agent.base.node_objects import NodeMirror, driver_settings
from tessera.agent.base.runtime import AgentEnvironment
from tessera.agent.base.settings import AgentOptions
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.driver.gate import DriverGate, OpenDriver, ReadyConditionWriter
from tessera.agent.driver.hardware import DriverBackend, DriverHome, WaitReason
from tessera.agent.driver.kubelet_gate import GatedKubelet
from tessera.agent.mps.state import ControlFailed
from tessera.agent.removal import AnswerWriter, NodeRemoval
from tessera.agent.run import HANDOVER_TIMEOUT, NodeTurn, run_components
from tessera.agent.satellites import CORE_ALONE, NodePrograms, NodeSatellites
from tessera.agent.wiring import Components
from tessera.api.nodes.node_cards import keep_off_label
from tessera.api.nodes.node_marks import REMOVAL_ANNOTATION
from tessera.api.nodes.usage import USAGE_PATH, NodeUsage
from tessera.clock import Clock
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import Node
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.errors import NvmlError
from tessera.replay.recorder import Recorders, serve_records
from tessera.serving.status_server import serve_status
from tessera.status_pages import JsonDocuments

_log = logging.getLogger(__name__)

#: Seconds before files of a newer agent are looked for again.
STATE_RECHECK = 10.0
#: What decides whether the Node shows the cards of an open driver.
_PUBLISHED = Fact.DRIVER | Fact.OWNERS | Fact.SLICES | Fact.OFFER | Fact.ENTRIES | Fact.LISTS | Fact.NODE_STATUS


async def run_lifecycle(
    options: AgentOptions,
    client: Client,
    driver: DriverBackend,
    kubelet: Kubelet,
    clock: Clock,
    *,
    rng: random.Random | None = None,
    host: RunOnHost | None = None,
    processes: ProcessTable | None = None,
    programs: NodePrograms | None = None,
    satellites: NodeSatellites = CORE_ALONE,
    on_started: Callable[[], None] = lambda: None,
    publish: Callable[[JsonDocuments], None] | None = None,
) -> None:
    """Runs one node's agent until cancelled. It may be killed at any moment and started again.

    Args:
        options: the node's name, folders and settings.
        client: the API server; its identity needs the rights that ``deploy/`` grants to the agent.
        driver: finds the node's driver and opens it.
        kubelet: the node's kubelet.
        clock: the time.
        rng: for jitter; seeded in tests.
        host: runs commands on the host, which reboot it; ``None`` if nothing can.
        processes: the machine's processes, which the lab simulates; ``None`` for those of the kernel.
        programs: what runs programs on the node; ``None`` for the machine's own.
        satellites: what runs beside the core.
        on_started: called once the agent has its turn on the node, or waits for it.
        publish: takes the agent's own pages where no port serves them.

    Raises:
        ExceptionGroup: a part failed, and only a fresh start can help.
    """
    environment = AgentEnvironment(
        options=options,
        client=client,
        clock=clock,
        rng=rng or random.Random(),
        host=host,
        recorders=Recorders(options.record),
        processes=processes or ProcessTable(),
        publish=publish,
    )
    await _Lifecycle(environment, driver, kubelet, on_started, programs=programs, satellites=satellites).run()


class _Lifecycle:
    """One node's agent over all drivers; an :class:`~tessera.status_pages.ProcessStatus`.

    Args:
        environment: options, API server, clock and recorders of this process.
        driver: finds the node's driver and opens it.
        kubelet: the node's kubelet.
        on_started: called once the agent has its turn on the node, or waits for it.
        programs: what runs programs on the node; ``None`` for the machine's own.
        satellites: what runs beside the core.
    """

    def __init__(
        self,
        environment: AgentEnvironment,
        driver: DriverBackend,
        kubelet: Kubelet,
        on_started: Callable[[], None],
        *,
        programs: NodePrograms | None,
        satellites: NodeSatellites,
    ) -> None:
        options, client = environment.options, environment.client
        clock, rng = environment.clock, environment.rng
        self._environment = environment
        self._options = options
        self._driver = driver
        self._kubelet = kubelet
        self._programs = programs
        self._satellites = satellites
        self._clock = clock
        self._guard = PageGuard(Reviewer(client), clock, audience=AGENT_AUDIENCE, open_metrics=options.open_metrics)
        self._changes = ChangeNotifier()
        self._markers = MarkerFiles(options.markers_dir)
        self._node = NodeMirror(client, options.node_name, clock=clock, rng=rng)
        self._events = EventRecorder(
            client, component="tessera-agent", instance=options.node_name, clock=clock, rng=rng
        )
        self._condition = ReadyConditionWriter(environment, self._node, self._events)
        self._gate = DriverGate(
            environment,
            driver=driver,
            markers=self._markers,
            condition=self._condition,
            changes=self._changes,
        )
        #: Why this agent does not begin: a file of a newer one; empty if there is none.
        self._refusal = ""
        self._turn = NodeTurn(options.state_dir, clock, on_started)
        #: The agent on the open driver; ``None`` while no driver is open.
        self._components: Components | None = None
        self._removal = NodeRemoval(
            options,
            self._gate,
            answers=AnswerWriter(environment, self._node),
            condition=self._condition,
            turn=self._turn,
            changes=self._changes,
        )
        self._node.informer.add_handler(self._handle_node, reads=driver_settings)

    def _handle_node(self, event: WatchEvent[Node]) -> None:
        self._gate.note_node_change(None if event.kind is EventKind.DELETED else event.object)
        self._condition.note_node_change()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            documents = {USAGE_PATH: self._usage_json}
            if self._environment.publish is not None:
                self._environment.publish(documents)
            if self._options.http_port is not None:
                pages = serve_status(
                    self,
                    self._options.http_port,
                    address=self._options.http_address,
                    documents=documents,
                    guard=self._guard,
                )
                group.create_task(pages)
            group.create_task(serve_records(self._environment.recorders, self._options.record_socket))
            for part in (self._events.run(), self._node.informer.run(), self._condition.run()):
                group.create_task(part)
            group.create_task(_explain_watch_errors(self._markers.follow(self._changes)))
            group.create_task(_explain_watch_errors(self._driver.watch(self._changes)))
            await self._node.informer.wait_synced()
            await self._wait_for_known_state()
            try:
                await self._turn.take()
                await self._run_on_drivers()
            finally:
                self._turn.end(leaves=self._is_leaving())

    async def _wait_for_known_state(self) -> None:
        """Returns once no file of a newer agent is there. Until then a newer agent that still runs goes on."""
        while refusal := find_newer_file(self._options.state_dir):
            if refusal != self._refusal:
                _log.error("%s", refusal)
                self._refusal = refusal
            if not self._turn.is_taken():
                self._condition.set_waiting(WaitReason("StateOfNewerVersion", refusal))
            await self._clock.sleep(STATE_RECHECK)
        self._refusal = ""

    async def _run_on_drivers(self) -> None:
        while True:
            nvml_error = ""
            #: What stays on the cards; ``None`` unless they were released because Tessera leaves the node.
            notes: list[str] | None = None
            async with AsyncExitStack() as stack:
                opened = await self._gate.open_driver(stack)
                if opened is None:
                    notes = []
                elif self._gate.removal is not None:
                    notes = await self._removal.release_cards(self._build(opened, self._kubelet), self._kubelet)
                elif await self._gate.wait_validated(opened):
                    nvml_error = await self._run_agent(opened)
            self._gate.note_released()
            if notes is not None:
                await self._removal.stay_away(notes, real=opened is not None and not opened.hardware.simulated)
            elif nvml_error:
                await self._gate.report_nvml_failure(nvml_error)

    async def _run_agent(self, opened: OpenDriver) -> str:
        """Runs an agent on a driver until it must be released; returns NVML's error, empty if NVML did not fail."""
        kubelet = GatedKubelet(self._kubelet, self._changes, self._clock)
        components = self._components = self._build(opened, kubelet)
        agent = asyncio.create_task(run_components(components))
        release = asyncio.create_task(self._wait_for_release(opened, components, kubelet))
        try:
            await asyncio.wait({agent, release}, return_when=asyncio.FIRST_COMPLETED)
            leaves = self._gate.removal is not None  # it may be withdrawn from here on
            nvml_error = _nvml_failure(agent)
            if agent.done() and not nvml_error:
                agent.result()
            _log.info("the driver is released%s", f": {opened.hardware.gone}" if opened.hardware.gone else "")
            await kubelet.close()
        except asyncio.CancelledError:
            if self._turn.has_successor:
                await kubelet.hold()
                await _cancel(agent, release)
                await self._hand_over(kubelet)
            elif not agent.done() and self._is_kept_off():
                await components.advertiser.withdraw(kubelet.resources)
            raise
        finally:
            self._components = None
            components.detach()
            await _cancel(agent, release)
            await kubelet.end()
        if opened.hardware.gone or not leaves:
            await _end_daemons(components)
        return "" if opened.hardware.gone else nvml_error

    async def _hand_over(self, kubelet: GatedKubelet) -> None:
        """Gives the turn to the successor; if Tessera leaves the node, no list of devices stays either."""
        handing = asyncio.create_task(self._turn.hand_over())
        leaving = asyncio.create_task(self._changes.about(Fact.DRIVER).wait_until(self._is_leaving, HANDOVER_TIMEOUT))
        try:
            await asyncio.wait({handing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel(handing, leaving)
        if self._is_leaving():
            await kubelet.close()

    def _is_kept_off(self) -> bool:
        """True if a label keeps Tessera off the node, which it does not leave by itself."""
        node = self._node.node()
        return not self._is_leaving() and node is not None and keep_off_label(node.metadata.labels) != ""

    def _is_leaving(self) -> bool:
        """True if Tessera leaves the node."""
        return self._gate.removal is not None

    def _build(self, opened: OpenDriver, kubelet: Kubelet) -> Components:
        return Components(
            self._environment,
            opened.hardware,
            kubelet,
            node=self._node,
            changes=self._changes,
            driver_root=self._driver.root(opened.found.home),
            host_driver=opened.found.home is DriverHome.HOST,
            programs=self._programs,
            satellites=self._satellites,
        )

    async def _wait_for_release(self, opened: OpenDriver, components: Components, kubelet: GatedKubelet) -> None:
        """Returns when a driver must be released; before that, reports once that kubelet has published the cards.

        The report then holds for as long as this driver is used: other conditions report later changes of cards and of
        kubelet's counts.
        """
        published = served = False
        while self._gate.is_usable(opened):
            done = published and served
            changes = self._changes.about(Fact.DRIVER if done else _PUBLISHED)
            count = changes.count
            accepted = components.ready and kubelet.is_accepted and (kubelet.devices or not components.has_devices)
            if accepted and not published:
                node = self._node.node()
                published = node is not None and kubelet.is_published(node.status.allocatable)
                self._gate.note_advertised(published=published)
            if accepted and not served and components.slices.giver.is_registered:
                served = True
                self._turn.note_serving()
            if done is (published and served):
                await changes.wait(count)

    # State for the HTTP server ----------------------------------------------------------------------------------

    def metrics_text(self) -> bytes:
        """See :meth:`~tessera.status_pages.ProcessStatus.metrics_text`; empty while no driver is open."""
        return b"" if self._components is None else self._components.metrics_text()

    def _usage_json(self) -> bytes:
        """The page ``/usage``; no cards while no driver is open."""
        if self._components is None:
            return msgspec.json.encode(NodeUsage(node=self._options.node_name))
        return self._components.exporter.usage_json()

    def unready_reason(self) -> str:
        """See :meth:`~tessera.status_pages.ProcessStatus.unready_reason`."""
        if self._refusal:
            return self._refusal
        if self._turn.waiting:
            return ""
        if self._components is not None:
            return "" if self._components.ready else "cards not read yet"
        if self._gate.removal is not None:
            return f"Tessera leaves this node, as the annotation {REMOVAL_ANNOTATION} asks"
        return (
            "cards not read yet"
            if self._condition.desired_condition is None
            else self._condition.desired_condition.message
        )


async def _explain_watch_errors(watch: Coroutine[Any, Any, None]) -> None:
    """Awaits a watch of files; names the likely cause of its errors."""
    try:
        await watch
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


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _end_daemons(components: Components) -> None:
    try:
        await components.mps.end_all()
    except (ControlFailed, OSError) as error:
        _log.warning("an MPS daemon cannot be ended, it keeps the driver in use: %s", error)
