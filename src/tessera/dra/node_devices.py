"""Devices of a node's cards: whole cards, every placement of every profile, and shares.

Names and attributes are a superset of those of NVIDIA's DRA driver (cmd/gpu-kubelet-plugin, 0.4), so a selector works
here after its domain was changed. Partitions of a card take from two counter sets: its memory slices, one counter each,
and its compute slices with what exists once per card. Instances that others made take from these counters too: the
counters are lower by them.

A card has one role: it is given whole or in partitions, or in shares. Shared devices have a pool of their own, because
kube-scheduler 1.36 before the fix of kubernetes/kubernetes#139040 gives partitions twice in a pool with both.

Order of preference: cards by index; on a card small profiles first, and of a profile the placement that excludes the
fewest others, on the right first.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import ROUND_CEILING, Decimal
from hashlib import sha256
from uuid import NAMESPACE_OID, uuid5

import msgspec

from tessera.api.names import CLAIM_DRIVERS
from tessera.api.sharing.devices import SHARING_RULES
from tessera.cel.kubernetes_values import Semver, normalize_version, read_semver
from tessera.dra.devices import (
    NO_EXECUTE,
    NO_SCHEDULE,
    Capacity,
    Device,
    DeviceId,
    DeviceTaint,
    Pool,
    Value,
    card_counters,
    compute_counter,
    partition_counters,
    qualify,
    slot_counters,
)
from tessera.limits import CARD_SLOTS
from tessera.mig.geometry import Engines, Geometry, Placement, Profile, placement_mask

#: Name of our driver, and of NVIDIA's, whose place it can take.
DRIVER, NVIDIA_DRIVER = CLAIM_DRIVERS
#: Keeps kube-scheduler's allocator away: the controller writes allocations, which are not checked for taints again.
PLACED_BY = DeviceTaint("tessera.dev/placed-by", "tessera", NO_SCHEDULE)
FAULT_TAINT, CORDON_TAINT = "tessera.dev/fault", "tessera.dev/cordoned"
#: End of the name of the pool of shared devices.
SHARES = "/shares"
_STANDARD = "resource.kubernetes.io/"
_MIB = 2**20
#: Kinds of sharing by which each client has one share, to which a daemon limits it.
_LIMITED = frozenset(kind.value for kind, rules in SHARING_RULES.items() if rules.limits_threads)
_NOT_IN_LABEL = re.compile(r"[^A-Za-z0-9_.-]+")
_NOT_IN_NAME = re.compile(r"[^a-z0-9-]+")
#: Kubernetes' bounds: bytes of a text attribute, characters of a label's value and of a pool's name.
_TEXT, _LABEL, _POOL = 64, 63, 253


class NodeCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card as its agent knows it.

    Attributes:
        uuid: ``GPU-`` and a UUID.
        minor: ``N`` of ``/dev/nvidiaN``; -1 if unknown.
        index: NVML's index.
        product: NVML's product name.
        compute_capability: major and minor.
        memory_mib: total memory.
        architecture: ``hopper``, ``ada-lovelace``; empty if unknown.
        brand: NVML's brand, ``Nvidia``; empty if unknown.
        pci_bus_id: ``0000:07:00.0``; empty if unknown.
        pcie_root: ``pci0000:00``, the root complex; empty if unknown.
        numa_node: None if the platform does not report it.
        addressing_mode: how the card reaches memory of the host, ``HMM``, ``ATS`` or ``None``; empty if unknown.
        nvlink_group: cards with the same text are joined by NVLink; empty for none.
        engines: of the whole card.
        whole: it can be given whole.
        geometry: how it is cut on demand; None if it is not.
        foreign: instances on the card that no claim of ours made.
        shares: shares of the card, 0 for any number; None if it is not shared.
        sharing: ``time-slicing`` or ``mps``.
        fault: what is wrong with it, in a word; empty if nothing is.
        cordoned: an administrator takes it out of service.
        evicts: its fault ends the pods that have devices of it (``NoExecute``).
    """

    uuid: str
    minor: int
    index: int
    product: str
    compute_capability: tuple[int, int]
    memory_mib: int
    architecture: str = ""
    brand: str = ""
    pci_bus_id: str = ""
    pcie_root: str = ""
    numa_node: int | None = None
    addressing_mode: str = ""
    nvlink_group: str = ""
    engines: Engines = Engines()
    whole: bool = True
    geometry: Geometry | None = None
    foreign: tuple[Placement, ...] = ()
    shares: int | None = None
    sharing: str = ""
    fault: str = ""
    cordoned: bool = False
    evicts: bool = False


class PublishOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a node's devices are published.

    Attributes:
        driver: name of the driver, and domain of its attributes.
        placed_by_us: the controller places, so kube-scheduler must not: all devices are tainted.
        taints: the server keeps taints of devices (Kubernetes 1.36, or the gate DRADeviceTaints).
        counters: it keeps counters (DRAPartitionableDevices). Without them partitions are published only if we place
            and all classes for them are guarded: kube-scheduler would give a memory slice twice.
        guarded: the cluster's classes for the driver are guarded (:mod:`tessera.dra.driver_objects`).
        shares: it keeps consumable capacity (DRAConsumableCapacity); without it no shares are published.
    """

    driver: str = DRIVER
    placed_by_us: bool = True
    taints: bool = True
    counters: bool = True
    guarded: bool = False
    shares: bool = True


def node_pools(
    node: str, cards: Sequence[NodeCard], versions: tuple[str, int], options: PublishOptions
) -> tuple[Pool, ...]:
    """Returns the pools of a node: whole cards and partitions, and a second one if cards are shared.

    Args:
        node: its name.
        cards: its cards. One whose minor is unknown has no names for its devices, and is left out.
        versions: the driver's version and CUDA's, ``("580.95.05", 13000)``.
        options: the way to publish.
    """
    named = sorted((card for card in cards if card.minor >= 0), key=lambda each: each.index)
    builders = [_CardDevices(card, versions, options) for card in named]
    plain, shared = (
        Pool(
            driver=options.driver,
            name=name,
            node=node,
            devices=tuple(device for each in builders for device in each.devices(name)),
            counters={key: value for each in builders for key, value in each.counters(name).items()},
        )
        for name in pool_names(node)
    )
    return (plain, shared) if shared.devices else (plain,)


def pool_names(node: str) -> tuple[str, str]:
    """Returns the names of a node's pools: of whole cards and partitions, and of shared cards."""
    return node, bounded_name(node, _POOL - len(SHARES)) + SHARES


def bounded_name(name: str, most: int) -> str:
    """Returns a name of at most ``most`` characters: a longer one is cut and ends with its digest."""
    digest = sha256(name.encode()).hexdigest()[:10]
    return name if len(name) <= most else f"{name[: most - 11].rstrip('.-')}-{digest}"


def share_id(gpu: str, start: int) -> str:
    """Returns the ``shareID`` of a share of a card: it names the place, so no two claims have one place at a time."""
    return str(uuid5(NAMESPACE_OID, f"{gpu}/{start}"))


def shared_name(minor: int) -> str:
    """Returns the name of a card in shares, ``gpu-0-shares``."""
    return f"gpu-{minor}-shares"


def places_needed(device: Device, amounts: Mapping[str, Decimal]) -> int:
    """Returns how many shares of a card a claim takes that consumes these amounts: its share of the memory counts."""
    driver = device.id.driver
    count, memory = (device.capacity.get(f"{driver}/{name}") for name in ("shares", "memory"))
    wanted = amounts.get(f"{driver}/shares", Decimal(1))
    if count is not None and memory is not None and memory.value > 0:
        wanted = max(wanted, amounts.get(f"{driver}/memory", Decimal(0)) * count.value / memory.value)
    return max(1, int(wanted.to_integral_value(ROUND_CEILING)))


def is_divided(device: Device) -> bool:
    """True for a shared card with as many shares as a node's object lists, and with memory."""
    shares, memory = (device.capacity.get(f"{device.id.driver}/{name}") for name in ("shares", "memory"))
    return shares is not None and 1 <= shares.value <= CARD_SLOTS and memory is not None and memory.value > 0


def places_of(device: Device, count: int) -> Device:
    """Returns a shared card as if it had only a number of its shares, with their part of the memory."""
    driver, one = device.id.driver, Decimal(1)
    shares, memory = device.capacity[f"{driver}/shares"], device.capacity[f"{driver}/memory"]
    part = memory.value * count / shares.value
    left = {
        f"{driver}/shares": msgspec.structs.replace(shares, value=Decimal(count), default=one, least=one, step=one),
        f"{driver}/memory": msgspec.structs.replace(memory, value=part),
    }
    return msgspec.structs.replace(device, capacity={**device.capacity, **left})


