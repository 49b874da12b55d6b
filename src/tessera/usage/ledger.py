"""The decider of the record of GPU-hours: readings of nodes go in, the record comes out. No I/O, no clock.

Rules:

- Hours that are older than two days are added up to days (UTC), and days that are older than a month are dropped.
- A node counts from its first reading on. While it does not answer, its time stays open for as long as a page can tell
  about it later; what is older is unknown. A node that is gone counts up to its last reading.
- A lease belongs to the pod that the API server has on that node. A node that names any other pod gives these seconds
  to nobody: they count as ``(unknown)``.

What a node's cards did between two of its pages:

1. The time between two readings is counted by the controller's clock, so a node's clock moves nothing. The same sample
   read twice counts nothing.
2. A lease counts from the reading before, or from the time for which the agent has seen it. A lease that ended counts
   up to its end; the page remembers it for a quarter of an hour. So a lease that lived between two readings counts too.
3. Time for which the page cannot know all leases, after a pause of the agent or of the controller, is unknown.
4. Active and idle seconds are differences of the agent's counts. A lease without a count before, as after a change of
   the leader, is held and of unknown use.
5. A node is not believed beyond its own cards: the leases of a card count for at most the time of the card, and for
   at most :data:`MOST_WATTS`.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from tessera.api.nodes.health import TAKEN
from tessera.api.nodes.usage import CardUsage, EndedLease, LeaseUsage, NodeUsage
from tessera.usage.record import (
    DAY,
    HOUR,
    UNKNOWN,
    CardSeconds,
    LeaseSeconds,
    NodeMark,
    Period,
    UsageKey,
    UsageRecord,
    short_name,
)

#: Seconds; two samples of an agent are at least a second apart.
_ROUNDING = 0.5
#: Watts that no card draws: NVIDIA's data sheets have up to 1,400 (GB300).
MOST_WATTS = 3_000.0


class LeaseId(NamedTuple):
    """A lease over several pages."""

    uid: str
    container: str
    device: str


class Counts(NamedTuple):
    """The agent's counts of a lease, in seconds, GPU-seconds and joules."""

    held: float
    active: float
    wasted: float
    metered: float = 0.0
    energy: float = 0.0


class NodeMeter(msgspec.Struct, frozen=True):
    """A node at the last reading.

    Attributes:
        mark: the time up to which it is counted.
        counts: of its leases then; empty after a change of the leader.
    """

    mark: NodeMark
    counts: Mapping[LeaseId, Counts] = {}


class CardSpan(NamedTuple):
    """Card-seconds of a model between two times."""

    begin: float
    end: float
    model: str
    amount: CardSeconds


class LeaseSpan(NamedTuple):
    """GPU-seconds of a lease between two times."""

    begin: float
    end: float
    lease: LeaseUsage | EndedLease
    model: str
    amount: LeaseSeconds


class Reading(NamedTuple):
    """What was counted, and the node for the next time."""

    meter: NodeMeter
    cards: tuple[CardSpan, ...] = ()
    leases: tuple[LeaseSpan, ...] = ()


def read_first(page: NodeUsage, now: float) -> NodeMeter:
    """The node at the first reading; nothing before it is counted."""
    return NodeMeter(NodeMark(now, page.taken, _models(page)), _counts(page))


def read_next(before: NodeMeter, page: NodeUsage, now: float, *, schedulable: bool) -> Reading:
    """Counts the time since the reading before.

    Args:
        before: the node then.
        page: its page.
        now: Unix time of the controller.
        schedulable: False if the node is cordoned.
    """
    mark = before.mark
    if now <= mark.until or page.taken == mark.taken:
        return Reading(before)
    known = min(now - mark.until, max(0.0, page.ended_window))
    leases, held = _count_leases(before, page, now, known)
    cards = [
        CardSpan(now - known, now, short_name(card.model), _seconds(card, known, held[card.uuid], schedulable))
        for card in page.cards
    ]
    meter = NodeMeter(NodeMark(now, page.taken, _models(page)), _counts(page))
    return Reading(meter, (*_gap(mark, now - known), *cards), tuple(leases))


