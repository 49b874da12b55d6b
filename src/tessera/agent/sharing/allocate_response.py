"""Builds the answer to Allocate, which gives a container its devices, and reads its device nodes.

The forms are those of NVIDIA's device plugin, one for each device list strategy, and several may be in force together:

========================  ==========================================================================================
``envvar``                ``NVIDIA_VISIBLE_DEVICES`` lists the devices
``volume-mounts``         the variable names a folder, in which ``/dev/null`` is mounted once for each device
``cdi-annotations``       an annotation lists CDI names
``cdi-cri``               CDI names in the answer itself
========================  ==========================================================================================

Shares of one device count as one device here, in the order in which they were given. Device nodes go only beside the
first two strategies: CDI files bring their own. The same holds for IMEX channels, though our CDI files do not have
them. Tessera adds one thing to upstream's forms: an answer by CDI with several devices, or on a node where a container
may have other resources too, ends with one more name: that of the container's *set* (:func:`set_name`), whose CDI edits
name all its devices in the variable (``docs/decisions/container-environment.md``).

Device nodes and the links between cards are read from the cards, and read again only when they may have changed: when a
card or MIG device comes, goes or gets another number. If a read fails, the reason is kept for each device concerned,
and the read is tried again after a while; other devices do not wait. The topology decides which whole cards are
allocated together.
"""

import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Self

import msgspec

from tessera.agent.base.device_plugin import MOUNTED_DEVICES
from tessera.agent.base.settings import ContainerEdits
from tessera.agent.inventory.card_topology import read_topology
from tessera.agent.inventory.gpu_inventory import GpuState
from tessera.api.names import VISIBLE_DEVICES
from tessera.api.sharing.devices import AdvertisedDevice
from tessera.api.sharing.profile import AllocationPolicy, Flags
from tessera.clock import Clock
from tessera.kubelet.interfaces import ContainerAllocateResponse, DeviceNode, Mount
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import DeviceFile
from tessera.placement.topology import Topology

IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"
#: Vendor and class of the CDI names: those of NVIDIA's device plugin, so that names it allocated still resolve.
CDI_KIND = "k8s.device-plugin.nvidia.com/gpu"
CDI_ANNOTATION_PREFIX = "cdi.k8s.io/"
CDI_STRATEGIES = frozenset({"cdi-annotations", "cdi-cri"})
_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_SET_PREFIX = "set-"


class CdiDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A card or MIG device that a container may get.

    Attributes:
        uuid: its UUID.
        index: ``0``, or ``0:1`` for a MIG device.
        files: its device nodes and the driver's.
    """

    uuid: str
    index: str
    files: tuple[DeviceFile, ...] = ()


class AllocateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The form in which containers learn of their devices: the installation's defaults, unless a profile sets its own.

    Attributes:
        list_strategies: a subset of :data:`~tessera.api.sharing.profile.DEVICE_LIST_STRATEGIES`.
        ids_are_uuids: true if containers get UUIDs; otherwise they get indexes.
        pass_device_specs: true if the answer names device nodes too.
        cdi_annotation_prefix: prefix of the annotations of ``cdi-annotations``.
        dev_root: the host's folder whose ``/dev`` has the driver's nodes.
        allocation_policy: spreads shares over the cards, or packs them.
        extras: a subset of :data:`~tessera.api.sharing.profile.EXTRAS`: devices from NVIDIA's runtime beside the cards.
        imex_channels: numbers of the IMEX channels that a container gets.
    """

    list_strategies: tuple[str, ...] = ("cdi-cri",)
    ids_are_uuids: bool = True
    pass_device_specs: bool = False
    cdi_annotation_prefix: str = CDI_ANNOTATION_PREFIX
    dev_root: PurePosixPath = PurePosixPath("/")
    allocation_policy: AllocationPolicy = AllocationPolicy.DISTRIBUTED
    extras: tuple[str, ...] = ()
    imex_channels: tuple[int, ...] = ()

    @property
    def uses_cdi(self) -> bool:
        """True if any answer names CDI devices."""
        return not CDI_STRATEGIES.isdisjoint(self.list_strategies)

    def with_flags(self, flags: Flags) -> Self:
        """These options with the flags of a profile; a flag that is set takes precedence."""
        dev_root = flags.dev_root or flags.driver_root
        set_by_profile = {
            "list_strategies": flags.device_list_strategies,
            "ids_are_uuids": flags.device_ids_are_uuids,
            "pass_device_specs": flags.pass_device_specs,
            "cdi_annotation_prefix": flags.cdi_annotation_prefix,
            "dev_root": None if dev_root is None else PurePosixPath(dev_root),
            "allocation_policy": flags.allocation_policy,
            "extras": flags.extras,
            "imex_channels": flags.imex_channels,
        }
        return msgspec.structs.replace(
            self, **{name: each for name, each in set_by_profile.items() if each is not None}
        )


