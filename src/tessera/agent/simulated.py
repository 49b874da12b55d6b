"""A simulated machine's driver and programs: what the agent calls in place of NVIDIA's. The agent knows none of it.

The control daemons for MPS take the commands of :mod:`tessera.agent.mps.state` and answer them as documented, on the
injected clock. Tests make a daemon die, stop answering, or have clients. That a daemon runs, and its containers that
are clients, is a part of the simulated machine. So daemons outlive the agent, as real ones in the MPS host do: the
next agent finds them. Limits are kept in this process only; the next agent sets them again.
"""

import asyncio
import itertools
import operator
from collections.abc import Callable, Mapping
from pathlib import Path

from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.driver.hardware import DriverHome
from tessera.agent.health.repairs import QUICK_SECONDS, failed
from tessera.agent.mps.state import ControlFailed, DaemonId, DaemonSpec, LaunchFailed
from tessera.api.nodes.node_marks import DRIVER_CONTAINER_READY
from tessera.api.nodes.preflights import CardPreflight
from tessera.clock import Clock, until_set
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuInfo
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.machine_state import SimMpsDaemon
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

#: Seconds after which a daemon that does not answer fails.
CONTROL_TIMEOUT = 5.0
#: PID of the server of containers, and the first of its clients.
_CONTAINERS = 2_000


class SimulatedServer:
    """A server of a daemon: its limits and its clients' PIDs."""

    def __init__(self, limits: Mapping[str, str], thread_percent: str) -> None:
        self.limits = dict(limits)
        self.thread_percent = thread_percent
        self.clients: set[int] = set()


class SimulatedDaemon:
    """One daemon.

    Args:
        spec: its resource and cards.
        mark: identifies the daemon.
        clock: for its latencies.
        machine: the machine on which it runs.

    Attributes:
        id: identifies the daemon.
        limits: the default memory limit by card.
        thread_percent: the default thread share.
        servers: its servers by PID.
        commands: every command so far.
        hung: true if it no longer answers.
    """

    def __init__(self, spec: DaemonSpec, mark: DaemonId, clock: Clock, machine: SimulatedMachine) -> None:
        self.spec = spec
        self.limits: dict[str, str] = {}
        self.thread_percent = "100"
        self.servers: dict[int, SimulatedServer] = {}
        self.commands: list[str] = []
        self.hung = False
        self.id = mark
        self._clock = clock
        self._machine = machine
        self._pids = itertools.count(1000)
        self._how = "its container ended"

    @property
    def alive(self) -> bool:
        """True if the daemon has not ended."""
        return any(each.id == self.id for each in self._machine.mps_daemons)

    async def wait_ended(self) -> str:
        """Returns once the daemon has ended."""
        changed = asyncio.Event()
        unsubscribe = self._machine.subscribe(changed.set)
        try:
            while self.alive:
                changed.clear()
                await until_set(changed, self._machine.poll_interval)
        finally:
            unsubscribe()
        return self._how

    async def control(self, command: str) -> str:
        """The answer to one control command.

        Raises:
            ControlFailed: the daemon has ended, hangs, or does not know the command.
        """
        if self.hung:
            await self._clock.sleep(CONTROL_TIMEOUT)
            raise ControlFailed(f"MPS daemon of {self.spec.resource} does not answer `{command}`")
        if not self.alive:
            raise ControlFailed(f"MPS daemon of {self.spec.resource} has ended")
        self.commands.append(command)
        return self._answer(*command.split())

    async def end(self) -> None:
        """Ends the daemon."""
        self.die("quit")

    def die(self, how: str = "signal 9") -> None:
        """Ends the daemon and its servers at once."""
        self.servers.clear()
        self._how = how
        with self._machine.change() as machine:
            machine.mps_daemons = [each for each in machine.mps_daemons if each.id != self.id]

    def connect(self) -> int:
        """Connects a client, and starts a server if there is none; returns the client's PID."""
        if not self.servers:
            self.servers[next(self._pids)] = SimulatedServer(self.limits, self.thread_percent)
        client = next(self._pids)
        next(iter(self.servers.values())).clients.add(client)
        return client

    def disconnect(self, client: int) -> None:
        """Disconnects a client; the server stays."""
        for server in self.servers.values():
            server.clients.discard(client)

    def _answer(self, verb: str, *arguments: str) -> str:
        match verb, arguments:
            case "get_server_list", ():
                return "\n".join(map(str, [*self.servers, *([_CONTAINERS] if self._containers() else ())]))
            case "get_client_list", (pid,) if pid == str(_CONTAINERS):
                return "\n".join(str(_CONTAINERS + number) for number, _ in enumerate(self._containers(), 1))
            case "set_device_pinned_mem_limit" | "set_active_thread_percentage", (pid, *_) if pid == str(_CONTAINERS):
                return ""
            case "get_client_list", (pid,):
                return "\n".join(map(str, sorted(self._server(pid).clients)))
            case "set_default_device_pinned_mem_limit", (card, amount):
                self.limits[card] = amount
            case "set_default_active_thread_percentage", (percent,):
                self.thread_percent = percent
            case "set_device_pinned_mem_limit", (pid, card, amount):
                self._server(pid).limits[card] = amount
            case "set_active_thread_percentage", (pid, percent):
                self._server(pid).thread_percent = percent
            case _:
                raise ControlFailed(f"MPS daemon of {self.spec.resource}: unknown command {verb}")
        return ""

    def _containers(self) -> list[str]:
        """The containers that are clients; one server serves all of them."""
        return [client for each in self._machine.mps_daemons if each.id == self.id for client in each.clients]

    def _server(self, pid: str) -> SimulatedServer:
        if (server := self.servers.get(int(pid))) is None:
            raise ControlFailed(f"MPS daemon of {self.spec.resource}: no server {pid}")
        return server


