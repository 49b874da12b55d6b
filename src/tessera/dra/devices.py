"""Devices, pools and what claims hold of them, with parsed values.

A name of an attribute or an amount is always qualified here, ``gpu.tessera.dev/profile``: in a ResourceSlice a name
without a domain belongs to the driver's. Amounts are exact.

A device of a card takes from the card's counters, so a partition excludes those that cover one of its memory slices,
and the whole card. A device that is *shared* may be held by many claims, each of which consumes some of its capacity.
"""

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import NamedTuple

import msgspec

from tessera.cel.kubernetes_values import Semver
from tessera.dra.claims import Toleration

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
