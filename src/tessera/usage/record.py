"""The record of GPU-hours: amounts by period, in GPU-seconds. Pure values.

A period is an hour, or an older day. It has the seconds of the cards by model, and the seconds that leases held, by
namespace, user, label and model. So for each model

    capacity = allocated + free + unavailable + unknown

where allocated is the sum of the rows, and free is what remains.

The record is written as text into the ConfigMap ``usage-records``.

Rules:

- Owners are listed once, and rows name them by number.
- The text is bounded by construction: periods, rows, keys, nodes and the length of names have limits. If it is too
  large all the same, as with names of wide characters, the oldest periods go.
- Others can write a ConfigMap: numbers are checked before use.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from tessera.limits import ECHOED, NODE_CARDS, Limit
from tessera.text import one_line

#: Most rows of an hour or a day in the record of GPU-hours; the smallest of the namespace with the most rows are added
#: up. 79 periods of 250 rows have 500 KiB.
USAGE_ROWS = 250


#: Most models of cards in an hour or a day of the record of GPU-hours; others count as `(other)`. A cluster has a few;
#: a node that lies cannot add thousands.
USAGE_MODELS = 64
#: Most characters: a namespace, a user, a label's value or a model in the record of GPU-hours; the rest is cut. A
#: label's value has no more.
USAGE_NAME = 63
#: Most namespaces whose teams the record of GPU-hours names, those that held cards first; the others are teams of
#: their own.
USAGE_TEAMS = 1_000

HOUR, DAY = 3600, 86_400
#: Name of what is added up for a limit, and of what the controller does not know, as of a lease whose pod it never saw.
OTHER, UNKNOWN = "(other)", "(unknown)"


class UsageKey(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Owner and model of GPU-seconds; user and label are empty if the pod does not state them."""

    namespace: str
    user: str
    label: str
    model: str


class LeaseSeconds(msgspec.Struct):
    """GPU-seconds that leases held; what is neither active nor idle could not be measured.

    Attributes:
        held: all of them.
        active: in the state busy.
        idle: in the states never_used, idle and resident.
        metered: those whose energy is known.
        energy: joules of the metered ones.
    """

    held: float = 0.0
    active: float = 0.0
    idle: float = 0.0
    metered: float = 0.0
    energy: float = 0.0

    @property
    def unknown(self) -> float:
        """GPU-seconds whose use could not be measured."""
        return max(0.0, self.held - self.active - self.idle)

    def add(self, other: "LeaseSeconds", part: float = 1.0) -> None:
        """Adds a part of another amount."""
        self.held += other.held * part
        self.active += other.active * part
        self.idle += other.idle * part
        self.metered += other.metered * part
        self.energy += other.energy * part


class CardSeconds(msgspec.Struct):
    """Card-seconds of a model.

    Attributes:
        capacity: all of them.
        unavailable: not held, and no pod could have got them: the card is not well, or its node is cordoned.
        unknown: nobody watched: the agent or the controller did not run.
    """

    capacity: float = 0.0
    unavailable: float = 0.0
    unknown: float = 0.0

    def add(self, other: "CardSeconds", part: float = 1.0) -> None:
        """Adds a part of another amount."""
        self.capacity += other.capacity * part
        self.unavailable += other.unavailable * part
        self.unknown += other.unknown * part


class Period(msgspec.Struct):
    """An hour or a day.

    Attributes:
        start: Unix time.
        seconds: its length.
        cards: by model.
        rows: by owner and model.
    """

    start: int
    seconds: int
    cards: dict[str, CardSeconds] = {}
    rows: dict[UsageKey, LeaseSeconds] = {}

    @property
    def end(self) -> int:
        """Unix time."""
        return self.start + self.seconds

    def add_cards(self, model: str, amount: CardSeconds, part: float = 1.0) -> None:
        """Adds card-seconds of a model."""
        self.cards.setdefault(self._model(model), CardSeconds()).add(amount, part)

    def add_lease(self, key: UsageKey, amount: LeaseSeconds, part: float = 1.0) -> None:
        """Adds GPU-seconds of an owner; card-seconds of the model must be there."""
        key = msgspec.structs.replace(key, model=self._model(key.model))
        if key not in self.rows and len(self.rows) >= 2 * USAGE_ROWS:
            self.rows = fold(self.rows, USAGE_ROWS)
        self.rows.setdefault(key, LeaseSeconds()).add(amount, part)

    def add(self, other: "Period") -> None:
        """Adds another period."""
        for model, cards in other.cards.items():
            self.add_cards(model, cards)
        for key, lease in other.rows.items():
            self.add_lease(key, lease)

    def _model(self, model: str) -> str:
        return model if model in self.cards or len(self.cards) < USAGE_MODELS else OTHER


