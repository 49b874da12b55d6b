"""The GPUs of the node as last read: the one reading for slices, sharing, MIG config, labels and health.

A GPU's table of profiles comes from the GPU while MIG mode is on, and from the known models while it is off, so a MIG
layout can be checked before a GPU is changed. A GPU that cannot be read keeps the values that NVML gave last, without
instances; nothing here decides what that means.

The module also records which side owns a card: the slice manager, which cuts it on demand, or the static side.

The static side offers a card as it is or as its layout cuts it. The slice manager also has the cards that
ResourceClaims get whole or in shares. A layout sets the desired owner of each card. A card changes its owner only after
the present one has released it: the slice manager once no slice of it is promised or made, the static side once no pod
holds the card or a part of it and the layout's instances are gone. So a card is never cut under a pod, whatever the
node's label says and however often it changes. The owners are kept in a file: a process that starts again does not take
a card from the other side by mistake.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from tessera.agent.base.node_files import StateFile
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.api.mig_layouts import MigCard
from tessera.api.names import CLAIMED_CARD
from tessera.api.sharing.devices import SHARING_RULES, GpuDescription, MigDevice, SharingKind
from tessera.mig.geometry import Engines, Geometry, Profile
from tessera.mig.models import model_by_product
from tessera.mig.names import CLAIMED_SHARE, parse_profile_name
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import GpuLost, NvmlError, NvmlNotFound, UnknownNvmlError
from tessera.nvml.interface import CardAttributes, GiProfileInfo, GpuInfo, GpuInstance, GpuUuid, MigAttributes, NvLink


class _HasUuid(Protocol):
    @property
    def uuid(self) -> str:
        """The UUID of the GPU."""
        ...


G = TypeVar("G", bound=_HasUuid)


def find_gpu(gpus: Iterable[G], uuid: str) -> G | None:
    """Returns the GPU of that UUID; ``None`` if there is none."""
    return next((gpu for gpu in gpus if gpu.uuid == uuid), None)


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as it was read last.

    Attributes:
        info: NVML's basic facts.
        instances: its GPU instances by start; empty without MIG mode.
        geometry: how it can be cut; ``None`` for a card without MIG, and for an unknown model while MIG is off.
        mig_problem: why the profiles or instances of a GPU in MIG mode cannot be read; empty if they were read.
        attributes: the values that do not change while the driver runs; ``None`` if they cannot be read.
        mig_attributes: attributes of its MIG devices, by UUID; the last ones that were read while it has a problem.
        links: its NVLinks that are up.
    """

    info: GpuInfo
    instances: tuple[GpuInstance, ...] = ()
    geometry: Geometry | None = None
    mig_problem: str = ""
    attributes: CardAttributes | None = None
    mig_attributes: Mapping[str, MigAttributes] = {}
    links: tuple[NvLink, ...] = ()

    @property
    def uuid(self) -> str:
        """The UUID of the GPU."""
        return self.info.uuid

    @property
    def error(self) -> str:
        """NVML's words if the GPU or its MIG instances cannot be read; empty if they were read, or the GPU is lost."""
        return self.info.error or self.mig_problem


