"""Reports of GPU-hours: totals of a window, grouped, with shares and costs. Pure.

A report has the cards of the window and the hours that leases held. For the whole cluster

    capacity = allocated + free + unavailable + unknown

and the allocated hours of the rows sum to the allocated hours of the cards. A report of some namespaces has their rows
only, and no cards: what is free is not theirs.

A :class:`PriceList` says what a GPU-hour of a model costs.

A list is YAML or JSON::

    currency: EUR
    prices:
      NVIDIA A100-SXM4-40GB: 2.40
      NVIDIA H100 80GB HBM3: 4.10

Models are those that ``tessera usage --by model`` shows; capitals do not matter.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from tessera.api.documents import load_document
from tessera.api.problems import FileRefused
from tessera.clock import rfc3339
from tessera.limits import Limit
from tessera.text import UserError, age, list_names, one_line
from tessera.usage.record import HOUR, CardSeconds, LeaseSeconds, UsageKey, UsageRecord

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


#: Seconds by which the record may end earlier than the window without a note.
_SHORT_LAG = 60.0
#: Seconds by which it ends earlier at most while the controller counts each minute and writes every five.
_USUAL_LAG = 420.0
#: Joules.
_KILOWATT_HOUR = 3.6e6
#: Name of a row without a user or a label's value.
NOT_STATED = "(none)"


class Grouping(StrEnum):
    """Meaning of a row."""

    NAMESPACE = "namespace"
    TEAM = "team"
    USER = "user"
    LABEL = "label"
    MODEL = "model"


_NAMES: Mapping[Grouping, Callable[[UsageKey, Mapping[str, str]], str]] = {
    Grouping.NAMESPACE: lambda key, _: key.namespace,
    Grouping.TEAM: lambda key, teams: teams.get(key.namespace, key.namespace),
    Grouping.USER: lambda key, _: key.user or NOT_STATED,
    Grouping.LABEL: lambda key, _: key.label or NOT_STATED,
    Grouping.MODEL: lambda key, _: key.model,
}


class UsageTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What the record knows of a window.

    Attributes:
        begin: Unix time.
        end: Unix time.
        cards: card-seconds by model.
        rows: GPU-seconds by owner and model.
        label: key of the label of the rows.
        team_label: key of the namespaces' label that names teams; empty if each namespace is one.
        teams: team by namespace, where it is not the namespace itself.
        simulated: True if some cards exist only in a lab.
        notes: what is missing, in words.
    """

    begin: float
    end: float
    cards: Mapping[str, CardSeconds]
    rows: Mapping[UsageKey, LeaseSeconds]
    label: str = ""
    team_label: str = ""
    teams: Mapping[str, str] = {}
    simulated: bool = False
    notes: tuple[str, ...] = ()


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """GPU-hours of one group.

    Attributes:
        name: of the group.
        allocated: all GPU-hours that its leases held.
        active: of them, those in the state busy.
        idle: of them, those without use.
        unknown: of them, those whose use could not be measured.
        energy: kilowatt-hours of the metered hours; None without any.
        metered: of all its hours, the part whose energy is known, 0 to 1.
        part: of all allocated hours of the report, 0 to 1.
        cost: by the price list.
    """

    name: str
    allocated: float
    active: float
    idle: float
    unknown: float
    part: float
    energy: float | None = None
    metered: float = 0.0
    cost: float | None = None


