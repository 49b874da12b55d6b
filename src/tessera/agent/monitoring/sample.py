"""One sample of the node: its cards and GPU instances as measured, and the containers that hold them. Pure values.

A lease is what one container holds of one device: a whole card, a share of a card or MIG device, or a MIG device that a
layout or Tessera made for it. The ratios of all leases of a card sum to at most 1, so a sum over pods counts no card
twice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.agent.inventory.device_state import DeviceUser
from tessera.agent.inventory.gpu_inventory import CardShares
from tessera.agent.inventory.sliceable_gpus import SliceLease
from tessera.api.names import PodUid
from tessera.api.sharing.devices import AdvertisedDevice, Advertisement, SharingKind
from tessera.kube.resources import Pod
from tessera.nvml.interface import DeviceMemory, GpuInfo
from tessera.nvml.measurements import Absence, Measurements, Quantity

#: Values of the label ``kind``.
WHOLE, FIXED_MIG, SLICE = "whole", "mig", "slice"


class ProcessUse(msgspec.Struct, frozen=True):
    """One process on a card or MIG device.

    Attributes:
        pod: UID of the pod that the kernel proves; ``None`` if it proves none, or was not asked.
        memory_bytes: that it holds; ``None`` if the driver does not tell.
        sm: share of time in which it computed, 0 to 1; ``None`` if not measured.
        pid: in the host's PID namespace.
        name: of its program; empty unless the holders of the card are wanted.
        cpu_seconds: CPU time that it has used so far; ``None`` if not read.
    """

    pod: PodUid | None
    memory_bytes: int | None
    sm: float | None = None
    pid: int = 0
    name: str = ""
    cpu_seconds: float | None = None


class DeviceSample(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG device, or a whole card.

    Attributes:
        uuid: ``GPU-`` or ``MIG-``.
        gi_id: its GPU instance; ``None`` for a whole card.
        profile: of the GPU instance; empty for a whole card.
        start: first memory slot of its GPU instance.
        size: memory slots of its GPU instance; 0 for a whole card.
        share: its part of the card: 1 for a whole card, memory slots of all slots for a MIG device.
        measured: its measurements; for a MIG device its memory and its activity.
        processes: the processes that compute on it, as far as they were read.
        processes_absent: why they could not be read; ``None`` if they were, or nobody holds the device.
    """

    uuid: str
    gi_id: int | None = None
    profile: str = ""
    start: int = 0
    size: int = 0
    share: float = 1.0
    measured: Measurements
    processes: tuple[ProcessUse, ...] = ()
    processes_absent: Absence | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Hold of one container on one device.

    Attributes:
        namespace: of the pod.
        pod: name of the pod.
        uid: of the pod.
        container: name of the container; empty if kubelet does not list it yet.
        device: UUID of the card or MIG device.
        owner: ``Kind/name`` of the workload that made the pod; empty if it has none.
        kind: ``whole``, ``time-slicing``, ``mps``, ``mig`` (of a layout) or ``slice`` (made for the pod).
        ratio: its part of the device, 0 to 1.
        exchanged: the container has a slice instead that another pod lends it.
    """

    namespace: str
    pod: str
    uid: PodUid
    container: str
    device: str
    owner: str = ""
    kind: str
    ratio: float = 1.0
    exchanged: bool = False


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One card: the card itself and its MIG devices; of a silent one (:func:`silent_gpu`) nothing is measured.

    Attributes:
        info: its basic facts.
        slots: its memory slots; 0 if it has no MIG.
        card: the card itself.
        mig_devices: its MIG devices.
        pcie_bandwidth: bytes per second that its PCIe link carries in each direction; 0 if not known.
        leases: what containers hold of a card that did not answer.
    """

    info: GpuInfo
    slots: int = 0
    card: DeviceSample
    mig_devices: tuple[DeviceSample, ...] = ()
    pcie_bandwidth: float = 0.0
    leases: tuple[Lease, ...] = ()

    @property
    def devices(self) -> tuple[DeviceSample, ...]:
        """The card, and its MIG devices."""
        return (self.card, *self.mig_devices)


def silent_gpu(
    info: GpuInfo, leases: Iterable[Lease] = (), slots: int = 0, mig_devices: Iterable[DeviceSample] = ()
) -> GpuSample:
    """A card that did not answer, such as a lost one, as it was known last; its MIG devices keep the leases on them."""
    devices = (msgspec.structs.replace(each, measured=Measurements({}), processes=()) for each in mig_devices)
    card = DeviceSample(uuid=info.uuid, measured=Measurements({}))
    return GpuSample(info=info, slots=slots, card=card, mig_devices=tuple(devices), leases=tuple(leases))


class CardOffer(msgspec.Struct, frozen=True):
    """How a card is offered to containers.

    Attributes:
        kind: as of a :class:`Lease`.
        replicas: shares of the card, or of each of its MIG devices; 1 if they are not shared.
    """

    kind: str
    replicas: int = 1


