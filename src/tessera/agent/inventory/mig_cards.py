"""The node's cards as NVML shows them, and how they are shown to the controller.

The table of every card (profiles, legal starts) is read from the card itself, never from a list of models: a new model
or a new driver then works without a new Tessera. A card that cannot do MIG, or whose MIG mode waits for a reset, is
left out with a reason; it is never reset and nothing on it is touched.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from tessera.agent.inventory.positions import SlicePosition
from tessera.api.instaslice import NodeGpu, ProfilePlacements
from tessera.api.instaslice import Position as Placed
from tessera.kubelet.interfaces import Device
from tessera.mig.geometry import Geometry, Profile
from tessera.mig.layout_planning import max_memory_gb_of_layout
from tessera.mig.names import parse_profile_name
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GiProfileInfo, GpuInfo, MigModeResult


class SliceableGpu(msgspec.Struct, frozen=True):
    """A card that can be cut now."""

    info: GpuInfo
    geometry: Geometry

    @property
    def uuid(self) -> str:
        """The card's name for life."""
        return self.info.uuid

    def starts(self) -> dict[str, tuple[int, ...]]:
        """Legal first slots by profile, in the resource's spelling."""
        return {profile.spelling: profile.starts for profile in self.geometry.profiles}

    def positions(self) -> Iterable[SlicePosition]:
        """Every place that a slice could have on the empty card."""
        for profile in self.geometry.profiles:
            yield from (SlicePosition(self.info.uuid, profile.spelling, start) for start in profile.starts)


class SkippedGpu(msgspec.Struct, frozen=True):
    """A card that cannot be cut now; ``waits`` if it is worth to look again: after a reset, or after another try."""

    info: GpuInfo
    reason: str
    waits: bool = False


class SliceableGpus(msgspec.Struct, frozen=True):
    """All cards of the node."""

    gpus: tuple[SliceableGpu, ...] = ()
    skipped: tuple[SkippedGpu, ...] = ()

    def gpu(self, uuid: str) -> SliceableGpu | None:
        """The card of that UUID if it can be cut."""
        return next((card for card in self.gpus if card.uuid == uuid), None)

    def only(self, uuids: Collection[str]) -> "SliceableGpus":
        """Those of the cards."""
        return SliceableGpus(
            tuple(card for card in self.gpus if card.uuid in uuids),
            tuple(each for each in self.skipped if each.info.uuid in uuids),
        )

    def quota_gib(self) -> int:
        """What pods can be charged for at most: the sum of the largest GB total that a layout of each card reaches."""
        alike = Counter(card.geometry for card in self.gpus)
        return sum(max_memory_gb_of_layout(geometry) * count for geometry, count in alike.items())

    def resources(self) -> tuple[str, ...]:
        """The extended resource of every profile of every card, sorted."""
        return tuple(sorted({profile.resource for card in self.gpus for profile in card.geometry.profiles}))

    def devices(self, resource: str, *, unhealthy: frozenset[str] = frozenset()) -> list[Device]:
        """The devices of a resource: one for every position on every card.

        Args:
            resource: ``nvidia.com/mig-<profile>``.
            unhealthy: UUIDs of cards that cannot be used now.
        """
        return [
            Device(
                id=SlicePosition(card.uuid, profile.spelling, start).device_id,
                healthy=card.uuid not in unhealthy,
                numa_nodes=() if card.info.numa_node is None else (card.info.numa_node,),
            )
            for card in self.gpus
            for profile in card.geometry.profiles
            if profile.resource == resource
            for start in profile.starts
        ]


async def read_inventory(hardware: AsyncNvml) -> SliceableGpus:
    """Reads every card without changing any.

    Raises:
        NvmlError: the cards cannot even be listed. One card in trouble is skipped, not raised.
    """
    cards: list[SliceableGpu] = []
    skipped: list[SkippedGpu] = []
    for info in await hardware.devices():
        reason, waits = _unfit(info)
        if not reason:
            try:
                cards.append(SliceableGpu(info, geometry_of(info, await hardware.gi_profiles(info.uuid))))
            except (NvmlError, ValueError) as error:
                reason = str(error)
        if reason:
            skipped.append(SkippedGpu(info, reason, waits))
    return SliceableGpus(tuple(cards), tuple(skipped))


async def enable_mig(hardware: AsyncNvml, uuids: Collection[str]) -> SliceableGpus:
    """Turns MIG mode on where it is off and reads all cards. Cards that need a reset are left waiting for it.

    Args:
        hardware: the node's cards.
        uuids: the cards that may be changed.

    Raises:
        NvmlError: the cards cannot even be listed.
    """
    refused: dict[str, str] = {}
    for info in await hardware.devices():
        off = not info.mig_enabled and not info.mig_pending
        if info.uuid in uuids and info.mig_capable and not info.lost and off:
            try:
                if await hardware.set_mig_mode(info.uuid, enabled=True) is MigModeResult.IN_USE:
                    refused[info.uuid] = (
                        "MIG mode cannot change while a process uses the card; stop it, then reset the card"
                    )
            except NvmlError as error:
                refused[info.uuid] = f"MIG mode cannot be turned on: {error}"
    inventory = await read_inventory(hardware)
    skipped = tuple(
        msgspec.structs.replace(each, reason=refused.get(each.info.uuid, each.reason)) for each in inventory.skipped
    )
    return SliceableGpus(inventory.gpus, skipped)


def geometry_of(info: GpuInfo, profiles: Sequence[GiProfileInfo]) -> Geometry:
    """The table of a card from what NVML reports of it.

    Raises:
        ValueError: NVML reported no profile, or one with a name that is not a profile's.
    """
    rows = [
        Profile(
            name=each.name,
            compute_slices=each.compute_slices,
            size=each.size,
            starts=each.starts,
            max_count=each.max_count,
            memory_gb=parse_profile_name(each.name).memory_gb,
            gi_profile_index=each.index,
            gi_profile_id=each.id,
        )
        for each in profiles
        if each.starts
    ]
    return Geometry.from_profiles(info.name, rows)


def node_gpus(cards: Sequence[SliceableGpu]) -> tuple[tuple[NodeGpu, ...], dict[str, ProfilePlacements]]:
    """The cards as the Instaslice object lists them, and the first card's table as the node's.

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


def _unfit(info: GpuInfo) -> tuple[str, bool]:
    if info.lost:
        return "the card does not answer; drain the node and reboot it", False
    if not info.mig_capable:
        return "the card cannot do MIG", False
    if not info.mig_enabled and info.mig_pending:
        return "MIG mode waits for a reset of the card; stop what uses it and reset it, or reboot the node", True
    return ("", False) if info.mig_enabled else ("MIG mode is off", True)