def count_silence(before: NodeMeter, until: float) -> Reading:
    """Counts the time up to ``until`` as unknown, for no page can tell about it any more."""
    if until <= before.mark.until:
        return Reading(before)
    spans = tuple(_gap(before.mark, until))
    return Reading(NodeMeter(msgspec.structs.replace(before.mark, until=until), before.counts), spans)


def _gap(mark: NodeMark, until: float) -> Iterator[CardSpan]:
    passed = until - mark.until
    if passed > 0:
        for model, number in mark.cards.items():
            yield CardSpan(mark.until, until, model, CardSeconds(capacity=number * passed, unknown=number * passed))


def _seconds(card: CardUsage, known: float, held: float, schedulable: bool) -> CardSeconds:
    usable = schedulable and card.health.state not in TAKEN
    return CardSeconds(capacity=known, unavailable=0.0 if usable else max(0.0, known - held))


def _count_leases(
    before: NodeMeter, page: NodeUsage, now: float, known: float
) -> tuple[list[LeaseSpan], dict[str, float]]:
    """The leases of all cards, and the seconds held of each card."""
    models = {card.uuid: short_name(card.model) for card in page.cards}
    places = {device: card.uuid for card in page.cards for device in (card.uuid, *(each.uuid for each in card.devices))}
    by_card: dict[str, list[tuple[LeaseUsage | EndedLease, LeaseSeconds]]] = {uuid: [] for uuid in models}
    for lease in page.leases:
        if lease.device in places:
            by_card[places[lease.device]].append((lease, _count(before, lease, known, known)))
    for ended in page.ended:
        counted = page.taken - ended.ago <= before.mark.taken + _ROUNDING
        if ended.gpu in by_card and not counted and ended.ago < known:
            by_card[ended.gpu].append((ended, _count(before, ended, known - ended.ago, known)))
    spans, held = [], {}
    for gpu, found in by_card.items():
        total = sum(amount.held for _, amount in found)
        scale = min(1.0, known / total) if total > 0 else 1.0
        held[gpu] = total * scale
        joules = sum(amount.energy for _, amount in found)
        for each, amount in found:
            scaled = LeaseSeconds()
            scaled.add(amount, scale)
            scaled.energy = amount.energy * min(1.0, MOST_WATTS * known / joules) if joules > 0 else 0.0
            spans.append(LeaseSpan(now - known, now, each, models[gpu], scaled))
    return spans, held


def _count(before: NodeMeter, lease: LeaseUsage | EndedLease, most: float, known: float) -> LeaseSeconds:
    """The GPU-seconds of a lease in the known time, of which it can have had ``most`` seconds."""
    base = before.counts.get(_id(lease))
    if base is not None and lease.held < base.held:
        base = None  # the agent began to count again
    share = min(1.0, max(0.0, lease.share))
    seconds = most if base is not None else max(0.0, min(most, lease.held))
    held = seconds * share
    if base is None and lease.held > known:
        return LeaseSeconds(held)
    before_it = base or Counts(0.0, 0.0, 0.0)
    active = min(held, max(0.0, lease.active - before_it.active))
    idle = min(held - active, max(0.0, lease.wasted - before_it.wasted))
    metered = min(held, max(0.0, lease.metered - before_it.metered))
    return LeaseSeconds(held, active, idle, metered, max(0.0, lease.energy - before_it.energy) if metered else 0.0)


def _id(lease: LeaseUsage | EndedLease) -> LeaseId:
    return LeaseId(lease.uid, lease.container, lease.device)


def _counts(page: NodeUsage) -> dict[LeaseId, Counts]:
    return {
        _id(lease): Counts(lease.held, lease.active, lease.wasted, lease.metered, lease.energy) for lease in page.leases
    }


def _models(page: NodeUsage) -> dict[str, int]:
    found: dict[str, int] = {}
    for card in page.cards:
        model = short_name(card.model)
        found[model] = found.get(model, 0) + 1
    return found


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
