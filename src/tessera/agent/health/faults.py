"""Decides which devices are healthy: hardware events and probes in, changes of health out. Pure.

An error becomes a *fault* of a scope: a card, or the MIG instance that the event names. A fault that needs a reset
concerns the whole card, whichever instance it showed in. The health of a device is the worst fault on it or on its
card: a bad card withholds all its shares and MIG devices, a bad instance only itself.

A fault ends by hysteresis: after a number of clean probes in a row and a quiet time since the last error. The quiet
time doubles each time the same error returns soon. A fault that needs a reset or a reboot ends only after the card was
reset, or when the driver itself reports that no action is left. One failed probe proves nothing; several in a row
withhold the card. A card that fell off the bus, or is listed with an error, is withheld at once. A boot of the node
ends every fault: an error that it did not cure shows again.

An error that the card itself measures, such as heat or a row of memory without a spare one, makes it degraded as long
as it is measured, and for the quiet time after that: a card at its limit reports it now and then.

A cordon of a card is kept as a fault of the source ``cordon``, though the hardware has none. It withholds the card,
begins and ends with the annotation of the Node (:mod:`tessera.api.nodes.node_marks`), and no probe and no boot ends it.
While it lasts, Tessera does nothing to the card.

Where an administrator wants it, a card that was repaired by a reset or a reboot is withheld until it was tested.

A card that fell three times in a week is to be replaced (:mod:`tessera.agent.health.history`). That is shown, and takes
nothing away by itself.

A fault that the breaker of the cluster spares is shown like any other and takes no card away
(docs/decisions/health-breaker.md). A card that is lost or cannot be read is never spared.

Nothing here resets a card or evicts a pod. A card whose events the driver does not report is degraded, not unhealthy,
until they are heard again: a card is not bad because of that, and probes go on.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from tessera.agent.health.fault import (
    CORDON,
    EVENT_WATCH,
    FAILED_POD_PREFLIGHT,
    HYSTERESIS,
    MOST_DOUBLED,
    PREFLIGHT,
    PROBE,
    CardProbed,
    CardReset,
    CardsCordoned,
    CardsListed,
    CardsUnheard,
    ErrorsMeasured,
    Fault,
    FaultsSpared,
    FaultTable,
    HardwareEventReported,
    HealthEvent,
    InstanceDestroyed,
    NodeRebooted,
    PodPreflightFailed,
    PreflightEnded,
    ProbeResult,
    RepairsSet,
    health_by,
    worst_of,
)
from tessera.agent.health.history import FALLS, FaultHistory, PastFault, counts_as_fall, describe_falls
from tessera.agent.health.policy import DRIVER_REACTIONS, ECC_REACTIONS, HealthPolicy, RecoveryAction
from tessera.agent.inventory.device_state import DeviceHealth, DeviceScope, Reaction
from tessera.api.nodes.health import FELL_TOO_OFTEN, MEASURED_ERRORS, UNREADABLE, describe_xid
from tessera.api.nodes.node_marks import Cordon
from tessera.api.nodes.repairs import PreflightMode, Repairs
from tessera.limits import NODE_CARDS
from tessera.nvml.errors import XID_OFF_THE_BUS
from tessera.nvml.interface import LOST_TEXT, GpuEvent, GpuEventKind
from tessera.nvml.known_cards import UNREAD
from tessera.replay.recorder import Decider

#: Sources of faults that no probe ends.
_NOT_PROBED = frozenset({EVENT_WATCH, CORDON, FELL_TOO_OFTEN, PREFLIGHT, *MEASURED_ERRORS})
#: Sources of faults that no boot ends.
_NOT_BOOTED = frozenset({CORDON, FELL_TOO_OFTEN, PREFLIGHT})


class HealthChange(msgspec.Struct, frozen=True):
    """The health of a scope, and so of all devices in it, changed."""

    scope: DeviceScope
    before: DeviceHealth
    after: DeviceHealth


class HealthStateMachine(FaultTable, Decider[[HealthEvent, float], tuple[HealthChange, ...]]):
    """The faults of one node's cards, as events begin and end them.

    Args:
        policy: the reaction to each error.
        faults: the faults that an earlier process of the same boot found.
        past: the faults that earlier processes have seen end, also before the boot.
        known: the cards that earlier processes have listed; ``None`` if nobody knows, as with an earlier version.
        repairs: what is done about faults, until :class:`.fault.RepairsSet` says otherwise.

    Attributes:
        known: the cards that are, or were, on the node; ``None`` if none was listed yet and nobody knows.
    """

    def __init__(
        self,
        policy: HealthPolicy,
        *,
        faults: Iterable[Fault] = (),
        past: Iterable[PastFault] = (),
        known: Collection[str] | None = None,
        repairs: Repairs | None = None,
    ) -> None:
        super().__init__(faults, repairs or Repairs())
        #: The cards that were on the node before; ``None`` until the first list if nobody knows.
        self.known = None if known is None else frozenset(known)
        self._policy = policy
        #: The node's cards, as last listed; events of other cards are ignored.
        self._gpus: frozenset[str] = frozenset()
        #: The error of each card that was listed with one.
        self._unreadable: Mapping[str, str] = {}
        self._history = FaultHistory(past)

    @property
    def past(self) -> tuple[PastFault, ...]:
        """The faults that are over, as far as they are remembered, in the order of their ends."""
        return self._history.past

    def handle(self, event: HealthEvent, now: float) -> tuple[HealthChange, ...]:
        """Takes an event in and returns every change of health that follows.

        Args:
            event: the event.
            now: seconds of a clock that continues over restarts of the agent.
        """
        before, spared_before = list(self._faults.values()), self._spared
        match event:
            case CardsListed():
                self._take_list(event, now)
            case HardwareEventReported():
                self._take_hardware_event(event.event, now)
            case CardProbed():
                self._take_probe(event, now)
            case CardsUnheard():
                self._take_unheard(event.errors, now)
            case CardReset():
                self._note_reset(event.gpu)
            case NodeRebooted():
                self._failures.clear()
                for key in [key for key, fault in self._faults.items() if fault.source not in _NOT_BOOTED]:
                    self._end(key, now, booted=True)
                self._take_list(CardsListed(self._gpus, self._unreadable), now)
            case InstanceDestroyed():
                self._drop_instance(event.gpu, event.gi_id)
            case ErrorsMeasured():
                self._take_measured(event, now)
            case FaultsSpared():
                self._spared = event.faults
            case CardsCordoned():
                self._take_cordons(event.cordons, now)
            case PreflightEnded():
                self._take_preflight(event, now)
            case PodPreflightFailed():
                text = f"the preflight of a pod failed: {event.text}"
                self._add(DeviceScope(event.gpu), FAILED_POD_PREFLIGHT, Reaction.RESET, text, now)
            case RepairsSet():
                self._take_repairs(event.repairs)
        self._count_falls(now)
        self._list_gpus()
        touched = sorted({fault.scope for fault in (*before, *self._faults.values())})
        earlier = {scope: health_by(worst_of(before, scope, spared_before), spared_before) for scope in touched}
        pairs = [(scope, earlier[scope], self.health_of(scope)) for scope in touched]
        return tuple(HealthChange(scope, old, new) for scope, old, new in pairs if old != new)

    def _take_list(self, event: CardsListed, now: float) -> None:
        for gpu, error in event.unreadable.items():
            fault = self._faults.get((DeviceScope(gpu), UNREADABLE))
            if fault is None or self._unreadable.get(gpu) != error:
                # A card whose errors alternate is told by the first one, so that nobody is told anew every time.
                text = f"the card cannot be read: {error}" if fault is None else fault.text
                self._add(DeviceScope(gpu), UNREADABLE, Reaction.WITHHOLD, text, now)
        self._gpus, self._unreadable = event.gpus, event.unreadable
        named = frozenset(gpu for gpu in event.gpus if not gpu.startswith(UNREAD))
        tests_new = self.repairs.preflight is PreflightMode.ALL and self.known is not None
        for gpu in named - (self.known or frozenset()) if tests_new else ():
            self._await_test(gpu, "new on this node, and not tested yet", now)
        former = sorted((self.known or frozenset()) - named)[: max(0, NODE_CARDS - len(named))]
        self.known = named.union(former)
        # A card that had no name of its own has one now.
        gone = {key for key in self._faults if key[0].gpu.startswith(UNREAD) and key[0].gpu not in event.gpus}
        self._faults = {key: fault for key, fault in self._faults.items() if key not in gone}

    def _take_hardware_event(self, event: GpuEvent, now: float) -> None:
        if event.kind is GpuEventKind.XID:
            reaction, source = self._policy.reaction(event.xid or 0), f"XID {event.xid}"
        else:
            reaction, source = ECC_REACTIONS[event.kind], event.kind.value
        if reaction is Reaction.IGNORE:
            return
        if event.gpu is None:
            # The event does not name its card; the next probes read the driver's recovery action of every card.
            for gpu in self._gpus:
                self._add(
                    DeviceScope(gpu), source, Reaction.WITHHOLD, f"{source} on a card that the driver cannot name", now
                )
        elif event.gpu in self._gpus:
            instance = reaction < Reaction.RESET and event.gi_id is not None
            scope = DeviceScope(event.gpu)
            if instance and event.gi_id is not None:
                scope = DeviceScope(event.gpu, event.gi_id, -1 if event.ci_id is None else event.ci_id)
            text = source if event.xid is None else describe_xid(event.xid)
            self._add(scope, source, reaction, text, now)

    def _take_measured(self, event: ErrorsMeasured, now: float) -> None:
        """A measured error begins at once, and ends when it was not measured for the quiet time."""
        for source, text in event.errors.items():
            key = DeviceScope(event.gpu), source
            fault = self._faults.get(key)
            if text and (fault is None or (fault.text, fault.clean) != (text, 0)):
                self._add(*key, Reaction.DEGRADE, text, now)
            elif fault is not None and not text and not fault.clean:
                self._faults[key] = msgspec.structs.replace(fault, last=now, clean=1)
            elif fault is not None and not text and now - fault.last >= HYSTERESIS.quiet_time(fault.returns):
                self._end(key, now)

    def _take_unheard(self, errors: Mapping[str, str], now: float) -> None:
        """Keeps one fault of each card whose errors cannot be heard; one that cannot be read has its own."""
        silent = {gpu for gpu in errors if gpu in self._gpus and not self._is_unreadable(gpu)}
        for key in [key for key in self._faults if key[1] == EVENT_WATCH and key[0].gpu not in silent]:
            del self._faults[key]
        for gpu in sorted(silent):
            key = DeviceScope(gpu), EVENT_WATCH
            if key not in self._faults:
                self._add(*key, Reaction.DEGRADE, f"its errors cannot be heard: {errors[gpu]}", now)

    def _is_unreadable(self, gpu: str) -> bool:
        return any(fault.unreadable for fault in self._faults.values() if fault.scope.gpu == gpu)

    def _take_cordons(self, cordons: Iterable[Cordon], now: float) -> None:
        wanted = {(DeviceScope(each.gpu), CORDON): each.reason for each in cordons}
        for key in [key for key, fault in self._faults.items() if fault.by_hand and key not in wanted]:
            del self._faults[key]
        for key, reason in wanted.items():
            since = self._faults[key].since if key in self._faults else now
            text = f"cordoned by hand: {reason or 'no reason given'}"
            self._faults[key] = Fault(
                scope=key[0], source=CORDON, reaction=Reaction.WITHHOLD, text=text, since=since, last=since
            )

    def _take_probe(self, probe: CardProbed, now: float) -> None:
        scope = DeviceScope(probe.gpu)
        if probe.instances is not None:
            for gi_id in self.faulty_instances(probe.gpu) - probe.instances:
                self._drop_instance(probe.gpu, gi_id)
        if probe.result is ProbeResult.LOST:
            reported = (scope, f"XID {XID_OFF_THE_BUS}") in self._faults
            text = f"{LOST_TEXT} (XID {XID_OFF_THE_BUS})" if reported else LOST_TEXT
            self._add(scope, PROBE, Reaction.REBOOT, text, now)
        elif probe.result is ProbeResult.FAILED:
            self._failures[probe.gpu] = self._failures.get(probe.gpu, 0) + 1
            self._restart_clean_count(probe.gpu)
            if probe.gpu in self._unreadable:
                return  # it is listed with its error already
            if self._failures[probe.gpu] >= HYSTERESIS.failed_probes:
                known = self._faults.get((scope, PROBE))  # told by its first error, as a card that cannot be read
                text = f"probes of the card fail: {probe.text}" if known is None else known.text
                self._add(scope, PROBE, Reaction.WITHHOLD, text, now)
        else:
            self._failures.pop(probe.gpu, None)
            reaction = DRIVER_REACTIONS[probe.recovery] if probe.recovery is not None else Reaction.IGNORE
            if probe.recovery is not None and reaction > Reaction.IGNORE:
                self._restart_clean_count(probe.gpu)
                action = probe.recovery.name.lower().replace("_", " ")
                self._add(scope, "driver", reaction, f"the driver asks for: {action}", now)
            else:
                self._count_clean_probe(probe, now)

    def _count_clean_probe(self, probe: CardProbed, now: float) -> None:
        for key, fault in list(self._faults.items()):
            if fault.scope.gpu != probe.gpu or fault.source in _NOT_PROBED:
                continue
            if fault.source == UNREADABLE and fault.scope.gpu in self._unreadable:
                continue
            cleaner = msgspec.structs.replace(fault, clean=min(fault.clean + 1, HYSTERESIS.clean_probes))
            unseen = fault.source == FAILED_POD_PREFLIGHT  # by the driver, which asks for nothing
            well = probe.recovery is RecoveryAction.NONE and not unseen
            cured = fault.reaction < Reaction.RESET or fault.reset or well
            quiet = now - fault.last >= HYSTERESIS.quiet_time(fault.returns)
            if cured and quiet and cleaner.clean >= HYSTERESIS.clean_probes:
                self._end(key, now)
            else:
                self._faults[key] = cleaner

    def _end(self, key: tuple[DeviceScope, str], now: float, *, booted: bool = False) -> None:
        """Ends a fault; if the error returns soon, the next fault lasts longer.

        A card that needed a reset or a reboot, or that fell before its node was booted, then waits for a test.
        """
        fault = self._faults.pop(key)
        repaired = booted or fault.reaction >= Reaction.RESET
        if self.repairs.preflight is not PreflightMode.NONE and repaired and self._is_fall(fault):
            self._await_test(fault.scope.gpu, f"repaired after {fault.source}, and not tested yet", now)
        self._history.note_end(
            PastFault(
                scope=fault.scope,
                source=fault.source,
                falls=self._is_fall(fault),
                since=fault.since,
                ended=now,
                ends=min(fault.returns + 1, MOST_DOUBLED),
            )
        )

    def _await_test(self, gpu: str, text: str, now: float) -> None:
        """Withholds a card until it passes a test."""
        scope = DeviceScope(gpu)
        self._faults[scope, PREFLIGHT] = Fault(
            scope=scope, source=PREFLIGHT, reaction=Reaction.WITHHOLD, text=text, since=now, last=now
        )

    def _take_preflight(self, event: PreflightEnded, now: float) -> None:
        key = DeviceScope(event.gpu), PREFLIGHT
        fault = self._faults.get(key)
        if fault is None or fault.since != event.since:
            return  # the card fell again during the test, and waits for another one
        if not event.text:
            del self._faults[key]
        else:
            text = f"its test failed: {event.text}"
            self._faults[key] = msgspec.structs.replace(fault, text=text, last=now, count=fault.count + 1)

    def _take_repairs(self, repairs: Repairs) -> None:
        self.repairs = repairs
        if not repairs.tests_cards:  # no card waits for a test that nobody makes
            self._faults = {key: fault for key, fault in self._faults.items() if fault.source != PREFLIGHT}

    def _is_fall(self, fault: Fault) -> bool:
        down = counts_as_fall(fault.source, fault.reaction, (PROBE, UNREADABLE))
        return down and not fault.by_hand and not self.spares(fault)

    def _count_falls(self, now: float) -> None:
        """Marks the cards that fell too often as to be replaced."""
        for gpu in self._gpus:
            key = DeviceScope(gpu), FELL_TOO_OFTEN
            present = [
                (each.source, each.since)
                for each in self._faults.values()
                if each.scope.gpu == gpu and self._is_fall(each)
            ]
            falls = self._history.falls(gpu, present, now)
            if len(falls) < FALLS:
                self._faults.pop(key, None)
            elif key not in self._faults or self._faults[key].count != len(falls):
                since = falls[FALLS - 1].since
                self._faults[key] = Fault(
                    scope=key[0],
                    source=FELL_TOO_OFTEN,
                    reaction=Reaction.DEGRADE,
                    text=describe_falls(falls),
                    since=since,
                    last=falls[-1].since,
                    count=len(falls),
                )

    def _add(self, scope: DeviceScope, source: str, reaction: Reaction, text: str, now: float) -> None:
        key = (scope, source)
        old = self._faults.get(key)
        if old is None:
            returns = self._history.ends(scope, source, now, HYSTERESIS.memory)
            self._faults[key] = Fault(
                scope=scope, source=source, reaction=reaction, text=text, since=now, last=now, returns=returns
            )
            return
        worst = max(old.reaction, reaction)
        self._faults[key] = msgspec.structs.replace(
            old, reaction=worst, text=text, last=now, count=old.count + 1, clean=0, reset=False
        )

    def _restart_clean_count(self, gpu: str) -> None:
        """Begins to count clean probes anew."""
        for key, fault in self._faults.items():
            if fault.scope.gpu == gpu and fault.clean:
                self._faults[key] = msgspec.structs.replace(fault, clean=0)

    def _drop_instance(self, gpu: str, gi_id: int) -> None:
        faults = self._faults.items()
        self._faults = {key: fault for key, fault in faults if (fault.scope.gpu, fault.scope.gi_id) != (gpu, gi_id)}

    def _note_reset(self, gpu: str) -> None:
        self._failures.pop(gpu, None)
        for key, fault in self._faults.items():
            if fault.scope.gpu == gpu:
                self._faults[key] = msgspec.structs.replace(fault, reset=True, clean=0)
