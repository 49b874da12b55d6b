"""The record of GPU-hours as text, for the ConfigMap ``usage-records``.

Rules:

- Owners are listed once, and rows name them by number.
- The text is bounded by construction: periods, rows, keys, nodes and the length of names have limits. If it is too
  large all the same, as with names of wide characters, the oldest periods go.
- Others can write a ConfigMap: numbers are checked before use.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from tessera.limits import Limit
from tessera.limits.messages import ECHOED
from tessera.limits.nodes import NODE_CARDS
from tessera.text import one_line
from tessera.usage.record import (
    DAY,
    HOUR,
    OTHER,
    USAGE_ROWS,
    USAGE_TEAMS,
    CardSeconds,
    LeaseSeconds,
    NodeMark,
    Period,
    UsageKey,
    UsageRecord,
    fold,
    short_name,
)

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
