"""Access to the state of a simulated machine, which survives the processes that use it: the one entry of every call.

A call meets, in this order: no loaded driver, an injected fault, an unknown card or device, a lost card. A call or
change that succeeds notifies the subscribers of this process. :class:`InlineNvml` makes the calls of an event loop.

Real cards keep their instances when the agent is killed; so must simulated ones, and several processes must see the
same cards. The machine is one JSON file. Rules:

* a change holds an exclusive ``flock`` on ``<file>.lock`` from reading to writing, so changes never cross;
* the file is replaced by rename, so a reader never sees half of it, and a process killed at any instruction leaves the
  old or the new state;
* nothing is synced to disk: the page cache outlives processes, and simulated cards need not outlive the host;
* a file that cannot be read is an error that says so. It is never replaced by fresh cards, which would hide the loss.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, Self, TypeVar

import msgspec

from tessera.clock import Clock, until_set
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import DriverNotLoaded, GpuLost, NotSupported, NvmlError, NvmlNotFound, make_error
from tessera.nvml.interface import GpuEvent, GpuProcess, GpuUuid, Nvml
from tessera.nvml.simulated.machine_state import ANY, MachineState, SimCard, SimDevice, SimulatedFault, parse_spec
from tessera.text import UserError


class StateFileError(UserError):
    """The file holds no simulated machine, or another one than requested."""


#: Reads a part of a machine, as a value that no later change alters.
MachinePart = Callable[[MachineState], object]


class MemoryStore:
    """A machine of this process."""

    #: True if other processes may change the machine.
    is_shared = False

    def __init__(self, machine: MachineState) -> None:
        self._machine = machine

    @contextmanager
    def machine(self) -> Iterator[MachineState]:
        """The machine itself."""
        yield self._machine


class FileStore:
    """A machine in a file.

    Args:
        path: the file; its folder exists.
        fresh: the machine to start with if there is no file.

    Raises:
        StateFileError: the file is damaged, or holds a machine of other cards or another seed than ``fresh``.
    """

    is_shared = True

    def __init__(self, path: Path, fresh: MachineState) -> None:
        self._path = path
        self._lock = path.with_name(path.name + ".lock")
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(MachineState).decode
        with self._hold_lock():
            if not path.exists():
                self._write(self._encode(fresh))
            stored = self._parse(path.read_bytes())
        if (parse_spec(stored.spec), stored.seed) != (parse_spec(fresh.spec), fresh.seed):
            raise StateFileError(
                f'simulated cards {path}: the file holds "{stored.spec}" of {stored.seed}, not "{fresh.spec}" of'
                f" {fresh.seed}; delete the file to start with other cards"
            )

    @contextmanager
    def machine(self) -> Iterator[MachineState]:
        """The machine as the file has it; written back if it was changed."""
        with self._hold_lock():
            try:
                before = self._path.read_bytes()
            except FileNotFoundError as error:
                raise StateFileError(
                    f"simulated cards {self._path}: the file was deleted; restart to make it"
                ) from error
            machine = self._parse(before)
            try:
                yield machine
            finally:
                after = self._encode(machine)
                if after != before:
                    self._write(after)

    def _parse(self, content: bytes) -> MachineState:
        try:
            return self._decode(content)
        except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, another type; nested
            raise StateFileError(
                f"simulated cards {self._path}: not a machine's state ({error}); delete the file for new cards"
            ) from error

    def _write(self, content: bytes) -> None:
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        new.write_bytes(content)
        new.replace(self._path)

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        with self._lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class MachineAccess:
    """Opens the state of one machine for calls and changes.

    Args:
        store: where the machine is.

    Attributes:
        store: where the machine is.
    """

    def __init__(self, store: MemoryStore | FileStore) -> None:
        self.store = store
        #: By subscription: the function to call, the part of the machine that it follows, and that part as it was.
        self._subscribers: dict[object, tuple[Callable[[], None], MachinePart | None, object]] = {}

    def subscribe(self, changed: Callable[[], None], part: MachinePart | None = None) -> Callable[[], None]:
        """Calls ``changed`` after every change by this process; the function returned ends that.

        Args:
            changed: the function.
            part: the part of the machine that it follows, as a value; None for every change.
        """
        key = object()
        self._subscribers[key] = (changed, part, part and part(self.read()))
        return lambda: self._subscribers.pop(key, None) and None

    def read(self) -> MachineState:
        """Returns the state now, without a call of NVML."""
        with self.store.machine() as machine:
            return machine

    @contextmanager
    def change(self) -> Iterator[MachineState]:
        """Yields the state for a change from outside of NVML, which no fault prevents."""
        with self.store.machine() as machine:
            yield machine
        self._notify()

    @contextmanager
    def call(self, operation: str, device: str | None = None, *, changes: bool = False) -> Iterator[MachineState]:
        """Yields the state for a call of NVML.

        Args:
            operation: the call's name.
            device: the card or MIG device that the call is on.
            changes: the call changes the machine.

        Raises:
            NvmlError: the error of a fault, or DriverNotLoaded.
        """
        with self.store.machine() as machine:
            target = f"{operation} on {device}" if device else operation
            if not machine.driver_version:
                raise DriverNotLoaded(target)
            for fault in machine.faults:
                if _applies(fault, operation, _find_card_uuid(machine, fault, device)):
                    raise make_error(fault.code, target)
            yield machine
        if changes:
            self._notify()

    def listing_error(self, machine: MachineState, card: SimCard) -> NvmlError | None:
        """The error of one card when the cards are listed; ``None`` if it can be read."""
        if card.lost:
            return GpuLost(f"card {card.index}")
        fault = next(
            (each for each in machine.faults if each.gpu == card.uuid and _applies(each, "devices", card.uuid)), None
        )
        return None if fault is None else make_error(fault.code, f"card {card.index}: NVML error {fault.code}")

    @contextmanager
    def card(self, operation: str, gpu: GpuUuid, *, changes: bool = False) -> Iterator[SimCard]:
        """Yields the card that a call is on.

        Raises:
            NotFound: the machine has no such card.
            GpuLost: it fell off the bus.
        """
        with self.call(operation, gpu, changes=changes) as machine:
            card = machine.find_card(gpu)
            if card.lost:
                raise GpuLost(f"{operation} on {gpu}")
            yield card

    @contextmanager
    def mig_card(self, operation: str, gpu: GpuUuid, *, changes: bool = False) -> Iterator[SimCard]:
        """Yields the card that a call about its instances is on.

        Raises:
            NotSupported: MIG mode is off.
        """
        with self.card(operation, gpu, changes=changes) as card:
            if not card.mig_enabled:
                raise NotSupported(f"{operation} on {gpu}: MIG mode is off")
            yield card

    @contextmanager
    def device(self, operation: str, uuid: str) -> Iterator[SimDevice]:
        """Yields the card or MIG device that a call is on.

        Raises:
            NotFound: the machine has no such device.
            GpuLost: its card fell off the bus.
        """
        with self.call(operation, uuid) as machine:
            device = machine.find_device(uuid)
            if device.card.lost:
                raise GpuLost(f"{operation} on {uuid}")
            yield device

    def _notify(self) -> None:
        machine = self.read()
        for key, (changed, part, before) in list(self._subscribers.items()):
            now = part and part(machine)
            if key in self._subscribers and (part is None or now != before):
                self._subscribers[key] = (changed, part, now)
                changed()


def _find_card_uuid(machine: MachineState, fault: SimulatedFault, device: str | None) -> str | None:
    """Returns the card that a call is on, for a fault of one card."""
    if fault.gpu is None or device is None or not device.startswith("MIG-"):
        return device
    try:
        return machine.find_device(device).card.uuid
    except NvmlNotFound:
        return None


def _applies(fault: SimulatedFault, operation: str, gpu: str | None) -> bool:
    """Returns True if the fault hits this call; counts the fault down."""
    if fault.operation not in (operation, ANY) or (fault.gpu is not None and fault.gpu != gpu):
        return False
    if fault.skip:
        fault.skip -= 1
        return False
    if fault.times == 0:
        return False
    if fault.times is not None:
        fault.times -= 1
    return True


def _event_part(machine: MachineState) -> object:
    """The part of a machine that decides when its next event comes."""
    return machine.driver_version, tuple((each.operation, each.gpu) for each in machine.faults), tuple(machine.events)


T = TypeVar("T")


class SimulatedNvml(Nvml, Protocol):
    """Cards that report changes."""

    @property
    def poll_interval(self) -> float | None:
        """Seconds between two checks for changes by other processes; ``None`` if there can be none."""
        ...

    def subscribe(self, changed: Callable[[], None], part: MachinePart | None = None) -> Callable[[], None]:
        """See :meth:`MachineAccess.subscribe`."""
        ...

    def open_session(self) -> Callable[[], None]:
        """Opens NVML; the function returned ends that session. Raises DriverNotLoaded."""
        ...


class InlineNvml(AsyncNvml):
    """Simulated cards, called in the loop's own thread after their latency on ``clock`` has passed.

    So the lab's virtual time works, and two runs give the same order.

    Raises:
        DriverNotLoaded: on entering, when the machine has no driver loaded.
    """

    simulated = True

    def __init__(self, nvml: SimulatedNvml, clock: Clock) -> None:
        self._nvml = nvml
        self._clock = clock
        self._in_order: dict[str, asyncio.Lock] = {}
        self._end_session: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        self._end_session = self._nvml.open_session()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._end_session is not None:
            self._end_session()
        self._nvml.close()

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        """Does one call after the latency of ``operation``."""
        async with self._in_order.setdefault(card, asyncio.Lock()):
            if seconds := self._nvml.latency(operation):
                await self._clock.sleep(seconds)
            return call(self._nvml)

    async def wait_event(self, seconds: float) -> GpuEvent | None:
        """The next simulated event."""
        deadline = self._clock.monotonic() + seconds
        while (event := self._nvml.wait_event(0)) is None:
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0:
                return None
            await self._wait_for_change(remaining, _event_part)
        return event

    async def _process_exit(self, _processes: list[GpuProcess], /) -> None:
        await self._wait_for_change(None)

    async def _wait_for_change(self, at_most: float | None, part: MachinePart | None = None) -> None:
        """Returns at the next change, after ``at_most`` seconds, or when the next check for others' changes is due."""
        changed = asyncio.Event()
        unsubscribe = self._nvml.subscribe(changed.set, part)
        waits = [seconds for seconds in (at_most, self._nvml.poll_interval) if seconds is not None]
        try:
            await until_set(changed, min(waits, default=None))
        finally:
            unsubscribe()
