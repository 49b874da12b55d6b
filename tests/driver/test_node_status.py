"""The status that a node's annotation gets, and the moments at which its dates change."""

import msgspec

from tessera.api.nodes.node_marks import DRIVER_APP, DriverPhase, DriverStatus, DriverStrategy, RejectedStrategy
from tessera.driver.driver_sets import APP_LABEL, SET_ANNOTATION, set_of
from tessera.driver.node_facts import parse_upgrade_record
from tessera.driver.node_status import (
    add_dates,
    condition_body,
    encode_status,
    read_status,
    same_condition,
    status_condition,
)
from tessera.driver.rollout.candidates import read_failures
from tessera.kube.resources import Condition
from tessera.kube.resources.meta import ObjectMeta

STATUS = DriverStatus(
    strategy=DriverStrategy.BUILT, phase=DriverPhase.STARTING, since="", set="s1", boot="b0", reason="It is built."
)
NOW, LATER = 1_800_000_000.0, 1_800_000_060.0


def test_a_status_is_read_back_as_it_was_written() -> None:
    rejected = RejectedStrategy(strategy=DriverStrategy.PRECOMPILED, reason="not found")
    status = msgspec.structs.replace(STATUS, since="2027-01-15T08:00:00Z", rejected=(rejected,))
    assert read_status(encode_status(status)) == status


def test_what_is_no_status_says_nothing() -> None:
    assert [read_status(text) for text in ("", "{", '{"strategy": "magic"}', "x" * 100_000)] == [None] * 4


def test_what_is_nested_without_end_says_nothing() -> None:
    deep = '{"any":' + "[" * 4000
    assert read_status(deep) is None
    assert parse_upgrade_record(deep) is None
    assert read_failures({"s1": deep}) == {}
    labels, annotations = {APP_LABEL: DRIVER_APP}, {SET_ANNOTATION: deep}
    assert set_of(ObjectMeta(name="tessera-driver-s1", labels=labels, annotations=annotations)) is None


def test_long_reasons_are_cut_so_that_the_annotation_stays_small() -> None:
    rejected = tuple(RejectedStrategy(strategy=each, reason="x" * 100_000) for each in DriverStrategy)
    text = encode_status(msgspec.structs.replace(STATUS, reason="y" * 100_000, rejected=rejected))
    assert len(text) < 16_384
    assert read_status(text) is not None


def test_what_is_told_is_what_is_read_back_however_long_and_strange_it_is() -> None:
    rejected = (RejectedStrategy(strategy=DriverStrategy.PRECOMPILED, reason="x" * 5000 + "\x1b[31m"),)
    status = add_dates(msgspec.structs.replace(STATUS, reason="\x1b]0;\n" + "y" * 5000, rejected=rejected), None, NOW)
    assert read_status(encode_status(status)) == status, "or it would be written again and again"
    assert status.reason.startswith("?]0;?yyy")


def test_nothing_that_somebody_wrote_into_the_annotation_moves_a_cursor() -> None:
    found = read_status(msgspec.json.encode(msgspec.structs.replace(STATUS, offered="\x1b[2J", set="a\rb")).decode())
    assert found is not None
    assert (found.offered, found.set) == ("?[2J", "a?b")


def test_a_phase_keeps_its_date_while_only_words_change() -> None:
    first = add_dates(STATUS, None, NOW)
    reworded = msgspec.structs.replace(STATUS, reason="It is loaded.")
    assert add_dates(reworded, first, LATER).since == first.since == "2027-01-15T08:00:00Z"
    ready = msgspec.structs.replace(STATUS, phase=DriverPhase.READY)
    assert add_dates(ready, first, LATER).since == "2027-01-15T08:01:00Z"
    assert add_dates(msgspec.structs.replace(STATUS, boot="b1"), first, LATER).since == "2027-01-15T08:01:00Z"


def test_the_condition_is_true_for_a_driver_that_was_proven_and_moves_only_with_its_status() -> None:
    starting = status_condition(STATUS)
    assert (starting.status, starting.reason) == ("False", "Starting")
    assert starting.message == "built: It is built."
    ready = status_condition(msgspec.structs.replace(STATUS, phase=DriverPhase.READY))
    assert ready.status == "True"
    shown = msgspec.convert(condition_body(starting, None, NOW), Condition)
    assert same_condition(shown, starting)
    assert not same_condition(shown, ready)
    failed = status_condition(msgspec.structs.replace(STATUS, phase=DriverPhase.FAILED))
    told = condition_body(failed, shown, LATER)
    assert (told["lastTransitionTime"], told["lastHeartbeatTime"]) == ("2027-01-15T08:00:00Z", "2027-01-15T08:01:00Z")
    assert condition_body(ready, shown, LATER)["lastTransitionTime"] == "2027-01-15T08:01:00Z"
