"""Finds what is wrong with a container's use of its device: bottlenecks, slow-downs, power without work. Pure.

Each rule looks at one sample and says yes, no, or "cannot be measured". A finding is reported when the rule could be
measured in at least :data:`MEASURED` of the window, and said yes in at least :data:`PERSISTENT` of those samples. So
one bad minute is no finding, and a missing measurement is none either. Activities of SMs, DRAM and PCIe come from GPM
(Hopper and newer); on older cards their rules never speak.

A rule about the device speaks only of a container that has the whole device: of a shared one nobody knows who keeps it
busy. The thresholds are Tessera's choice; a finding is a hint for the pod's owner, and nothing acts on it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tessera.agent.monitoring.card_states import HARDWARE_THROTTLES
from tessera.agent.monitoring.lease_states import LeaseKey
from tessera.agent.monitoring.sample import DeviceSample, GpuSample, Lease, NodeSample, measure_lease
from tessera.api.nodes.health import Finding
from tessera.nvml.measurements import THROTTLE_REASONS, Quantity
from tessera.text import percent

#: Seconds over which a lease is judged.
WINDOW = 600.0
#: Share of the window that must be measured, and share of the measured samples that must show the problem.
MEASURED, PERSISTENT = 0.8, 0.8
#: Seconds that one entry of the history covers.
_STEP = 60.0
_GIB = 2.0**30

#: Thresholds, all shares of what is possible, except CPU in cores.
_MEMORY_FULL = 0.95
_BUSY, _IDLE, _SLACK = 0.8, 0.1, 0.5
_LOW_OCCUPANCY = 0.15
_DRAM_BUSY = 0.8
_PCIE_BUSY = 0.6
_POWER_HIGH = 0.5
_CPU_CORES, _STARVED = 0.9, 0.3


class _Look(NamedTuple):
    """One sample of a lease; ``None`` for what cannot be measured.

    Attributes:
        values: of the device.
        card: of its card.
        alone: the container has the whole device.
        whole: the device is a whole card.
        memory: bytes that it holds.
        room: bytes that it may hold.
        busy: share of time in which the device computed.
        cpu: CPU cores that its processes on the device keep busy.
        pcie: bytes per second that the card's PCIe link carries in each direction.
    """

    values: Mapping[Quantity, float]
    card: Mapping[Quantity, float]
    alone: bool
    whole: bool
    memory: float | None
    room: float | None
    busy: float | None
    cpu: float | None
    pcie: float


#: Whether the problem shows, and the numbers for the text; ``None`` if that cannot be measured.
_Answer = tuple[bool, tuple[float, ...]] | None


def _memory(look: _Look) -> _Answer:
    if look.memory is None or not look.room:
        return None
    return look.memory >= _MEMORY_FULL * look.room, (look.memory / _GIB, look.room / _GIB)


def _occupancy(look: _Look) -> _Answer:
    occupancy = look.values.get(Quantity.SM_OCCUPANCY)
    if not look.alone or look.busy is None or occupancy is None:
        return None
    return look.busy >= _BUSY and occupancy < _LOW_OCCUPANCY, (look.busy, occupancy)


def _memory_bandwidth(look: _Look) -> _Answer:
    dram = look.values.get(Quantity.DRAM_ACTIVE)
    return (dram >= _DRAM_BUSY, (dram,)) if look.alone and dram is not None else None


def _pcie(look: _Look) -> _Answer:
    sent, received = look.values.get(Quantity.PCIE_TRANSMITTED), look.values.get(Quantity.PCIE_RECEIVED)
    active = look.values.get(Quantity.SM_ACTIVE)
    if not (look.alone and look.whole and look.pcie) or sent is None or received is None or active is None:
        return None
    most = max(sent, received)
    return most >= _PCIE_BUSY * look.pcie and active < _SLACK, (most / 1e9, look.pcie / 1e9, active)


def _cpu(look: _Look) -> _Answer:
    if not look.alone or look.busy is None or look.cpu is None:
        return None
    return look.cpu >= _CPU_CORES and look.busy < _STARVED, (look.busy, look.cpu)


def _throttled(look: _Look) -> _Answer:
    if Quantity.THROTTLE_REASONS not in look.card:
        return None
    return bool(_reasons(look.card) & set(HARDWARE_THROTTLES)), ()


def _power_capped(look: _Look) -> _Answer:
    limit = look.card.get(Quantity.POWER_LIMIT)
    if Quantity.THROTTLE_REASONS not in look.card or limit is None:
        return None
    return "power_cap" in _reasons(look.card), (limit,)


def _power_wasted(look: _Look) -> _Answer:
    power, limit = look.card.get(Quantity.POWER), look.card.get(Quantity.POWER_LIMIT)
    if not (look.alone and look.whole) or look.busy is None or power is None or not limit:
        return None
    used = min(look.busy, look.values.get(Quantity.SM_ACTIVE, look.busy))
    return power >= _POWER_HIGH * limit and used < _IDLE, (power, limit, used)


def _reasons(card: Mapping[Quantity, float]) -> set[str]:
    bits = int(card.get(Quantity.THROTTLE_REASONS, 0))
    return {reason for bit, reason in THROTTLE_REASONS.items() if bits & bit}


class Rule(NamedTuple):
    """One kind of finding.

    Attributes:
        answer: judges one sample.
        meaning: the rule in words, as docs/metrics.md has it.
        text: what is wrong, with the means of the numbers.
        advice: what the owner can do.
    """

    answer: Callable[[_Look], _Answer]
    meaning: str
    text: str
    advice: str


MEMORY_FULL = "memory_nearly_full"
#: The kinds of findings, in the order in which they are reported.
RULES: Mapping[str, Rule] = {
    MEMORY_FULL: Rule(
        _memory,
        "the container holds 95 % of the memory of its device, or of its share",
        "holds {0:.1f} of {1:.1f} GiB",
        "Make batches smaller, or ask for a larger slice or share.",
    ),
    "throttled": Rule(
        _throttled,
        "the card is slowed down by heat or power supply (`hw_slowdown`, `hw_thermal`, `sw_thermal`, `hw_power_brake`)",
        "its card is slowed down by heat or power supply",
        "Ask the administrator: tessera health NODE.",
    ),
    "power_capped": Rule(
        _power_capped,
        "the card draws its power limit, so clocks are lowered",
        "its card draws its limit of {0:.0f} W, so clocks are lowered",
        "Expect no more speed here.",
    ),
    "power_wasted": Rule(
        _power_wasted,
        "the card draws at least half of its power limit, and computes less than 10 % of the time, or on less than 10 %"
        " of its SMs (GPM; whole cards)",
        "draws {0:.0f} of {1:.0f} W while it uses {2:.0%} of the card",
        "Look for loops that wait on the card, and for kernels of a few blocks.",
    ),
    "cpu_bound": Rule(
        _cpu,
        "the device computes less than 30 % of the time, while its processes keep 0.9 CPU cores or more busy (by"
        " `/proc`)",
        "the card computes {0:.0%} of the time while its processes keep {1:.1f} CPU cores busy",
        "Give it more CPU, or prepare data in more workers.",
    ),
    "pcie_bound": Rule(
        _pcie,
        "PCIe carries 60 % or more of what the link can in one direction, while less than half of the SMs work (GPM;"
        " whole cards)",
        "PCIe carries {0:.0f} of {1:.0f} GB/s while {2:.0%} of the SMs work",
        "Keep data on the card, and copy while it computes.",
    ),
    "memory_bound": Rule(
        _memory_bandwidth,
        "the memory of the device sends or receives 80 % of the time (GPM)",
        "memory of the card sends or receives {0:.0%} of the time",
        "Use data again before it leaves the caches; more SMs do not help.",
    ),
    "low_occupancy": Rule(
        _occupancy,
        "the device is busy at least 80 % of the time, with less than 15 % of the warps that it can hold (GPM)",
        "the card is busy {0:.0%} of the time with {1:.0%} of the warps that it can hold",
        "Make batches larger, or ask for a smaller slice or a share.",
    ),
}


#: The finding of a pod that holds more memory of a shared device than its part (:mod:`tessera.memory_limits`). It needs
#: no window: the pods beside it may run out of memory now.
MEMORY_OVER_LIMIT = "memory_over_limit"
EXCESS = Rule(
    lambda _: None,
    "the pod holds more memory of a shared card than its part, which its neighbours lack; said at once, instead of"
    " `memory_nearly_full`",
    "holds {0:.1f} GiB, its part of the shared card is {1:.1f} GiB",
    "Make batches smaller, or ask for more shares or for a larger slice.",
)


def find_excess(used: float, limit: float) -> Finding | None:
    """The finding of a pod that holds ``used`` bytes of a shared device, of which ``limit`` are its part; else None."""
    if not 0 < limit < used:
        return None
    return Finding(kind=MEMORY_OVER_LIMIT, text=EXCESS.text.format(used / _GIB, limit / _GIB), advice=EXCESS.advice)


class _Minute:
    """The samples of one minute: by kind, the number measured, the number with the problem, and sums of its numbers."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.samples = 0
        self.found: dict[str, tuple[int, int, tuple[float, ...]]] = {}

    def add(self, kind: str, shows: bool, numbers: tuple[float, ...]) -> None:
        """Adds the answer of one rule."""
        measured, showing, sums = self.found.get(kind, (0, 0, (0.0,) * len(numbers)))
        if shows:
            sums = tuple(total + number for total, number in zip(sums, numbers, strict=True))
        self.found[kind] = measured + 1, showing + shows, sums


