"""Durations of the command line, as in autoscalers and Prometheus: ``5m``, ``1h30m``, ``7d``, ``1w``, or seconds."""

import re

import click

#: Units of Go's ParseDuration, and days and weeks, in seconds.
_UNITS = {
    "w": 604_800.0,
    "d": 86_400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
}
_PART = re.compile(r"(\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})(w|d|h|ms|m|s|us|µs|ns)", re.ASCII)
#: The longest accepted duration, seconds: a year. A longer one is a mistake in the unit.
LONGEST = 366 * 86_400.0


def parse_duration(text: str) -> float:
    """The seconds of a duration.

    Raises:
        ValueError: the text has another form, or is more than :data:`LONGEST`.
    """
    parts = _PART.findall(text)
    if text.isascii() and text.isdecimal():
        seconds = float(text)
    elif parts and "".join(number + unit for number, unit in parts) == text:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        raise ValueError(f'"{text[:40]}" is not a duration; write 5m, 1h30m, 45s, 1w or a number of seconds')
    if seconds > LONGEST:
        raise ValueError(f'"{text[:40]}" is more than a year')
    return seconds


class Duration(click.ParamType[float]):
    """An option whose value is a duration; gives seconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds; fails with click's error for a wrong value."""
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class LongDuration(Duration):
    """A length of the past, of a second at least; gives seconds."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds; fails with click's error for a wrong value."""
        seconds = super().convert(value, param, ctx)
        if not seconds:
            self.fail(f'"{str(value)[:40]}" is not between a second and a year; write 1w, 7d, 12h or 1h30m', param, ctx)
        return seconds


#: A length of the past.
DAYS = LongDuration()