class GpuInventory(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of the node, by index, and the driver that runs them."""

    gpus: tuple[GpuState, ...] = ()
    driver_version: str = ""
    cuda_version: int = 0

    def gpu(self, uuid: str) -> GpuState | None:
        """The GPU of that UUID; ``None`` if there is none."""
        return find_gpu(self.gpus, uuid)


class CardReading(msgspec.Struct, frozen=True):
    """One GPU as it is now: basic facts, profiles (``None`` while MIG mode is off), GPU instances."""

    info: GpuInfo
    geometry: Geometry | None
    instances: tuple[GpuInstance, ...]


class InventoryReader:
    """Reads the GPUs on request and keeps the last reading.

    The executors of slices and of MIG layouts read their GPU through it before each decision. A health probe is a call
    of its own: its answer is the point, not the values.

    Args:
        hardware: the node's GPUs.
        changes: notified when a reading differs from the one before.

    Attributes:
        inventory: the last reading; no GPUs before the first :meth:`refresh`.
    """

    def __init__(self, hardware: AsyncNvml, changes: ChangeNotifier) -> None:
        self._hardware = hardware
        self._changes = changes
        self.inventory = GpuInventory()
        #: Called with every reading.
        self._listeners: list[Callable[[GpuInventory], None]] = []
        #: Tables of the GPUs in MIG mode that :meth:`read_card` has read; a table changes with the driver only.
        self._geometries: dict[GpuUuid, Geometry] = {}

    def add_listener(self, listener: Callable[[GpuInventory], None]) -> None:
        """Calls ``listener`` with every reading from now on, before others are woken."""
        self._listeners.append(listener)

    async def refresh(self) -> GpuInventory:
        """Reads every GPU again.

        Raises:
            NvmlError: the cards cannot be listed; the last reading is kept.
        """
        found = _keep_mig_devices(await read_gpu_inventory(self._hardware), self.inventory)
        changed = found != self.inventory
        if changed:
            self.inventory = found
        for listener in self._listeners:
            listener(self.inventory)
        if changed:
            self._changes.notify(Fact.CARDS)
        return self.inventory

    async def read_card(self, uuid: GpuUuid) -> CardReading:
        """Reads one GPU now. The kept reading stays as it is until :meth:`refresh`.

        Raises:
            NvmlError: the GPU is lost, is no longer listed, or does not answer.
            ValueError: a profile of the GPU has an invalid name.
        """
        info = next((each for each in await self._hardware.devices() if each.uuid == uuid), None)
        if info is None:
            raise NvmlNotFound(f"card {uuid}: the driver no longer lists it; drain the node and reboot it")
        if info.lost:
            raise GpuLost(f"card {uuid}")
        if not info.readable:
            raise UnknownNvmlError(f"card {uuid} cannot be read: {info.error}")
        if not info.mig_enabled:
            self._geometries.pop(uuid, None)
            return CardReading(info, None, ())
        if uuid not in self._geometries:
            self._geometries[uuid] = geometry_of(info, await self._hardware.gi_profiles(uuid))
        return CardReading(info, self._geometries[uuid], await self.read_instances(uuid))

    async def read_instances(self, uuid: GpuUuid) -> tuple[GpuInstance, ...]:
        """Reads the GPU instances of one GPU now.

        Raises:
            NvmlError: the GPU does not answer.
        """
        return tuple(await self._hardware.instances(uuid))


async def read_gpu_inventory(hardware: AsyncNvml) -> GpuInventory:
    """Reads every card without changing any.

    Raises:
        NvmlError: the cards cannot be listed. A card that fails is listed without the values that it does not give.
    """
    infos = await hardware.devices()
    return GpuInventory(
        gpus=tuple([await _read_gpu(hardware, info) for info in sorted(infos, key=lambda each: each.index)]),
        driver_version=await hardware.driver_version(),
        cuda_version=await hardware.cuda_version(),
    )


def _keep_mig_devices(found: GpuInventory, before: GpuInventory) -> GpuInventory:
    """Keeps which MIG devices a GPU had that cannot be read now: pods may hold them."""
    gpus = []
    for gpu in found.gpus:
        old = before.gpu(gpu.uuid) if not gpu.info.readable or gpu.mig_problem else None
        gpus.append(gpu if old is None else msgspec.structs.replace(gpu, mig_attributes=old.mig_attributes))
    return msgspec.structs.replace(found, gpus=tuple(gpus))


async def _read_gpu(hardware: AsyncNvml, info: GpuInfo) -> GpuState:
    """One card; each value that it does not give is left out, and no other."""
    if not info.readable:
        return GpuState(info=info, geometry=_geometry_of_model(info))
    attributes: CardAttributes | None = None
    links: tuple[NvLink, ...] = ()
    with suppress(NvmlError):
        attributes = await hardware.attributes(info.uuid)
    with suppress(NvmlError):
        links = tuple(await hardware.nvlinks(info.uuid))
    geometry, instances, problem = await _read_mig(hardware, info)
    mig: dict[str, MigAttributes] = {}
    for each in (compute for instance in instances for compute in instance.compute_instances):
        mig[each.mig_uuid] = MigAttributes()
        with suppress(NvmlError):
            mig[each.mig_uuid] = await hardware.mig_attributes(each.mig_uuid)
    return GpuState(
        info=info,
        instances=instances,
        geometry=geometry,
        mig_problem=problem,
        attributes=attributes,
        mig_attributes=mig,
        links=links,
    )


async def _read_mig(hardware: AsyncNvml, info: GpuInfo) -> tuple[Geometry | None, tuple[GpuInstance, ...], str]:
    """Table and GPU instances of a card, and why they cannot be read although its MIG mode is on."""
    if not info.mig_enabled:
        return _geometry_of_model(info), (), ""
    try:
        return geometry_of(info, await hardware.gi_profiles(info.uuid)), tuple(await hardware.instances(info.uuid)), ""
    except (NvmlError, ValueError) as error:
        # Another part may have turned MIG mode off meanwhile; it has the card read again.
        on = any(each.uuid == info.uuid and each.mig_enabled for each in await hardware.devices())
        text = f"MIG is on, and its profiles or instances cannot be read: {error}" if on else ""
        return _geometry_of_model(info), (), text


def _geometry_of_model(info: GpuInfo) -> Geometry | None:
    model = model_by_product(info.name) if info.mig_capable else None
    return None if model is None else model.table


def sharing_gpus(cards: Iterable[GpuState]) -> list[GpuDescription]:
    """The GPUs as a sharing profile sees them: with the MIG devices that a container can get."""
    return [
        GpuDescription(
            uuid=card.uuid,
            index=card.info.index,
            product=card.info.name,
            compute_capability=card.info.compute_capability,
            mig_enabled=card.info.mig_enabled,
            mig_devices=_mig_devices(card),
        )
        for card in cards
    ]


def _mig_devices(card: GpuState) -> tuple[MigDevice, ...]:
    made = [(instance, each) for instance in card.instances for each in instance.compute_instances]
    return tuple(
        MigDevice(
            uuid=each.mig_uuid,
            index=index,
            profile=mig_device_profile(card, instance, each.profile_index),
            gi_id=instance.gi_id,
            ci_id=each.ci_id,
        )
        for index, (instance, each) in enumerate(sorted(made, key=lambda pair: (pair[0].gi_id, pair[1].ci_id)))
    )


def fixed_memory_gib(cards: Iterable[GpuState]) -> int:
    """Memory of all MIG devices of these cards as pods are charged for it: the GB in the names of their profiles."""
    return sum(
        parse_profile_name(instance.profile).memory_gb
        for card in cards
        for instance in card.instances
        if instance.compute_instances
    )


def mig_device_profile(card: GpuState, instance: GpuInstance, ci_profile: int) -> str:
    """The name of a MIG device: its GPU instance's, or ``1c.3g.20gb`` if it does not fill that."""
    profile = card.geometry.find(instance.profile) if card.geometry is not None else None
    if profile is None or profile.ci_profile_index == ci_profile:
        return instance.profile
    return f"{_COMPUTE_SLICES.get(ci_profile, 0)}c.{instance.profile}"


#: Compute slices by ``NVML_COMPUTE_INSTANCE_PROFILE_*`` (nvml.h).
_COMPUTE_SLICES: Mapping[int, int] = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 7: 1}


