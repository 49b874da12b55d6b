"""Apportions the energy of each card to the leases on it, by size and activity. Pure.

Method, for the time between two samples:

1. The energy of a card is the growth of its counter (NVML, total energy since the driver was loaded); of a card
   without one, or whose counter went back, its power draw times the seconds.
2. Its idle power is the least mean power that the agent has seen of it. The idle energy is apportioned by size: a lease
   gets its part of the card. The idle energy of parts that nobody holds is nobody's.
3. The rest is apportioned by work: the size of the device times the share of time in which it computed for the lease.
   Processes on a shared device that no lease explains keep their part. Where the work of one holder is not known (MIG
   before Hopper), or nobody worked, the rest goes by size to those who hold the card.
4. A lease counts from the first sample that has it to the last one. So what leases get together never exceeds the card.

A card that measures neither, or does not answer, makes power unknown, and that time is no part of the energy: it is the
energy of the metered time, which is counted too.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from tessera.agent.monitoring.lease_states import EnergyUse, LeaseKey
from tessera.agent.monitoring.sample import DeviceSample, GpuSample, Lease, NodeSample
from tessera.nvml.measurements import Quantity

#: Seconds over which the power of a lease is a mean: requests per second of services are, too.
WINDOW = 60.0


class _Meter:
    """The energy of one lease: (seconds, joules) of the last samples without a gap, oldest first."""

    def __init__(self) -> None:
        self.energy = self.metered = 0.0
        self.window: deque[tuple[float, float]] = deque()

    def add(self, joules: float, metered: float, begin: float, end: float) -> None:
        if not self.window:
            self.window.append((begin, self.energy))
        self.energy += joules
        self.metered += metered
        self.window.append((end, self.energy))
        while len(self.window) > 2 and end - self.window[0][0] > WINDOW:
            self.window.popleft()

    def read(self) -> EnergyUse:
        power = None
        if self.window:
            (begin, first), (end, last) = self.window[0], self.window[-1]
            power = (last - first) / (end - begin)
        return EnergyUse(power, self.energy, self.metered)


class LeaseEnergy:
    """Meters the leases of one node, sample by sample."""

    def __init__(self) -> None:
        #: By card of the last sample, its monotonic seconds, and the card's counter in joules.
        self._read: dict[str, tuple[float, float | None]] = {}
        #: By card, the least mean power so far, watts.
        self._idle: dict[str, float] = {}
        #: By lease, its meter; exactly the leases of the last sample.
        self._meters: dict[LeaseKey, _Meter] = {}

    def handle(self, sample: NodeSample) -> Mapping[LeaseKey, EnergyUse]:
        """Takes a sample in; returns what is known of each of its leases."""
        leases = [*sample.leases, *(each for gpu in sample.silent for each in gpu.leases)]
        before, self._meters = self._meters, {}
        for key in map(_key, leases):
            self._meters[key] = before.get(key) or _Meter()
        metered: set[LeaseKey] = set()
        by_device: dict[str, list[Lease]] = {}
        for lease in sample.leases:
            by_device.setdefault(lease.device, []).append(lease)
        last, self._read = self._read, {}
        for gpu in sample.gpus:
            uuid, values = gpu.info.uuid, gpu.card.measured.values
            self._read[uuid] = sample.taken, values.get(Quantity.ENERGY)
            begin, counter = last.get(uuid, (sample.taken, None))
            seconds = sample.taken - begin
            joules = _joules(values, counter, seconds) if seconds > 0 else None
            if joules is None:
                continue
            self._idle[uuid] = min(self._idle.get(uuid, float("inf")), joules / seconds)
            idle = self._idle[uuid] * seconds
            for lease, size, part in _apportion(gpu, by_device, idle, joules - idle):
                if _key(lease) in before:
                    self._meters[_key(lease)].add(part, size * seconds, begin, sample.taken)
                    metered.add(_key(lease))
        for key in self._meters.keys() - metered:
            self._meters[key].window.clear()
        return {key: meter.read() for key, meter in self._meters.items()}


def _joules(values: Mapping[Quantity, float], before: float | None, seconds: float) -> float | None:
    """The joules of a card in these seconds, before which its counter was ``before``; None if they are not known."""
    counter, power = values.get(Quantity.ENERGY), values.get(Quantity.POWER)
    if counter is not None and before is not None and counter >= before:
        return counter - before
    return None if power is None else power * seconds


def _key(lease: Lease) -> LeaseKey:
    return LeaseKey(lease.uid, lease.container, lease.device)


def _apportion(
    gpu: GpuSample, leases: Mapping[str, Sequence[Lease]], idle: float, rest: float
) -> list[tuple[Lease, float, float]]:
    """The leases of a card with their sizes, and their parts of its idle energy and of the rest."""
    held = [(device, lease) for device in gpu.devices for lease in leases.get(device.uuid, ())]
    sizes = [device.share * lease.ratio for device, lease in held]
    whole = sum(sizes)
    works = [_work(lease, device, leases[device.uuid]) for device, lease in held]
    known = [each for each in works if each is not None]
    total = sum(known) + sum(_others(device, leases[device.uuid]) for device in {id(d): d for d, _ in held}.values())
    by_work = len(known) == len(works) and total > 0
    found = []
    for (_, lease), size, work in zip(held, sizes, works, strict=True):
        part = (work or 0.0) / total if by_work else size / whole if whole > 0 else 0.0
        found.append((lease, size, idle * size / max(1.0, whole) + rest * part))
    return found


def _work(lease: Lease, device: DeviceSample, holders: Sequence[Lease]) -> float | None:
    """The part of the card that computed for a lease; the containers of a pod on a shared device have equal parts."""
    values = device.measured.values
    if lease.ratio >= 1:
        busy = values.get(Quantity.ENGINE_ACTIVE, values.get(Quantity.GPU_UTILIZATION))
        return None if busy is None else device.share * busy
    if device.processes_absent is not None:
        return None
    times = [each.sm for each in device.processes if each.pod == lease.uid]
    if None in times:
        return None
    return device.share * sum(each or 0.0 for each in times) / Counter(each.uid for each in holders)[lease.uid]


def _others(device: DeviceSample, holders: Sequence[Lease]) -> float:
    """The part of the card that computed for processes on a shared device that no lease explains."""
    if any(each.ratio >= 1 for each in holders):
        return 0.0
    uids = {each.uid for each in holders}
    return device.share * sum(each.sm or 0.0 for each in device.processes if each.pod not in uids)
