"""Devices, their counters, pools, and what claims hold of them, with parsed values.

A name of an attribute or an amount is always qualified here, ``gpu.tessera.dev/profile``: in a ResourceSlice a name
without a domain belongs to the driver's. Amounts are exact.

A device of a card takes from the card's counters, so a partition excludes those that cover one of its memory slices,
and the whole card. A cut card has two sets: its memory slices, one counter each; and its compute slices, with what
exists once on a card. A server before Kubernetes 1.36 drops counters; there they are made again from the attributes of
the devices. A device that is *shared* may be held by many claims, each of which consumes some of its capacity.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import NamedTuple

import msgspec

from tessera.cel.kubernetes_values import Semver
from tessera.dra.claims import Toleration
from tessera.limits import CARD_SLOTS
from tessera.mig.geometry import Geometry, Profile
from tessera.mig.names import resource_spelling

#: A value of an attribute.
Value = bool | int | str | Semver

NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"


class DeviceId(NamedTuple):
    """Identifies a device of the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class HeldDevice(NamedTuple):
    """What a claim has: a device, or the share of it that the id names."""

    device: DeviceId
    share: str = ""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """An amount that a device has, and the amounts that one share of it may take.

    Attributes:
        value: the amount.
        default: what a share without a request takes; None for all of it.
        least: least amount of a share; None without a range.
        most: most of it; None without a bound.
        step: amounts are ``least`` and multiples of this more; None for any.
        choices: the only possible amounts, ascending; empty without such a list.
    """

    value: Decimal
    default: Decimal | None = None
    least: Decimal | None = None
    most: Decimal | None = None
    step: Decimal | None = None
    choices: tuple[Decimal, ...] = ()

    def consumed(self, wanted: Decimal | None) -> Decimal | None:
        """Returns what a share takes; None if the policy does not allow the amount.

        Rounding as Kubernetes': up to the next step or choice (allocator, ``calculateConsumedCapacity``).

        Args:
            wanted: the amount that a request names, or None.
        """
        if wanted is None:
            return self.value if self.default is None else self.default
        amount = self._round_up(wanted)
        if self.most is not None and amount > self.most:
            return None
        if self.choices and amount not in self.choices:
            return None
        return amount

    def _round_up(self, wanted: Decimal) -> Decimal:
        if self.least is not None:
            over = max(wanted - self.least, Decimal(0))
            steps = over if self.step is None else (over / self.step).to_integral_value(ROUND_CEILING) * self.step
            return self.least + steps
        return next((each for each in self.choices if wanted <= each), wanted)


class DeviceTaint(msgspec.Struct, frozen=True):
    """Keeps a device from claims that do not tolerate it."""

    key: str
    value: str
    effect: str

    def is_tolerated(self, tolerations: Iterable[Toleration]) -> bool:
        """True if one of the tolerations is for this taint; the rules are those of tolerations of nodes."""
        return any(each.tolerates(self.key, self.value, self.effect) for each in tolerations)


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device that claims can get.

    Attributes:
        id: its identity.
        attributes: its values, by qualified name.
        capacity: its amounts, by qualified name.
        counters: what it takes from counters of its pool, by set and counter.
        taints: keep claims away.
        shared: many claims may hold it at the same time.
    """

    id: DeviceId
    attributes: Mapping[str, Value] = {}
    capacity: Mapping[str, Capacity] = {}
    counters: Mapping[tuple[str, str], Decimal] = {}
    taints: tuple[DeviceTaint, ...] = ()
    shared: bool = False


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of a driver on a node.

    Attributes:
        driver: the driver.
        name: the pool.
        node: the node; empty if the devices can be used on other nodes too.
        devices: in the driver's order of preference.
        counters: amounts that the devices share, by set and counter.
        problem: why no device may be allocated: slices are missing, or break a rule; empty if all is well.
    """

    driver: str
    name: str
    node: str = ""
    devices: tuple[Device, ...] = ()
    counters: Mapping[tuple[str, str], Decimal] = {}
    problem: str = ""


class Holdings:
    """What claims hold of the devices of some pools.

    Attributes:
        exclusive: devices that one claim holds alone.
        consumed: amounts taken of shared devices.
        counters: amounts taken of counters, by driver, pool, set and counter.
    """

    def __init__(self) -> None:
        self.exclusive: set[DeviceId] = set()
        self.consumed: dict[DeviceId, dict[str, Decimal]] = {}
        self.counters: dict[tuple[str, str, str, str], Decimal] = {}

    def take(self, device: Device, amounts: Mapping[str, Decimal]) -> None:
        """Gives a device to a claim.

        Args:
            device: the device; nobody holds it alone.
            amounts: what the claim consumes of a shared device.
        """
        if not device.shared or device.id not in self.consumed:
            self._count(device, 1)
        if not device.shared:
            self.exclusive.add(device.id)
            return
        taken = self.consumed.setdefault(device.id, {})
        self.consumed[device.id] = {name: taken.get(name, Decimal(0)) + amount for name, amount in amounts.items()}

    def copy(self) -> "Holdings":
        """Returns the same holdings, to be changed apart."""
        other = Holdings()
        other.exclusive = set(self.exclusive)
        other.consumed = {key: dict(value) for key, value in self.consumed.items()}
        other.counters = dict(self.counters)
        return other

    def release(self, device: Device, before: Mapping[str, Decimal] | None) -> None:
        """Undoes the last :meth:`take` of a device.

        Args:
            device: the device.
            before: what was consumed of it then; None if nobody held it.
        """
        self.exclusive.discard(device.id)
        if before is not None:
            self.consumed[device.id] = dict(before)
            return
        self.consumed.pop(device.id, None)
        self._count(device, -1)

    def _count(self, device: Device, sign: int) -> None:
        for (name, counter), amount in device.counters.items():
            key = (device.id.driver, device.id.pool, name, counter)
            self.counters[key] = self.counters.get(key, Decimal(0)) + sign * amount

    def has_room(self, device: Device, pool: Pool) -> bool:
        """True if nobody holds the device alone, and its counters suffice."""
        if device.id in self.exclusive:
            return False
        if device.shared and device.id in self.consumed:
            return True
        return all(
            self.counters.get((pool.driver, pool.name, *key), Decimal(0)) + amount <= pool.counters.get(key, Decimal(0))
            for key, amount in device.counters.items()
        )


