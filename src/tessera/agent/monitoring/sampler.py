"""Takes samples of the node's cards beside the scrapes, so that no scrape waits for NVML or kubelet.

Rules:

- One call to NVML after another, in the agent's one session. A call that is refused makes its own values absent, with
  the reason, and no others. Only a card that cannot be measured at all is silent in the sample. It keeps the MIG
  devices, leases and offer that it had last: NVML lists no MIG device of a lost card, but pods still hold them.
- MIG devices are read with each sample, so a slice that was made is in the next sample and a destroyed one is not.
- The processes of each device that is held are read. Only those of shared devices are looked up in the kernel: the
  holder of any other device has all of them.
- The CPU time of processes is read from the kernel, which knows nothing of simulated ones.
- Without an answer of kubelet the leases of the last sample stay, unless their device is gone.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from tessera.agent.base.host import ProcessTable
from tessera.agent.inventory.device_state import PodSource, match_device_users
from tessera.agent.inventory.gpu_inventory import CardShares, GpuState, InventoryReader
from tessera.agent.inventory.sliceable_gpus import SliceLease
from tessera.agent.monitoring.sample import (
    CardOffer,
    DeviceSample,
    GpuSample,
    Lease,
    NodeSample,
    ProcessUse,
    card_offers,
    measure_memory,
    silent_gpu,
    slice_leases,
    static_leases,
)
from tessera.api.sharing.devices import Advertisement
from tessera.clock import Clock
from tessera.kubelet.interfaces import Kubelet, PodResources
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import NvmlError, absence_of
from tessera.nvml.interface import DeviceMemory, GpuInfo, GpuInstance, MigUuid
from tessera.nvml.measurements import ACTIVITIES, Absence, Measurements, Quantity

_log = logging.getLogger(__name__)


class NodeSampler:
    """Takes samples of one node.

    Args:
        hardware: the node's cards.
        kubelet: lists the containers with their devices.
        inventory: the cards as last listed.
        offer: the present offer of the static cards.
        leases: the slices on demand that pods hold.
        claimed: the cards that ResourceClaims get, and how each is divided.
        pods: the pods of the node.
        processes: the machine's processes.
        clock: the time.
    """

    def __init__(
        self,
        hardware: AsyncNvml,
        kubelet: Kubelet,
        *,
        inventory: InventoryReader,
        offer: Callable[[], Advertisement],
        leases: Callable[[], Sequence[SliceLease]],
        claimed: Callable[[], Mapping[str, CardShares | None]],
        pods: PodSource,
        processes: ProcessTable,
        clock: Clock,
    ) -> None:
        self._hardware = hardware
        self._kubelet = kubelet
        self._inventory = inventory
        self._offer = offer
        self._leases = leases
        self._claimed = claimed
        self._pods = pods
        self._processes = processes
        self._clock = clock
        #: UUIDs of the devices whose processes are identified with their names.
        self._inspected: frozenset[str] = frozenset()
        #: By UUID, the last sample of each card that is listed and has answered.
        self._answers: dict[str, GpuSample] = {}
        #: The last sample; means of counters are over the time since it.
        self._last = NodeSample(taken=clock.monotonic())

    async def take(self, inspected: Collection[str] = ()) -> NodeSample:
        """Takes a sample.

        Args:
            inspected: UUIDs of cards whose processes are all identified, to know who holds them.
        """
        inventory = self._inventory.inventory
        leases = await self._read_leases()
        held = {lease.device: lease.ratio < 1 for lease in leases}
        self._inspected = _parts(state for state in inventory.gpus if state.uuid in inspected)
        held |= dict.fromkeys(self._inspected, True)
        sampled = [await self._sample_gpu(state.info, held) for state in inventory.gpus if state.info.readable]
        gpus = [gpu for gpu in sampled if gpu is not None]
        present = {device.uuid for gpu in gpus for device in gpu.devices}
        known = self._answers | {gpu.info.uuid: gpu for gpu in gpus}
        self._answers = {state.uuid: known[state.uuid] for state in inventory.gpus if state.uuid in known}
        answered = {gpu.info.uuid for gpu in gpus}
        silent = tuple(self._silent(state, leases) for state in inventory.gpus if state.uuid not in answered)
        offers = card_offers(self._offer())
        offers |= {uuid: CardOffer(each.kind.value, each.count) for uuid, each in self._claimed().items() if each}
        for each in silent:
            if each.info.uuid in self._last.offers:
                offers.setdefault(each.info.uuid, self._last.offers[each.info.uuid])
        now = self._clock.monotonic()
        sample = NodeSample(
            taken=now,
            driver_version=inventory.driver_version,
            gpus=tuple(gpus),
            leases=tuple(each for each in leases if each.device in present),
            silent=silent,
            nvlink_rates=self._nvlink_rates(gpus, now),
            offers=offers,
        )
        self._last = sample
        return sample

    async def _read_leases(self) -> tuple[Lease, ...]:
        try:
            listed = await self._kubelet.pod_resources()
        except ConnectionError as error:
            _log.warning("holders of cards in metrics stay as they were: kubelet did not list pods: %s", error)
            return tuple(self._last_leases())
        pods = self._pods.live_pods()
        static = static_leases(match_device_users(listed, pods), self._offer())
        on_demand = slice_leases(self._leases(), pods, _containers(listed), self._claimed())
        owners = {str(pod.metadata.uid): pod.workload for pod in pods}
        return tuple(replace(each, owner=owners.get(each.uid, "")) for each in (*static, *on_demand))

    def _last_leases(self) -> Iterator[Lease]:
        yield from self._last.leases
        yield from (lease for gpu in self._last.silent for lease in gpu.leases)

    def _silent(self, state: GpuState, leases: Iterable[Lease]) -> GpuSample:
        """A card that did not answer. A lease that it had before keeps its kind and ratio: the offer may be gone."""
        last = self._answers.get(state.uuid)
        devices = () if last is None else last.mig_devices
        before = {(each.uid, each.container, each.device): each for each in self._last_leases()}
        parts = _parts([state]).union(each.uuid for each in devices)
        held = (before.get((each.uid, each.container, each.device), each) for each in leases if each.device in parts)
        return silent_gpu(state.info, held, self._slots(state.info), devices)

    async def _sample_gpu(self, info: GpuInfo, held: Mapping[str, bool]) -> GpuSample | None:
        try:
            measured = await self._hardware.measure(info.uuid)
        except NvmlError as error:
            _log.debug("%s is silent in this sample: %s", info.uuid, error)
            return None
        activity: Mapping[int, float] | None = None
        if held.get(info.uuid):
            with suppress(NvmlError):  # not measured: no value, rather than 0
                activity = {each.pid: each.sm for each in await self._hardware.process_activity(info.uuid)}
        processes, unread = await self._read_processes(info.uuid, held, activity)
        state = self._inventory.inventory.gpu(info.uuid)
        bandwidth = state.attributes.pcie_bandwidth if state is not None and state.attributes is not None else 0.0
        return GpuSample(
            info=info,
            slots=self._slots(info),
            card=DeviceSample(uuid=info.uuid, measured=measured, processes=processes, processes_absent=unread),
            mig_devices=tuple(await self._sample_mig_devices(info, held)) if info.mig_capable else (),
            pcie_bandwidth=bandwidth,
        )

    async def _sample_mig_devices(self, info: GpuInfo, held: Mapping[str, bool]) -> list[DeviceSample]:
        """The MIG devices of a card; those of the inventory if they cannot be listed now."""
        instances: Sequence[GpuInstance]
        try:
            instances = await self._hardware.instances(info.uuid)
        except NvmlError as error:
            _log.debug("MIG devices of %s are those of the last inventory: %s", info.uuid, error)
            state = self._inventory.inventory.gpu(info.uuid)
            instances = () if state is None else state.instances
        slots = self._slots(info)
        return [device for each in instances for device in await self._sample_instance(info, each, slots, held)]

    def _slots(self, info: GpuInfo) -> int:
        state = self._inventory.inventory.gpu(info.uuid)
        return state.geometry.slots if state is not None and state.geometry is not None else 0

    async def _sample_instance(
        self, info: GpuInfo, instance: GpuInstance, slots: int, held: Mapping[str, bool]
    ) -> list[DeviceSample]:
        """The MIG devices of one GPU instance; its activity counts for each of them."""
        if not instance.compute_instances:
            return []
        try:
            activity = await self._hardware.measure_instance(info.uuid, instance.gi_id)
        except NvmlError as error:
            activity = Measurements({}, dict.fromkeys(ACTIVITIES, absence_of(error)))
        devices = []
        for compute in instance.compute_instances:
            memory: DeviceMemory | Absence
            try:
                memory = await self._hardware.memory(compute.mig_uuid)
            except NvmlError as error:
                memory = absence_of(error)
            processes, unread = await self._read_processes(compute.mig_uuid, held, None)
            devices.append(
                DeviceSample(
                    uuid=compute.mig_uuid,
                    gi_id=instance.gi_id,
                    profile=instance.profile,
                    start=instance.start,
                    size=instance.size,
                    share=instance.size / slots / len(instance.compute_instances) if slots else 0.0,
                    measured=measure_memory(memory, activity),
                    processes=processes,
                    processes_absent=unread,
                )
            )
        return devices

    async def _read_processes(
        self, device: str, held: Mapping[str, bool], activity: Mapping[int, float] | None
    ) -> tuple[tuple[ProcessUse, ...], Absence | None]:
        """The processes of a device that is held, or why they cannot be read; ``held`` is true for a shared one."""
        if device not in held:
            return (), None
        try:
            listed = await self._hardware.processes(MigUuid(device))
        except NvmlError as error:
            return (), absence_of(error)
        found = []
        for each in listed:
            process = self._processes.identify(each.pid) if held[device] else None
            pod = None if process is None else self._processes.pod_of(process)
            sm = None if activity is None else activity.get(each.pid, 0.0)
            name = self._processes.name_of(each.pid) if pod is None and device in self._inspected else ""
            cpu = self._processes.cpu_seconds(each.pid)
            found.append(ProcessUse(None if pod is None else pod.pod, each.memory_bytes, sm, each.pid, name, cpu))
        return tuple(found), None

    def _nvlink_rates(self, gpus: Sequence[GpuSample], now: float) -> dict[str, float]:
        before = {gpu.info.uuid: _nvlink_bytes(gpu) for gpu in self._last.gpus}
        passed = now - self._last.taken
        rates: dict[str, float] = {}
        for gpu in gpus:
            first, last = before.get(gpu.info.uuid), _nvlink_bytes(gpu)
            if first is not None and last is not None and passed > 0 and last >= first:
                rates[gpu.info.uuid] = (last - first) / passed
        return rates


def _parts(gpus: Iterable[GpuState]) -> frozenset[str]:
    """UUIDs of these cards and of their MIG devices."""
    return frozenset(part for gpu in gpus for part in (gpu.uuid, *gpu.mig_attributes))


def _nvlink_bytes(gpu: GpuSample) -> float | None:
    values = gpu.card.measured.values
    if Quantity.NVLINK_TRANSMITTED not in values or Quantity.NVLINK_RECEIVED not in values:
        return None
    return values[Quantity.NVLINK_TRANSMITTED] + values[Quantity.NVLINK_RECEIVED]


def _containers(listed: Sequence[PodResources]) -> dict[tuple[str, str, str], str]:
    """Names of containers by namespace, pod and device; by an empty device that of a pod's only one with claims."""
    found: dict[tuple[str, str, str], str] = {}
    for pod in listed:
        claiming = [container.name for container in pod.containers if container.claims]
        if len(claiming) == 1:
            found[pod.namespace, pod.name, ""] = claiming[0]
    return found | {
        (pod.namespace, pod.name, device): container.name
        for pod in listed
        for container in pod.containers
        for each in container.devices
        for device in each.device_ids
    }