def whole_name(minor: int) -> str:
    """Returns the name of a whole card, ``gpu-0``."""
    return f"gpu-{minor}"


def partition_name(minor: int, profile: Profile, start: int) -> str:
    """Returns the name of a partition, ``gpu-0-mig-1g20gb-15-6``: minor, profile, NVML's id of it, and start."""
    name = _NOT_IN_NAME.sub("-", profile.name.replace(".", "").lower())
    number = profile.gi_profile_index if profile.gi_profile_id is None else profile.gi_profile_id
    return f"gpu-{minor}-mig-{name}-{number}-{start}"


def preferred_placements(geometry: Geometry) -> list[Placement]:
    """Returns all placements of a card in the order of preference (see the module's text)."""
    every = [Placement(row.name, start, row.size) for row in geometry.profiles for start in row.starts]
    masks = {each: geometry.claim(geometry.profile(each.profile), each.start) for each in every}

    def excluded(placement: Placement) -> int:
        return sum(bool(masks[placement] & mask) for mask in masks.values())

    order = {row.name: number for number, row in enumerate(geometry.profiles)}
    return sorted(every, key=lambda each: (each.size, order[each.profile], excluded(each), -each.start))


class _CardDevices:
    def __init__(self, card: NodeCard, versions: tuple[str, int], options: PublishOptions) -> None:
        self._card = card
        self._versions = versions
        self._options = options
        can_cut = options.counters or (options.placed_by_us and options.guarded)
        self._geometry = card.geometry if can_cut and card.shares is None else None

    def devices(self, pool: str) -> Iterator[Device]:
        """Yields the card's devices in one of the node's pools."""
        card = self._card
        if pool.endswith(SHARES):
            if card.shares is not None and self._options.shares:
                yield self._shared(pool)
        elif card.shares is None:
            if self._geometry is not None:
                yield from self._partitions(pool, self._geometry)
            if card.whole and (self._options.counters or not card.foreign):
                yield self._whole(pool)

    def counters(self, pool: str) -> dict[tuple[str, str], Decimal]:
        """Returns the card's counters in one of the node's pools, less what foreign instances take."""
        geometry = self._geometry
        if geometry is None or pool.endswith(SHARES) or not self._options.counters:
            return {}
        minor = self._card.minor
        found, compute = card_counters(minor, geometry), compute_counter(minor)
        for each in self._card.foreign:
            for key in slot_counters(minor, geometry, placement_mask(geometry, each)):
                found[key] = Decimal(0)
            profile = geometry.find(each.profile)
            left = found[compute] - (each.size if profile is None else profile.compute_slices)
            found[compute] = max(left, Decimal(0))
        return found

    def _whole(self, pool: str) -> Device:
        geometry = self._geometry
        return self._device(
            pool,
            whole_name(self._card.minor),
            {"type": "gpu", "uuid": self._card.uuid},
            self._amounts(self._card.memory_mib, self._card.engines),
            {} if geometry is None or not self._options.counters else card_counters(self._card.minor, geometry),
        )

    def _partitions(self, pool: str, geometry: Geometry) -> Iterator[Device]:
        """Yields all placements; without counters, those that foreign instances leave."""
        taken = 0
        for each in () if self._options.counters else self._card.foreign:
            taken |= placement_mask(geometry, each)
        for placement in preferred_placements(geometry):
            if not geometry.claim(geometry.profile(placement.profile), placement.start) & taken:
                yield self._partition(pool, geometry, placement)

    def _partition(self, pool: str, geometry: Geometry, placement: Placement) -> Device:
        profile = geometry.profile(placement.profile)
        counters = partition_counters(self._card.minor, geometry, profile, placement.start)
        values: dict[str, Value] = {
            "type": "mig",
            "parentUUID": self._card.uuid,
            "profile": profile.name,
            "start": placement.start,
            "size": placement.size,
        }
        memory = profile.memory_mib or profile.memory_gb * 1024
        amounts = self._amounts(memory, profile.engines)
        name = partition_name(self._card.minor, profile, placement.start)
        return self._device(pool, name, values, amounts, counters if self._options.counters else {})

    def _shared(self, pool: str) -> Device:
        card, zero = self._card, Decimal(0)
        amounts = self._amounts(card.memory_mib, card.engines)
        whole = Decimal(card.memory_mib * _MIB)
        usual = zero if self._options.placed_by_us else Decimal(card.memory_mib // (card.shares or 1) * _MIB)
        amounts["memory"] = Capacity(value=whole, default=usual, least=zero, most=whole, step=Decimal(_MIB))
        if card.shares:
            one, count = Decimal(1), Decimal(card.shares)
            amounts["shares"] = Capacity(value=count, default=one, least=one, most=count, step=one)
        if card.shares and card.sharing in _LIMITED:
            part = Decimal(card.memory_mib // card.shares * _MIB)
            amounts["memory"] = msgspec.structs.replace(amounts["memory"], default=part, most=part)
            amounts["shares"] = msgspec.structs.replace(amounts["shares"], most=Decimal(1))
        for name in amounts.keys() - {"memory", "shares"}:  # every share sees all engines and takes none
            amounts[name] = msgspec.structs.replace(amounts[name], default=zero)
        values: dict[str, Value] = {"type": "gpu", "uuid": card.uuid, "sharing": card.sharing}
        return self._device(pool, shared_name(card.minor), values, amounts, {}, shared=True)

    def _device(
        self,
        pool: str,
        name: str,
        values: Mapping[str, Value],
        amounts: Mapping[str, Capacity],
        counters: Mapping[tuple[str, str], Decimal],
        *,
        shared: bool = False,
    ) -> Device:
        driver = self._options.driver
        attributes = {**self._common(), **values}
        return Device(
            id=DeviceId(driver, pool, name),
            attributes={
                qualify(key, driver): _cut(value)
                for key, value in sorted(attributes.items())
                if value not in ("", None)  # unknown values are left out
            },
            capacity={qualify(key, driver): value for key, value in amounts.items()},
            counters=counters,
            taints=tuple(self._taints()) if self._options.taints else (),
            shared=shared,
        )

    def _common(self) -> dict[str, Value]:
        card = self._card
        driver_version, cuda = self._versions
        major, minor = card.compute_capability
        values: dict[str, Value] = {
            "index": card.index,
            "minor": card.minor,
            "productName": card.product,
            "brand": card.brand,
            "architecture": card.architecture.replace("-", " ").title(),
            "cudaComputeCapability": Semver((major, minor, 0)),
            "cudaDriverVersion": Semver((cuda // 1000, cuda % 1000 // 10, 0)),
            "addressingMode": card.addressing_mode,
            "nvlinkGroup": card.nvlink_group,
            f"{_STANDARD}pciBusID": card.pci_bus_id,
            f"{_STANDARD}pcieRoot": card.pcie_root,
        }
        if card.numa_node is not None and card.numa_node >= 0:
            values[f"{_STANDARD}numaNode"] = card.numa_node
        with suppress(ValueError):  # a driver whose version has another form has no such attribute
            values["driverVersion"] = read_semver(normalize_version(driver_version))
        return values

    def _amounts(self, memory_mib: int, engines: Engines) -> dict[str, Capacity]:
        numbers = {
            "memory": memory_mib * _MIB,
            "multiprocessors": engines.multiprocessors,
            "copyEngines": engines.copy_engines,
            "decoders": engines.decoders,
            "encoders": engines.encoders,
            "jpegEngines": engines.jpeg_engines,
            "ofaEngines": engines.ofa_engines,
        }
        return {name: Capacity(value=Decimal(value)) for name, value in numbers.items() if value is not None}

    def _taints(self) -> Iterator[DeviceTaint]:
        if self._options.placed_by_us:
            yield PLACED_BY
        if self._card.fault:
            yield DeviceTaint(FAULT_TAINT, _label(self._card.fault), NO_EXECUTE if self._card.evicts else NO_SCHEDULE)
        if self._card.cordoned:
            yield DeviceTaint(CORDON_TAINT, "", NO_SCHEDULE)


def _label(text: str) -> str:
    return _NOT_IN_LABEL.sub("-", text)[:_LABEL].strip("-_.")


def _cut(value: Value) -> Value:
    return value.encode()[:_TEXT].decode(errors="ignore") if isinstance(value, str) else value
