"""Options that are numbers."""

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A number of a range; ``nan`` and ``inf``, which Python takes for numbers, are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or click's own refusal."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number that can be reckoned with", param, ctx)
        return number
