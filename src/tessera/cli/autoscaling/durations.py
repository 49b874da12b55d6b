"""Times as autoscalers write them, on the command line: ``5m``, ``1h30m``, ``45s``, or plain seconds."""

import re

import click

_FORM = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def parse_duration(text: str) -> float:
    """Seconds.

    Raises:
        ValueError: the text is of another form.
    """
    if text.isdecimal():
        return float(text)
    found = _FORM.fullmatch(text)
    if not text or found is None:
        raise ValueError(f'"{text[:40]}" is no time; write 5m, 1h30m, 45s or seconds')
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3600.0 + minutes * 60 + seconds


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