def build_allocation(
    resource: str,
    devices: Sequence[AdvertisedDevice],
    options: AllocateOptions,
    *,
    files: Mapping[str, Sequence[DeviceFile]],
    joint: bool = False,
    edits: ContainerEdits | None = None,
) -> ContainerAllocateResponse:
    """Returns Allocate's answer for one container.

    Args:
        resource: the resource that kubelet asked for.
        devices: the entries that kubelet chose, in its order.
        options: how containers learn of their devices.
        files: device nodes by UUID of card or MIG device; none for simulated cards.
        joint: true if the container may have devices of other resources too.
        edits: further edits, which the sharing strategy needs; ``None`` if it needs none.
    """
    uuids = unique(each.uuid for each in devices)
    ids = uuids if options.ids_are_uuids else unique(each.index for each in devices)
    envs = {f"NVIDIA_{each.upper()}": "enabled" for each in options.extras}
    mounts: list[Mount] = []
    nodes: tuple[DeviceNode, ...] = ()
    names = tuple(cdi_name(each) for each in ids) if options.uses_cdi else ()
    if names and needs_set(uuids, joint=joint):
        names = (*names, cdi_name(set_name(each.id for each in devices)))
    if edits is not None:
        envs |= edits.envs
        mounts += edits.mounts
    if "envvar" in options.list_strategies:
        envs[VISIBLE_DEVICES] = ",".join(ids)
        if options.imex_channels:
            envs[IMEX_CHANNELS] = ",".join(map(str, options.imex_channels))
    if "volume-mounts" in options.list_strategies:
        envs[VISIBLE_DEVICES] = str(MOUNTED_DEVICES)
        listed = (*ids, *(f"imex/{channel}" for channel in options.imex_channels))
        mounts += [
            Mount(container_path=str(MOUNTED_DEVICES / each), host_path="/dev/null", read_only=False) for each in listed
        ]
    if options.pass_device_specs and not CDI_STRATEGIES.issuperset(options.list_strategies):
        nodes = device_nodes([file for each in uuids for file in files.get(each, ())], options.dev_root)
    return ContainerAllocateResponse(
        envs=envs,
        mounts=tuple(mounts),
        device_nodes=nodes,
        annotations=_annotations(resource, devices, names, options) if names else {},
        cdi_devices=names if "cdi-cri" in options.list_strategies else (),
    )


def needs_set(uuids: Sequence[str], *, joint: bool) -> bool:
    """True if single device names are not enough for a container."""
    return joint or len(uuids) > 1


def cdi_name(name: str) -> str:
    """A CDI device's full name."""
    return f"{CDI_KIND}={name}"


def set_name(entries: Iterable[str]) -> str:
    """Name of the CDI device that stands for all devices of the container with these entries, in any order.

    One container at a time has an entry, so the same holds for the name.
    """
    return _SET_PREFIX + hashlib.sha256(",".join(sorted(entries)).encode()).hexdigest()[:24]


