"""The GPUs that can be cut into slices on demand, and how the agent shows them to controller and kubelet.

The table of every GPU (profiles, legal starts) comes from the GPU itself, never from a list of models, so a new model
or a new driver works without a new Tessera. A GPU without MIG, or whose MIG mode waits for a reset, is skipped with the
reason; the agent never resets it here and touches nothing on it.

A slice has a position on the node: card, profile, first memory slot; the device plugin's ID names it.

A card that ResourceClaims get whole is a card with one place, whose profile is :data:`~tessera.api.names.CLAIMED_CARD`;
one that they get in shares has a place for each, of the profile :data:`~tessera.mig.names.CLAIMED_SHARE`.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from tessera.agent.inventory.gpu_inventory import CardShares, GpuInventory, find_gpu
from tessera.api.instaslice import NodeGpu, ProfilePlacements
from tessera.api.instaslice import Position as Placed
from tessera.api.names import CLAIMED_CARD, PodUid, device_id
from tessera.kubelet.interfaces import Device
from tessera.mig.geometry import Geometry
from tessera.mig.layout_planning import max_memory_gb_of_layout
from tessera.mig.names import CARD_SLOTS, CLAIMED_SHARE, is_device_profile
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuInfo, MigModeResult
from tessera.placement.devices import device_geometry, shared_geometry


class SlicePosition(msgspec.Struct, frozen=True, order=True):
    """One legal position of a slice. ``profile`` has the resource's spelling (``1g.5gb.me``) in all of the agent."""

    gpu: str
    profile: str
    start: int

    @property
    def device_id(self) -> str:
        """The device plugin's ID; at most 57 characters (kubelet allows 63)."""
        return device_id(self.gpu, self.profile, self.start)


class SliceLease(msgspec.Struct, frozen=True):
    """A slice on demand that a pod holds: its MIG device, and kubelet's id of it if kubelet gave one.

    It is exchanged while the pod's container has a lent slice instead.
    """

    pod: PodUid
    device: str
    device_id: str = ""
    exchanged: bool = False


def parse_device_id(text: str) -> SlicePosition:
    """The position that a device ID names.

    Raises:
        ValueError: the text is not ``<card>:<profile>:<start>``.
    """
    gpu, _, rest = text.partition(":")
    profile, _, start = rest.rpartition(":")
    if not (gpu and profile and start.isascii() and start.isdigit()):
        raise ValueError(f"device ID {text!r}: not of the form GPU-UUID:PROFILE:START")
    return SlicePosition(gpu, profile, int(start))


class SliceableGpu(msgspec.Struct, frozen=True):
    """A GPU that can be cut now."""

    info: GpuInfo
    geometry: Geometry
    shares: CardShares | None = None

    @property
    def uuid(self) -> str:
        """The UUID of the GPU."""
        return self.info.uuid

    @property
    def is_whole(self) -> bool:
        """True if it is given whole or in shares, and never cut."""
        return is_device_profile(self.geometry.profiles[0].name)

    def starts(self) -> dict[str, tuple[int, ...]]:
        """Legal first slots by profile, in the resource's spelling."""
        return {profile.spelling: profile.starts for profile in self.geometry.profiles}

    def device_positions(self, resource: str) -> list[SlicePosition]:
        """The positions that are devices of a resource: as many as an empty GPU holds slices of the profile.

        A GPU has one set of media engines, so ``1g.5gb+me`` is one device although it may start anywhere.
        """
        return [
            SlicePosition(self.info.uuid, profile.spelling, start)
            for profile in self.geometry.profiles
            if profile.resource == resource
            for start in profile.starts[: profile.max_count]
        ]


class SkippedGpu(msgspec.Struct, frozen=True):
    """A GPU that cannot be cut now; ``waits`` if a reset or another try may change that."""

    info: GpuInfo
    reason: str
    waits: bool = False


class SliceableGpus(msgspec.Struct, frozen=True):
    """The GPUs of the node, or some of them."""

    gpus: tuple[SliceableGpu, ...] = ()
    skipped: tuple[SkippedGpu, ...] = ()

    def gpu(self, uuid: str) -> SliceableGpu | None:
        """The GPU of that UUID; ``None`` if it cannot be cut."""
        return find_gpu(self.gpus, uuid)

    def only(self, uuids: Collection[str]) -> "SliceableGpus":
        """Returns only these GPUs."""
        return SliceableGpus(
            tuple(card for card in self.gpus if card.uuid in uuids),
            tuple(each for each in self.skipped if each.info.uuid in uuids),
        )

    def quota_gib(self) -> int:
        """Upper limit of the charges of pods, GiB: the sum over the GPUs of the largest GB total of a layout."""
        alike = Counter(card.geometry for card in self.gpus if not card.is_whole)
        return sum(max_memory_gb_of_layout(geometry) * count for geometry, count in alike.items())

    def resources(self) -> tuple[str, ...]:
        """The extended resource of every profile of every card that is cut, sorted."""
        cut = (card.geometry for card in self.gpus if not card.is_whole)
        return tuple(sorted({profile.resource for geometry in cut for profile in geometry.profiles}))

    def devices(self, resource: str, *, unhealthy: frozenset[str] = frozenset()) -> list[Device]:
        """The devices of a resource on all cards, see :meth:`SliceableGpu.device_positions`.

        Args:
            resource: ``nvidia.com/mig-<profile>``.
            unhealthy: UUIDs of cards that cannot be used now.
        """
        return [
            Device(
                id=position.device_id,
                healthy=card.uuid not in unhealthy,
                numa_nodes=() if card.info.numa_node is None else (card.info.numa_node,),
            )
            for card in self.gpus
            for position in card.device_positions(resource)
        ]


