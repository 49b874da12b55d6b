"""Price lists: what a GPU-hour of a model costs. Pure.

A list is YAML or JSON::

    currency: EUR
    prices:
      NVIDIA A100-SXM4-40GB: 2.40
      NVIDIA H100 80GB HBM3: 4.10

Models are those that ``tessera usage --by model`` shows; capitals do not matter.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tessera.api.documents import load_document
from tessera.api.problems import FileRefused
from tessera.errors import UserError
from tessera.limits import Limit
from tessera.text import list_names, one_line

PRICE_LIST = Limit(
    64 * 1024,
    "bytes",
    "a price list",
    "a line for each model that exists has a tenth of it",
)

_KEYS = {"currency", "prices"}
#: Characters of a currency.
_CURRENCY = 8
#: A larger price of a GPU-hour is a mistake in the unit.
_HIGHEST = 1_000_000


class PriceList(msgspec.Struct, frozen=True):
    """Prices of a GPU-hour.

    Attributes:
        currency: as the list names it; may be empty.
        prices: by model in small letters.
    """

    currency: str
    prices: Mapping[str, float]

    def cost(self, model: str, hours: float) -> float:
        """Price of GPU-hours of a model, which :meth:`check` has found."""
        return self.prices[model.lower()] * hours

    def check(self, models: Iterable[str]) -> None:
        """Checks that each model has a price.

        Raises:
            UserError: one has none.
        """
        missing = sorted({each for each in models if each.lower() not in self.prices})
        if missing:
            raise UserError(
                f"price list: no price for {list_names([one_line(each) for each in missing])}; every model with"
                " GPU-hours needs one: add it under prices, 0 if it is free"
            )


def read_prices(text: str) -> PriceList:
    """Reads a price list.

    Raises:
        UserError: it is too long, or has another form; the message names the field.
    """
    if len(text.encode()) > PRICE_LIST:
        raise UserError(f"price list: {len(text.encode()):,} bytes; {PRICE_LIST} are allowed")
    try:
        found = load_document(text)
    except FileRefused as error:
        raise UserError(f"price list: {one_line(error)}") from None
    if not isinstance(found, dict) or not set(found) <= _KEYS or not isinstance(found.get("prices"), dict):
        raise UserError("price list: a mapping with the key prices, and optionally currency, is expected")
    currency, prices = found.get("currency", ""), found["prices"]
    if not isinstance(currency, str) or len(currency) > _CURRENCY or not currency.isprintable():
        raise UserError(f"price list: currency is {one_line(currency)}; up to {_CURRENCY} characters are expected")
    read: dict[str, float] = {}
    for model, price in prices.items():
        name = str(model).lower()
        if name in read:
            raise UserError(f"price list: {one_line(model)} has two prices; write it once")
        read[name] = _price(model, price)
    return PriceList(currency, read)


def _price(model: Any, price: Any) -> float:
    if (
        isinstance(price, int | float)
        and not isinstance(price, bool)
        and math.isfinite(price)
        and 0 <= price <= _HIGHEST
    ):
        return float(price)
    raise UserError(
        f"price list: the price of {one_line(model)} is {one_line(price)}; a number from 0 to {_HIGHEST:,} is expected"
    )