def device_nodes(files: Iterable[DeviceFile], dev_root: PurePosixPath) -> tuple[DeviceNode, ...]:
    """Device nodes in kubelet's form, the driver's before those of devices, each once."""
    paths = unique(each.path for each in files)
    ordered = [path for path in _CONTROL if path in paths] + [path for path in paths if path not in _CONTROL]
    return tuple(DeviceNode(container_path=path, host_path=str(dev_root / path.lstrip("/"))) for path in ordered)


def unique(texts: Iterable[str]) -> tuple[str, ...]:
    """Each text once, at its first place."""
    return tuple(dict.fromkeys(texts))


def _annotations(
    resource: str, devices: Sequence[AdvertisedDevice], names: tuple[str, ...], options: AllocateOptions
) -> dict[str, str]:
    if "cdi-annotations" not in options.list_strategies:
        return {}
    # A container may get several answers, one for each of its resources, and their keys differ. No entry is in two.
    answer_id = uuid.uuid5(uuid.NAMESPACE_OID, "/".join((resource, *(each.id for each in devices))))
    return {f"{options.cdi_annotation_prefix}nvidia-device-plugin_{answer_id}": ",".join(names)}


#: Seconds before a failed read is tried again.
RETRY = 30.0


class DeviceNodes:
    """Reads device nodes and links when they may have changed.

    Args:
        hardware: the node's cards.
        clock: times the next try.

    Attributes:
        files: device nodes by UUID of card or MIG device; empty ones on simulated cards.
        failed: why a device's nodes are not known, by its UUID.
        topology: how the cards are joined.
    """

    def __init__(self, hardware: AsyncNvml, clock: Clock) -> None:
        self._hardware = hardware
        self._clock = clock
        self._files_of: object = None
        self._topology_of: object = None
        self._retry_at: float | None = None
        self.files: Mapping[str, tuple[DeviceFile, ...]] = {}
        self.failed: Mapping[str, str] = {}
        self.topology = Topology.without_links(())

    def retry_in(self) -> float | None:
        """Seconds until failed reads are tried again; ``None`` if every read succeeded."""
        return None if self._retry_at is None else max(0.0, self._retry_at - self._clock.monotonic())

    async def read(self, cards: Sequence[GpuState]) -> None:
        """Reads the values that may have changed."""
        joined = [(card.uuid, card.info.pci_bus_id, card.info.readable, card.info.mig_enabled) for card in cards]
        if joined != self._topology_of:
            self.topology = await read_topology(self._hardware, [card.info for card in cards])
            self._topology_of = joined
        numbered = [(card.uuid, card.info.minor, card.info.readable, card.instances) for card in cards]
        if numbered != self._files_of or self.retry_in() == 0:
            await self._read_files(cards)
            self._files_of = numbered

    async def _read_files(self, cards: Sequence[GpuState]) -> None:
        files: dict[str, tuple[DeviceFile, ...]] = {}
        failed: dict[str, str] = {}
        for card in cards:
            if not card.info.readable:
                files |= {uuid: each for uuid, each in self.files.items() if uuid in _uuids(card)}
                continue
            try:
                files[card.uuid] = tuple(await self._hardware.card_files(card.info.uuid))
            except NvmlError as error:
                failed[card.uuid] = f"device nodes of card {card.uuid} are not known: {error}"
            await self._read_mig_files(card, files, failed)
        self.files, self.failed = files, failed
        self._retry_at = self._clock.monotonic() + RETRY if failed else None

    async def _read_mig_files(
        self, card: GpuState, files: dict[str, tuple[DeviceFile, ...]], failed: dict[str, str]
    ) -> None:
        for instance in card.instances:
            for compute in instance.compute_instances:
                try:
                    found = await self._hardware.device_files(card.info.uuid, instance.gi_id, compute.ci_id)
                except NvmlError as error:
                    failed[compute.mig_uuid] = f"device nodes of {compute.mig_uuid} are not known: {error}"
                else:
                    files[compute.mig_uuid] = tuple(found)


def _uuids(card: GpuState) -> frozenset[str]:
    return frozenset({card.uuid} | {each.mig_uuid for one in card.instances for each in one.compute_instances})