def qualify(name: str, driver: str) -> str:
    """Returns a name with its domain; one without belongs to the driver."""
    return name if "/" in name else f"{driver}/{name}"


#: Amounts by set and counter.
Counters = dict[tuple[str, str], Decimal]
_COMPUTE = "compute-slices"


def card_counters(minor: int, geometry: Geometry) -> Counters:
    """Returns all counters of a card; the whole card takes all."""
    every = geometry.full
    for row in geometry.profiles:
        every |= geometry.tokens(row)
    found = dict.fromkeys(slot_counters(minor, geometry, every), Decimal(1))
    found[compute_counter(minor)] = Decimal(max(row.compute_slices for row in geometry.profiles))
    return found


def partition_counters(minor: int, geometry: Geometry, profile: Profile, start: int) -> Counters:
    """Returns what a partition takes."""
    found = dict.fromkeys(slot_counters(minor, geometry, geometry.claim(profile, start)), Decimal(1))
    found[compute_counter(minor)] = Decimal(profile.compute_slices)
    return found


def compute_counter(minor: int) -> tuple[str, str]:
    """Returns set and counter of the compute slices."""
    return f"gpu-{minor}-compute-slices", _COMPUTE


def slot_counters(minor: int, geometry: Geometry, bits: int) -> Iterator[tuple[str, str]]:
    """Yields the counters of which the bits of an occupancy take one each."""
    compute, _ = compute_counter(minor)
    for slot in range(geometry.slots):
        if bits >> slot & 1:
            yield f"gpu-{minor}-memory-slices", f"memory-slice-{slot}"
    if bits & geometry.media_token:
        yield compute, "media-engines"
    for row in geometry.profiles:
        tokens = geometry.tokens(row) & ~geometry.media_token
        if tokens and bits & tokens:
            yield compute, f"only-{resource_spelling(row.name).replace('.', '-')}"


def rebuild_counters(devices: Sequence[Device], driver: str) -> tuple[tuple[Device, ...], Counters]:
    """Returns the devices of a pool with the counters that the server dropped, and the pool's counters.

    Raises:
        ValueError: the attributes of a card's partitions contradict each other.
    """
    rows: dict[int, dict[str, list[tuple[int, int]]]] = {}
    for device in devices:
        if (place := _place(device, driver)) is not None:
            minor, profile, start, size = place
            rows.setdefault(minor, {}).setdefault(profile, []).append((start, size))
    geometries = {minor: Geometry.from_placements("cards of a pool", each) for minor, each in rows.items()}
    counters = {key: value for minor, each in geometries.items() for key, value in card_counters(minor, each).items()}
    return tuple(_with_counters(device, driver, geometries) for device in devices), counters


def _with_counters(device: Device, driver: str, geometries: dict[int, Geometry]) -> Device:
    place, minor = _place(device, driver), device.attributes.get(f"{driver}/minor")
    if place is not None:
        number, profile, start, _size = place
        geometry = geometries[number]
        counters = partition_counters(number, geometry, geometry.profile(profile), start)
    elif isinstance(minor, int) and minor in geometries and not device.shared:
        counters = card_counters(minor, geometries[minor])
    else:
        return device
    return msgspec.structs.replace(device, counters=counters)


def _place(device: Device, driver: str) -> tuple[int, str, int, int] | None:
    """Minor, profile, start and size of a partition; None for another device."""
    profile = device.attributes.get(f"{driver}/profile")
    minor, start, size = (device.attributes.get(f"{driver}/{name}") for name in ("minor", "start", "size"))
    if profile is None or size is None:  # NVIDIA's own driver publishes no size
        return None
    numbers = [each for each in (minor, start, size) if isinstance(each, int)]
    if len(numbers) < 3 or not (numbers[1] >= 0 and numbers[2] >= 1 and numbers[1] + numbers[2] <= CARD_SLOTS):
        text = f"minor {minor}, start {start} and size {size} are no place on a card of {CARD_SLOTS}"
        raise ValueError(f"device {device.id.device}: {text}")
    return numbers[0], str(profile), numbers[1], numbers[2]