def sliceable_gpus(
    inventory: GpuInventory,
    refused: Mapping[str, str] | None = None,
    claimed: Mapping[str, CardShares | None] | None = None,
) -> SliceableGpus:
    """The GPUs that can be cut into slices now, and the others with the reason.

    Args:
        inventory: the node's GPUs as last read.
        refused: by UUID, why MIG mode could not be turned on.
        claimed: by UUID of those that are given whole or in shares, how they are divided.
    """
    gpus: list[SliceableGpu] = []
    skipped: list[SkippedGpu] = []
    for gpu in inventory.gpus:
        if gpu.uuid in (claimed or {}):
            reason, waits = _unfit_whole(gpu.info)
            if reason:
                skipped.append(SkippedGpu(gpu.info, reason, waits))
            else:
                shares = (claimed or {})[gpu.uuid]
                geometry = claimed_geometry(gpu.info.name, gpu.info.memory_mib, 0 if shares is None else shares.count)
                gpus.append(SliceableGpu(gpu.info, geometry, shares))
            continue
        reason, waits = _unfit(gpu.info)
        if not reason and gpu.geometry is not None and not gpu.mig_problem:
            gpus.append(SliceableGpu(gpu.info, gpu.geometry))
        else:
            reason = (refused or {}).get(gpu.uuid, reason or gpu.mig_problem)
            skipped.append(SkippedGpu(gpu.info, reason, waits or bool(gpu.mig_problem)))
    return SliceableGpus(tuple(gpus), tuple(skipped))


async def enable_mig(hardware: AsyncNvml, uuids: Collection[str]) -> dict[str, str]:
    """Turns MIG mode on where it is off. A GPU that needs a reset is left in that state.

    Args:
        hardware: the node's GPUs.
        uuids: the GPUs that may be changed.

    Returns:
        By UUID, why MIG mode could not be turned on.

    Raises:
        NvmlError: the GPUs cannot be listed.
    """
    refused: dict[str, str] = {}
    for info in await hardware.devices():
        off = not info.mig_enabled and not info.mig_pending
        if info.uuid in uuids and info.mig_capable and info.readable and off:
            try:
                if await hardware.set_mig_mode(info.uuid, enabled=True) is MigModeResult.IN_USE:
                    refused[info.uuid] = (
                        "MIG mode cannot change while a process uses the card; stop it, then reset the card"
                    )
            except NvmlError as error:
                refused[info.uuid] = f"MIG mode cannot be turned on: {error}"
    return refused


def node_gpus(cards: Sequence[SliceableGpu]) -> tuple[tuple[NodeGpu, ...], dict[str, ProfilePlacements]]:
    """Returns the cards as the Instaslice object lists them, and the first card's table as the node's.

    A card whose table differs from the first one's carries its own.
    """
    if not cards:
        return (), {}
    shared = placements(cards[0].geometry)
    listed = tuple(
        NodeGpu(
            gpu_uuid=card.uuid,
            gpu_name=card.info.name,
            gpu_memory=f"{card.info.memory_mib}Mi",
            mig_placement=own if (own := placements(card.geometry)) != shared else None,
        )
        for card in cards
    )
    return listed, shared


def placements(geometry: Geometry) -> dict[str, ProfilePlacements]:
    """A card's table in the object's form."""
    return {
        row.name: ProfilePlacements(
            placements=tuple(Placed(size=row.size, start=start) for start in row.starts),
            gi_profile_id=row.gi_profile_id if row.gi_profile_id is not None else row.gi_profile_index,
            ci_profile_id=row.ci_profile_index,
            max_count=row.max_count,
        )
        for row in geometry.profiles
    }


def claimed_geometry(product: str, memory_mib: int, shares: int = 0) -> Geometry:
    """Returns the geometry of a card that ResourceClaims get whole, or in a number of shares."""
    if shares:
        return shared_geometry(product, CLAIMED_SHARE, shares, memory_mib // 1024 // shares)
    return device_geometry(product, CLAIMED_CARD, CARD_SLOTS, memory_mib // 1024)


def _unfit_whole(info: GpuInfo) -> tuple[str, bool]:
    if not info.readable:
        return info.problem, not info.lost
    on = info.mig_enabled or info.mig_pending
    return ("MIG mode is on, so no program can use the whole card", True) if on else ("", False)


def _unfit(info: GpuInfo) -> tuple[str, bool]:
    if not info.readable:
        return info.problem, not info.lost
    if not info.mig_capable:
        return "the card cannot do MIG", False
    if not info.mig_enabled and info.mig_pending:
        return "MIG mode waits for a reset of the card; stop what uses it and reset it, or reboot the node", True
    return ("", False) if info.mig_enabled else ("MIG mode is off", True)
