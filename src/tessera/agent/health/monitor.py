"""Keeps the health of the node's cards up to date: feeds events and probes to the state machine, reports its changes.

:mod:`tessera.agent.health.faults` decides. The monitor probes healthy cards seldom, suspected ones often, and a card
with a new event at once, since the driver may have more information about it. Cards are probed one after the other
(:mod:`tessera.agent.health.executor`).

Faults are kept over restarts of the agent, so their times are times of the wall clock. That clock may be changed while
the agent runs. So the monitor reads it once, when the agent starts, and then adds the time of the monotonic clock. A
stored fault that seems to come from the future counts as one of now. A boot of the node, recognized by its boot id,
ends all faults.

This module does not wait for hardware events, since slices on demand need them too: the caller passes them to
:meth:`HealthMonitor.note_hardware_event` and :meth:`HealthMonitor.note_event_watch_failure`.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.metrics import Metrics
from tessera.agent.base.state_file import StateFile
from tessera.agent.health.card_health import describe_card, list_fault
from tessera.agent.health.events import (
    CardProbed,
    CardReset,
    CardsCordoned,
    CardsListed,
    ErrorsMeasured,
    EventWatchFailed,
    EventWatchRestored,
    FaultsSpared,
    HardwareEventReported,
    HealthEvent,
    InstanceDestroyed,
    NodeRebooted,
    PreflightEnded,
    ProbeResult,
)
from tessera.agent.health.executor import CardProber, CardResetter
from tessera.agent.health.faults import EVENT_WATCH, Fault, HealthStateMachine
from tessera.agent.health.history import PastFault
from tessera.agent.health.messages import HealthCondition, HealthEvents, NodeEventSink, describe_part, health_condition
from tessera.agent.health.policy import HealthPolicy
from tessera.agent.health.preflights import CardPreflights
from tessera.agent.health.reboots import REBOOT_DELAY, REBOOT_RETRY, RepairReboots
from tessera.agent.inventory.device_health import DeviceHealth, DeviceScope, Reaction
from tessera.agent.validation.preflight import CardPreflight
from tessera.api.nodes.card_faults import CardFault, CardRule
from tessera.api.nodes.cordons import Cordon
from tessera.api.nodes.health import CardHealth
from tessera.api.nodes.preflights import CardTest, describe_test
from tessera.clock import Clock
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuEvent, GpuInfo, GpuUuid

_log = logging.getLogger(__name__)

#: Seconds between two probes of a card without a fault.
PROBE_INTERVAL = 60.0
#: Seconds between two probes of a suspected card.
SUSPECT_PROBE_INTERVAL = 10.0
#: Seconds after which unchanged measurements of a card are taken in again, so that an error can end.
MEASURED_INTERVAL = 15.0
#: Least seconds between two probes of one card, however many events come.
_SHORTEST_INTERVAL = 1.0


class StoredFaults(msgspec.Struct, frozen=True):
    """The content of the file of faults.

    Attributes:
        boot: the node's boot id when the faults were found; empty if it was unknown.
        marks: the faults, with times in seconds since 1970.
        past: the faults that are over, also those of earlier boots.
        known: the cards that are or were on the node; ``None`` in a file of an earlier version.
        tests: the last test of each card that was tested.
    """

    boot: str = ""
    marks: tuple[Fault, ...] = ()
    past: tuple[PastFault, ...] = ()
    known: tuple[str, ...] | None = None
    tests: tuple[CardTest, ...] = ()


class HealthMonitor:
    """Monitors the health of one node's cards.

    Args:
        hardware: the cards.
        policy: the reaction to each error.
        faults_file: the file that keeps the faults.
        node: gives the boot id and records events.
        metrics: counts events and probes.
        changes: notified at every change of health.
        clock: the time.
        resetter: resets cards that need it; ``None`` to leave that to administrators.
        reboots: asks for reboots of the node; ``None`` to leave that to administrators.
        preflights: tests repaired cards before they are allocated again; ``None`` if clean probes are enough.
        tests_new: cards that were not on the node before are tested too.
    """

    def __init__(
        self,
        *,
        hardware: AsyncNvml,
        policy: HealthPolicy,
        faults_file: Path,
        node: NodeEventSink,
        metrics: Metrics,
        changes: ChangeNotifier,
        clock: Clock,
        resetter: CardResetter | None = None,
        reboots: RepairReboots | None = None,
        preflights: CardPreflights | None = None,
        tests_new: bool = False,
    ) -> None:
        self._prober = CardProber(hardware)
        self._node = node
        self._metrics = metrics
        self._changes = changes
        self._clock = clock
        self._resetter = resetter
        self._preflights = preflights
        self._reboots = reboots
        #: Monotonic time of the last request for a reboot that failed.
        self._reboot_failed = -REBOOT_RETRY
        #: Seconds from the monotonic clock to the wall clock, measured at the start.
        self._epoch = clock.now() - clock.monotonic()
        self._file = StateFile(faults_file, StoredFaults)
        stored = self._file.load() or StoredFaults(known=())
        #: Id of the boot in which the faults were found; empty while unknown.
        self._boot = stored.boot
        self._health = HealthStateMachine(
            policy,
            faults=[self._not_of_the_future(fault) for fault in stored.marks],
            past=[self._not_ended_later(fault) for fault in stored.past],
            tests_repairs=preflights is not None,
            known=stored.known,
            tests_new=tests_new and preflights is not None,
        )
        #: The last test of each card.
        self._tests = {each.gpu: each for each in stored.tests}
        self._events = HealthEvents(node, self._health)
        #: By card, its measured errors and the monotonic time at which they were taken in last.
        self._measured: dict[str, tuple[dict[str, str], float]] = {}
        #: The faults that the breaker spares, as the Node has them.
        self._spared: frozenset[CardRule] = frozenset()
        #: The cards that a person has cordoned, as the Node has them; ``None`` until it was seen.
        self._cordons: tuple[Cordon, ...] | None = None
        #: The node's cards by UUID, as last listed, and the error of each that could not be read.
        self._gpus: dict[str, GpuInfo] = {}
        self._unreadable: dict[str, str] = {}
        #: Time of the last probe of each card, monotonic seconds.
        self._probed_at: dict[str, float] = {}
        #: Time of the next probe of each card, monotonic seconds; has exactly the node's cards.
        self._due: dict[str, float] = {}
        metrics.show_health(self)

    # Events -----------------------------------------------------------------------------------------------------

    def set_cards(self, gpus: Iterable[GpuInfo], unreadable: Mapping[str, str] | None = None) -> None:
        """Takes in the node's cards. New ones are probed at once.

        Args:
            gpus: the cards.
            unreadable: by UUID, the error of each card that cannot be read, besides lost ones.
        """
        found = {str(gpu.uuid): gpu for gpu in gpus}
        if (found, unreadable or {}) == (self._gpus, self._unreadable):
            return
        self._gpus = self._events.gpus = found
        self._unreadable = dict(unreadable or {})
        self._check_boot()  # before the first list of a boot: its errors are of this boot
        now = self._clock.monotonic()
        self._due = {uuid: self._due.get(uuid, now) for uuid in self._gpus}
        self._apply(CardsListed(frozenset(self._gpus), self._unreadable))
        for gpu in self._gpus.values():
            if gpu.lost:
                self._apply(CardProbed(gpu=gpu.uuid, result=ProbeResult.LOST))
        self._changes.notify()

    def note_hardware_event(self, event: GpuEvent | None) -> None:
        """Takes in the end of a wait for events, with an event or ``None``: the watch works."""
        self._apply(EventWatchRestored())
        if event is None:
            return
        self._metrics.count_hardware_event(
            event.gpu or "", event.kind.value if event.xid is None else f"xid-{event.xid}"
        )
        self._apply(HardwareEventReported(event))
        for uuid in self._gpus:
            if event.gpu in {None, uuid}:
                self._probe_soon(uuid)
        self._changes.notify()

    def note_event_watch_failure(self, text: str) -> None:
        """Takes in a failed wait for events; the cards are probed more often until it works again."""
        self._apply(EventWatchFailed(text))
        for uuid in self._gpus:
            self._due[uuid] = min(self._due[uuid], self._clock.monotonic() + SUSPECT_PROBE_INTERVAL)

    def note_measured(self, gpu: str, errors: Mapping[str, str]) -> None:
        """Takes in the measured errors of a card: when they change, and until the last one has ended.

        Args:
            gpu: UUID of the card.
            errors: in words by source, see :class:`ErrorsMeasured`.
        """
        before, at = self._measured.get(gpu, ({}, -math.inf))
        now = self._clock.monotonic()
        due = now - at >= MEASURED_INTERVAL and self._health.awaits_end(gpu)
        if gpu in self._gpus and (errors != before or due):
            self._measured[gpu] = dict(errors), now
            self._apply(ErrorsMeasured(gpu, dict(errors)))

    def note_unmeasured(self, gpu: str) -> None:
        """Probes a card soon that a sample could not measure: nobody knows whether it is still well."""
        if not self._health.is_suspect(gpu):
            self._probe_soon(gpu)
            self._changes.notify()

    def note_card_reset(self, gpu: str) -> None:
        """Takes in the reset of a card."""
        self._apply(CardReset(gpu))
        self._probe_soon(gpu)
        self._changes.notify()

    def note_instance_destroyed(self, gpu: str, gi_id: int) -> None:
        """Takes in the end of a GPU instance; a later one of the same id is another instance."""
        self._apply(InstanceDestroyed(gpu, gi_id))

    # Answers ----------------------------------------------------------------------------------------------------

    def health_of(self, scope: DeviceScope) -> DeviceHealth:
        """The health of a card or of an instance on it."""
        return self._health.health_of(scope)

    def is_unhealthy(self, gpu: str) -> bool:
        """True if no device of the card may be allocated."""
        return not self._health.health_of(DeviceScope(gpu)).healthy

    def describe(self, gpu: str) -> CardHealth:
        """The health of a card with its evidence; ``unknown`` for a card that is not listed."""
        if gpu not in self._gpus:
            return CardHealth()
        faults = [fault for fault in self._health.faults() if fault.scope.gpu == gpu]
        spared = [fault for fault in faults if self._health.spares(fault)]
        found = describe_card(faults, self._health.hysteresis, spared)
        test = self._tests.get(gpu)
        return found if test is None else msgspec.structs.replace(found, test=describe_test(test))

    def card_tests(self) -> tuple[CardTest, ...]:
        """The last test of each card that is listed, by index."""
        found = [
            msgspec.structs.replace(self._tests[uuid], index=gpu.index)
            for uuid, gpu in self._gpus.items()
            if uuid in self._tests
        ]
        return tuple(sorted(found))

    def describe_part(self, gpu: str, gi_id: int) -> str:
        """The sentence about the worst fault of a GPU instance, -1 for the whole card; empty without one."""
        return describe_part(self._health, gpu, gi_id)

    def card_faults(self) -> tuple[CardFault, ...]:
        """The faults of the node's cards, for the Node; not those of the event watch, which no card has."""
        listed = [each for each in self._health.faults() if each.scope.gpu in self._gpus and each.source != EVENT_WATCH]
        return tuple(list_fault(fault, self._gpus[fault.scope.gpu].index) for fault in listed)

    def indexes(self) -> Mapping[str, int]:
        """The driver's index of each card by UUID."""
        return {uuid: gpu.index for uuid, gpu in self._gpus.items()}

    def faulty_gpus(self) -> frozenset[str]:
        """UUIDs of the cards whose hardware has shown faults in this boot, whether or not they are listed."""
        if self._node.boot_id() != self._boot:
            return frozenset()
        return frozenset(fault.scope.gpu for fault in self._health.faults() if fault.of_hardware)

    def failing_gpus(self) -> frozenset[str]:
        """UUIDs of the cards whose last probe failed."""
        return self._health.failing_gpus()

    def gpus_to_empty(self) -> frozenset[str]:
        """UUIDs of the cards that must be reset or booted."""
        return frozenset(gpu for gpu, reaction in self.reactions().items() if reaction >= Reaction.RESET)

    @property
    def state_machine(self) -> HealthStateMachine:
        """The state machine that decides; only to be read."""
        return self._health

    def condition(self) -> HealthCondition:
        """The condition ``GpuHealthy``: false if a fault of the hardware withholds any device."""
        return health_condition(self._health, self._gpus)

    # The loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Probes the cards until cancelled."""
        try:
            while True:
                count = self._changes.count
                self._check_boot()
                self._check_node()
                if not await self._probe_cards():
                    soonest = min(self._due.values(), default=None)
                    pause = None if soonest is None else max(0.0, soonest - self._clock.monotonic())
                    await self._changes.wait(count, pause)
        finally:
            self._prober.stop()
            if self._preflights is not None:
                self._preflights.stop()

    async def _probe_cards(self) -> bool:
        """Probes the cards that are due; returns true if there were any."""
        now = self._clock.monotonic()
        due = [uuid for uuid, at in self._due.items() if at <= now]
        for uuid in due:
            self._probed_at[uuid] = self._clock.monotonic()
            self._due[uuid] = self._probed_at[uuid] + SUSPECT_PROBE_INTERVAL
            probed = await self._prober.probe(GpuUuid(uuid), instances=bool(self._health.faulty_instances(uuid)))
            if uuid in self._gpus:
                self._take_probe(uuid, probed)
                if probed is not None:
                    await self._reset_if_needed(uuid)
                    self._preflight_if_needed(uuid)
                    await self._reboot_if_needed(uuid)
        return bool(due)

    def _take_probe(self, uuid: str, probed: CardProbed | None) -> None:
        self._metrics.count_probe("not-asked" if probed is None else probed.result.value)
        if probed is not None:
            self._apply(probed)
            if probed.result is ProbeResult.FAILED:
                self._changes.notify()  # the cards are listed again
        if not self._health.is_suspect(uuid) and probed is not None:
            self._due[uuid] = self._probed_at[uuid] + PROBE_INTERVAL

    async def _reset_if_needed(self, uuid: str) -> None:
        """Resets a card whose worst fault requires that, unless the card was reset since."""
        if self._resetter is None or not self._health.needs_reset(uuid):
            return
        try:
            if await self._resetter.reset(uuid):
                self._events.record_reset(uuid)
                self.note_card_reset(uuid)
        except NvmlError as error:
            self._events.record_failed_reset(uuid, error)

    async def _reboot_if_needed(self, uuid: str) -> None:
        """Asks for a reboot for a card that has needed one for a while; a card that is well may need another later."""
        if self._reboots is None:
            return
        since, now = self._health.needs_reboot(uuid), self._clock.monotonic()
        try:
            if since is None and self._health.health_of(DeviceScope(uuid)).healthy:
                self._reboots.forget(uuid)
            due = since is not None and self._epoch + now - since >= REBOOT_DELAY
            may_ask = now - self._reboot_failed >= REBOOT_RETRY
            if due and may_ask and await self._reboots.request(uuid, self._boot):
                self._events.record_reboot(uuid)
        except OSError as error:
            self._reboot_failed = now
            self._events.record_failed_reboot(uuid, error)

    def _preflight_if_needed(self, uuid: str) -> None:
        since = self._health.awaits_preflight(uuid)
        if self._preflights is not None and since is not None:
            self._preflights.start(self._gpus[uuid], since, self._take_preflight)

    def _take_preflight(self, result: PreflightEnded, found: CardPreflight) -> None:
        self._tests[result.gpu] = found.summary(self._clock.now())
        self._events.record_preflight(self._tests[result.gpu])
        self._apply(result)
        self._changes.notify()

    def _probe_soon(self, uuid: str) -> None:
        if uuid in self._due:
            now = self._clock.monotonic()
            allowed = self._probed_at.get(uuid, now - _SHORTEST_INTERVAL) + _SHORTEST_INTERVAL
            self._due[uuid] = min(self._due[uuid], max(now, allowed))

    def _check_boot(self) -> None:
        boot = self._node.boot_id()
        if boot in {"", self._boot}:
            return
        another = self._boot != ""
        self._boot = boot
        if another:
            self._measured.clear()
            self._apply(NodeRebooted())
        self._save()

    def _check_node(self) -> None:
        cordons = self._node.cordons()
        if cordons not in {None, self._cordons}:
            self._cordons = cordons
            self._apply(CardsCordoned(cordons or ()))
        spared = self._node.spared_faults()
        if spared != self._spared:
            self._spared = spared
            self._apply(FaultsSpared(spared))

    # Consequences -----------------------------------------------------------------------------------------------

    def _apply(self, event: HealthEvent) -> None:
        changes = self._health.handle(event, self._epoch + self._clock.monotonic())
        self._save()
        for change in changes:
            before, after = change.before, change.after
            same = (before.reaction, before.by_hand) == (after.reaction, after.by_hand)
            if not isinstance(event, InstanceDestroyed) and not same:
                self._events.record_change(change)
        if changes:
            self._changes.notify()

    def _save(self) -> None:
        faults = tuple(fault for fault in self._health.faults() if fault.source != EVENT_WATCH)
        try:
            known = self._health.known
            stored = None if known is None else tuple(sorted(known))
            self._file.save(StoredFaults(self._boot, faults, self._health.past, stored, self.card_tests()))
        except OSError as error:
            # Without the file, the faults still hold until this process ends.
            self._metrics.count_unsaved_faults()
            _log.warning("faults of cards are not kept over a restart of the agent: %s", error)

    def _not_ended_later(self, fault: PastFault) -> PastFault:
        now = self._epoch + self._clock.monotonic()
        return msgspec.structs.replace(fault, since=min(fault.since, now), ended=min(fault.ended, now))

    def _not_of_the_future(self, fault: Fault) -> Fault:
        now = self._epoch + self._clock.monotonic()
        return msgspec.structs.replace(fault, since=min(fault.since, now), last=min(fault.last, now))

    def reactions(self) -> Mapping[str, int]:
        """The reaction that each card requires for its hardware, as a number, for the metrics."""
        worst = dict.fromkeys(self._gpus, 0)
        for fault in self._health.faults():
            if fault.scope.gpu in worst and not fault.by_hand:
                worst[fault.scope.gpu] = max(worst[fault.scope.gpu], int(fault.reaction))
        return worst
