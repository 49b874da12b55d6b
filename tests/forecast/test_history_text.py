"""The history outlives a restart as a text of bounded size, and a text of others is checked."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.forecast.calibration import CALIBRATED_SIZES, Blend, Calibration, End, Factors
from tessera.forecast.history_text import LIFE_RECORD, History, decode_history, encode_history
from tessera.forecast.lives import (
    LIFE_CLASSES,
    LIFE_NAME,
    LIFE_SAMPLES,
    EndedLife,
    LeaseEnded,
    LifeEstimator,
    LifeHistory,
    life_kind,
)
from tessera.forecast.past_times import (
    HUNDRED_YEARS,
    START_IMAGES,
    START_SAMPLES,
    WAIT_SAMPLES,
    WAIT_SIZES,
    StartTimes,
    WaitHistory,
)

KINDS = st.sampled_from([life_kind(f"team-{n}", kind, ["1g.5gb"]) for n in range(3) for kind in ("Job", "")])
EVENTS = st.lists(st.tuples(KINDS, st.floats(0, 1e7), st.floats(1e9, 2e9)), max_size=40)


def _history(events: list[tuple[Any, float, float]]) -> History:
    lives = LifeHistory(1e9)
    for kind, seconds, ended in events:
        lives.handle(LeaseEnded(kind, seconds, ended))
    calibration = Calibration({"": Factors(0.5, -0.25, 30), "2g.10gb": Factors()}, {"2g.10gb": "team-1"})
    waits = WaitHistory([("1g.5gb", [60, 3600])], {"1g.5gb": "team-2"})
    return History(lives, StartTimes([("image", [10, 20])], {"image": "team-3"}), calibration, waits, Blend(0.25, 0.75))


@given(EVENTS)
def test_what_is_read_back_is_what_was_written(events: list[tuple[Any, float, float]]) -> None:
    history = _history(events)
    again = decode_history(encode_history(history))
    assert encode_history(again) == encode_history(history)
    assert (again.waits.times, again.blend) == (history.waits.times, history.blend)
    for one, other in ((again.waits, history.waits), (again.calibration, history.calibration)):
        assert one.brought_by == other.brought_by != {}
    assert again.starts.brought_by == {"image": "team-3"}
    kind = life_kind("team-0", "Job", ["1g.5gb"])
    before, after = (LifeEstimator(each.lives, (), 2e9).curve(kind) for each in (history, again))
    assert (before and before.residual(60, 0.9)) == (after and after.residual(60, 0.9))


def test_a_full_history_is_within_its_bound() -> None:
    lives = LifeHistory(0.0)
    for number in range(LIFE_CLASSES):
        for each in range(LIFE_SAMPLES):
            kind = life_kind(f"a-namespace-with-a-long-name-{number:04}", "ReplicaSet", ["1g.10gb"])
            lives.handle(LeaseEnded(kind, 1e6 + each, 1.7e9 + 60 * each))
    names = [f"registry/image-{n}" for n in range(START_IMAGES)]
    images = StartTimes([(each, [3600] * START_SAMPLES) for each in names], dict.fromkeys(names, "n" * 63))
    sizes = [f"{number:04}".ljust(LIFE_NAME, "x") for number in range(WAIT_SIZES)]
    brought_by = dict.fromkeys(sizes, "n" * 63)
    factors = {size: Factors(-1.23456789012345678, 1.23456789012345678, 10**6) for size in sizes}
    calibration = Calibration(factors, brought_by)
    assert len(calibration.by_size) == CALIBRATED_SIZES
    waits = WaitHistory(((size, [10**6] * WAIT_SAMPLES) for size in sizes), brought_by)
    assert len(encode_history(History(lives, images, calibration, waits))) < LIFE_RECORD


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"classes": [["a", "Job", "1g.5gb", 0, [1, 2], [1]]]},
        {"classes": [["a", "Job", "1g.5gb", -5, [1], [1]]]},
        {"classes": [["a", "Job", "1g.5gb", 0, [1] * (LIFE_SAMPLES + 1), [1] * (LIFE_SAMPLES + 1)]]},
        {"classes": [["a", "Job", "1g.5gb", 0, [], []]] * (LIFE_CLASSES + 1)},
        {"classes": [["a", "Job", "p" * 1000, 0, [1], [1]]]},
        {"starts": [["image", [1] * (START_SAMPLES + 1)]]},
        {"calibration": {"s" * 500: [0, 0, 0]}},
        {"calibration": {str(each): [0, 0, 0] for each in range(1000)}},
        {"waits": [["1g.5gb", [1] * (WAIT_SAMPLES + 1)]]},
        {"waits": [["p" * 1000, [1]]]},
        {"waits": [["1g.5gb", [1]]] * (WAIT_SIZES + 1)},
        {"size_namespaces": {"1g.5gb": "n" * 64}},
        {"size_namespaces": {str(each): "a" for each in range(1000)}},
        {"image_namespaces": {"image": "n" * 64}},
        {"image_namespaces": {str(each): "a" for each in range(1000)}},
        {"blend": [1.5, 0.5]},
        {"began": -1},
        {"began": "x"},
    ],
)
def test_a_text_that_breaks_a_rule_is_refused(change: dict[str, Any]) -> None:
    good = json.loads(encode_history(_history([])))
    with pytest.raises(ValueError, match=r".+"):
        decode_history(json.dumps({**good, **change}))


@pytest.mark.parametrize("bad", [-1, HUNDRED_YEARS + 1])
def test_an_impossible_duration_is_left_out_alone(bad: int) -> None:
    good = json.loads(encode_history(_history([])))
    change = {
        "classes": [["a", "Job", "1g.5gb", 5, [7, bad, 8], [1, 2, 3]]],
        "starts": [["image", [bad, 3]]],
        "waits": [["1g.5gb", [60, bad]]],
    }
    found = decode_history(json.dumps({**good, **change}))
    assert [list(each.lives) for each in found.lives.classes.values()] == [[EndedLife(7, 6), EndedLife(8, 11)]]
    assert list(found.starts.times["image"]) == [3]
    assert list(found.waits.times["1g.5gb"]) == [60]


@pytest.mark.parametrize("seconds", [-6e10, 2e11])
def test_an_impossible_lease_or_wait_counts_nothing(seconds: float) -> None:
    history = _history([])
    before = encode_history(history)
    history.lives.handle(LeaseEnded(life_kind("a", "Job", ["1g.5gb"]), seconds, 1.7e9))
    history.waits.add("1g.5gb", seconds, "a")
    assert encode_history(history) == before


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        (40, {"starts": START_IMAGES, "classes": 199}),
        (1500, {"waits": 0, "classes": 199}),
        (5000, {"waits": 0, "starts": 0}),
    ],
)
def test_what_would_be_too_large_is_written_without_its_oldest_parts(name: int, kept: dict[str, int]) -> None:
    lives = LifeHistory(0.0)
    for number in range(66):  # three classes each, and that of all
        for each in range(LIFE_SAMPLES):
            kind = life_kind(f"{number:04}".ljust(name, "n"), "Job", [f"{number:04}"])
            lives.handle(LeaseEnded(kind, 1e6 + each, 1.7e9 + 10**6 * number + 10**5 * each))
    images = StartTimes((f"{number:04}", [3600] * START_SAMPLES) for number in range(START_IMAGES))
    waits = WaitHistory((f"{number:04}".ljust(LIFE_NAME, "x"), [10**9] * WAIT_SAMPLES) for number in range(WAIT_SIZES))
    text = encode_history(History(lives, images, Calibration(), waits))
    assert LIFE_RECORD * 0.99 < len(text.encode()) <= LIFE_RECORD
    again = decode_history(text)
    found: dict[str, Mapping[Any, Any]] = {
        "classes": again.lives.classes,
        "starts": again.starts.times,
        "waits": again.waits.times,
    }
    assert {part: len(found[part]) for part in kept} == kept
    whole: dict[str, Mapping[Any, Any]] = {"classes": lives.classes, "starts": images.times, "waits": waits.times}
    for part, before in whole.items():
        left = len(found[part])
        assert list(found[part]) == (list(before)[-left:] if left else [])
    if len(again.lives.classes) < len(lives.classes):
        dropped = list(lives.classes.values())[: -len(again.lives.classes)]
        assert again.lives.complete_since == max(each.lives[-1].ended for each in dropped)


def test_a_text_that_is_too_large_is_not_decoded() -> None:
    with pytest.raises(ValueError, match="bytes"):
        decode_history(" " * (LIFE_RECORD + 1))


def test_a_text_that_is_nested_too_deeply_is_refused_or_adds_nothing() -> None:
    good = encode_history(_history([]))
    text = f'{good.removesuffix("}")},"more":{"[" * 100_000}{"]" * 100_000}}}'
    try:
        found = decode_history(text)  # from Python 3.12 on, the decoder skips what has no place
    except ValueError as error:
        assert "nested" in str(error)  # noqa: PT017 - which of both it is depends on the stack
    else:
        assert encode_history(found) == good


@pytest.mark.parametrize("starts", [99, 10**400], ids=["some", "huge"])
def test_a_forged_correction_is_bounded(starts: int) -> None:
    good = json.loads(encode_history(_history([])))
    found = decode_history(json.dumps({**good, "calibration": {"": [1e300, -1e300, starts]}}))
    found.calibration.note("", End.LATE, late=True, namespace="a")
    assert found.calibration.correct("", 10, 10)[1] < 10 * 21


def test_corrections_of_the_version_before_are_read_without_what_is_kept_no_more() -> None:
    good = json.loads(encode_history(_history([])))
    found = decode_history(
        json.dumps({**good, "calibration": {"": [0.5, -0.25, 30, 12.5, []], "~x": [0, 0, 3, 1, [7]]}})
    )
    assert list(found.calibration.by_size) == [""]
    assert found.waits.times == _history([]).waits.times


def test_a_text_of_the_version_before_begins_without_waits() -> None:
    good = json.loads(encode_history(_history([])))
    del good["waits"], good["blend"], good["size_namespaces"], good["image_namespaces"]
    found = decode_history(json.dumps(good))
    assert (dict(found.waits.times), found.blend) == ({}, Blend())
