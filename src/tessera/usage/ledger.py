"""The decider of the record of GPU-hours: readings of nodes go in, the record comes out. No I/O, no clock.

Rules:

- Hours that are older than two days are added up to days (UTC), and days that are older than a month are dropped.
- A node counts from its first reading on. While it does not answer, its time stays open for as long as a page can tell
  about it later; what is older is unknown. A node that is gone counts up to its last reading.
- A lease belongs to the pod that the API server has on that node. A node that names any other pod gives these seconds
  to nobody: they count as ``(unknown)``.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tessera.api.nodes.usage import NodeUsage
from tessera.usage.metering import CardSpan, LeaseSpan, NodeMeter, Reading, count_silence, read_first, read_next
from tessera.usage.record import DAY, HOUR, UNKNOWN, Period, UsageKey, UsageRecord

#: Most nodes in the record of GPU-hours; the time of others while no controller runs is not counted. Each is written
#: with some 50 bytes.
USAGE_NODES = 2_000

#: Seconds for which hours stay apart, and for which days stay.
HOURS_KEPT, DAYS_KEPT = 48 * HOUR, 31 * DAY
#: Seconds for which a page remembers leases that ended (tessera.agent.monitoring.lease_states).
MEMORY = 900.0


class LeaseOwner(NamedTuple):
    """What the API server says about the pod of a lease."""

    namespace: str
    user: str = ""
    label: str = ""


class PageRead(NamedTuple):
    """A node's page was read at ``now``; ``owners`` are those of its pods, by UID."""

    page: NodeUsage
    now: float
    schedulable: bool
    owners: Mapping[str, LeaseOwner]


class NodeSilent(NamedTuple):
    """A node exists and did not answer."""

    node: str
    now: float


class NodeGone(NamedTuple):
    """A node does not exist any more."""

    node: str


UsageEvent = PageRead | NodeSilent | NodeGone


class UsageLedger:
    """Counts GPU-seconds.

    Args:
        record: what was counted before; owned by the ledger.

    Attributes:
        record: everything that was counted. For each period and model, allocated, free, unavailable and unknown
            seconds sum to the capacity, and none is negative.
    """

    def __init__(self, record: UsageRecord) -> None:
        self.record = record
        #: By node, the last reading; its names are those of ``record.nodes``.
        self._meters = {name: NodeMeter(mark) for name, mark in record.nodes.items()}

    def handle(self, event: UsageEvent) -> None:
        """Takes an event in."""
        match event:
            case PageRead():
                self._read(event)
            case NodeSilent(node, now):
                if node in self._meters:
                    self._apply(node, count_silence(self._meters[node], now - MEMORY), {})
            case NodeGone(node):
                self._meters.pop(node, None)
                self.record.nodes.pop(node, None)

    def _read(self, event: PageRead) -> None:
        page, now = event.page, event.now
        if page.taken <= 0:  # its driver is not open
            self.handle(NodeSilent(page.node, now))
            return
        self.record.began = self.record.began or now
        self.record.simulated = self.record.simulated or page.simulated
        before = self._meters.get(page.node)
        if before is None:
            self._set(page.node, read_first(page, now))
        elif page.taken == before.mark.taken:  # its agent takes no samples any more
            self.handle(NodeSilent(page.node, now))
        else:
            self._apply(page.node, read_next(before, page, now, schedulable=event.schedulable), event.owners)

    def _apply(self, node: str, reading: Reading, owners: Mapping[str, LeaseOwner]) -> None:
        self._set(node, reading.meter)
        for card in reading.cards:
            for period, part in self._parts(card):
                period.add_cards(card.model, card.amount, part)
        for span in reading.leases:
            key = _key(span, owners)
            for period, part in self._parts(span):
                period.add_lease(key, span.amount, part)
        if reading.cards:
            self._compact(max(card.end for card in reading.cards))

    def _set(self, node: str, meter: NodeMeter) -> None:
        self._meters[node] = meter
        if node in self.record.nodes or len(self.record.nodes) < USAGE_NODES:
            self.record.nodes[node] = meter.mark

    def _parts(self, span: CardSpan | LeaseSpan) -> list[tuple[Period, float]]:
        """The periods of a span, each with its part."""
        length, begin, found = span.end - span.begin, span.begin, []
        while begin < span.end:
            period = self._period(begin)
            end = min(span.end, period.end)
            found.append((period, (end - begin) / length))
            begin = end
        return found

    def _period(self, at: float) -> Period:
        """The period at a time; a new hour if there is none."""
        periods = self.record.periods
        for period in reversed(periods):
            if period.start <= at < period.end:
                return period
            if period.end <= at:
                break
        made = Period(int(at // HOUR) * HOUR, HOUR)
        periods.append(made)
        periods.sort(key=lambda each: each.start)
        return made

    def _compact(self, now: float) -> None:
        """Adds old hours up to days, and drops old days."""
        kept: dict[int, Period] = {}
        for period in self.record.periods:
            if period.end <= now - DAYS_KEPT:
                continue
            if period.seconds == HOUR and period.end > now - HOURS_KEPT:
                kept[period.start] = period
                continue
            start = period.start - period.start % DAY
            if start in kept and kept[start].seconds == DAY:
                kept[start].add(period)
            else:
                kept[start] = msgspec.structs.replace(period, start=start, seconds=DAY)
        self.record.periods = [kept[start] for start in sorted(kept)]


def _key(span: LeaseSpan, owners: Mapping[str, LeaseOwner]) -> UsageKey:
    owner = owners.get(span.lease.uid)
    if owner is None:
        return UsageKey(UNKNOWN, "", "", span.model)
    return UsageKey(owner.namespace, owner.user, owner.label, span.model)