class _History:
    """The last minutes of one lease, oldest first, and the CPU seconds of its processes in the last sample."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.minutes: deque[_Minute] = deque()
        self.cpu: Mapping[int, float] = {}
        self.last = began
        #: By kind of the findings of the last sample, when each began.
        self.since: dict[str, float] = {}


_NO_EXCESS: Mapping[LeaseKey, Finding] = {}


class LeaseFindings:
    """Judges the leases of one node, sample by sample."""

    def __init__(self) -> None:
        #: By lease, its history; exactly the leases of the last sample.
        self._histories: dict[LeaseKey, _History] = {}

    def handle(
        self, sample: NodeSample, excess: Mapping[LeaseKey, Finding] = _NO_EXCESS
    ) -> dict[LeaseKey, tuple[Finding, ...]]:
        """Takes a sample in, and what :func:`find_excess` found; returns the findings of each lease that has some."""
        places = {device.uuid: (gpu, device) for gpu in sample.gpus for device in gpu.devices}
        histories: dict[LeaseKey, _History] = {}
        found: dict[LeaseKey, tuple[Finding, ...]] = {}
        for lease in sample.leases:
            key = LeaseKey(lease.uid, lease.container, lease.device)
            history = histories[key] = self._histories.get(key) or _History(sample.taken)
            gpu, device = places[lease.device]
            _add(history, _look(lease, gpu, device, history, sample.taken), sample.taken)
            judged = _judge(history, sample.taken)
            if key in excess:
                judged = [excess[key], *(each for each in judged if each.kind != MEMORY_FULL)]
            findings = tuple(_date(history, judged, sample.taken))
            if findings:
                found[key] = findings
        self._histories = histories
        return found


def _date(history: _History, findings: Sequence[Finding], now: float) -> Iterator[Finding]:
    """The findings with the time that they last; one that went and came again begins anew."""
    history.since = {each.kind: history.since.get(each.kind, now - each.window) for each in findings}
    for each in findings:
        yield msgspec.structs.replace(each, lasts=now - history.since[each.kind])


def _look(lease: Lease, gpu: GpuSample, device: DeviceSample, history: _History, now: float) -> _Look:
    memory, busy = measure_lease(lease, device)
    total = device.measured.values.get(Quantity.MEMORY_TOTAL)
    alone = lease.ratio >= 1
    return _Look(
        values=device.measured.values,
        card=gpu.card.measured.values,
        alone=alone,
        whole=device.gi_id is None,
        memory=memory,
        room=None if total is None else total * lease.ratio,
        busy=busy,
        cpu=_cpu_rate(device, history, now) if alone else None,
        pcie=gpu.pcie_bandwidth,
    )


def _cpu_rate(device: DeviceSample, history: _History, now: float) -> float | None:
    """CPU cores that the device's processes kept busy since the sample before."""
    seconds = {each.pid: each.cpu_seconds for each in device.processes if each.cpu_seconds is not None}
    before, passed = history.cpu, now - history.last
    history.cpu, history.last = seconds, now
    same = seconds.keys() & before.keys()
    if not same or passed <= 0:
        return None
    return sum(max(0.0, seconds[pid] - before[pid]) for pid in same) / passed


def _add(history: _History, look: _Look, now: float) -> None:
    if not history.minutes or now - history.minutes[-1].begin >= _STEP:
        history.minutes.append(_Minute(now))
    while now - history.minutes[0].begin > WINDOW:
        history.minutes.popleft()
    minute = history.minutes[-1]
    minute.samples += 1
    for kind, rule in RULES.items():
        answer = rule.answer(look)
        if answer is not None:
            minute.add(kind, *answer)


def _judge(history: _History, now: float) -> list[Finding]:
    if now - history.began < WINDOW:
        return []
    samples = sum(minute.samples for minute in history.minutes)
    findings = []
    for kind, rule in RULES.items():
        parts = [minute.found[kind] for minute in history.minutes if kind in minute.found]
        measured, showing = sum(part[0] for part in parts), sum(part[1] for part in parts)
        if measured < MEASURED * samples or showing < max(1.0, PERSISTENT * measured):
            continue
        means = [sum(numbers) / showing for numbers in zip(*(part[2] for part in parts), strict=True)]
        text = f"{rule.text.format(*means)}, in {percent(showing / measured)} of the samples"
        findings.append(Finding(kind=kind, text=text, advice=rule.advice, window=WINDOW))
    return findings