class SimulatedLauncher:
    """Starts simulated daemons.

    Args:
        clock: for their latencies.
        machine: the machine on which they run.
        start_seconds: duration of a start, seconds.

    Attributes:
        refusal: why no daemon can be started; empty if one can.
        asked: times of the calls of :meth:`find_obstacle`, monotonic seconds.
        started: every daemon that this launcher has started or found, in order.
    """

    def __init__(self, clock: Clock, machine: SimulatedMachine, *, start_seconds: float = 0.0) -> None:
        self.refusal = ""
        self.asked: list[float] = []
        self.started: list[SimulatedDaemon] = []
        self._clock = clock
        self._machine = machine
        self._start_seconds = start_seconds

    def daemon(self, resource: str) -> SimulatedDaemon | None:
        """The daemon that serves a resource now."""
        return next((each for each in self.started if each.alive and each.spec.resource == resource), None)

    def find_obstacle(self) -> str:
        """The reason that no daemon can be started."""
        self.asked.append(self._clock.monotonic())
        if self._machine.mps_host is False:
            return "the node's MPS host does not run yet; see the pods of the DaemonSet tessera-mps"
        return self.refusal

    async def start(self, spec: DaemonSpec, note: Callable[[DaemonId], None]) -> SimulatedDaemon:
        """Starts a daemon.

        Raises:
            LaunchFailed: a daemon serves the resource already.
        """
        if self.daemon(spec.resource) is not None:
            raise LaunchFailed(f"{spec.resource}: an MPS daemon serves its pipe directory already")
        with self._machine.change() as machine:
            machine.next_pid += 1
            mark = DaemonId(f"simulated/{machine.next_pid}")
        daemon = SimulatedDaemon(spec, mark, self._clock, self._machine)
        note(daemon.id)
        with self._machine.change() as machine:
            machine.mps_daemons.append(SimMpsDaemon(daemon.id, spec.resource, spec.cards))
        self.started.append(daemon)
        await self._clock.sleep(self._start_seconds)
        return daemon

    def find(self, resource: str, mark: DaemonId) -> SimulatedDaemon | None:
        """A daemon that was started earlier."""
        daemon = self.daemon(resource)
        if daemon is not None and daemon.id == mark:
            return daemon
        for each in self._machine.mps_daemons:
            if (each.id, each.resource) == (mark, resource):
                daemon = SimulatedDaemon(DaemonSpec(resource, each.cards), mark, self._clock, self._machine)
                self.started.append(daemon)
                return daemon
        return None

    async def quit_unknown(self, resource: str) -> None:
        """Ends a daemon without a record."""
        with self._machine.change() as machine:
            machine.mps_daemons = [each for each in machine.mps_daemons if each.resource != resource]

    async def end_leftovers(self, mark: DaemonId) -> None:
        """Does nothing: a simulated daemon's servers end with it."""