class CardHours(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Card-hours of a model, or of all.

    Attributes:
        capacity: all of them.
        allocated: held by leases.
        free: held by none.
        unavailable: held by none, on cards that are not well, or on cordoned nodes.
        unknown: not watched.
    """

    capacity: float
    allocated: float
    free: float
    unavailable: float
    unknown: float


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report.

    Attributes:
        grouping: what a row is.
        rows: the most GPU-hours first.
        total: of all rows.
        cards: of the whole cluster; ``None`` in a report of some namespaces.
        models: the same by model.
    """

    grouping: Grouping
    rows: tuple[UsageRow, ...]
    total: UsageRow
    cards: CardHours | None
    models: Mapping[str, CardHours]


def totals_of_record(record: UsageRecord, begin: float, end: float = 0.0) -> UsageTotals:
    """The totals of the periods that end after ``begin``; old periods are days, so the window begins with a period.

    The record's last count ends the window; a note says so if that is much earlier than ``end``.
    """
    chosen = [each for each in record.periods if each.end > begin]
    cards: dict[str, CardSeconds] = {}
    rows: dict[UsageKey, LeaseSeconds] = {}
    for period in chosen:
        for model, amount in period.cards.items():
            cards.setdefault(model, CardSeconds()).add(amount)
        for key, lease in period.rows.items():
            rows.setdefault(key, LeaseSeconds()).add(lease)
    first = max(record.began, min((each.start for each in chosen), default=record.until))
    return UsageTotals(
        begin=first,
        end=record.until,
        cards=cards,
        rows=rows,
        label=record.label,
        team_label=record.team_label,
        teams=record.teams,
        simulated=record.simulated,
        notes=tuple(_notes(record, begin, end)),
    )


def _notes(record: UsageRecord, begin: float, end: float) -> Iterator[str]:
    if record.began > begin:
        yield "the record begins later than the window"
    late = end - record.until
    if late >= _SHORT_LAG:
        rest = "" if late <= _USUAL_LAG else " while it runs: see tessera doctor"
        yield (
            f"the record reaches until {rfc3339(record.until)}, {age(late)} before the end of the window; the"
            f" controller writes it every five minutes{rest}"
        )


def make_report(
    totals: UsageTotals,
    grouping: Grouping,
    *,
    namespaces: Collection[str] = (),
    labels: Collection[str] | None = None,
    prices: PriceList | None = None,
) -> UsageReport:
    """Groups the totals.

    Args:
        totals: what the record knows.
        grouping: what a row is.
        namespaces: report these only; empty for the whole cluster.
        labels: report rows with these values of the label only; None for all.
        prices: for the cost.

    Raises:
        UserError: the list lacks the price of a model.
    """
    whole_cluster = not namespaces and labels is None
    rows = {
        key: lease
        for key, lease in totals.rows.items()
        if (not namespaces or key.namespace in namespaces) and (labels is None or key.label in labels)
    }
    if prices is not None:
        prices.check(key.model for key, lease in rows.items() if lease.held > 0)
    groups: dict[str, LeaseSeconds] = {}
    costs: dict[str, float] = {}
    whole, cost = LeaseSeconds(), 0.0
    for key, lease in rows.items():
        name = _NAMES[grouping](key, totals.teams)
        groups.setdefault(name, LeaseSeconds()).add(lease)
        whole.add(lease)
        if prices is not None and lease.held > 0:
            price = prices.cost(key.model, lease.held / HOUR)
            costs[name] = costs.get(name, 0.0) + price
            cost += price
    found = [
        _row(name, lease, whole.held, None if prices is None else costs.get(name, 0.0))
        for name, lease in groups.items()
    ]
    models = _models(totals) if whole_cluster else {}
    return UsageReport(
        grouping=grouping,
        rows=tuple(sorted(found, key=lambda row: (-row.allocated, row.name))),
        total=_row("total", whole, whole.held, None if prices is None else cost),
        cards=_sum(models) if whole_cluster else None,
        models=models,
    )


def _row(name: str, lease: LeaseSeconds, whole: float, cost: float | None) -> UsageRow:
    return UsageRow(
        name=name,
        allocated=lease.held / HOUR,
        active=lease.active / HOUR,
        idle=lease.idle / HOUR,
        unknown=lease.unknown / HOUR,
        part=lease.held / whole if whole > 0 else 0.0,
        energy=lease.energy / _KILOWATT_HOUR if lease.metered > 0 else None,
        metered=min(1.0, lease.metered / lease.held) if lease.held > 0 else 0.0,
        cost=cost,
    )


def _models(totals: UsageTotals) -> dict[str, CardHours]:
    held: dict[str, float] = {}
    for key, lease in totals.rows.items():
        held[key.model] = held.get(key.model, 0.0) + lease.held
    return {
        model: _hours(totals.cards.get(model, CardSeconds()), held.get(model, 0.0))
        for model in sorted({*totals.cards, *held})
    }


def _hours(cards: CardSeconds, held: float) -> CardHours:
    free = cards.capacity - held - cards.unavailable - cards.unknown
    return CardHours(
        capacity=cards.capacity / HOUR,
        allocated=held / HOUR,
        free=free / HOUR,
        unavailable=cards.unavailable / HOUR,
        unknown=cards.unknown / HOUR,
    )


def _sum(models: Mapping[str, CardHours]) -> CardHours:
    def total(value: Callable[[CardHours], float]) -> float:
        return sum(value(each) for each in models.values())

    return CardHours(
        capacity=total(lambda each: each.capacity),
        allocated=total(lambda each: each.allocated),
        free=total(lambda each: each.free),
        unavailable=total(lambda each: each.unavailable),
        unknown=total(lambda each: each.unknown),
    )
