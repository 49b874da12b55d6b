"""Simulated cards behind the same interface as real ones.

:class:`SimulatedMachine` implements every call of :class:`~tessera.nvml.interface.Nvml` by the rules of hardware, and
has the methods by which tests and the lab change the machine from outside of NVML: processes start and end, cards
fail, drivers are loaded, the machine reboots. The state is stored with the machine, so one process can inject a fault
and another meets it. The parts:

* :mod:`~tessera.nvml.simulated.machine_state`: the state, and the rules of driver and reboot;
* :mod:`~tessera.nvml.simulated.machine_access`: the entry of each call, which checks faults first;
* :mod:`~tessera.nvml.simulated.mig_rules`, :mod:`~tessera.nvml.simulated.mig_rules`: instances and processes;
* :mod:`~tessera.nvml.simulated.boards`: facts of products.

Calls do not wait here; :meth:`SimulatedMachine.latency` tells :class:`.machine_access.InlineNvml` how long they take.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tessera.nvml.errors import DriverNotLoaded, GpuLost, InUse, NotSupported, NvmlError, ResetRequired
from tessera.nvml.interface import (
    CardAttributes,
    ComputeInstance,
    ComputeMode,
    DeviceFile,
    DeviceMemory,
    GiProfileInfo,
    GpuEvent,
    GpuEventKind,
    GpuInfo,
    GpuInstance,
    GpuProcess,
    GpuUuid,
    MigAttributes,
    MigModeResult,
    MigUuid,
    NvLink,
    PciPlace,
)
from tessera.nvml.known_cards import KnownCards
from tessera.nvml.measurements import Measurements, ProcessActivity, Quantity
from tessera.nvml.simulated import load, mig_rules
from tessera.nvml.simulated.boards import attributes_of, common_ancestor, cuda_version, gpu_info, nvlinks_of, place_of
from tessera.nvml.simulated.load import GrowingCounters
from tessera.nvml.simulated.machine_access import FileStore, MachineAccess, MachinePart, MemoryStore
from tessera.nvml.simulated.machine_state import (
    ANY,
    DRIVER_VERSION,
    MachineState,
    SimEvent,
    SimMpsDaemon,
    SimulatedFault,
    build_machine,
)


class SimulatedMachine:
    """Simulated cards of one machine; see :class:`~tessera.nvml.interface.Nvml`.

    Args:
        spec: the cards, ``"4xA100-40GB,2xH100-80GB"``.
        seed: the node's name; decides every UUID.
        mig: MIG mode is on from the start.
        passthrough: the cards are passed through to a virtual machine: a change of MIG mode on Ampere stays pending
            until the card is reset.
        driver: the version of the driver that the host has and that is loaded; None for a host without one, where
            every call of NVML is refused until :meth:`load_driver`.
        latencies: seconds that a call takes, by its name (``create_gpu_instance``).
        state: file that stores the machine; it outlives the process, and other processes may share it.
        now: seconds of a clock; counters of cards grow by it.

    Raises:
        ValueError: the spec is not one, or a model's placements are not known.
        StateFileError: the file is damaged or is of other cards.
    """

    def __init__(
        self,
        spec: str,
        *,
        seed: str,
        mig: bool = False,
        passthrough: bool = False,
        driver: str | None = DRIVER_VERSION,
        latencies: Mapping[str, float] | None = None,
        state: Path | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        fresh = build_machine(spec, seed, driver or "", mig=mig)
        self._passthrough = passthrough
        self._access = MachineAccess(MemoryStore(fresh) if state is None else FileStore(state, fresh))
        self._known = KnownCards(gpu_info(card) for card in self._access.read().cards)
        #: Open sessions of this process with the driver.
        self._sessions: set[object] = set()
        self._counters = GrowingCounters(now)
        #: Cards (``None``) and GPU instances of which GPM has a sample.
        self._sampled: set[tuple[GpuUuid, int | None]] = set()
        for operation, seconds in (latencies or {}).items():
            self.slow(operation, seconds)

    # The calls of NVML.

    def driver_version(self) -> str:
        """See :meth:`.Nvml.driver_version`."""
        with self._access.call("driver_version") as machine:
            return machine.driver_version

    def cuda_version(self) -> int:
        """See :meth:`.Nvml.cuda_version`."""
        with self._access.call("cuda_version") as machine:
            return cuda_version(machine.driver_version)

    def devices(self) -> list[GpuInfo]:
        """See :meth:`.Nvml.devices`."""
        read: list[GpuInfo] = []
        failed: dict[int, NvmlError] = {}
        with self._access.call("devices") as machine:
            for card in machine.cards:
                error = self._access.listing_error(machine, card)
                if error is None:
                    read.append(gpu_info(card))
                else:
                    failed[card.index] = error
            return self._known.merge(read, failed)

    def set_known_cards(self, cards: Iterable[GpuInfo]) -> None:
        """See :meth:`.Nvml.set_known_cards`."""
        self._known.set(cards)

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> MigModeResult:
        """See :meth:`.Nvml.set_mig_mode`."""
        try:
            with self._access.card("set_mig_mode", gpu, changes=True) as card:
                return mig_rules.set_mig_mode(card, enabled, passthrough=self._passthrough)
        except (InUse, ResetRequired) as fault:
            with self._access.change() as machine:
                machine.find_card(gpu).mig_pending = enabled
            return MigModeResult.IN_USE if isinstance(fault, InUse) else MigModeResult.RESET_REQUIRED

    def gi_profiles(self, gpu: GpuUuid) -> list[GiProfileInfo]:
        """See :meth:`.Nvml.gi_profiles`."""
        with self._access.mig_card("gi_profiles", gpu) as card:
            return mig_rules.list_profiles(card)

    def instances(self, gpu: GpuUuid) -> list[GpuInstance]:
        """See :meth:`.Nvml.instances`."""
        with self._access.card("instances", gpu) as card:
            return mig_rules.list_instances(card)

    def create_gpu_instance(self, gpu: GpuUuid, profile: str, start: int) -> int:
        """See :meth:`.Nvml.create_gpu_instance`."""
        with self._access.mig_card("create_gpu_instance", gpu, changes=True) as card:
            return mig_rules.create_gpu_instance(card, profile, start)

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int, profile_index: int) -> ComputeInstance:
        """See :meth:`.Nvml.create_compute_instance`."""
        with self._access.mig_card("create_compute_instance", gpu, changes=True) as card:
            return mig_rules.create_compute_instance(card, gi_id, profile_index)

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        """See :meth:`.Nvml.destroy_compute_instance`."""
        with self._access.mig_card("destroy_compute_instance", gpu, changes=True) as card:
            mig_rules.destroy_compute_instance(card, gi_id, ci_id)

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """See :meth:`.Nvml.destroy_gpu_instance`."""
        with self._access.mig_card("destroy_gpu_instance", gpu, changes=True) as card:
            mig_rules.destroy_gpu_instance(card, gi_id)
            self._sampled.discard((gpu, gi_id))

    def processes(self, device: GpuUuid | MigUuid) -> list[GpuProcess]:
        """See :meth:`.Nvml.processes`."""
        with self._access.device("processes", device) as place:
            return mig_rules.list_processes(place)

    def memory(self, device: GpuUuid | MigUuid) -> DeviceMemory:
        """See :meth:`.Nvml.memory`."""
        with self._access.device("memory", device) as place:
            return mig_rules.read_memory(place)

    def measure(self, gpu: GpuUuid) -> Measurements:
        """See :meth:`.Nvml.measure`."""
        with self._access.card("measure", gpu) as card:
            return load.measure_card(card, self._counters.count(card), first=self._is_first_sample(gpu, None))

    def measure_instance(self, gpu: GpuUuid, gi_id: int) -> Measurements:
        """See :meth:`.Nvml.measure_instance`."""
        with self._access.mig_card("measure_instance", gpu) as card:
            instance = mig_rules.find_gpu_instance(card, gi_id)
            return load.measure_instance(card, instance, first=self._is_first_sample(gpu, gi_id))

    def process_activity(self, gpu: GpuUuid) -> list[ProcessActivity]:
        """See :meth:`.Nvml.process_activity`."""
        with self._access.card("process_activity", gpu) as card:
            if card.mig_enabled:
                raise NotSupported(f"activity of processes on {gpu}: the card is in MIG mode")
            return load.process_activity(card)

    def device_files(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> list[DeviceFile]:
        """Returns no file: a simulated card has none."""
        with self._access.mig_card("device_files", gpu) as card:
            mig_rules.check_compute_instance(card, gi_id, ci_id)
            return []

    def card_files(self, gpu: GpuUuid) -> list[DeviceFile]:
        """Returns no file: a simulated card has none."""
        with self._access.card("card_files", gpu):
            return []

    def attributes(self, gpu: GpuUuid) -> CardAttributes:
        """See :meth:`.Nvml.attributes`; changed with :meth:`set_attributes`."""
        with self._access.card("attributes", gpu) as card:
            return attributes_of(card)

    def mig_attributes(self, device: MigUuid) -> MigAttributes:
        """See :meth:`.Nvml.mig_attributes`."""
        with self._access.device("mig_attributes", device) as place:
            return mig_rules.read_mig_attributes(place)

    def nvlinks(self, gpu: GpuUuid) -> list[NvLink]:
        """See :meth:`.Nvml.nvlinks`; changed with :meth:`set_nvlinks`."""
        with self._access.call("nvlinks", gpu) as machine:
            card = machine.find_card(gpu)
            if card.lost:
                raise GpuLost(f"NVLinks of {gpu}")
            return nvlinks_of(card, machine.cards)

    def common_ancestor(self, gpu: GpuUuid, other: GpuUuid) -> int:
        """See :meth:`.Nvml.common_ancestor`."""
        with self._access.call("common_ancestor", gpu) as machine:
            cards = machine.find_card(gpu), machine.find_card(other)
            for card in cards:
                if card.lost:
                    raise GpuLost(f"PCIe topology of {card.uuid}")
            return common_ancestor(*cards, len(machine.cards))

    def place(self, gpu: GpuUuid) -> PciPlace:
        """See :meth:`.Nvml.place`."""
        with self._access.call("place", gpu) as machine:
            card = machine.find_card(gpu)
            if card.lost:
                raise GpuLost(f"place of {gpu}")
            return place_of(card, len(machine.cards))

    def network_cards(self) -> Mapping[str, PciPlace]:
        """Returns none: a simulated machine has no RDMA network card."""
        return {}

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        """See :meth:`.Nvml.compute_mode`."""
        with self._access.card("compute_mode", gpu) as card:
            return card.compute_mode

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """See :meth:`.Nvml.set_compute_mode`."""
        with self._access.card("set_compute_mode", gpu, changes=True) as card:
            if card.mig_enabled:
                raise NotSupported(f"compute mode of {gpu}: the card is in MIG mode, where it is always DEFAULT")
            card.compute_mode = mode

    def reset(self, gpu: GpuUuid) -> None:
        """See :meth:`.Nvml.reset`."""
        with self._access.card("reset", gpu, changes=True) as card:
            if card.processes:
                raise InUse(f"reset of {gpu}: process {card.processes[0].pid} computes on it")
            card.restart()

    def event_kinds(self, gpu: GpuUuid) -> list[GpuEventKind]:
        """See :meth:`.Nvml.event_kinds`."""
        with self._access.card("event_kinds", gpu) as card:
            ecc = [GpuEventKind.DOUBLE_BIT_ECC, GpuEventKind.SINGLE_BIT_ECC] if attributes_of(card).ecc else []
            return [GpuEventKind.XID, *ecc]

    def wait_event(self, _seconds: float) -> GpuEvent | None:
        """Returns the next event if there is one already; never waits (the caller does, on its clock)."""
        with self._access.call("wait_event") as machine:
            if not machine.events:
                return None
            event = machine.events.pop(0)
            return GpuEvent(kind=event.kind, gpu=event.gpu, xid=event.xid, gi_id=event.gi_id, ci_id=event.ci_id)

    def unheard_cards(self) -> Mapping[GpuUuid, str]:
        """See :meth:`.Nvml.unheard_cards`; those with a fault of ``register_events``."""
        found: dict[GpuUuid, str] = {}
        for uuid in self.uuids():
            try:
                with self._access.card("register_events", uuid):
                    pass
            except NvmlError as error:
                found[uuid] = str(error)
        return found

    def latency(self, operation: str) -> float:
        """See :meth:`.Nvml.latency`; set with :meth:`slow`."""
        latencies = self._access.read().latencies
        return latencies.get(operation, latencies.get(ANY, 0.0))

    def close(self) -> None:
        """Does nothing: the cards stay as they are."""

    # The machine from outside of NVML.

    def compute(self, gpu: GpuUuid) -> None:
        """Stands for a program that computes on a card: raises the error of a fault of ``compute``, and GpuLost."""
        with self._access.card("compute", gpu):
            pass

    @property
    def poll_interval(self) -> float | None:
        """Seconds between two checks for changes by other processes; ``None`` if there can be none."""
        return 0.1 if self._access.store.is_shared else None

    def subscribe(self, changed: Callable[[], None], part: MachinePart | None = None) -> Callable[[], None]:
        """See :meth:`.MachineAccess.subscribe`."""
        return self._access.subscribe(changed, part)

    def change(self) -> AbstractContextManager[MachineState]:
        """Gives the state for a change from outside of NVML, such as a fault of the hardware."""
        return self._access.change()

    @property
    def spec(self) -> str:
        """The cards, as the machine was made with."""
        return self._access.read().spec

    def uuids(self) -> list[GpuUuid]:
        """Returns the cards' UUIDs by index, lost ones included."""
        return [card.uuid for card in self._access.read().cards]

    def set_mps_host(self, runs: bool) -> None:
        """The container that starts MPS daemons has started, or ended, and all daemons with it."""
        with self._access.change() as machine:
            machine.mps_host = runs
            machine.mps_daemons.clear()

    @property
    def mps_host(self) -> bool | None:
        """True while a container runs that starts MPS daemons; ``None`` on a machine without such containers."""
        return self._access.read().mps_host

    @property
    def mps_daemons(self) -> list[SimMpsDaemon]:
        """The MPS daemons that run, as they are now."""
        return self._access.read().mps_daemons

    def fail(
        self,
        operation: str,
        error: type[NvmlError] | int,
        *,
        skip: int = 0,
        times: int | None = 1,
        gpu: GpuUuid | None = None,
    ) -> None:
        """Lets calls fail: after ``skip`` that still succeed, the next ``times`` (``None``: all) of ``operation``.

        A ``set_mig_mode`` that fails with ``ResetRequired`` or ``InUse`` stays pending for that reason, and returns
        that result, as NVML does.

        Args:
            operation: the call's name, or :data:`.machine_state.ANY`.
            error: the error that the call raises, or NVML's number of it.
            skip: matching calls that succeed first.
            times: how many fail then.
            gpu: only calls on this card or on a MIG device of it.
        """
        code = error if isinstance(error, int) else error.code
        with self._access.change() as machine:
            machine.faults.append(SimulatedFault(operation=operation, code=code, skip=skip, times=times, gpu=gpu))

    def heal(self) -> None:
        """Removes every fault of :meth:`fail`."""
        with self._access.change() as machine:
            machine.faults.clear()

    def slow(self, operation: str, seconds: float) -> None:
        """Lets each call of ``operation`` take so long from now on."""
        with self._access.change() as machine:
            machine.latencies[operation] = seconds

    def lose(self, gpu: GpuUuid) -> None:
        """Makes the card fall off the bus, with its XID; its processes die. A reboot brings the card back."""
        with self._access.change() as machine:
            machine.lose_card(gpu)

    def report(self, event: SimEvent) -> None:
        """Lets the driver report a hardware event."""
        with self._access.change() as machine:
            machine.queue_event(event)

    def set_attributes(self, gpu: GpuUuid, attributes: CardAttributes) -> None:
        """Replaces the card's attributes: another recovery action, no ECC, a place in a fabric."""
        with self._access.change() as machine:
            machine.find_card(gpu).attributes = attributes

    def set_nvlinks(self, gpu: GpuUuid, links: Iterable[NvLink]) -> None:
        """Replaces the card's NVLinks that are up while it is not in MIG mode."""
        with self._access.change() as machine:
            machine.find_card(gpu).nvlinks = list(links)

    @property
    def loaded_driver(self) -> str | None:
        """The version of the kernel module that is loaded, None without one; not a call of NVML."""
        return self._access.read().driver_version or None

    @property
    def host_driver(self) -> str | None:
        """The version of the driver that the host itself has and loads at boot, None without one."""
        return self._access.read().host_driver or None

    def load_driver(self, version: str) -> None:
        """Loads a kernel module, as a driver container does; does nothing when that version is loaded already.

        Raises:
            InUse: another version is loaded.
            ValueError: no driver has such a version.
        """
        with self._access.change() as machine:
            machine.load_driver(version)

    def unload_driver(self) -> None:
        """Unloads the kernel module, as ``rmmod`` does; does nothing when none is loaded. Destroys all instances.

        Sessions of other processes, which share the machine by its file, do not count.

        Raises:
            InUse: a process computes on a card, or a session of this process is open.
        """
        with self._access.change() as machine:
            machine.unload_driver(len(self._sessions))

    def open_session(self) -> Callable[[], None]:
        """Opens the driver, as ``nvmlInit`` and ``cuInit`` do; the function returned ends that session.

        Raises:
            DriverNotLoaded: no driver is loaded.
        """
        if self.loaded_driver is None:
            raise DriverNotLoaded("open the driver")
        session = object()
        self._sessions.add(session)
        return lambda: self._sessions.discard(session)

    def reboot(self) -> None:
        """Reboots the machine: no process, session or instance survives, lost cards are back.

        MIG mode survives on Ampere, where the card stores it, and is off on later cards. Compute modes are lost.
        Afterwards the host's own driver is loaded, if it has one.
        """
        self._sessions.clear()
        with self._access.change() as machine:
            machine.reboot()

    def start_process(
        self, device: GpuUuid | MigUuid, memory_bytes: int = 0, *, pid: int | None = None, activity: float = 0.0
    ) -> int:
        """Starts a process on a device and returns its PID; see :func:`.mig_rules.start_process`."""
        with self._access.change() as machine:
            return mig_rules.start_process(machine, device, memory_bytes, pid, activity)

    def set_process_activity(self, pid: int, activity: float, work: str | None = None) -> None:
        """Sets what a process does; see :func:`.mig_rules.set_process_activity`."""
        with self._access.change() as machine:
            mig_rules.set_process_activity(machine, pid, activity, work)

    def set_measured(self, gpu: GpuUuid, quantity: Quantity, value: float | None) -> None:
        """Sets a measured quantity of a card, in its base unit; None returns it to the rules."""
        with self._access.change() as machine:
            measured = machine.find_card(gpu).measured
            measured.pop(quantity.value, None)
            if value is not None:
                measured[quantity.value] = value

    def set_unreported(self, gpu: GpuUuid, *quantities: Quantity) -> None:
        """Sets the quantities that a card does not support; all others it reports."""
        with self._access.change() as machine:
            machine.find_card(gpu).unreported = [each.value for each in quantities]

    def set_process_memory(self, pid: int, memory_bytes: int, device: GpuUuid | MigUuid | None = None) -> None:
        """Sets the memory that a process holds; see :func:`.mig_rules.set_process_memory`."""
        with self._access.change() as machine:
            mig_rules.set_process_memory(machine, pid, memory_bytes, device)

    def end_process(self, pid: int) -> None:
        """Ends a process and frees its memory, on every device; raises NotFound if there is none."""
        with self._access.change() as machine:
            mig_rules.end_process(machine, pid)

    def _is_first_sample(self, gpu: GpuUuid, gi_id: int | None) -> bool:
        """True if GPM has no sample of the card or GPU instance; it has one afterwards."""
        first = (gpu, gi_id) not in self._sampled
        self._sampled.add((gpu, gi_id))
        return first
