"""Judges what a container does with the device that it holds: a state for each lease, with evidence. Pure.

States and rules, in this order:

1. ``never_used``: no process has held the device since the lease began, and it is older than :data:`GRACE`.
2. ``idle``: no process has held the device for :data:`WINDOW`, though one did before.
3. ``busy``: activity reached :data:`BUSY` at least once in the window. The highest value counts, not the mean: a
   server that answers a request a minute is in use.
4. ``unknown``: activity cannot be measured (MIG on Ampere, processes that the kernel proves for no pod), or the lease
   is too young for a state.
5. ``resident``: processes hold the device, and activity stayed below :data:`BUSY` for the whole window. An inference
   server may be so on purpose.

A lease on a card that does not answer is ``unknown``, and its time counts for no state.

A state is a report; nothing acts on it. The history begins with the agent's process.

GPU-seconds are counted by state, from the sample that shows it: the time before a state is known counts as unknown.
A lease that has ended is remembered for :data:`MEMORY`, so that who reads the page less often than samples are taken
still counts it to its end.
"""

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from tessera.agent.monitoring.sample import DeviceSample, Lease, NodeSample, held_memory
from tessera.api.names import PodUid
from tessera.api.nodes.health import Finding
from tessera.nvml.measurements import Absence, Quantity
from tessera.text import percent

#: Most leases that ended in the last quarter of an hour, on the page `/usage` of an agent. Each of 512 slices ends
#: twice in that time; with more, the page says since when the list has all.
ENDED_LEASES = 1_000

#: Seconds after which a device without any process counts as never used.
GRACE = 600.0
#: Seconds over which activity and processes are judged; gpu-pruner's default is the same.
WINDOW = 1800.0
#: Seconds after which a device may look unused: meanwhile images load and programs start.
SOON = 60.0
#: Share of time from which on a device is busy.
BUSY = 0.01
#: Seconds for which a lease that has ended is remembered.
MEMORY = 900.0
_EXCHANGED = "; its container has the slice that another pod lends it, and this one again after tessera resize --back"
#: Seconds that one entry of the history covers.
_STEP = 60.0


class LeaseState(Enum):
    """Use that a container makes of its device."""

    NEVER_USED = "never_used"
    RESIDENT = "resident"
    IDLE = "idle"
    BUSY = "busy"
    UNKNOWN = "unknown"


#: States in which the device could serve somebody else.
WASTED = frozenset({LeaseState.NEVER_USED, LeaseState.IDLE, LeaseState.RESIDENT})


class LeaseKey(NamedTuple):
    """A lease over several samples."""

    pod: PodUid
    container: str
    device: str


class EnergyUse(NamedTuple):
    """Power and energy of a lease, as :mod:`tessera.agent.monitoring.exporter` apportions them.

    Attributes:
        power: watts, mean of the last minute; None if the last sample did not measure it.
        energy: joules of the metered time.
        metered: GPU-seconds of the lease whose energy is known; half a card for an hour is 1,800.
    """

    power: float | None = None
    energy: float = 0.0
    metered: float = 0.0


