"""Leases are counted by kind, in bounded memory, and a kind that is new begins with what wider classes know."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.forecast.lives import (
    EVERY_LEASE,
    LIFE_CLASSES,
    LIFE_NAME,
    LIFE_SAMPLES,
    LeaseEnded,
    LifeEstimator,
    LifeHistory,
    RunningLease,
    life_kind,
)

TRAIN = life_kind("team", "Job", ["3g.20gb"])


def _history(*lives: tuple[str, str, float], began: float = 0.0) -> LifeHistory:
    history = LifeHistory(began)
    for number, (namespace, profile, seconds) in enumerate(lives):
        history.handle(LeaseEnded(life_kind(namespace, "Job", [profile]), seconds, 10_000.0 + number))
    return history


def _median(history: LifeHistory, namespace: str, profile: str, age: float = 0.0) -> float | None:
    curve = LifeEstimator(history, (), 20_000.0).curve(life_kind(namespace, "Job", [profile]), age)
    return None if curve is None else curve.residual(age, 0.5)


def test_a_lease_is_judged_by_its_own_kind() -> None:
    history = _history(*[("team", "3g.20gb", 100.0)] * 10, *[("other", "3g.20gb", 900.0)] * 30)
    assert _median(history, "team", "3g.20gb") == 100


@pytest.mark.parametrize(("namespace", "profile"), [("new", "3g.20gb"), ("new", "7g.40gb")])
def test_a_kind_without_history_takes_that_of_a_wider_class(namespace: str, profile: str) -> None:
    assert _median(_history(*[("team", "3g.20gb", 100.0)] * 10), namespace, profile) == 100


def test_too_few_leases_say_nothing() -> None:
    assert _median(_history(*[("team", "3g.20gb", 100.0)] * 9), "team", "3g.20gb") is None


def test_a_lease_older_than_its_kind_is_judged_by_a_class_with_older_leases() -> None:
    history = _history(*[("team", "3g.20gb", 100.0)] * 10, *[("other", "3g.20gb", 900.0)] * 30)
    assert _median(history, "team", "3g.20gb", age=500) == 400


def test_leases_that_run_make_the_estimate_longer() -> None:
    history = _history(*[("team", "3g.20gb", 100.0 + each) for each in range(10)])
    running = [RunningLease(TRAIN, 19_000.0)] * 20
    curve = LifeEstimator(history, running, 20_000.0).curve(TRAIN)
    assert curve is not None
    assert curve.residual(0, 0.5) > 1000


def test_an_estimator_serves_for_a_minute_while_no_lease_ends() -> None:
    history = _history(*[("team", "3g.20gb", 100.0)] * 10)
    estimator = LifeEstimator(history, (), 20_000.0)
    assert [estimator.serves(now) for now in (19_999.0, 20_000.0, 20_059.0, 20_060.0)] == [False, True, True, False]
    history.handle(LeaseEnded(TRAIN, 100.0, 20_001.0))
    assert not estimator.serves(20_001.0)


def test_only_the_last_leases_of_a_kind_count() -> None:
    history = _history(*[("team", "3g.20gb", 5000.0)] * LIFE_SAMPLES, *[("team", "3g.20gb", 100.0)] * LIFE_SAMPLES)
    assert _median(history, "team", "3g.20gb") == 100
    assert len(history.classes[TRAIN].lives) == LIFE_SAMPLES


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=300)), max_size=50))
def test_names_of_tenants_do_not_make_the_history_grow(names: list[tuple[str, str]]) -> None:
    history = LifeHistory(0.0)
    for number in range(10):
        for namespace, name in names:
            kind = life_kind(f"{namespace}{number}", name, [name])
            history.handle(LeaseEnded(kind, 60.0, float(number)))
            assert len(kind.profiles) <= LIFE_NAME
    assert len(history.classes) <= LIFE_CLASSES
    assert not names or EVERY_LEASE in history.classes


def test_a_namespace_with_many_kinds_takes_no_class_of_another() -> None:
    history = _history(*[("team", "3g.20gb", 100.0)] * 10)
    for number in range(2 * LIFE_CLASSES):
        kind = life_kind("crowd", "Job", ["1g.5gb"] * (number % 30) + ["2g.10gb"] * (number // 30))
        history.handle(LeaseEnded(kind, 1.0, 11_000.0 + number))
    assert len(history.classes) == LIFE_CLASSES
    assert _median(history, "team", "3g.20gb") == 100
    assert sum(kind.namespace == "" for kind in history.classes) == LIFE_CLASSES // 2
    assert EVERY_LEASE in history.classes


def test_a_class_that_was_dropped_is_observed_anew() -> None:
    history = LifeHistory(0.0)
    for number in range(LIFE_CLASSES):
        history.handle(LeaseEnded(life_kind(f"team-{number}", "Job", ["1g.5gb"]), 60.0, 1000.0 + number))
    assert history.classes[life_kind(f"team-{LIFE_CLASSES - 1}", "Job", ["1g.5gb"])].since > 1000