class NodeMark(msgspec.Struct, frozen=True):
    """The time up to which a node is counted.

    Attributes:
        until: Unix time of the controller.
        taken: time of the last sample that was counted, on the node's clock.
        cards: number of its cards, by model.
    """

    until: float
    taken: float
    cards: Mapping[str, int] = {}


class UsageRecord(msgspec.Struct):
    """Everything that was counted.

    Attributes:
        began: Unix time of the first count; 0 before it.
        label: key of the pods' label whose values the rows have.
        simulated: True if some of the cards exist only in a lab.
        periods: the oldest first.
        nodes: by name, the time up to which each is counted.
        team_label: key of the namespaces' label that names their teams; empty if each namespace is a team.
        teams: by namespace, its team; a namespace that is missing is a team of its own.
    """

    began: float = 0.0
    label: str = ""
    simulated: bool = False
    periods: list[Period] = []
    nodes: dict[str, NodeMark] = {}
    team_label: str = ""
    teams: dict[str, str] = {}

    @property
    def until(self) -> float:
        """The latest time that is counted; 0 if none is."""
        return max((mark.until for mark in self.nodes.values()), default=self.began)


def short_name(text: str) -> str:
    """A name as the record has it: printable, and at most ``USAGE_NAME`` characters."""
    start = text[:USAGE_NAME]
    return start if start.isprintable() else "".join(each if each.isprintable() else "?" for each in start)


def with_label(record: UsageRecord, label: str) -> UsageRecord:
    """The record for another label; what was counted has no value of it."""
    for period in record.periods:
        rows, period.rows = period.rows, {}
        for key, amount in rows.items():
            period.add_lease(msgspec.structs.replace(key, label=""), amount)
    record.label = label
    return record


def of_namespaces(record: UsageRecord, shows: Callable[[str], bool]) -> UsageRecord:
    """The leases of some namespaces: the cards and the nodes are everybody's, so they are left out.

    Args:
        record: the whole record.
        shows: True for a namespace that is shown.
    """
    return UsageRecord(
        began=record.began,
        label=record.label,
        simulated=record.simulated,
        periods=[
            Period(each.start, each.seconds, rows={key: row for key, row in each.rows.items() if shows(key.namespace)})
            for each in record.periods
        ],
        nodes={"": NodeMark(record.until, record.until, {})},
        team_label=record.team_label,
        teams={namespace: team for namespace, team in record.teams.items() if shows(namespace)},
    )


def fold(rows: Mapping[UsageKey, LeaseSeconds], most: int) -> dict[UsageKey, LeaseSeconds]:
    """Adds rows up until at most ``most`` remain; the sum stays the same.

    The smallest rows of the namespace that has the most rows go first, so a tenant who invents users makes only its own
    rows coarse.
    """
    found = dict(rows)
    while len(found) > most:
        counts = Counter(key.namespace for key in found if (key.user, key.label) != (OTHER, OTHER))
        namespace = min(counts, key=lambda each: (-counts[each], each), default="")
        excess = len(found) - most
        victims = _smallest(found, namespace, 1 + excess) if counts[namespace] > 1 else []
        if len(victims) > len({key.model for key in victims}):
            found = _merge(found, victims, namespace)
        else:  # each namespace has one row of a model
            everyone = sorted(found, key=lambda key: (found[key].held, key))
            models = len({key.model for key in found})
            return _merge(found, everyone[: min(len(everyone), excess + models)], OTHER)
    return found