class JudgedLease(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a lease at one sample.

    Attributes:
        lease: the lease.
        state: its state.
        evidence: the reason in words.
        counts_from: seconds without use from which on the lease counts as not used, if it looks so already; else None.
        held: seconds since the agent first saw the lease.
        wasted: GPU-seconds of the lease so far in a state of :data:`WASTED`; half a card for an hour is 1,800.
        active: GPU-seconds of the lease so far in the state busy.
        findings: what is wrong with its use, see :mod:`tessera.agent.monitoring.findings`.
        fault: the sentence about the worst fault of its part of the card; empty if it is well.
        limit: bytes that its pod may hold of a shared device; None for a device of its own.
        energy: its part of the card's power and energy.
    """

    lease: Lease
    state: LeaseState
    evidence: str
    held: float
    wasted: float
    active: float = 0.0
    findings: tuple[Finding, ...] = ()
    fault: str = ""
    limit: float | None = None
    energy: EnergyUse = EnergyUse()
    counts_from: float | None = None

    @property
    def key(self) -> LeaseKey:
        """The lease over several samples."""
        return LeaseKey(self.lease.uid, self.lease.container, self.lease.device)


class PastLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that has ended.

    Attributes:
        last: its state at the last sample that had it, with the counts until its end.
        gpu: UUID of its card.
        share: part of the card, 0 to 1.
        ended: monotonic seconds of the first sample without it.
    """

    last: JudgedLease
    gpu: str
    share: float
    ended: float


class _Use(NamedTuple):
    """One look at a lease; ``None`` for what cannot be measured. ``unread``: why no process could be read."""

    processes: int | None
    busy: float | None
    memory: float | None
    unread: Absence | None = None


class _History:
    """Earlier looks at one lease."""

    def __init__(self, now: float) -> None:
        self.began = now
        self.last_sample = now
        #: When a process was seen last; ``None`` for never.
        self.last_process: float | None = None
        #: (begin, highest activity) of each minute in the window, oldest first. ``None`` for a minute without a value.
        self.activity: deque[tuple[float, float | None]] = deque()
        self.wasted = 0.0
        self.active = 0.0

    def count(self, state: LeaseState, share: float, now: float) -> None:
        """Counts the time since the last look for a state."""
        passed = (now - self.last_sample) * share
        if state in WASTED:
            self.wasted += passed
        elif state is LeaseState.BUSY:
            self.active += passed
        self.last_sample = now

    def add(self, use: _Use, now: float) -> None:
        """Adds a look."""
        if use.processes != 0:  # unproven processes may be the pod's
            self.last_process = now
        if self.activity and now - self.activity[-1][0] < _STEP:
            begin, highest = self.activity[-1]
            known = [each for each in (highest, use.busy) if each is not None]
            self.activity[-1] = begin, max(known, default=None)
        else:
            self.activity.append((now, use.busy))
        while now - self.activity[0][0] > WINDOW:
            self.activity.popleft()

    @property
    def highest(self) -> float | None:
        """The highest activity in the window; ``None`` if none was measured."""
        return max((value for _, value in self.activity if value is not None), default=None)


class _Place(NamedTuple):
    """What a lease holds: the card, and the part of it."""

    gpu: str
    share: float


_NOT_METERED: Mapping[LeaseKey, EnergyUse] = {}


class LeaseStates:
    """Judges the leases of one node, sample by sample.

    Attributes:
        ended: the leases that ended in the last :data:`MEMORY` seconds, oldest first; at most ``ENDED_LEASES``.
        complete_from: monotonic seconds; of leases that ended since then, none is missing in ``ended``. ``None`` before
            the first sample.
    """

    def __init__(self) -> None:
        self.ended: deque[PastLease] = deque()
        self.complete_from: float | None = None
        #: By lease, its history; exactly the leases of the last sample.
        self._histories: dict[LeaseKey, _History] = {}
        #: By lease of the last sample, its state and what it holds.
        self._last: dict[LeaseKey, tuple[JudgedLease, _Place]] = {}

    def handle(
        self, sample: NodeSample, energy: Mapping[LeaseKey, EnergyUse] = _NOT_METERED
    ) -> tuple[JudgedLease, ...]:
        """Takes a sample in, and the energy of its leases; returns the state of each."""
        if self.complete_from is None:
            self.complete_from = sample.taken
        cards = sample.cards
        devices = {device.uuid: device for gpu in cards for device in gpu.devices}
        gpus = {device.uuid: gpu.info.uuid for gpu in cards for device in gpu.devices}
        histories: dict[LeaseKey, _History] = {}
        judged = []
        for lease in sample.leases:
            key = LeaseKey(lease.uid, lease.container, lease.device)
            history = histories[key] = self._histories.get(key) or _History(sample.taken)
            judged.append(_judge(lease, devices[lease.device], history, sample.taken))
        for lease in (each for gpu in sample.silent for each in gpu.leases):
            key = LeaseKey(lease.uid, lease.container, lease.device)
            history = histories[key] = self._histories.get(key) or _History(sample.taken)
            judged.append(_judge_silent(lease, history, sample.taken))
        judged = [msgspec.structs.replace(each, energy=energy.get(each.key, EnergyUse())) for each in judged]
        for key in self._last.keys() - histories.keys():
            self._end(key, sample.taken)
        self._forget(sample.taken)
        self._histories = histories
        self._last = {
            each.key: (each, _Place(gpus[each.lease.device], devices[each.lease.device].share * each.lease.ratio))
            for each in judged
        }
        return tuple(judged)

    def _end(self, key: LeaseKey, now: float) -> None:
        """Remembers a lease that this sample does not have any more."""
        (last, place), history = self._last[key], self._histories[key]
        history.count(last.state, place.share, now)
        last = msgspec.structs.replace(
            last, held=now - history.began, wasted=history.wasted, active=history.active, findings=()
        )
        self.ended.append(PastLease(last=last, gpu=place.gpu, share=place.share, ended=now))

    def _forget(self, now: float) -> None:
        while self.ended and (len(self.ended) > ENDED_LEASES or now - self.ended[0].ended > MEMORY):
            self.complete_from = self.ended.popleft().ended


def _judge(lease: Lease, device: DeviceSample, history: _History, now: float) -> JudgedLease:
    use = _use(lease, device)
    history.add(use, now)
    state, evidence, counts_from = _decide(use, history, now)
    history.count(state, device.share * lease.ratio, now)
    return JudgedLease(
        lease=lease,
        state=state,
        evidence=evidence + _EXCHANGED if lease.exchanged else evidence,
        held=now - history.began,
        wasted=history.wasted,
        active=history.active,
        counts_from=counts_from,
    )


def _judge_silent(lease: Lease, history: _History, now: float) -> JudgedLease:
    history.last_sample = now
    return JudgedLease(
        lease=lease,
        state=LeaseState.UNKNOWN,
        evidence="its card does not answer",
        held=now - history.began,
        wasted=history.wasted,
        active=history.active,
    )


def _decide(use: _Use, history: _History, now: float) -> tuple[LeaseState, str, float | None]:
    held = now - history.began
    if history.last_process is None:
        if held < GRACE:
            return LeaseState.UNKNOWN, f"held for {_minutes(held)}, no process yet", GRACE if held >= SOON else None
        return LeaseState.NEVER_USED, f"no process in the {_minutes(held)} since it is held", None
    quiet = now - history.last_process
    if quiet >= WINDOW:
        return LeaseState.IDLE, f"no process for {_minutes(quiet)}", None
    highest = history.highest
    if highest is not None and highest >= BUSY:
        return LeaseState.BUSY, f"up to {percent(highest)} busy in the last {_minutes(min(held, WINDOW))}", None
    if use.unread is not None:
        return LeaseState.UNKNOWN, f"its processes cannot be read: {use.unread.value}", None
    if quiet > 0:
        return LeaseState.UNKNOWN, f"no process for {_minutes(quiet)}", WINDOW if quiet >= SOON else None
    if highest is None:
        return LeaseState.UNKNOWN, "processes hold it, and its activity cannot be measured", None
    if held < WINDOW:
        evidence = f"held for {_minutes(held)}, at most {percent(highest, 1)} busy so far"
        return LeaseState.UNKNOWN, evidence, WINDOW if held >= SOON else None
    holds = "has a process" if use.memory is None else f"holds {use.memory / 2**30:.1f} GiB"
    return LeaseState.RESIDENT, f"{holds}, at most {percent(highest, 1)} busy in {_minutes(WINDOW)}", None


def _use(lease: Lease, device: DeviceSample) -> _Use:
    values: Mapping[Quantity, float] = device.measured.values
    if lease.ratio >= 1:
        busy = values.get(Quantity.ENGINE_ACTIVE, values.get(Quantity.GPU_UTILIZATION))
        memory, unread = values.get(Quantity.MEMORY_USED), device.processes_absent
        return _Use(len(device.processes) if unread is None else None, busy, memory, unread)
    if device.processes_absent is not None:
        return _Use(None, None, None, device.processes_absent)
    own = [each for each in device.processes if each.pod == lease.uid]
    foreign = any(each.pod is None for each in device.processes)
    activities = [each.sm for each in own if each.sm is not None]
    measured = len(activities) == len(own) and not foreign
    return _Use(
        None if foreign and not own else len(own),
        sum(activities) if measured else None,
        held_memory(own),
    )


def _minutes(seconds: float) -> str:
    # Full minutes, as the command line shows ages.
    return f"{int(seconds // 60)} min" if seconds >= 60 else f"{int(seconds)} s"
