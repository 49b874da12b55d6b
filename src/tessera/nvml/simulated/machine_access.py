"""Access to the state of a simulated machine: the one entry of every call and every change.

A call meets, in this order: no loaded driver, an injected fault, an unknown card or device, a lost card. A call or
change that succeeds notifies the subscribers of this process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tessera.nvml.errors import DriverNotLoaded, GpuLost, NotSupported, NvmlError, NvmlNotFound, make_error
from tessera.nvml.interface import GpuUuid
from tessera.nvml.simulated.machine_state import ANY, MachineState, SimCard, SimDevice, SimulatedFault
from tessera.nvml.simulated.state_file import MachineStore


class MachineAccess:
    """Opens the state of one machine for calls and changes.

    Args:
        store: where the machine is.

    Attributes:
        store: where the machine is.
    """

    def __init__(self, store: MachineStore) -> None:
        self.store = store
        #: Functions to call after each change of this process, by subscription.
        self._subscribers: dict[object, Callable[[], None]] = {}

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls ``changed`` after every change by this process; the function returned ends that."""
        key = object()
        self._subscribers[key] = changed
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
        for changed in list(self._subscribers.values()):
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
