"""Keeps up to date what is thought of the node's cards: takes in events, asks cards how they are, tells what changed.

The verdicts are those of :mod:`tessera.agent.health.faults`; here are its inputs and outputs. Cards that nothing is
wrong with are asked seldom, suspected ones often, and one that an event came from at once, since the driver may have
more to say about it. They are asked one after the other (:mod:`tessera.agent.health.executor`).

Marks are kept over restarts of the agent, so their times are the wall clock's. That clock may be set while the agent
runs, so it is read once, when the agent starts, and goes on with the monotonic one; a kept mark that seems to come from
the future is held to be of now. A boot of the node, known by its boot id, ends all marks.

This module does not wait for events: whoever does hands them in (:meth:`HealthWatch.happened`,
:meth:`HealthWatch.broken`), since the slicer wants them too.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.metrics import Metrics
from tessera.agent.base.state_file import StateFile
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
from tessera.agent.health.executor import PROBE_TIMEOUT, CardProber, CardResetter
from tessera.agent.health.faults import EVENT_WATCH, Fault, HealthChange, HealthStateMachine, Hysteresis
from tessera.agent.health.messages import HealthCondition, describe_health, health_condition, name_scope
from tessera.agent.health.policy import HealthPolicy
from tessera.agent.inventory.device_health import DeviceHealth, DeviceScope, Reaction
from tessera.clock import Clock
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import Event, GpuInfo, GpuUuid

_log = logging.getLogger(__name__)

#: Seconds between two questions to a card that nothing is wrong with.
PROBE_INTERVAL = 60.0
#: Seconds between two questions to a suspected one.
SUSPECT_PROBE_INTERVAL = 10.0
#: Seconds between two questions to one card at least, however many events come.
_SOONEST = 1.0

#: Tells people about the node: a CamelCase reason, a sentence, and whether it is a ``Warning``.
Tell = Callable[[str, str, Literal["Normal", "Warning"]], None]


class StoredFaults(msgspec.Struct, frozen=True):
    """The marks of one boot, as they are kept.

    Attributes:
        boot: the node's boot id when they were found; empty if it was not known yet.
        marks: with times in seconds since 1970.
    """

    boot: str = ""
    marks: tuple[Fault, ...] = ()


class HealthMonitor:
    """The health of one node's cards.

    Args:
        hardware: the cards.
        policy: what errors ask for.
        marks_file: where marks are kept.
        boot_id: the node's boot id, empty while it is not known.
        clock: the time.
        changes: woken at every change of a verdict.
        tell: records an event of the node.
        metrics: where events and probes are counted.
        resets: resets cards that ask for it; ``None`` to leave that to people.
        hysteresis: how sure one must be.
        patience: seconds that a card has to answer.
    """

    def __init__(
        self,
        *,
        hardware: AsyncNvml,
        policy: HealthPolicy,
        marks_file: Path,
        boot_id: Callable[[], str],
        clock: Clock,
        changes: ChangeNotifier,
        tell: Tell,
        metrics: Metrics,
        resets: CardResetter | None = None,
        hysteresis: Hysteresis | None = None,
        patience: float = PROBE_TIMEOUT,
    ) -> None:
        self._clock = clock
        self._changes = changes
        self._tell = tell
        self._metrics = metrics
        self._boot_id = boot_id
        self._resets = resets
        self._prober = CardProber(hardware, patience=patience)
        self._ahead = clock.now() - clock.monotonic()
        self._file = StateFile(marks_file, StoredFaults)
        kept = self._file.load() or StoredFaults()
        self._boot = kept.boot
        self._health = HealthStateMachine(
            policy, hysteresis, faults=[self._not_of_the_future(mark) for mark in kept.marks]
        )
        self._gpus: dict[str, GpuInfo] = {}
        #: When each card was asked last, and is asked next, by the monotonic clock.
        self._asked: dict[str, float] = {}
        self._due: dict[str, float] = {}
        metrics.show_health(self._reactions)

    # What happened ----------------------------------------------------------------------------------------------

    def set_cards(self, gpus: Iterable[GpuInfo]) -> None:
        """These are the node's cards now; new ones are asked at once."""
        found = {str(gpu.uuid): gpu for gpu in gpus}
        if found == self._gpus:
            return
        self._gpus = found
        now = self._clock.monotonic()
        self._due = {uuid: self._due.get(uuid, now) for uuid in self._gpus}
        self._apply(CardsListed(frozenset(self._gpus)))
        for gpu in self._gpus.values():
            if gpu.lost:
                self._apply(CardProbed(gpu=gpu.uuid, result=ProbeResult.LOST, text="it fell off the bus"))
        self._changes.notify()

    def hardware_event(self, event: Event | None) -> None:
        """A wait for events has ended, with an event or, ``None``, without: the watch works."""
        self._apply(EventWatchRestored())
        if event is None:
            return
        self._metrics.count_hardware_event(
            event.gpu or "", event.kind.value if event.xid is None else f"xid-{event.xid}"
        )
        self._apply(HardwareEventReported(event))
        for uuid in self._gpus:
            if event.gpu in {None, uuid}:
                self._ask_soon(uuid)
        self._changes.notify()

    def event_watch_failed(self, text: str) -> None:
        """Waiting for events failed; the cards are probed more often until it works again."""
        self._apply(EventWatchFailed(text))
        for uuid in self._gpus:
            self._due[uuid] = min(self._due[uuid], self._clock.monotonic() + SUSPECT_PROBE_INTERVAL)

    def card_reset(self, gpu: str) -> None:
        """The card was reset."""
        self._apply(CardReset(gpu))
        self._ask_soon(gpu)
        self._changes.notify()

    def instance_destroyed(self, gpu: str, gi_id: int) -> None:
        """A GPU instance was destroyed; what comes later under its id is another."""
        self._apply(InstanceDestroyed(gpu, gi_id))

    # What is thought of them ------------------------------------------------------------------------------------

    def health_of(self, scope: DeviceScope) -> DeviceHealth:
        """What is thought of a card or of an instance on it."""
        return self._health.health_of(scope)

    def is_unhealthy(self, gpu: str) -> bool:
        """Whether nothing of the card may be given out."""
        return not self._health.health_of(DeviceScope(gpu)).healthy

    @property
    def state_machine(self) -> HealthStateMachine:
        """The verdicts, for :func:`tessera.agent.health.device_health.verdicts`; only to be read."""
        return self._health

    def condition(self) -> HealthCondition:
        """The condition ``GpuHealthy``: false if anything must not be given out, with all that is wrong."""
        return health_condition(self._health, self._gpus)

    # The loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Asks the cards how they are until cancelled."""
        try:
            while True:
                seen = self._changes.count
                self._notice_boot()
                if not await self._ask_due():
                    soonest = min(self._due.values(), default=None)
                    waits = None if soonest is None else max(0.0, soonest - self._clock.monotonic())
                    await self._changes.wait(seen, waits)
        finally:
            self._prober.stop()

    async def _ask_due(self) -> bool:
        """Asks the cards whose time has come; whether there were any."""
        now = self._clock.monotonic()
        due = [uuid for uuid, at in self._due.items() if at <= now]
        for uuid in due:
            self._asked[uuid] = self._clock.monotonic()
            self._due[uuid] = self._asked[uuid] + SUSPECT_PROBE_INTERVAL
            found = await self._prober.probe(GpuUuid(uuid), instances=bool(self._health.faulty_instances(uuid)))
            if uuid in self._gpus:
                self._answered(uuid, found)
                if found is not None:
                    await self._reset_if_asked(uuid)
        return bool(due)

    def _answered(self, uuid: str, found: CardProbed | None) -> None:
        self._metrics.count_probe("not-asked" if found is None else found.result.value)
        if found is not None:
            self._apply(found)
        if not self._health.is_suspect(uuid) and found is not None:
            self._due[uuid] = self._asked[uuid] + PROBE_INTERVAL

    async def _reset_if_asked(self, uuid: str) -> None:
        """Resets a card that needs no more than that, and has not been reset since."""
        if self._resets is None or not self._health.needs_reset(uuid):
            return
        try:
            if await self._resets.reset(uuid):
                self._tell(
                    "GpuReset",
                    f"{name_scope(DeviceScope(uuid), self._gpus)}: was reset, as its error asks for",
                    "Normal",
                )
                self.card_reset(uuid)
        except NvmlError as error:
            self._tell(
                "GpuNotReset", f"{name_scope(DeviceScope(uuid), self._gpus)}: could not be reset: {error}", "Warning"
            )

    def _ask_soon(self, uuid: str) -> None:
        if uuid in self._due:
            now = self._clock.monotonic()
            self._due[uuid] = min(self._due[uuid], max(now, self._asked.get(uuid, now - _SOONEST) + _SOONEST))

    def _notice_boot(self) -> None:
        boot = self._boot_id()
        if boot in {"", self._boot}:
            return
        another = self._boot != ""
        self._boot = boot
        if another:
            self._apply(NodeRebooted())
        self._save()

    # Consequences -----------------------------------------------------------------------------------------------

    def _apply(self, fact: HealthEvent) -> None:
        changes = self._health.decide(fact, self._ahead + self._clock.monotonic())
        self._save()
        for change in changes:
            if not isinstance(fact, InstanceDestroyed) and change.before.reaction is not change.after.reaction:
                self._tell_change(change)
        if changes:
            self._changes.notify()

    def _tell_change(self, change: HealthChange) -> None:
        name = name_scope(change.scope, self._gpus)
        if change.after.reaction is Reaction.IGNORE:
            self._tell("GpuRecovered", f"{name}: nothing is wrong with it any more", "Normal")
        else:
            reason = "GpuDegraded" if change.after.healthy else "GpuUnhealthy"
            self._tell(reason, f"{name}: {describe_health(change.after)}", "Warning")

    def _save(self) -> None:
        marks = tuple(mark for mark in self._health.faults() if mark.source != EVENT_WATCH)
        try:
            self._file.save(StoredFaults(self._boot, marks))
        except OSError as error:
            # The verdict holds without it, until this process ends.
            self._metrics.count_unsaved_faults()
            _log.warning("what is known of bad cards is not kept over a restart of the agent: %s", error)

    def _not_of_the_future(self, mark: Fault) -> Fault:
        now = self._ahead + self._clock.monotonic()
        return msgspec.structs.replace(mark, since=min(mark.since, now), last=min(mark.last, now))

    def _reactions(self) -> Mapping[str, int]:
        worst = dict.fromkeys(self._gpus, 0)
        for mark in self._health.faults():
            if mark.scope.gpu in worst:
                worst[mark.scope.gpu] = max(worst[mark.scope.gpu], int(mark.reaction))
        return worst
