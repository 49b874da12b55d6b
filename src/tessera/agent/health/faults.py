"""Which devices are fit to be given out: events and probes in, changes of verdict out. No I/O.

An error puts a *mark* on a scope: a card, or the MIG instance that the event names. What asks for a reset concerns the
whole card whichever instance it showed in. The verdict on a device is the worst mark on its instance or its card, so
every share and every MIG device of a bad card is out, and of a card with one bad instance only that one.

A mark goes by itself, by hysteresis: so many clean probes in a row, and a quiet time since the last error, doubled for
every return of the same error within a while. What asks for a reset or a reboot goes only after the card was reset, or
when the driver itself says that nothing is left to do. A failed probe proves nothing alone; several in a row drain the
card; a card that fell off the bus is out at once. A boot of the node ends every mark: what it did not cure shows again.

Nothing here resets a card or evicts a pod. An event watch that breaks marks the cards degraded, not unfit, until it
works again: a card is not bad because nobody listens, and probes go on.
"""

from collections.abc import Iterable

import msgspec

from tessera.agent.health.events import (
    CardProbed,
    CardReset,
    CardsListed,
    EventWatchFailed,
    EventWatchRestored,
    HardwareEventReported,
    HealthEvent,
    InstanceDestroyed,
    NodeRebooted,
    ProbeResult,
)
from tessera.agent.health.policy import DRIVER_REACTIONS, ECC_REACTIONS, HealthPolicy, RecoveryAction
from tessera.agent.inventory.device_health import DeviceHealth, DeviceScope, Reaction
from tessera.nvml.interface import Event, EventKind


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """An error that is not over.

    Attributes:
        scope: where.
        source: what it was: ``XID 48``, ``probe``, ``driver``, ``events``.
        reaction: what it asks for.
        text: for people.
        since: when it came, seconds of the caller's clock.
        last: when it came last.
        count: how often.
        returns: how often it had come back before.
        clean: clean probes in a row since the last, as far as they matter.
        reset: the card was reset since.
    """

    scope: DeviceScope
    source: str
    reaction: Reaction
    text: str
    since: float
    last: float
    count: int = 1
    returns: int = 0
    clean: int = 0
    reset: bool = False


#: The source of the marks that a broken event watch leaves; they are of the watch, not of the cards.
EVENT_WATCH = "events"

#: Returns beyond these double the quiet time no more: no number of seconds is so long.
_MOST_DOUBLED = 64


class HealthChange(msgspec.Struct, frozen=True):
    """The verdict on a scope, and so on all devices in it, is another now."""

    scope: DeviceScope
    before: DeviceHealth
    after: DeviceHealth


class Hysteresis(msgspec.Struct, frozen=True, kw_only=True):
    """How sure one must be.

    Attributes:
        clean_probes: probes in a row that a mark takes to go.
        quiet: seconds without the error that it takes as well.
        longest_quiet: seconds that ``quiet`` grows to at most by returns.
        memory: seconds for which an error that went is remembered as having been there.
        failed_probes: probes in a row that must fail to drain a card.
    """

    clean_probes: int = 3
    quiet: float = 30.0
    longest_quiet: float = 960.0
    memory: float = 3600.0
    failed_probes: int = 3


