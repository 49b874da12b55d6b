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

import math
from collections.abc import Callable, Iterable, Mapping

import msgspec

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.wake_ups import Fact
from tessera.agent.health.card_health import (
    HealthCondition,
    HealthEvents,
    describe_card,
    describe_part,
    health_condition,
    list_fault,
    name_scope,
)
from tessera.agent.health.executor import CardProber, CardResetter, ProbeSchedule
from tessera.agent.health.fault import (
    EVENT_WATCH,
    CardProbed,
    CardReset,
    CardsCordoned,
    CardsListed,
    CardsUnheard,
    ErrorsMeasured,
    Fault,
    FaultsSpared,
    HardwareEventReported,
    HealthEvent,
    InstanceDestroyed,
    NodeRebooted,
    PodPreflightFailed,
    PreflightEnded,
    ProbeResult,
    RepairsSet,
)
from tessera.agent.health.faults import HealthStateMachine
from tessera.agent.health.history import FaultStore, StoredFaults
from tessera.agent.health.policy import HealthPolicy
from tessera.agent.health.repairs import CardPreflights, CardRepairs, RepairReboots
from tessera.agent.inventory.device_state import DeviceScope, Reaction
from tessera.api.nodes.card_faults import CardFault, CardRule
from tessera.api.nodes.health import CardHealth
from tessera.api.nodes.node_marks import Cordon
from tessera.api.nodes.preflights import CardPreflight, CardTest, describe_test
from tessera.api.nodes.repairs import Repairs
from tessera.nvml.interface import GpuEvent, GpuInfo, GpuUuid

#: Seconds after which unchanged measurements of a card are taken in again, so that an error can end.
MEASURED_INTERVAL = 15.0


