"""Reads values of the command line: durations, numbers, simulated cards, and files.

Durations are written as in autoscalers: ``5m``, ``1h30m``, or seconds. The file ``-`` is standard input.
"""

import io
import math
import re
import sys
from pathlib import Path
from typing import Any, BinaryIO

import click

from tessera.cli.base.connection import CommandError
from tessera.limits.processes import INPUT_FILE

#: Units of Go's ParseDuration, in seconds.
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})(h|ms|m|s|us|µs|ns)", re.ASCII)
_DAYS = re.compile(r"(\d{1,4})d", re.ASCII)
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
        raise ValueError(f'"{text[:40]}" is not a duration; write 5m, 1h30m, 45s or a number of seconds')
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
    """A duration that may also be written in days, as ``7d``; gives seconds."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds; fails with click's error for a wrong value."""
        days = _DAYS.fullmatch(str(value))
        seconds = float(days[1]) * 86_400 if days else super().convert(value, param, ctx)
        if not 0 < seconds <= LONGEST:
            self.fail(f'"{str(value)[:40]}" is not between a second and a year; write 7d, 12h or 1h30m', param, ctx)
        return seconds


#: A length of the past.
DAYS = LongDuration()


class Number(click.FloatRange):
    """A finite number of a range; refuses ``nan`` and ``inf``, which Python accepts as floats."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; fails with click's error for a wrong value."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def check_cards(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """A callback of an option for simulated cards, such as ``4xA100-40GB``; returns the text unchanged.

    Raises:
        click.BadParameter: the text has another form, or names an unknown model.
    """
    from tessera.nvml.simulated.machine_state import parse_spec

    if text is not None:
        try:
            parse_spec(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return text


def read_text(file: Path) -> str:
    """The text of a file; ``-`` is standard input.

    Raises:
        CommandError: it cannot be read, is longer than :data:`~tessera.limits.processes.INPUT_FILE`, or is not UTF-8.
    """
    try:  # a pipe or a device has no size beforehand
        with _standard_input() if str(file) == "-" else file.open("rb") as opened:
            content = opened.read(INPUT_FILE + 1)
    except OSError as error:
        raise CommandError(f"error: {display_name(file)}: {error.strerror or error}") from error
    if len(content) > INPUT_FILE:
        limit = f"longer than {INPUT_FILE >> 20} MiB; is this the file that you meant?"
        raise CommandError(f"error: {display_name(file)}: {limit}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte, at = error.object[error.start], error.start
        text = f"not UTF-8: byte {at} is {byte:#04x}; save the file as text in UTF-8"
        raise CommandError(f"error: {display_name(file)}: {text}") from None


def _standard_input() -> BinaryIO:
    """The bytes of standard input, whatever the terminal's encoding is."""
    return getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())


def display_name(file: Path) -> str:
    """The file's name in messages."""
    return "standard input" if str(file) == "-" else str(file)