def mig_cards_of(cards: Sequence[GpuState]) -> list[MigCard]:
    """The cards in the form by which a file of layouts selects them."""
    return [
        MigCard(
            uuid=card.uuid,
            index=card.info.index,
            product=card.info.name,
            pci_device_id=int(card.info.pci_device_id, 16),
            pci_subsystem_id=card.attributes.pci_subsystem_id if card.attributes is not None else 0,
            mig_capable=card.info.mig_capable,
        )
        for card in cards
    ]


def geometry_of(info: GpuInfo, profiles: Sequence[GiProfileInfo]) -> Geometry:
    """The table of a card from what NVML reports of it.

    Raises:
        ValueError: NVML reported no profile, or one with an invalid name.
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
            memory_mib=each.memory_mib,
            engines=_engines_of(each),
        )
        for each in profiles
        if each.starts
    ]
    return Geometry.from_profiles(info.name, rows)


def _engines_of(row: GiProfileInfo) -> Engines:
    if not row.multiprocessors:
        return Engines()
    return Engines(
        multiprocessors=row.multiprocessors,
        copy_engines=row.copy_engines,
        decoders=row.decoders,
        encoders=row.encoders,
        jpeg_engines=row.jpeg_engines,
        ofa_engines=row.ofa_engines,
    )


class CardShares(msgspec.Struct, frozen=True):
    """How a card is divided for ResourceClaims: the kind of sharing, and the number of shares."""

    kind: SharingKind
    count: int

    @property
    def have_daemon(self) -> bool:
        """True if a daemon limits each client to one share."""
        return SHARING_RULES[self.kind].limits_threads


class CardOwner(Enum):
    """The present or desired owner of a card.

    The slice manager, which cuts it or gives it to ResourceClaims, whole or in shares; or the static side.
    """

    ON_DEMAND = "on-demand"
    CLAIMS = "claims"
    SHARES = "shares"
    STATIC = "static"


def owner_of(profile: str) -> CardOwner:
    """Returns the owner of a card on which a slice of a profile was promised or made."""
    return {CLAIMED_CARD: CardOwner.CLAIMS, CLAIMED_SHARE: CardOwner.SHARES}.get(profile, CardOwner.ON_DEMAND)


class CardOwnership:
    """The owners of a node's cards. A card without a desired owner is static.

    Args:
        path: the file of the owners; that of the shares is beside it.

    Attributes:
        decided: true once the desired owners are set; before that no part may act on a card.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, dict[str, CardOwner])
        #: The desired owner of each card; empty before the first :meth:`set_desired`.
        self._desired: dict[str, CardOwner] = {}
        #: The present owner of each card, as in the file.
        self._owners = self._file.load() or {}
        self._shares_file = StateFile(path.with_name("card-shares.json"), dict[str, CardShares])
        #: By card in shares, how it must be divided, and how it is divided until it is released.
        self._desired_shares: dict[str, CardShares] = {}
        self._shares = self._shares_file.load() or {}
        self.decided = False

    def assume(self, owners: Mapping[str, CardOwner]) -> None:
        """Sets owners that are certain when the process starts, whatever the file says.

        Args:
            owners: on-demand for cards on which the slice manager has made or promised slices; static for cards that
                pods hold and that the file does not name.
        """
        self._owners |= owners

    def is_known(self, uuid: str) -> bool:
        """True if the owner of a card is known: from the file, or since it was set."""
        return uuid in self._owners

    def set_desired(self, desired: Mapping[str, CardOwner], shares: Mapping[str, CardShares] | None = None) -> bool:
        """Sets the desired owner of each card; returns true if one changed.

        A card without an owner gets its desired owner at once.

        Args:
            desired: the owners.
            shares: how the cards are divided whose desired owner is :attr:`CardOwner.SHARES`.

        Raises:
            OSError: the file cannot be written.
        """
        wanted = dict(desired), dict(shares or {})
        changed = not self.decided or (self._desired, self._desired_shares) != wanted
        self._desired, self._desired_shares = wanted
        for uuid, owner in self._desired.items():
            if self._owners.setdefault(uuid, owner) is CardOwner.SHARES and uuid in self._desired_shares:
                self._shares.setdefault(uuid, self._desired_shares[uuid])
        self._save()
        self.decided = True
        return changed

    def desired_owner(self, uuid: str) -> CardOwner:
        """The desired owner of a card."""
        return self._desired.get(uuid, CardOwner.STATIC)

    def owner(self, uuid: str) -> CardOwner:
        """The present owner of a card."""
        return self._owners.get(uuid, CardOwner.STATIC)

    def is_leaving(self, uuid: str) -> bool:
        """True if the owner of a card must release it; until then it gives nothing of the card to further pods."""
        return self.owner(uuid) is not self.desired_owner(uuid) or (
            self.owner(uuid) is CardOwner.SHARES and self._shares.get(uuid) != self._desired_shares.get(uuid)
        )

    def transfer(self, uuid: str) -> None:
        """Makes the desired owner the present one; the former owner has released the card.

        A card that was cut passes through the static side before it is given whole, which turns off its MIG mode.

        Raises:
            OSError: the file cannot be written.
        """
        owner, desired = self.owner(uuid), self.desired_owner(uuid)
        direct = CardOwner.STATIC in (owner, desired) or CardOwner.ON_DEMAND not in (owner, desired)
        self._owners[uuid] = desired if direct or owner is desired else CardOwner.STATIC
        self._shares.pop(uuid, None)
        if self._owners[uuid] is CardOwner.SHARES and uuid in self._desired_shares:
            self._shares[uuid] = self._desired_shares[uuid]
        self._save()

    def on_demand_gpus(self) -> frozenset[str]:
        """The cards that the slice manager cuts."""
        return self._owned_by(CardOwner.ON_DEMAND)

    def claimed_gpus(self) -> Mapping[str, CardShares | None]:
        """The cards that the slice manager gives to ResourceClaims: how each is divided, ``None`` for a whole one."""
        shared = {uuid: self._shares.get(uuid) for uuid in self._owned_by(CardOwner.SHARES)}
        return {**dict.fromkeys(self._owned_by(CardOwner.CLAIMS)), **shared}

    def static_gpus(self) -> frozenset[str]:
        """The cards that the static side owns."""
        return self._owned_by(CardOwner.STATIC)

    def _owned_by(self, owner: CardOwner) -> frozenset[str]:
        known: Iterable[str] = {*self._desired, *self._owners}
        return frozenset(uuid for uuid in known if self.owner(uuid) is owner)

    def _save(self) -> None:
        self._shares_file.save(dict(sorted(self._shares.items())))
        self._file.save(dict(sorted(self._owners.items())))


class StaticGpus:
    """The static GPUs of the node, from the last reading of the inventory.

    Args:
        inventory: the node's GPUs.
        ownership: the side of the agent that has each GPU.
    """

    def __init__(self, inventory: InventoryReader, ownership: CardOwnership) -> None:
        self._inventory = inventory
        self._ownership = ownership

    def gpus(self) -> Sequence[GpuState]:
        """The static GPUs by index, without those that are about to be cut on demand."""
        static = self._ownership.static_gpus()
        return [
            gpu
            for gpu in self._inventory.inventory.gpus
            if gpu.uuid in static and gpu.info.identified and not self._ownership.is_leaving(gpu.uuid)
        ]

    def mig_memory_gib(self) -> int:
        """Memory of all MIG devices on these GPUs as pods are charged for it, GiB."""
        return fixed_memory_gib(self.gpus())