class SimulatedDriver:
    """A simulated machine's driver. It has no files, so the marker of a driver container suffices.

    Args:
        machine: the simulated machine.
        clock: the time.
        markers: the folder of markers; ``None`` if there is none.
    """

    def __init__(self, machine: SimulatedMachine, clock: Clock, *, markers: Path | None = None) -> None:
        self._machine = machine
        self._clock = clock
        self._markers = markers

    def has_library(self) -> bool:
        """True if the driver is a container's: a container is ready, or the host has no driver itself."""
        ready = self._markers is not None and (self._markers / DRIVER_CONTAINER_READY).exists()
        return ready or self._machine.host_driver is None

    def module(self) -> str:
        """See :meth:`DriverBackend.module`."""
        return self._machine.loaded_driver or ""

    def nvml(self, _home: DriverHome) -> AsyncNvml:
        """See :meth:`DriverBackend.nvml`."""
        return InlineNvml(self._machine, self._clock)

    def root(self, _home: DriverHome) -> Path | None:
        """See :meth:`DriverBackend.root`."""
        return None

    def needs_new_process(self, _error: NvmlError) -> bool:
        """Always false: the lab puts no library into a container when it starts."""
        return False

    async def watch(self, changes: ChangeNotifier) -> None:
        """See :meth:`DriverBackend.watch`."""
        module = operator.attrgetter("driver_version")
        unsubscribe = self._machine.subscribe(lambda: changes.notify(Fact.DRIVER), module)
        try:
            await asyncio.Event().wait()
        finally:
            unsubscribe()


class SimulatedPreflight:
    """Tests simulated cards: nothing is computed, and a fault of the simulated machine is found.

    Args:
        machine: the cards.
        clock: the time that a test takes, as :meth:`.SimulatedMachine.slow` sets it for ``compute``.
    """

    def __init__(self, machine: SimulatedMachine, clock: Clock) -> None:
        self._machine, self._clock = machine, clock

    async def run(self, card: GpuInfo) -> CardPreflight:
        """See :meth:`PreflightRunner.run`."""
        await self._clock.sleep(self._machine.latency("compute"))
        return self._test(card)

    async def run_quick(self, card: GpuInfo, _device: str) -> CardPreflight:
        """See :meth:`PreflightRunner.run_quick`."""
        await self._clock.sleep(min(self._machine.latency("compute"), QUICK_SECONDS))
        if self._machine.latency("compute") >= QUICK_SECONDS:
            return failed(card, f"no answer within {QUICK_SECONDS:g} s", tool="simulated")
        return self._test(card)

    def _test(self, card: GpuInfo) -> CardPreflight:
        try:
            self._machine.compute(card.uuid)
        except NvmlError as error:
            return failed(card, str(error), tool="simulated")
        return CardPreflight(uuid=card.uuid, index=card.index, product=card.name, tool="simulated")


class SimulatedPrograms:
    """See :class:`tessera.agent.satellites.NodePrograms`.

    Args:
        machine: the simulated machine.
        clock: the time.
    """

    def __init__(self, machine: SimulatedMachine, clock: Clock) -> None:
        self._machine, self._clock = machine, clock

    def preflight(self) -> SimulatedPreflight:
        """Returns what tests cards."""
        return SimulatedPreflight(self._machine, self._clock)

    def launcher(self, _root: Path) -> SimulatedLauncher:
        """Returns what starts MPS daemons."""
        return SimulatedLauncher(self._clock, self._machine)
