"""What an evaluation costs, and the budget that ends it.

One unit a node that is evaluated, a tenth of a unit a character and a unit an element that a function reads, the same
for a text that is longer than what it is made from, and the worst case of a pattern; as cel-go counts, but for
patterns, which Go runs in linear time. Work is charged before it is done.
"""

import math
from collections.abc import Sequence
from typing import Any

from tessera.cel.functions import PATTERN_METHODS
from tessera.cel.patterns import count_choices


class OutOfBudgetError(Exception):
    """The budget is used up. Not an EvaluationError, which operators may absorb."""


class Meter:
    """A budget of cost units.

    Attributes:
        limit: its size.
        left: units that are left; negative once an expression was stopped.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self.limit = limit
        self.left = limit

    def charge(self, cost: float) -> None:
        """Takes units.

        Raises:
            OutOfBudgetError: there are not enough.
        """
        self.left -= cost
        if self.left < 0:
            raise OutOfBudgetError


def charge_call(name: str, args: Sequence[Any], meter: Meter) -> None:
    """Takes the units of a function, before it is called.

    Raises:
        OutOfBudgetError: there are not enough.
    """
    meter.charge(1)
    for each in args:
        _charge_value(each, meter)
    if name in PATTERN_METHODS and all(isinstance(each, str) for each in args[:2]):
        meter.charge(count_choices(args[1], len(args[0])) * (len(args[0]) + 1) / 10)
    elif name == "replace" and all(isinstance(each, str) for each in args):
        text, old, new = args
        meter.charge((text.count(old) if old else len(text) + 1) * len(new) / 10)
    elif name == "join" and len(args) > 1 and isinstance(args[0], list) and isinstance(args[1], str):
        meter.charge(len(args[0]) * len(args[1]) / 10)
    elif name.startswith("sets.") and all(isinstance(each, list) for each in args):
        meter.charge(len(args[0]) * len(args[1]))


def _charge_value(value: Any, meter: Meter) -> None:
    if isinstance(value, str):
        meter.charge(len(value) / 10)
    elif isinstance(value, (list, dict)):
        meter.charge(len(value))
        for each in value.values() if isinstance(value, dict) else value:
            _charge_value(each, meter)