class NodeSample(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured at one time.

    Attributes:
        taken: monotonic seconds.
        driver_version: of the kernel module.
        gpus: the cards that answered, by index.
        leases: what containers hold of these cards.
        silent: the other cards, with the leases on them.
        nvlink_rates: by card, bytes per second over all its NVLinks since the sample before.
        offers: how cards are offered, by UUID; cards that are cut on demand, or not offered, are not among them.
    """

    taken: float
    driver_version: str = ""
    gpus: tuple[GpuSample, ...] = ()
    leases: tuple[Lease, ...] = ()
    silent: tuple[GpuSample, ...] = ()
    nvlink_rates: Mapping[str, float] = {}
    offers: Mapping[str, CardOffer] = {}

    @property
    def cards(self) -> tuple[GpuSample, ...]:
        """All cards: those that answered, then the others."""
        return (*self.gpus, *self.silent)


def static_leases(users: Mapping[str, Sequence[DeviceUser]], offer: Advertisement) -> Iterator[Lease]:
    """Yields the leases of cards and MIG devices that the device plugin gave out."""
    advertised = {each.id: each for resource in offer.resources.values() for each in resource.devices}
    for device, holders in users.items():
        for user in holders:
            entry = next((advertised[each] for each in user.ids if each in advertised), None)
            yield Lease(
                namespace=user.namespace,
                pod=user.name,
                uid=user.pod,
                container=user.container,
                device=device,
                kind=_kind(device, entry),
                ratio=min(1.0, len(user.ids) / (entry.replicas if entry is not None else 1)),
            )


def card_offers(offer: Advertisement) -> dict[str, CardOffer]:
    """How each card is offered; of a card whose devices are shared differently, the most shared counts."""
    found: dict[str, CardOffer] = {}
    for resource in offer.resources.values():
        for device in resource.devices:
            before = found.get(device.gpu)
            if before is None or device.replicas > before.replicas:
                found[device.gpu] = CardOffer(_kind(device.uuid, device), device.replicas)
    return found


def _kind(device: str, entry: AdvertisedDevice | None) -> str:
    if entry is not None and entry.kind is not SharingKind.NONE:
        return str(entry.kind.value)
    return FIXED_MIG if device.startswith("MIG-") else WHOLE


def slice_leases(
    slices: Iterable[SliceLease],
    pods: Iterable[Pod],
    containers: Mapping[tuple[str, str, str], str],
    claimed: Mapping[str, CardShares | None],
) -> Iterator[Lease]:
    """Yields the leases of slices on demand; pods that share a slice by a claim have equal parts of it.

    Args:
        slices: the slices that pods hold.
        pods: the pods of the node that have not ended.
        containers: name of the container by namespace, pod, and kubelet's id of the device; by an empty id that of
            the pod's only container with ResourceClaims.
        claimed: the cards that ResourceClaims get, and how each is divided.
    """
    by_uid = {PodUid(pod.metadata.uid): pod.metadata for pod in pods}
    held = [each for each in slices if each.pod in by_uid]
    holders = Counter(each.device for each in held)
    taken = Counter((each.pod, each.device) for each in held)
    for each in {
        (each.pod, each.device, not claimed.get(each.device) and each.device_id): each for each in held
    }.values():
        shares = claimed.get(each.device)
        pod = by_uid[each.pod]
        by_claim = containers.get((pod.namespace, pod.name, ""), "")
        yield Lease(
            namespace=pod.namespace,
            pod=pod.name,
            uid=each.pod,
            container=containers.get((pod.namespace, pod.name, each.device_id), by_claim),
            device=each.device,
            kind=shares.kind.value if shares else SLICE if each.device.startswith("MIG-") else WHOLE,
            ratio=min(1.0, taken[each.pod, each.device] / shares.count) if shares else 1 / holders[each.device],
            exchanged=each.exchanged,
        )


#: Memory of a MIG device.
_MEMORY = Quantity.MEMORY_TOTAL, Quantity.MEMORY_USED, Quantity.MEMORY_FREE, Quantity.MEMORY_RESERVED


def measure_memory(memory: DeviceMemory | Absence, activity: Measurements) -> Measurements:
    """Adds the memory of a MIG device to the measurements of its GPU instance."""
    if isinstance(memory, Absence):
        return Measurements(activity.values, {**activity.absent, **dict.fromkeys(_MEMORY, memory)})
    sizes = memory.total, memory.used, memory.total - memory.used - (memory.reserved or 0), memory.reserved
    values = {quantity: float(size) for quantity, size in zip(_MEMORY, sizes, strict=True) if size is not None}
    absent = {} if memory.reserved is not None else {Quantity.MEMORY_RESERVED: Absence.NOT_SUPPORTED}
    return Measurements({**activity.values, **values}, {**activity.absent, **absent})


def measure_lease(lease: Lease, device: DeviceSample) -> tuple[float | None, float | None]:
    """Returns the memory (bytes) and activity (0 to 1) of a lease; ``None`` for what cannot be measured."""
    values = device.measured.values
    if lease.ratio >= 1:
        busy = values.get(Quantity.ENGINE_ACTIVE, values.get(Quantity.GPU_UTILIZATION))
        return values.get(Quantity.MEMORY_USED), busy
    if device.processes_absent is not None:
        return None, None
    processes = [each for each in device.processes if each.pod == lease.uid]
    activities = [each.sm for each in processes if each.sm is not None]
    measured = bool(processes) and len(activities) == len(processes)
    return held_memory(processes), sum(activities) if measured else None


def held_memory(processes: Iterable[ProcessUse]) -> float | None:
    """Bytes that processes hold together; ``None`` if those of one of them are not known."""
    held = [each.memory_bytes for each in processes]
    return None if None in held else float(sum(each or 0 for each in held))
