"""Keeps the pages ``/metrics`` and ``/usage`` about cards and their users up to date, beside the scrapes.

The exporter takes a sample each :data:`PERIOD` seconds, and also :data:`SHORTEST` after a change of cards, faults,
slices or pods: a burst of changes costs one sample, and the sample shows all of it. :func:`report_usage` makes the
document of ``/usage``.

A :class:`LeaseEnergy` apportions the energy of each card to the leases on it, by size and activity, without I/O.

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

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from tessera.agent.base.runtime import AgentRuntime, MemoryUsage
from tessera.agent.base.wake_ups import Fact
from tessera.agent.monitoring.card_states import CardStates, HealthSource
from tessera.agent.monitoring.exposition import ExpositionOptions, XidHistory, render
from tessera.agent.monitoring.findings import LeaseFindings, find_excess
from tessera.agent.monitoring.lease_states import MEMORY, EnergyUse, JudgedLease, LeaseKey, LeaseStates, PastLease
from tessera.agent.monitoring.sample import CardOffer, DeviceSample, GpuSample, Lease, NodeSample, measure_lease
from tessera.agent.monitoring.sampler import NodeSampler
from tessera.api.nodes.health import CardHealth, Finding
from tessera.api.nodes.usage import (
    CardUsage,
    DeviceUsage,
    EndedLease,
    LeaseUsage,
    NodeTopology,
    NodeUsage,
    ServiceUsage,
)
from tessera.nvml.interface import GpuEvent
from tessera.nvml.measurements import THROTTLE_REASONS, Quantity

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


_log = logging.getLogger(__name__)

#: Seconds between two samples without a change; Prometheus commonly scrapes every 10 to 60.
PERIOD = 10.0
#: Seconds from a change to the sample that shows it.
SHORTEST = 1.0


class Exporter:
    """Samples a node and writes its metrics.

    Args:
        runtime: dialect and limits of the series, and the clock.
        sampler: takes samples.
        health: the faults of the cards.
        memory_usage: the memory of shared cards by pod, of the last sample.
        services: the load of pods, as it was read last.
        topology: reads how the cards are joined.

    Attributes:
        text: the series of the last sample; empty before the first one.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        sampler: NodeSampler,
        *,
        health: HealthSource,
        memory_usage: Callable[[], Sequence[MemoryUsage]],
        services: Callable[[], Sequence[ServiceUsage]],
        topology: Callable[[], Awaitable[NodeTopology]],
    ) -> None:
        self._sampler = sampler
        self._options = options = ExpositionOptions(
            names=runtime.options.metric_names,
            node=runtime.options.node_name,
            max_series=runtime.options.max_series,
            simulated=runtime.hardware.simulated,
        )
        self._changes = runtime.changes.about(Fact.CARDS | Fact.HEALTH | Fact.SLICES | Fact.PODS)
        self._clock = runtime.clock
        #: By card, the XIDs that the driver reported.
        self._xids: dict[str, XidHistory] = {}
        self._states = LeaseStates()
        self._health = health
        self._memory_usage = memory_usage
        self._topology = topology
        self._cards = CardStates(health)
        self._findings = LeaseFindings()
        self._energy = LeaseEnergy()
        self._report = NodeUsage(node=options.node)
        self._services = services
        #: Monotonic time of the last sample.
        self._taken = 0.0
        self.text = b""

    @property
    def holders(self) -> set[str]:
        """UIDs of the pods that hold cards, by the last sample."""
        return {each.uid for each in self._report.leases}

    def usage_json(self) -> bytes:
        """The page ``/usage`` of the last sample; no cards before the first one."""
        age = self._clock.monotonic() - self._taken if self._report.taken else 0.0
        services = tuple(self._services())
        return msgspec.json.encode(msgspec.structs.replace(self._report, age=round(age, 1), services=services))

    def note_hardware_event(self, event: GpuEvent) -> None:
        """Notes the XID of a hardware event."""
        if event.xid is not None and event.gpu is not None:
            self._xids[event.gpu] = self._xids.get(event.gpu, XidHistory()).add(event.xid)

    def _judge(self, sample: NodeSample) -> list[JudgedLease]:
        """The leases of a sample with their states, findings, faults and limits."""
        usage = {(each.namespace, each.pod, each.gpu): each for each in self._memory_usage()}
        devices = {device.uuid: (gpu.info.uuid, device) for gpu in sample.cards for device in gpu.devices}
        excess: dict[LeaseKey, Finding] = {}
        limits: dict[LeaseKey, float] = {}
        for lease in sample.leases:
            used = usage.get((lease.namespace, lease.pod, lease.device)) if lease.ratio < 1 else None
            if used is None or not used.limit:
                continue
            key = LeaseKey(lease.uid, lease.container, lease.device)
            limits[key] = float(used.limit)
            # What this sample measured: the memory monitor's last look may be older than the pod's present use.
            held = measure_lease(lease, devices[lease.device][1])[0]
            if found := find_excess(used.used if held is None else held, used.limit):
                excess[key] = found
        findings = self._findings.handle(sample, excess)
        judged = []
        for each in self._states.handle(sample, self._energy.handle(sample)):
            gpu, device = devices[each.lease.device]
            judged.append(
                msgspec.structs.replace(
                    each,
                    findings=findings.get(each.key, ()),
                    fault=self._health.describe_part(gpu, -1 if device.gi_id is None else device.gi_id),
                    limit=limits.get(each.key),
                )
            )
        return judged

    async def run(self) -> None:
        """Samples until cancelled."""
        while True:
            count = self._changes.count
            sample = await self._sampler.take(self._health.gpus_to_empty())
            judged, now, self._taken = self._judge(sample), self._clock.now(), sample.taken
            cards = self._cards.handle(sample)
            report = report_usage(
                sample, self._options, unix_time=now, judged=judged, health=cards, states=self._states
            )
            self._report = msgspec.structs.replace(report, topology=await self._topology())
            self.text = render(sample, self._options, unix_time=now, xids=self._xids, judged=judged, health=cards)
            await self._changes.wait(count, PERIOD - SHORTEST)
            await self._clock.sleep(SHORTEST)


