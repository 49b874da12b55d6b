"""Runs one node's agent in its turn, while its driver is there; :mod:`tessera.agent.lifecycle` starts and ends it.

Start: mirror the node, its pods and its Instaslice object; read the desired configuration; read the cards. Only then
decide which side owns each card, and only then act. From there all parts work side by side and wake each other through
one signal. A part with a failure that it cannot repair ends the process, which Kubernetes starts anew.

The turn: one agent at a time acts on the node, and hands over to the next without a gap. During an update with
``maxSurge`` the agents of two versions run side by side for some seconds. Rules:

1. Only the holder of the lock on ``agent.lock`` changes cards, files and API objects. The kernel frees the lock when
   its process ends, however it ends.
2. The holder listens on ``agent.sock``. A successor connects, and waits until the connection says that the turn is over
   or ends: so it learns at once of a predecessor that was killed.
3. A predecessor that is told to end frees the lock, says so, and goes on with its last device lists, as long as the
   connection is open and not longer than :data:`HANDOVER_TIMEOUT`. The successor closes it once kubelet has its lists.
4. When Tessera leaves the node, nothing is handed over: the predecessor makes its lists empty, and the successor waits
   for its end. The last of them removes the lock and the socket.

The folder is one of the host, for root only: agents in two pods meet there, and no tenant. Versions of the agent speak
with each other here, so the one message never changes.
"""

import asyncio
import fcntl
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tessera.agent.base.wake_ups import Fact
from tessera.agent.health.executor import SUSPECT_PROBE_INTERVAL
from tessera.agent.health.policy import APPLICATION_XIDS
from tessera.agent.inventory.gpu_inventory import CardOwner, owner_of
from tessera.agent.wiring import Components
from tessera.clock import Clock
from tessera.nvml.errors import NotSupported, NvmlError

_log = logging.getLogger(__name__)

#: Seconds before a kubelet that did not answer at the start is asked again.
_KUBELET_PAUSE = 0.5
#: Seconds of one wait for hardware events; the call is made again at once.
_EVENT_WAIT = 60.0


