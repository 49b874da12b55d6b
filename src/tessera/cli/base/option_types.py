"""Types of options: durations as autoscalers write them (``5m``, ``1h30m``, seconds), numbers, simulated cards."""

import math
import re
from typing import Any

import click

#: Units of Go's ParseDuration, in seconds.
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})(h|ms|m|s|us|µs|ns)", re.ASCII)
#: A timer that is longer than that was not meant, seconds: a year.
LONGEST = 366 * 86_400.0


def parse_duration(text: str) -> float:
    """Seconds.

    Raises:
        ValueError: the text is of another form, or of more than :data:`LONGEST`.
    """
    parts = _PART.findall(text)
    if text.isascii() and text.isdecimal():
        seconds = float(text)
    elif parts and "".join(number + unit for number, unit in parts) == text:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        raise ValueError(f'"{text[:40]}" is no time; write 5m, 1h30m, 45s or seconds')
    if seconds > LONGEST:
        raise ValueError(f'"{text[:40]}" is more than a year')
    return seconds


class Duration(click.ParamType[float]):
    """An option that is a time."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, or click's own refusal."""
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Number(click.FloatRange):
    """A number of a range; ``nan`` and ``inf``, which Python takes for numbers, are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or click's own refusal."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number that can be reckoned with", param, ctx)
        return number


def check_cards(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """The text as it is; a callback of the option.

    Raises:
        click.BadParameter: it is not of the form, or names a model that is not known.
    """
    from tessera.nvml.simulated.machine import parse_spec

    if text is not None:
        try:
            parse_spec(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return text
