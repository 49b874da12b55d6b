"""The common start of every call on simulated cards: faults and latency first, then the look-up of card or device."""

from collections.abc import Iterator
from contextlib import contextmanager

from tessera.nvml.errors import DriverNotLoaded, GpuLost, NotFound, NotSupported, make_error
from tessera.nvml.interface import GpuUuid, MigUuid
from tessera.nvml.simulated.hardware import ANY, SimulatedHardware, find_card, find_device
from tessera.nvml.simulated.machine import MachineState, SimCard, SimGpuInstance, SimulatedFault


class SimulatedCalls(SimulatedHardware):
    """The way in for the calls of :class:`~tessera.nvml.simulated.simulated_machine.SimulatedMachine`."""

    def latency(self, operation: str) -> float:
        """See :meth:`.Nvml.latency`; set with :meth:`slow`."""
        with self._store.machine() as machine:
            return machine.latencies.get(operation, machine.latencies.get(ANY, 0.0))

    @contextmanager
    def _call(self, operation: str, gpu: str | None = None, *, changes: bool = False) -> Iterator[MachineState]:
        with self._store.machine() as machine:
            if not machine.driver_version:
                raise DriverNotLoaded(f"{operation}{f' on {gpu}' if gpu else ''}")
            for fault in machine.faults:
                if _applies(fault, operation, _card_of(machine, fault, gpu)):
                    raise make_error(fault.code, f"{operation}{f' on {gpu}' if gpu else ''}")
            yield machine
        if changes:
            self._notify_subscribers()

    @contextmanager
    def _card(self, operation: str, gpu: GpuUuid, *, changes: bool = False) -> Iterator[SimCard]:
        with self._call(operation, gpu, changes=changes) as machine:
            card = find_card(machine, gpu)
            if card.lost:
                raise GpuLost(f"{operation} on {gpu}")
            yield card

    @contextmanager
    def _mig_card(self, operation: str, gpu: GpuUuid, *, changes: bool = False) -> Iterator[SimCard]:
        with self._card(operation, gpu, changes=changes) as card:
            if not card.mig_enabled:
                raise NotSupported(f"{operation} on {gpu}: MIG mode is off")
            yield card

    @contextmanager
    def _device(
        self, operation: str, device: GpuUuid | MigUuid
    ) -> Iterator[tuple[SimCard, SimGpuInstance | None, int | None]]:
        with self._call(operation, device) as machine:
            found = find_device(machine, device)
            if found[0].lost:
                raise GpuLost(f"{operation} on {device}")
            yield found


def gpu_instance(card: SimCard, gi_id: int) -> SimGpuInstance:
    """The card's GPU instance of that id.

    Raises:
        NotFound: it has none.
    """
    for instance in card.instances:
        if instance.gi_id == gi_id:
            return instance
    raise NotFound(f"GPU instance {gi_id} of {card.uuid}")


def _card_of(machine: MachineState, fault: SimulatedFault, device: str | None) -> str | None:
    """The card that a call is on, as far as the fault asks for one."""
    if fault.gpu is None or device is None or not device.startswith("MIG-"):
        return device
    try:
        return find_device(machine, device)[0].uuid
    except NotFound:
        return None


def _applies(fault: SimulatedFault, operation: str, gpu: str | None) -> bool:
    """True if the fault hits this call; counts the fault down."""
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