async def run_components(components: Components) -> None:
    """Runs the components of an agent until cancelled.

    Raises:
        NvmlError: the cards cannot be listed at all.
        ExceptionGroup: a part failed, and only a fresh start can help.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(components.runtime.events.run())
        group.create_task(components.config.run())
        await components.runtime.mirror.start(group)
        await components.config.wait_first_read()
        if not await components.cards.recall():
            group.create_task(_recall_cards_later(components))
        await components.inventory_reader.refresh()
        _assign_recorded_cards(components)
        await _assign_used_cards(components)
        group.create_task(_watch_hardware(components))
        group.create_task(_reread_unreadable_cards(components))
        for each in (
            components.mig_config,
            components.mps,
            components.health,
            components.node_status,
            components.pod_reporter,
            components.memory,
        ):
            group.create_task(each.run(), name=type(each).__name__)
        if components.shows_pages:
            group.create_task(components.exporter.run(), name="Exporter")
            group.create_task(components.loads.run(), name="LoadReader")
        owners = components.runtime.changes.about(Fact.OWNERS)
        while not components.ownership.decided:
            await owners.wait(owners.count)
        group.create_task(components.slices.run())
        group.create_task(components.advertiser.run())


async def _recall_cards_later(components: Components) -> None:
    """Recalls the cards of this boot once its id is known: those of an earlier boot may have been removed."""
    changes = components.runtime.changes.about(Fact.NODE_STATUS)
    count = changes.count
    while not await components.cards.recall():
        await changes.wait(count)
        count = changes.count
    await components.cards.reread_cards(())


def _assign_recorded_cards(components: Components) -> None:
    """Leaves cards with recorded slices on the on-demand side if no file names their owner.

    The state folder was lost, or the record is that of InstaSlice, from which the node was taken over.
    """
    ownership, item = components.ownership, components.runtime.mirror.instaslice()
    if item is None:
        return
    recorded = {each.gpu_uuid: "" for each in item.status.pod_allocation_results.values()}
    requested = (each for request in item.spec.pod_allocation_requests.values() for each in request.slices)
    recorded |= {each.gpu_uuid: each.profile for each in requested if each.gpu_uuid in recorded}
    cards = [each.uuid for each in components.inventory_reader.inventory.gpus if each.uuid in recorded]
    ownership.assume({card: owner_of(recorded[card]) for card in cards if not ownership.is_known(card)})


async def _assign_used_cards(components: Components) -> None:
    """Leaves cards that pods hold on the static side if no file names their owner: their MIG mode must not change."""
    ownership = components.ownership
    gpus = components.inventory_reader.inventory.gpus
    cards = {device: gpu.uuid for gpu in gpus for device in (gpu.uuid, *gpu.mig_attributes)}
    while any(not ownership.is_known(card) for card in cards.values()):
        try:
            used = {cards[device] for device in await components.device_users.read() if device in cards}
        except ConnectionError as error:
            _log.warning("no card is changed before kubelet lists the pods that hold cards: %s", error)
            await components.runtime.clock.sleep(_KUBELET_PAUSE)
            continue
        ownership.assume({card: CardOwner.STATIC for card in used if not ownership.is_known(card)})
        return


async def _reread_unreadable_cards(components: Components) -> None:
    """Lists the cards again while one of them cannot be read or fails probes; NVML has no event for its return."""
    changes = components.runtime.changes.about(Fact.CARDS | Fact.HEALTH)
    while True:
        count = changes.count
        failing = components.health.state_machine.failing_gpus()
        gpus = components.inventory_reader.inventory.gpus
        unreadable = [gpu.uuid for gpu in gpus if gpu.error or (gpu.uuid in failing and gpu.info.readable)]
        if unreadable:
            await components.runtime.clock.sleep(SUSPECT_PROBE_INTERVAL)
            await components.cards.reread_cards(unreadable)
        else:
            await changes.wait(count)


async def _watch_hardware(components: Components) -> None:
    """Passes hardware events to the health monitor, and has the card of an event read again."""
    while True:
        try:
            event = await components.runtime.hardware.wait_event(_EVENT_WAIT)
            if event is not None:
                components.health.note_hardware_event(event)
                components.exporter.note_hardware_event(event)
                # A failing program may cause hundreds of these a second, and they change nothing on a card.
                if event.xid in APPLICATION_XIDS:
                    continue
                await components.cards.reread_card(event.gpu)
            components.health.note_unheard(await components.runtime.hardware.unheard_cards())
        except NotSupported as error:
            _log.warning("hardware events are not watched, only the next probe detects a lost card: %s", error)
            return
        except NvmlError as error:
            _log.warning("hardware events cannot be watched, next attempt in %.0f s: %s", _EVENT_WAIT, error)
            components.health.note_event_watch_failure(str(error))
            await components.runtime.clock.sleep(_EVENT_WAIT)


#: Seconds that a predecessor waits for its successor's lists. It is shorter than ``terminationGracePeriodSeconds``.
HANDOVER_TIMEOUT = 8.0
#: Seconds before a lock is tried again whose holder does not listen: it has just begun, or is about to end.
RETRY = 0.1
#: Seconds after which the lock is tried although the predecessor is silent: its end may not have closed the connection.
LOCK_RECHECK = 10.0
LOCK, SOCKET = "agent.lock", "agent.sock"
#: What the predecessor says.
_OVER = b"over\n"


class NodeTurn:
    """The turn of this agent.

    Args:
        folder: the agent's state folder on the host.
        clock: for pauses.
        on_met: called once the turn is this agent's, or its predecessor knows that it waits.

    Attributes:
        waiting: true while another agent has the turn.
    """

    def __init__(self, folder: Path, clock: Clock, on_met: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._clock = clock
        self._on_met = on_met
        self.waiting = False
        #: The file whose lock this agent holds.
        self._lock: int | None = None
        self._server: asyncio.Server | None = None
        #: Connections of successors that wait.
        self._successors: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        #: The connection to a predecessor that still serves its lists.
        self._predecessor: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        #: True if the connection is still open, and nothing was said on it for :data:`LOCK_RECHECK`.
        self._silent = False

    @property
    def has_successor(self) -> bool:
        """True if another agent waits for the turn."""
        return any(not reader.at_eof() for reader, _ in self._successors)

    def is_taken(self) -> bool:
        """True if another agent has the turn now."""
        if not self._folder.is_dir():
            return False
        if self._try_lock():
            self._free()
            return False
        return True

    async def take(self) -> None:
        """Returns once this agent has the turn.

        Raises:
            OSError: the folder cannot be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        while not self._try_lock():
            await self._wait_for_predecessor()
        self.waiting = False
        self._server = await self._listen()
        self._on_met()

    def note_serving(self) -> None:
        """Lets the predecessor end: kubelet has this agent's lists."""
        if self._predecessor is not None:
            self._predecessor[1].close()
            self._predecessor = None

    async def outlive(self) -> None:
        """Returns once no predecessor serves kubelet any more, or it takes too long."""
        if self._predecessor is not None:
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(HANDOVER_TIMEOUT):
                    await self._predecessor[0].read()
            self.note_serving()

    async def hand_over(self) -> None:
        """Gives the turn to the successor; returns when it serves kubelet, has ended, or takes too long."""
        self._free()
        reader, writer = next(each for each in self._successors if not each[0].at_eof())
        writer.write(_OVER)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(HANDOVER_TIMEOUT):
                await reader.read()

    def end(self, *, leaves: bool = False) -> None:
        """Frees the turn.

        Args:
            leaves: true if Tessera leaves the node, so that no file stays.
        """
        self._free()
        if leaves:
            for name in (LOCK, SOCKET):
                (self._folder / name).unlink(missing_ok=True)
        self.note_serving()
        for _, writer in self._successors:
            writer.close()

    def _free(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _try_lock(self) -> bool:
        descriptor = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    async def _wait_for_predecessor(self) -> None:
        if not self._silent or self._predecessor is None:
            self.note_serving()
            try:
                with _short_path(self._folder) as path:
                    self._predecessor = await asyncio.open_unix_connection(path)
            except OSError:
                await self._clock.sleep(RETRY)
                return
        reader, self._silent = self._predecessor[0], False
        if not self.waiting:
            _log.info("another agent acts on this node, this one waits for its turn: %s", self._folder / LOCK)
        self.waiting = True
        self._on_met()
        try:
            async with asyncio.timeout(LOCK_RECHECK):
                word = await reader.readline()
            if word != _OVER:
                await self._clock.sleep(RETRY)
        except TimeoutError:
            self._silent = True
        except ConnectionError:
            await self._clock.sleep(RETRY)

    async def _listen(self) -> asyncio.Server:
        with _short_path(self._folder) as path, suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - a path below /proc
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short_path(self._folder) as path:
            listener.bind(path)
        (self._folder / SOCKET).chmod(0o600)
        return await asyncio.start_unix_server(self._meet, sock=listener)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # it came while the turn was given on
            writer.close()
        else:
            self._successors.append((reader, writer))


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A path of the socket that fits: one of a socket may have 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
