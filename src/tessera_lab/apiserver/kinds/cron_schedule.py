"""Cron schedules as Kubernetes reads them: github.com/robfig/cron/v3, ``ParseStandard``.

Five fields (minute, hour, day of month, month, day of week) with lists, ranges, steps and English names; ``@hourly``,
``@daily`` and so on; ``@every 1h30m``. If both days are bounded, a time needs one of them. Times are those of a time
zone's clock: one that the clock skips does not come, one that it shows twice comes twice. No library served: those on
the package index keep other rules than Kubernetes' in these points.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_DAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_FIELDS: tuple[tuple[int, int, Mapping[str, int]], ...] = (
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 6, _DAYS),
)
_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")
#: Years after which a time counts as never: 31 February.
_FURTHEST = 5
#: A count of times that is many.
_MANY = 101
_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)


class CronSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule.

    Attributes:
        every: seconds between two times, for ``@every``; 0 for the fields.
        minutes: the minutes of its times, and so on.
        days: days of the month.
        weekdays: 0 is Sunday.
        any_day: both days must hold, since one of them is ``*``.
    """

    every: int = 0
    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    any_day: bool = True

    def next(self, after: float, zone: tzinfo) -> float | None:
        """The first time after a time, in seconds since 1970; None if there is none within five years."""
        if self.every:
            return float(int(after) + self.every)
        at = datetime.fromtimestamp(int(after) // 60 * 60, UTC) + _MINUTE
        last = at.year + _FURTHEST
        while at.year <= last:
            local = at.astimezone(zone)
            if local.month not in self.months:
                at = _midnight(local.year + local.month // 12, local.month % 12 + 1, 1, zone)
            elif not self._has_day(local):
                following = local.date() + timedelta(days=1)
                at = _midnight(following.year, following.month, following.day, zone)
            elif local.hour not in self.hours:
                at += _HOUR - timedelta(minutes=local.minute)
            elif local.minute not in self.minutes:
                at += _MINUTE
            else:
                return at.timestamp()
        return None

    def latest(self, after: float, until: float, zone: tzinfo) -> tuple[float | None, int]:
        """The last time after ``after`` and not after ``until``, and how many there are, counted up to 101."""
        if self.every:
            count = max(0, int(until - int(after)) // self.every)
            return (float(int(after) + count * self.every) if count else None), min(count, _MANY)
        found, count = after, 0
        while count < _MANY:
            following = self.next(found, zone)
            if following is None or following > until:
                return (found if count else None), count
            found, count = following, count + 1
        back = 60.0
        while (last := self.next(until - back, zone)) is None or last > until:
            back *= 2
        while (following := self.next(last, zone)) is not None and following <= until:
            last = following
        return last, count

    def _has_day(self, local: datetime) -> bool:
        day, weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return (day and weekday) if self.any_day else (day or weekday)


def _midnight(year: int, month: int, day: int, zone: tzinfo) -> datetime:
    """The first moment of a day, or what its clock shows instead, in UTC."""
    return datetime(year, month, day, tzinfo=zone).astimezone(UTC)


def parse_schedule(text: str) -> CronSchedule:
    """Parses a schedule.

    Raises:
        ValueError: it is not valid; the text says which part.
    """
    if text.startswith("@every "):
        return CronSchedule(every=_parse_every(text.removeprefix("@every ")))
    if text.startswith("@"):
        if text not in _DESCRIPTORS:
            raise ValueError(f"unrecognized descriptor: {text}")
        text = _DESCRIPTORS[text]
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(f"expected exactly 5 fields, found {len(fields)}: {fields}")
    sets = [_parse_field(field, *bounds) for field, bounds in zip(fields, _FIELDS, strict=True)]
    starred = any(part.startswith(("*", "?")) for field in (fields[2], fields[4]) for part in field.split(","))
    return CronSchedule(minutes=sets[0], hours=sets[1], days=sets[2], months=sets[3], weekdays=sets[4], any_day=starred)


def find_zone(name: str) -> tzinfo:
    """Returns a time zone by its name in IANA's database; UTC for an empty one.

    Raises:
        ValueError: there is none of that name.
    """
    if name in {"", "UTC"}:
        return UTC
    if name.lower() == "local":
        raise ValueError("timeZone must be an explicit time zone")
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise ValueError(f"unknown time zone {name}") from None


def _parse_every(text: str) -> int:
    found = _EVERY.fullmatch(text)
    parts = found.groups() if found else ()
    seconds = sum(int(part or 0) * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    if not seconds:
        raise ValueError(f"failed to parse duration @every {text}: write 1h30m or 90s")
    return seconds


def _parse_field(field: str, least: int, most: int, names: Mapping[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, {}) if slash else 1
        first_text, dash, last_text = span.partition("-")
        if first_text in {"*", "?"} and not dash:
            first, last = least, most
        else:
            first = _number(first_text, names)
            last = _number(last_text, names) if dash else most if slash else first
        if first < least:
            raise ValueError(f"beginning of range ({first}) below minimum ({least}): {part}")
        if last > most:
            raise ValueError(f"end of range ({last}) above maximum ({most}): {part}")
        if first > last:
            raise ValueError(f"beginning of range ({first}) beyond end of range ({last}): {part}")
        if step == 0:
            raise ValueError(f"step of range should be a positive number: {part}")
        found |= set(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, names: Mapping[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise ValueError(f"failed to parse int from {text}")
    return int(text)
