"""Reports and price lists: grouping, sums, cost, and what a list must have."""

import pytest

from tessera.text import UserError
from tessera.usage.record import HOUR, CardSeconds, LeaseSeconds, Period, UsageKey, UsageRecord
from tessera.usage.report import (
    NOT_STATED,
    PRICE_LIST,
    CardHours,
    Grouping,
    UsageTotals,
    make_report,
    read_prices,
    totals_of_record,
)

A100, H100 = "NVIDIA A100", "NVIDIA H100"
START = 1_799_996_400
ROWS = {
    UsageKey("red", "anna", "train", A100): LeaseSeconds(4 * HOUR, 3 * HOUR, HOUR),
    UsageKey("red", "bert", "", H100): LeaseSeconds(2 * HOUR, HOUR, 0.0),
    UsageKey("blue", "", "train", H100): LeaseSeconds(HOUR, 0.0, HOUR),
}
CARDS = {A100: CardSeconds(8 * HOUR, HOUR, HOUR), H100: CardSeconds(4 * HOUR)}
TOTALS = UsageTotals(begin=START, end=START + HOUR, cards=CARDS, rows=ROWS, teams={"red": "research"})


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        (Grouping.NAMESPACE, {"red": 6.0, "blue": 1.0}),
        (Grouping.TEAM, {"research": 6.0, "blue": 1.0}),
        (Grouping.USER, {"anna": 4.0, "bert": 2.0, NOT_STATED: 1.0}),
        (Grouping.LABEL, {"train": 5.0, NOT_STATED: 2.0}),
        (Grouping.MODEL, {A100: 4.0, H100: 3.0}),
    ],
)
def test_rows_are_grouped_the_largest_first_and_sum_to_the_total(
    grouping: Grouping, expected: dict[str, float]
) -> None:
    report = make_report(TOTALS, grouping)
    assert [(row.name, row.allocated) for row in report.rows] == list(expected.items())
    assert sum(row.allocated for row in report.rows) == report.total.allocated == 7.0
    assert sum(row.part for row in report.rows) == pytest.approx(1.0)
    assert (report.total.active, report.total.idle, report.total.unknown) == (4.0, 2.0, 1.0)


def test_the_parts_of_the_cards_sum_to_their_capacity() -> None:
    report = make_report(TOTALS, Grouping.NAMESPACE)
    assert report.cards == CardHours(capacity=12.0, allocated=7.0, free=3.0, unavailable=1.0, unknown=1.0)
    assert report.models[H100] == CardHours(capacity=4.0, allocated=3.0, free=1.0, unavailable=0.0, unknown=0.0)


def test_a_report_of_some_namespaces_has_their_rows_and_no_cards() -> None:
    report = make_report(TOTALS, Grouping.MODEL, namespaces=["red"])
    assert [(row.name, row.allocated) for row in report.rows] == [(A100, 4.0), (H100, 2.0)]
    assert report.cards is None
    assert report.models == {}


def test_the_cost_is_by_model_and_sums() -> None:
    prices = read_prices(f"currency: EUR\nprices:\n  {A100.lower()}: 1.5\n  {H100}: 4")
    report = make_report(TOTALS, Grouping.NAMESPACE, prices=prices)
    assert {row.name: row.cost for row in report.rows} == {"red": 14.0, "blue": 4.0}
    assert report.total.cost == 18.0
    assert prices.currency == "EUR"


def test_a_model_without_a_price_is_named() -> None:
    with pytest.raises(UserError, match="no price for NVIDIA H100; every model"):
        make_report(TOTALS, Grouping.USER, prices=read_prices(f"prices: {{{A100}: 1}}"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "not YAML"),
        ("5", "a mapping with the key prices"),
        ("prices: 5", "a mapping with the key prices"),
        ("price: {}", "a mapping with the key prices"),
        ("prices: {A: -1}", "the price of A is -1; a number from 0 to 1,000,000"),
        ("prices: {A: .nan}", "the price of A is nan"),
        ("prices: {A: 1e7}", "the price of A is 1e7"),
        ("prices: {A: yes}", "the price of A is True"),
        ("prices: {A: 1, a: 2}", "a has two prices"),
        ("currency: [1]\nprices: {A: 1}", "currency is [1]"),
        ("x" * (PRICE_LIST + 1), "65,537 bytes; at most 65,536 bytes"),
    ],
)
def test_a_wrong_price_list_is_refused_with_its_field(text: str, words: str) -> None:
    with pytest.raises(UserError, match="price list") as refused:
        read_prices(text)
    assert words in str(refused.value)


def test_a_window_has_the_periods_that_end_in_it() -> None:
    record = UsageRecord(
        began=START,
        periods=[
            Period(START + n * HOUR, HOUR, {A100: CardSeconds(HOUR)}, {UsageKey("red", "", "", A100): LeaseSeconds(n)})
            for n in range(4)
        ],
    )
    found = totals_of_record(record, START + 2.5 * HOUR)
    assert found.begin == START + 2 * HOUR
    assert sum(each.held for each in found.rows.values()) == 5
    assert found.notes == ()
    assert totals_of_record(record, START - HOUR).notes == ("the record begins later than the window",)


def test_an_empty_record_gives_an_empty_report() -> None:
    report = make_report(totals_of_record(UsageRecord(), 0.0), Grouping.USER)
    assert report.rows == ()
    assert report.total.allocated == 0.0
    assert report.cards == CardHours(capacity=0, allocated=0, free=0, unavailable=0, unknown=0)
