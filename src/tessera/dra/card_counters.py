"""The counters of a card that is cut, and what each of its devices takes from them.

Two sets a card: its memory slices, one counter each; and its compute slices, with what exists once on a card. A server
before Kubernetes 1.36 drops counters; there they are made again from the attributes of the devices.
"""

from collections.abc import Iterator, Sequence
from decimal import Decimal

import msgspec

from tessera.dra.devices import Device
from tessera.limits import CARD_SLOTS
from tessera.mig.geometry import Geometry, Profile
from tessera.mig.names import resource_spelling

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