class HealthStateMachine:
    """The marks of one node.

    Args:
        policy: what errors ask for.
        hysteresis: how sure one must be.
        marks: what an earlier process had found, if no boot lies between.
    """

    def __init__(
        self, policy: HealthPolicy, hysteresis: Hysteresis | None = None, *, faults: Iterable[Fault] = ()
    ) -> None:
        self._policy = policy
        self._sure = hysteresis or Hysteresis()
        self._gpus: frozenset[str] = frozenset()
        self._marks = {(mark.scope, mark.source): mark for mark in faults}
        #: When a mark went last, and how often it had come by then.
        self._past: dict[tuple[DeviceScope, str], tuple[float, int]] = {}
        self._failures: dict[str, int] = {}

    def faults(self) -> tuple[Fault, ...]:
        """Every mark, for showing and for keeping."""
        return tuple(sorted(self._marks.values(), key=lambda mark: (mark.scope, mark.source)))

    def faulty_instances(self, gpu: str) -> frozenset[int]:
        """Ids of the card's GPU instances that have marks of their own."""
        return frozenset(mark.scope.gi_id for mark in self._marks.values() if mark.scope.gpu == gpu) - {-1}

    def is_suspect(self, gpu: str) -> bool:
        """Whether there is a mark on the card or on a part of it, or its last probe failed."""
        return gpu in self._failures or any(mark.scope.gpu == gpu for mark in self._marks.values())

    def needs_reset(self, gpu: str) -> bool:
        """Whether a reset of the card is what its worst mark asks for, and it was not reset since."""
        marks = [mark for mark in self._marks.values() if mark.scope.gpu == gpu]
        worst = max((mark.reaction for mark in marks), default=Reaction.IGNORE)
        return worst is Reaction.RESET and any(mark.reaction is worst and not mark.reset for mark in marks)

    def health_of(self, scope: DeviceScope) -> DeviceHealth:
        """What is thought of a device: its own marks and those of what it is a part of."""
        return _judged(self._marks.values(), scope)

    def decide(self, fact: HealthEvent, now: float) -> tuple[HealthChange, ...]:
        """Takes a fact in; returns what is judged differently after it.

        Args:
            fact: what happened.
            now: seconds of a clock that also orders the marks that were kept.
        """
        before = list(self._marks.values())
        match fact:
            case CardsListed():
                self._gpus = fact.gpus
            case HardwareEventReported():
                self._happened(fact.event, now)
            case CardProbed():
                self._probed(fact, now)
            case EventWatchFailed():
                for gpu in self._gpus:
                    self._mark(
                        DeviceScope(gpu),
                        EVENT_WATCH,
                        Reaction.DEGRADE,
                        f"hardware events cannot be read: {fact.text}",
                        now,
                    )
            case EventWatchRestored():
                self._marks = {key: mark for key, mark in self._marks.items() if mark.source != EVENT_WATCH}
            case CardReset():
                self._reset(fact.gpu)
            case NodeRebooted():
                self._failures.clear()
                for key in list(self._marks):
                    self._forget(key, now)
            case InstanceDestroyed():
                self._instance_gone(fact.gpu, fact.gi_id)
        touched = sorted({mark.scope for mark in (*before, *self._marks.values())})
        pairs = [(scope, _judged(before, scope), self.health_of(scope)) for scope in touched]
        return tuple(HealthChange(scope, old, new) for scope, old, new in pairs if old != new)

    def _happened(self, event: Event, now: float) -> None:
        if event.kind is EventKind.XID:
            reaction, source = self._policy.reaction(event.xid or 0), f"XID {event.xid}"
        else:
            reaction, source = ECC_REACTIONS[event.kind], event.kind.value
        if reaction is Reaction.IGNORE:
            return
        if event.gpu is None:
            # Which card needs more than proof is not known; the driver's verdict will tell.
            for gpu in self._gpus:
                self._mark(
                    DeviceScope(gpu), source, Reaction.DRAIN, f"{source} on a card that the driver cannot name", now
                )
        elif event.gpu in self._gpus:
            instance = reaction < Reaction.RESET and event.gi_id is not None
            scope = DeviceScope(event.gpu)
            if instance and event.gi_id is not None:
                scope = DeviceScope(event.gpu, event.gi_id, -1 if event.ci_id is None else event.ci_id)
            self._mark(scope, source, reaction, source, now)

    def _probed(self, probe: CardProbed, now: float) -> None:
        scope = DeviceScope(probe.gpu)
        if probe.instances is not None:
            for gi_id in self.faulty_instances(probe.gpu) - probe.instances:
                self._instance_gone(probe.gpu, gi_id)
        if probe.result is ProbeResult.LOST:
            self._mark(scope, "probe", Reaction.REBOOT, f"the card does not answer: {probe.text or 'lost'}", now)
        elif probe.result is ProbeResult.FAILED:
            self._failures[probe.gpu] = self._failures.get(probe.gpu, 0) + 1
            self._soil(probe.gpu)
            if self._failures[probe.gpu] >= self._sure.failed_probes:
                self._mark(scope, "probe", Reaction.DRAIN, f"probes of the card fail: {probe.text}", now)
        else:
            self._failures.pop(probe.gpu, None)
            asked = DRIVER_REACTIONS[probe.recovery] if probe.recovery is not None else Reaction.IGNORE
            if probe.recovery is not None and asked > Reaction.IGNORE:
                self._soil(probe.gpu)
                wanted = probe.recovery.name.lower().replace("_", " ")
                self._mark(scope, "driver", asked, f"the driver asks for: {wanted}", now)
            else:
                self._clean(probe, now)

    def _clean(self, probe: CardProbed, now: float) -> None:
        for key, mark in list(self._marks.items()):
            if mark.scope.gpu != probe.gpu or mark.source == EVENT_WATCH:
                continue
            cleaner = msgspec.structs.replace(mark, clean=min(mark.clean + 1, self._sure.clean_probes))
            cured = mark.reaction < Reaction.RESET or mark.reset or probe.recovery is RecoveryAction.NONE
            if cured and cleaner.clean >= self._sure.clean_probes and now - mark.last >= self._quiet(mark):
                self._forget(key, now)
            else:
                self._marks[key] = cleaner

    def _forget(self, key: tuple[DeviceScope, str], now: float) -> None:
        """The error is over; if it comes back it stays longer."""
        self._past[key] = (now, self._marks.pop(key).returns + 1)

    def _quiet(self, mark: Fault) -> float:
        return min(self._sure.quiet * 2.0 ** min(mark.returns, _MOST_DOUBLED), self._sure.longest_quiet)

    def _mark(self, scope: DeviceScope, source: str, reaction: Reaction, text: str, now: float) -> None:
        key = (scope, source)
        old = self._marks.get(key)
        if old is None:
            gone, times = self._past.get(key, (now, 0))
            returns = times if now - gone <= self._sure.memory else 0
            self._marks[key] = Fault(
                scope=scope, source=source, reaction=reaction, text=text, since=now, last=now, returns=returns
            )
            return
        worst = max(old.reaction, reaction)
        self._marks[key] = msgspec.structs.replace(
            old, reaction=worst, text=text, last=now, count=old.count + 1, clean=0, reset=False
        )

    def _soil(self, gpu: str) -> None:
        """What counted as clean in a row no longer is in a row."""
        for key, mark in self._marks.items():
            if mark.scope.gpu == gpu and mark.clean:
                self._marks[key] = msgspec.structs.replace(mark, clean=0)

    def _instance_gone(self, gpu: str, gi_id: int) -> None:
        marks = self._marks.items()
        self._marks = {key: mark for key, mark in marks if (mark.scope.gpu, mark.scope.gi_id) != (gpu, gi_id)}

    def _reset(self, gpu: str) -> None:
        self._failures.pop(gpu, None)
        for key, mark in self._marks.items():
            if mark.scope.gpu == gpu:
                self._marks[key] = msgspec.structs.replace(mark, reset=True, clean=0)


def _judged(marks: Iterable[Fault], scope: DeviceScope) -> DeviceHealth:
    """The worst mark on a scope or on what it is a part of."""
    found = [mark for mark in marks if mark.scope.covers(scope)]
    if not found:
        return DeviceHealth()
    worst = min(found, key=lambda mark: (-mark.reaction, mark.since, mark.source))
    return DeviceHealth(worst.reaction, worst.text, worst.since)
