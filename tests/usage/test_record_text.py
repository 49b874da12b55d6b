"""The record as text: it reads back, it is bounded whatever tenants do, and a forged one is refused with its field."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.usage.record import (
    DAY,
    HOUR,
    OTHER,
    USAGE_KEYS,
    USAGE_MODELS,
    USAGE_NAME,
    USAGE_RECORD,
    USAGE_ROWS,
    CardSeconds,
    LeaseSeconds,
    NodeMark,
    Period,
    UsageKey,
    UsageRecord,
    decode_record,
    encode_record,
    fold,
    short_name,
    with_label,
)

MODEL = "NVIDIA H100"
START = 1_800_000_000 // DAY * DAY


def period(rows: dict[UsageKey, LeaseSeconds], start: int = START) -> Period:
    return Period(start, HOUR, {MODEL: CardSeconds(capacity=HOUR)}, rows)


def key(namespace: str, user: str = "", label: str = "", model: str = MODEL) -> UsageKey:
    return UsageKey(namespace, user, label, model)


def total(rows: dict[UsageKey, LeaseSeconds]) -> float:
    return sum(each.held for each in rows.values())


def test_a_record_reads_back() -> None:
    record = UsageRecord(
        began=START + 5.0,
        label="team",
        simulated=True,
        periods=[period({key("red", "anna", "x"): LeaseSeconds(1800.125, 900.5, 60.0, 1700.0, 5e5)})],
        nodes={"n1": NodeMark(START + 60.5, START + 61.0, {MODEL: 8})},
    )
    assert decode_record(encode_record(record)) == record


def test_a_record_without_energy_is_that_of_earlier_versions_and_one_with_it_reads_as_theirs() -> None:
    rows = {key("red"): LeaseSeconds(100.0, 50.0, 0.0, 90.0, 9000.0), key("blue"): LeaseSeconds(7.0)}
    with_energy = msgspec.json.decode(encode_record(UsageRecord(periods=[period(rows)])))
    (written,) = with_energy["periods"]
    assert written[4] == [[0, 0], [90, 9000]]
    (old,) = decode_record(msgspec.json.encode({**with_energy, "periods": [written[:4]]}).decode()).periods
    assert old.rows[key("red")] == LeaseSeconds(100.0, 50.0)
    with pytest.raises(ValueError, match="energy of 1 rows, of 2"):
        decode_record(msgspec.json.encode({**with_energy, "periods": [[*written[:4], [[1, 1]]]]}).decode())


NAMES = st.text(st.characters(codec="utf-8"), max_size=80).map(short_name)
ROWS = st.dictionaries(
    st.builds(UsageKey, NAMES, NAMES, NAMES, st.sampled_from(["A", "B", "C"])),
    st.builds(LeaseSeconds, st.floats(0, HOUR), st.just(0.0), st.just(0.0)),
    max_size=30,
)


@given(ROWS, st.integers(3, 40))
def test_folding_keeps_the_sum_of_each_model_and_the_bound(rows: dict[UsageKey, LeaseSeconds], most: int) -> None:
    found = fold(rows, most)
    assert len(found) <= max(most, 3)
    for model in ("A", "B", "C"):
        before = total({each: amount for each, amount in rows.items() if each.model == model})
        assert total({each: amount for each, amount in found.items() if each.model == model}) == pytest.approx(before)


def test_a_tenant_who_invents_users_makes_only_its_own_rows_coarse() -> None:
    rows = {key("loud", f"user-{n}"): LeaseSeconds(100.0) for n in range(600)}
    rows |= {key(f"quiet-{n}", "anna"): LeaseSeconds(1.0) for n in range(50)}
    found = fold(rows, USAGE_ROWS)
    assert all(key(f"quiet-{n}", "anna") in found for n in range(50))
    assert key("loud", OTHER, OTHER) in found


def test_a_period_holds_few_rows_and_models_however_many_come() -> None:
    made = period({})
    for number in range(2000):
        made.add_cards(f"model-{number}", CardSeconds(1.0))
        made.add_lease(key(f"n-{number}", f"user-{number}", model=f"model-{number}"), LeaseSeconds(1.0))
    assert len(made.cards) <= USAGE_MODELS + 1
    assert len(made.rows) <= 2 * USAGE_ROWS
    assert total(made.rows) == 2000


def test_the_largest_record_fits_a_config_map_and_loses_its_oldest_periods_first() -> None:
    wide = "\U0001f600" * USAGE_NAME
    periods = [
        period(
            {key(f"{n}-{m}{wide}"[:63], wide[:60] + str(m), wide): LeaseSeconds(m + 0.123) for m in range(USAGE_ROWS)},
            START + n * HOUR,
        )
        for n in range(90)
    ]
    record = UsageRecord(label="team", periods=periods)
    text = encode_record(record)
    assert len(text.encode()) <= USAGE_RECORD
    found = decode_record(text)
    assert found.periods[-1].start == periods[-1].start
    assert len({each for one in found.periods for each in one.rows}) <= USAGE_KEYS
    assert total(found.periods[-1].rows) == pytest.approx(total(periods[-1].rows))


def test_values_of_another_label_are_dropped_and_their_hours_stay() -> None:
    rows = {key("red", label="a"): LeaseSeconds(1.0), key("red", label="b"): LeaseSeconds(2.0)}
    found = with_label(UsageRecord(label="team", periods=[period(rows)]), "queue")
    assert found.label == "queue"
    assert found.periods[0].rows == {key("red"): LeaseSeconds(3.0)}


GOOD = msgspec.json.decode(
    encode_record(
        UsageRecord(periods=[period({key("red"): LeaseSeconds(5.0)})], nodes={"n1": NodeMark(1.0, 1.0, {MODEL: 1})})
    )
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2; this program reads version 1"),
        ({"began": -1.0}, "began is -1.0"),
        ({"periods": [[START, 60, [], []]]}, "a period of 60 s"),
        ({"periods": [[START + 1, HOUR, [], []]]}, "hours and days exist"),
        ({"periods": [[START, HOUR, [], [[7, 1.0, 0.0, 0.0]]]]}, "key 7 of 1"),
        ({"periods": [[START, HOUR, [], [[0, -1.0, 0.0, 0.0]]]]}, "held is -1.0"),
        ({"periods": [[START, HOUR, [[MODEL, 1e300, 0.0, 0.0]], []]]}, "capacity is 1e+300"),
        ({"periods": [[START, HOUR, [], []]] * 97}, "97 periods"),
        ({"nodes": {"n1": [1.0, 1.0, {MODEL: 10**6}]}}, "node n1 has 1000000 cards"),
        ({"keys": 5}, "keys"),
    ],
)
def test_a_forged_record_is_refused_with_its_field(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match="record of GPU-hours") as refused:
        decode_record(msgspec.json.encode({**GOOD, **change}).decode())
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, " " * (USAGE_RECORD + 1), "\ud800"])
def test_text_that_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="record of GPU-hours"):
        decode_record(text)