def _smallest(rows: Mapping[UsageKey, LeaseSeconds], namespace: str, number: int) -> list[UsageKey]:
    own = [key for key in rows if key.namespace == namespace and (key.user, key.label) != (OTHER, OTHER)]
    return sorted(own, key=lambda key: (rows[key].held, key))[: max(number, len(own) // 2)]


def _merge(
    rows: Mapping[UsageKey, LeaseSeconds], victims: Iterable[UsageKey], namespace: str
) -> dict[UsageKey, LeaseSeconds]:
    gone = set(victims)
    found = {key: amount for key, amount in rows.items() if key not in gone}
    for key in sorted(gone):
        target = UsageKey(namespace, OTHER, OTHER, key.model)
        amount = msgspec.structs.replace(found.get(target, LeaseSeconds()))
        amount.add(rows[key])
        found[target] = amount
    return found


USAGE_RECORD = Limit(
    900 * 1024,
    "bytes",
    "the record of GPU-hours in its ConfigMap; the newest periods stay",
    "a ConfigMap has at most 1 MiB; a month of 250 rows in each period has 800 KiB",
)

#: Most keys: combinations of namespace, user, label and model in the record of GPU-hours; the smallest are added up.
#: Each is written once, with up to 300 bytes.
USAGE_KEYS = 1_000

#: The ConfigMap, and its key of the record.
RECORD_NAME = "usage-records"
RECORD_KEY = "usage.json"
#: The text that could not be read the last time, for people; Tessera does not read it back.
BROKEN_KEY = "unreadable.txt"
_VERSION = 1
#: Periods of a record: the hours that stay apart, the days, and those at the ends.
_PERIODS = 96
#: A larger number of seconds is an error: a thousand years of 100,000 cards.
_MOST_SECONDS = 1e16


class _EncodedPeriod(msgspec.Struct, frozen=True, array_like=True):
    start: int
    seconds: int
    #: model, capacity, unavailable, unknown
    cards: tuple[tuple[str, float, float, float], ...]
    #: number of the key, held, active, idle
    rows: tuple[tuple[int, float, float, float], ...]
    #: metered seconds and joules of each row, whole numbers; earlier versions write none, and leave these out
    energy: tuple[tuple[float, float], ...] = ()


class _Encoded(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    began: float
    label: str
    simulated: bool
    keys: tuple[UsageKey, ...]
    periods: tuple[_EncodedPeriod, ...]
    #: node -> until, taken, number of cards by model
    nodes: dict[str, tuple[float, float, dict[str, int]]]
    #: key of the label, and team by namespace; earlier versions write none
    team_label: str = ""
    teams: dict[str, str] = {}


def encode_record(record: UsageRecord) -> str:
    """The record as JSON, at most ``USAGE_RECORD`` bytes."""
    periods = _fold_keys([fold(each.rows, USAGE_ROWS) for each in record.periods])
    first = 0
    while True:
        text = _encode(record, record.periods[first:], periods[first:])
        if len(text) <= USAGE_RECORD or first >= len(periods):
            return text.decode()
        first += 1


def _encode(record: UsageRecord, periods: Iterable[Period], rows: list[dict[UsageKey, LeaseSeconds]]) -> bytes:
    keys = sorted({key for each in rows for key in each})
    numbers = {key: number for number, key in enumerate(keys)}
    encoded = tuple(
        _EncodedPeriod(
            period.start,
            period.seconds,
            tuple(
                (model, _short(each.capacity), _short(each.unavailable), _short(each.unknown))
                for model, each in sorted(period.cards.items())
            ),
            tuple(
                (numbers[key], _short(each.held), _short(each.active), _short(each.idle))
                for key, each in sorted(found.items(), key=lambda item: item[0])
            ),
            _energy(found),
        )
        for period, found in zip(periods, rows, strict=True)
    )
    nodes = {name: (_short(mark.until), _short(mark.taken), dict(mark.cards)) for name, mark in record.nodes.items()}
    return msgspec.json.encode(
        _Encoded(
            version=_VERSION,
            began=round(record.began, 3),
            label=record.label,
            simulated=record.simulated,
            keys=tuple(keys),
            periods=encoded,
            nodes=nodes,
            team_label=record.team_label,
            teams=record.teams,
        )
    )


def _energy(rows: Mapping[UsageKey, LeaseSeconds]) -> tuple[tuple[float, float], ...]:
    """The energy of the rows in their order; nothing if none is known."""
    known = any(each.metered for each in rows.values())
    return tuple((round(each.metered), round(each.energy)) for _, each in sorted(rows.items())) if known else ()


def _short(seconds: float) -> float:
    return round(seconds, 3)


def _fold_keys(periods: list[dict[UsageKey, LeaseSeconds]]) -> list[dict[UsageKey, LeaseSeconds]]:
    """Adds up the owners that are beyond ``USAGE_KEYS`` over all periods."""
    totals: dict[UsageKey, LeaseSeconds] = {}
    for rows in periods:
        for key, amount in rows.items():
            totals.setdefault(key, LeaseSeconds()).add(amount)
    if len(totals) <= USAGE_KEYS:
        return periods
    kept = fold(totals, USAGE_KEYS).keys()
    found = []
    for rows in periods:
        folded: dict[UsageKey, LeaseSeconds] = {}
        for key, amount in rows.items():
            own = UsageKey(key.namespace, OTHER, OTHER, key.model)
            target = next((each for each in (key, own) if each in kept), UsageKey(OTHER, OTHER, OTHER, key.model))
            folded.setdefault(target, LeaseSeconds()).add(amount)
        found.append(folded)
    return found


def decode_record(text: str) -> UsageRecord:
    """Reads a record.

    Raises:
        ValueError: the text is too long or malformed; the message says where.
    """
    if len(text) > USAGE_RECORD:
        raise ValueError(f"record of GPU-hours of {len(text):,} characters; {USAGE_RECORD} are allowed")
    try:
        found = msgspec.json.decode(text, type=_Encoded)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"record of GPU-hours: {error}") from None
    if found.version != _VERSION:
        raise ValueError(f"record of GPU-hours: version {found.version}; this program reads version {_VERSION}")
    if len(found.periods) > _PERIODS:
        raise ValueError(f"record of GPU-hours: {len(found.periods):,} periods; {_PERIODS} are allowed")
    keys = [UsageKey(*map(short_name, msgspec.structs.astuple(key))) for key in found.keys]
    nodes = {
        name: NodeMark(_seconds("until", until), _seconds("taken", taken), _numbers(name, cards))
        for name, (until, taken, cards) in found.nodes.items()
    }
    return UsageRecord(
        began=_seconds("began", found.began),
        label=one_line(found.label),
        simulated=found.simulated,
        periods=sorted((_period(each, keys) for each in found.periods), key=lambda each: each.start),
        nodes=nodes,
        team_label=one_line(found.team_label),
        teams=_teams(found.teams),
    )


class _TeamsOnly(msgspec.Struct, frozen=True):
    teams: dict[str, str] = {}


def decode_teams(text: str) -> dict[str, str]:
    """The teams of a record, by namespace; none of a text that is no record, of which :func:`decode_record` tells."""
    try:
        return _teams(msgspec.json.decode(text, type=_TeamsOnly).teams) if len(text) <= USAGE_RECORD else {}
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return {}


def _teams(found: Mapping[str, str]) -> dict[str, str]:
    return {short_name(name): short_name(team) for name, team in list(found.items())[:USAGE_TEAMS] if team}


def _period(found: _EncodedPeriod, keys: list[UsageKey]) -> Period:
    if found.seconds not in {HOUR, DAY} or not 0 <= found.start <= _MOST_SECONDS or found.start % found.seconds:
        raise ValueError(f"record of GPU-hours: a period of {found.seconds} s from {found.start}; hours and days exist")
    period = Period(found.start, found.seconds)
    for model, capacity, unavailable, unknown in found.cards:
        amount = CardSeconds(
            _seconds("capacity", capacity), _seconds("unavailable", unavailable), _seconds("unknown", unknown)
        )
        period.add_cards(short_name(model), amount)
    if found.energy and len(found.energy) != len(found.rows):
        raise ValueError(f"record of GPU-hours: energy of {len(found.energy)} rows, of {len(found.rows)}")
    energies = found.energy or ((0.0, 0.0),) * len(found.rows)
    for (number, held, active, idle), (metered, energy) in zip(found.rows, energies, strict=True):
        if not 0 <= number < len(keys):
            raise ValueError(f"record of GPU-hours: key {number} of {len(keys)}")
        lease = LeaseSeconds(
            _seconds("held", held),
            _seconds("active", active),
            _seconds("idle", idle),
            _seconds("metered", metered),
            _seconds("energy", energy),
        )
        period.add_lease(keys[number], lease)
    return period


def _seconds(name: str, value: float) -> float:
    if math.isfinite(value) and 0 <= value <= _MOST_SECONDS:
        return value
    raise ValueError(f"record of GPU-hours: {name} is {str(value)[:ECHOED]}; seconds are expected")


def _numbers(node: str, cards: Mapping[str, int]) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for model, number in cards.items():
        if not 0 <= number <= NODE_CARDS:
            raise ValueError(f"record of GPU-hours: node {one_line(node)} has {number} cards of {one_line(model)}")
        found[short_name(model)] += number
    return dict(found)