class HealthMonitor:
    """Monitors the health of one node's cards.

    Args:
        runtime: the cards, the Node, and the file of faults.
        resetter: resets cards that need it; ``None`` to leave that to administrators.
        reboots: asks for reboots of the node; ``None`` to leave that to administrators.
        preflights: tests new and repaired cards; ``None`` if nothing can.
        repairs: gives what the administrator lets Tessera do about cards with faults; ``None`` while that is unknown,
            and what was known before holds.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        resetter: CardResetter | None = None,
        reboots: RepairReboots | None = None,
        preflights: CardPreflights | None = None,
        repairs: Callable[[], Repairs | None] = lambda: None,
    ) -> None:
        node, metrics, clock = runtime.object_events, runtime.metrics, runtime.clock
        self._prober = CardProber(runtime.hardware)
        self._node = node
        self._metrics = metrics
        self._changes = runtime.changes.about(Fact.HEALTH | Fact.NODE_ANNOTATIONS | Fact.NODE_STATUS | Fact.REPAIRS)
        self._clock = clock
        self._read_repairs = repairs
        #: Seconds from the monotonic clock to the wall clock, measured at the start.
        self._epoch = clock.now() - clock.monotonic()
        self._store = FaultStore(runtime.state_file("health.json"), metrics)
        stored = self._store.load(clock.now())
        #: Id of the boot in which the faults were found; empty while unknown.
        self._boot = stored.boot
        self._health = HealthStateMachine(
            HealthPolicy.from_environment(runtime.options.environment),
            faults=stored.marks,
            past=stored.past,
            known=stored.known,
            repairs=stored.repairs,
        )
        #: The last test of each card.
        self._tests = {each.gpu: each for each in stored.tests}
        self._events = HealthEvents(node, self._health)
        self._repairs = CardRepairs(
            self._health, self._events, resetter=resetter, reboots=reboots, preflights=preflights
        )
        #: By card, its measured errors and the monotonic time at which they were taken in last.
        self._measured: dict[str, tuple[dict[str, str], float]] = {}
        #: The faults that the breaker spares, as the Node has them.
        self._spared: frozenset[CardRule] = frozenset()
        #: The cards that a person has cordoned, as the Node has them; ``None`` until it was seen.
        self._cordons: tuple[Cordon, ...] | None = None
        #: The node's cards by UUID, as last listed, and the error of each that could not be read.
        self._gpus: dict[str, GpuInfo] = {}
        self._unreadable: dict[str, str] = {}
        self._schedule = ProbeSchedule()
        runtime.recorders.attach("health", self._health)
        metrics.show_health(self.reactions)

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
        self._check_node()  # new cards may have to be tested
        self._schedule.set_cards(self._gpus, self._clock.monotonic())
        self._apply(CardsListed(frozenset(self._gpus), self._unreadable))
        for gpu in self._gpus.values():
            if gpu.lost:
                self._apply(CardProbed(gpu=gpu.uuid, result=ProbeResult.LOST))
        self._changes.notify(Fact.HEALTH)

    def note_hardware_event(self, event: GpuEvent) -> None:
        """Takes in an event of a card."""
        self._metrics.gpu_events.labels(
            event.gpu or "", event.kind.value if event.xid is None else f"xid-{event.xid}"
        ).inc()
        self._apply(HardwareEventReported(event))
        for uuid in self._gpus:
            if event.gpu in {None, uuid}:
                self._probe_soon(uuid)
        self._changes.notify(Fact.HEALTH)

    def note_event_watch_failure(self, text: str) -> None:
        """Takes in a failed wait for events; the cards are probed more often until it works again."""
        self.note_unheard({gpu.uuid: text for gpu in self._gpus.values()})

    def note_unheard(self, errors: Mapping[GpuUuid, str]) -> None:
        """Takes in which cards' events the driver does not report now, each with its error; it reports all others."""
        found = {str(gpu): error for gpu, error in errors.items()}
        self._apply(CardsUnheard(found))
        self._schedule.suspect(found, self._clock.monotonic())

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
            self._changes.notify(Fact.HEALTH)

    def note_card_reset(self, gpu: str) -> None:
        """Takes in the reset of a card."""
        self._apply(CardReset(gpu))
        self._probe_soon(gpu)
        self._changes.notify(Fact.HEALTH)

    def note_pod_preflight(self, test: CardTest) -> None:
        """Takes in the test before a pod's first container; a test that tested nothing leaves the last one shown."""
        if test.skipped:
            return
        self._tests[test.gpu] = test
        if test.finding:
            self._apply(PodPreflightFailed(test.gpu, test.finding))
        self._save()
        self._changes.notify(Fact.HEALTH)

    def note_instance_destroyed(self, gpu: str, gi_id: int) -> None:
        """Takes in the end of a GPU instance; a later one of the same id is another instance."""
        self._apply(InstanceDestroyed(gpu, gi_id))

    # Answers ----------------------------------------------------------------------------------------------------

    def describe(self, gpu: str) -> CardHealth:
        """The health of a card with its evidence; ``unknown`` for a card that is not listed."""
        if gpu not in self._gpus:
            return CardHealth()
        faults = [fault for fault in self._health.faults() if fault.scope.gpu == gpu]
        spared = [fault for fault in faults if self._health.spares(fault)]
        found = describe_card(faults, spared, self._health.repairs_of(gpu))
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
        return tuple(self._list_fault(fault) for fault in listed)

    def _list_fault(self, fault: Fault) -> CardFault:
        gpu = fault.scope.gpu
        return list_fault(fault, self._gpus[gpu].index, self._health.repairs_of(gpu))

    def indexes(self) -> Mapping[str, int]:
        """The driver's index of each card by UUID."""
        return {uuid: gpu.index for uuid, gpu in self._gpus.items()}

    def faulty_gpus(self) -> frozenset[str]:
        """UUIDs of the cards whose hardware has shown faults in this boot, whether or not they are listed."""
        if self._node.boot_id() != self._boot:
            return frozenset()
        return frozenset(fault.scope.gpu for fault in self._health.faults() if fault.of_hardware)

    def gpus_to_empty(self) -> frozenset[str]:
        """UUIDs of the cards that must be reset or booted."""
        return frozenset(gpu for gpu, reaction in self.reactions().items() if reaction >= Reaction.RESET)

    def reactions(self) -> Mapping[str, int]:
        """The reaction that each card requires for its hardware, as a number, for the metrics."""
        worst = dict.fromkeys(self._gpus, 0)
        for fault in self._health.faults():
            if fault.scope.gpu in worst and not fault.by_hand:
                worst[fault.scope.gpu] = max(worst[fault.scope.gpu], int(fault.reaction))
        return worst

    @property
    def state_machine(self) -> HealthStateMachine:
        """The state machine that decides; only to be read."""
        return self._health

    def condition(self) -> HealthCondition:
        """The condition ``GpuHealthy``: false if a fault of the hardware withholds any device."""
        return health_condition(self._health, self._gpus)

    def failed_pod_preflight(self, gpu: str) -> str:
        """The sentence about a card that failed the test before a pod's first container; empty for any other."""
        if not self._health.failed_pod_preflight(gpu):
            return ""
        return f"{name_scope(DeviceScope(gpu), self._gpus)}: {self.describe_part(gpu, -1)}"

    # The loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Probes the cards until cancelled."""
        try:
            while True:
                count = self._changes.count
                self._check_boot()
                self._check_node()
                if not await self._probe_cards():
                    await self._changes.wait(count, self._schedule.pause(self._clock.monotonic()))
        finally:
            self._prober.stop()
            self._repairs.stop()

    async def _probe_cards(self) -> bool:
        """Probes the cards that are due; returns true if there were any."""
        due = self._schedule.due(self._clock.monotonic())
        for uuid in due:
            self._schedule.note_probe(uuid, self._clock.monotonic())
            probed = await self._prober.probe(GpuUuid(uuid), instances=bool(self._health.faulty_instances(uuid)))
            if uuid in self._gpus:
                self._take_probe(uuid, probed)
                if probed is not None:
                    await self._repair(uuid)
        return bool(due)

    async def _repair(self, uuid: str) -> None:
        if await self._repairs.reset(uuid):
            self.note_card_reset(uuid)
        if uuid in self._gpus:
            self._repairs.preflight(self._gpus[uuid], self._take_preflight)
        await self._repairs.reboot(uuid, self._boot, now=self._now(), monotonic=self._clock.monotonic())

    def _take_probe(self, uuid: str, probed: CardProbed | None) -> None:
        self._metrics.probes.labels("not-asked" if probed is None else probed.result.value).inc()
        if probed is not None:
            self._apply(probed)
            if probed.result is ProbeResult.FAILED:
                self._changes.notify(Fact.HEALTH)  # the cards are listed again
        if not self._health.is_suspect(uuid) and probed is not None:
            self._schedule.note_well(uuid)

    def _take_preflight(self, result: PreflightEnded, found: CardPreflight) -> None:
        self._tests[result.gpu] = found.summary(self._clock.now())
        self._events.record_preflight(self._tests[result.gpu])
        self._apply(result)
        self._changes.notify(Fact.HEALTH)

    def _probe_soon(self, uuid: str) -> None:
        self._schedule.hasten(uuid, self._clock.monotonic())

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
        repairs = self._read_repairs()
        if repairs not in {None, self._health.repairs}:
            self._apply(RepairsSet(repairs or Repairs()))
            self._changes.notify(Fact.HEALTH)  # what is done about each fault

    # Consequences -----------------------------------------------------------------------------------------------

    def _apply(self, event: HealthEvent) -> None:
        changes = self._health.handle(event, self._now())
        self._save()
        for change in changes:
            before, after = change.before, change.after
            same = (before.reaction, before.by_hand) == (after.reaction, after.by_hand)
            if not isinstance(event, InstanceDestroyed) and not same:
                self._events.record_change(change)
        if changes:
            self._changes.notify(Fact.HEALTH)

    def _now(self) -> float:
        return self._epoch + self._clock.monotonic()

    def _save(self) -> None:
        faults = tuple(fault for fault in self._health.faults() if fault.source != EVENT_WATCH)
        known = None if self._health.known is None else tuple(sorted(self._health.known))
        self._store.save(
            StoredFaults(self._boot, faults, self._health.past, known, self.card_tests(), self._health.repairs)
        )