_NOT_OFFERED = CardOffer("")


def report_usage(
    sample: NodeSample,
    options: ExpositionOptions,
    *,
    unix_time: float,
    judged: Sequence[JudgedLease],
    health: Mapping[str, CardHealth],
    states: LeaseStates,
) -> NodeUsage:
    """Makes the document.

    Args:
        sample: the sample.
        options: the node's name, and the most leases to report.
        unix_time: when the sample was taken.
        judged: the leases of the sample with their states.
        health: the health of the cards, by UUID.
        states: has judged the leases; knows those that have ended.
    """
    devices = {device.uuid: device for gpu in sample.cards for device in gpu.devices}
    silent = {lease.device for gpu in sample.silent for lease in gpu.leases}
    ordered = sorted(judged, key=lambda each: (each.lease.namespace, each.lease.pod, each.lease.container))
    leases = ordered[: options.max_series]
    return NodeUsage(
        node=options.node,
        taken=unix_time,
        driver=sample.driver_version,
        cards=tuple(_cards(sample, health)),
        leases=tuple(
            _lease(each, devices[each.lease.device], measured=each.lease.device not in silent) for each in leases
        ),
        ended=tuple(_ended(each, sample.taken) for each in states.ended),
        ended_window=0.0 if states.complete_from is None else min(MEMORY, sample.taken - states.complete_from),
        cut=len(ordered) - len(leases),
        simulated=options.simulated,
    )


def _cards(sample: NodeSample, health: Mapping[str, CardHealth]) -> list[CardUsage]:
    cards = (
        _card(gpu, health.get(gpu.info.uuid, CardHealth()), sample.offers.get(gpu.info.uuid, _NOT_OFFERED))
        for gpu in sample.cards
    )
    return sorted(cards, key=lambda card: card.index)


def _card(gpu: GpuSample, health: CardHealth, offer: CardOffer) -> CardUsage:
    measured = gpu.card.measured
    bits = int(measured.values.get(Quantity.THROTTLE_REASONS, 0))
    return CardUsage(
        uuid=gpu.info.uuid,
        index=gpu.info.index,
        model=gpu.info.name,
        mig=gpu.info.mig_enabled or bool(gpu.mig_devices),
        slots=gpu.slots,
        kind=offer.kind,
        replicas=offer.replicas,
        values=_values(gpu.card),
        absent={quantity.value: reason.value for quantity, reason in measured.absent.items()},
        throttled=tuple(reason for bit, reason in THROTTLE_REASONS.items() if bits & bit),
        processes=len(gpu.card.processes),
        devices=_devices(gpu.mig_devices),
        health=health,
    )


def _devices(devices: Iterable[DeviceSample]) -> tuple[DeviceUsage, ...]:
    return tuple(
        DeviceUsage(
            uuid=each.uuid,
            profile=each.profile,
            start=each.start,
            size=each.size,
            share=each.share,
            values=_values(each),
            processes=len(each.processes),
        )
        for each in devices
    )


def _values(device: DeviceSample) -> dict[str, float]:
    return {quantity.value: value for quantity, value in device.measured.values.items()}


def _lease(judged: JudgedLease, device: DeviceSample, *, measured: bool) -> LeaseUsage:
    lease = judged.lease
    memory, busy = measure_lease(lease, device) if measured else (None, None)
    return LeaseUsage(
        namespace=lease.namespace,
        pod=lease.pod,
        uid=lease.uid,
        container=lease.container,
        device=lease.device,
        owner=lease.owner,
        kind=lease.kind,
        share=device.share * lease.ratio,
        state=judged.state.value,
        evidence=judged.evidence,
        held=judged.held,
        wasted=judged.wasted,
        active=judged.active,
        memory=memory,
        busy=busy,
        findings=judged.findings,
        fault=judged.fault,
        limit=judged.limit,
        power=judged.energy.power,
        energy=judged.energy.energy,
        metered=judged.energy.metered,
        counts_from=judged.counts_from,
    )


def _ended(past: PastLease, now: float) -> EndedLease:
    lease = past.last.lease
    return EndedLease(
        namespace=lease.namespace,
        pod=lease.pod,
        uid=lease.uid,
        container=lease.container,
        device=lease.device,
        gpu=past.gpu,
        share=past.share,
        ago=now - past.ended,
        held=past.last.held,
        wasted=past.last.wasted,
        active=past.last.active,
        energy=past.last.energy.energy,
        metered=past.last.energy.metered,
    )
