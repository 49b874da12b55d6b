"""XIDs and their reactions; the tables of the two variables are those of NVIDIA's device plugin."""

import pytest

from tessera.agent.health.policy import (
    APPLICATION_XIDS,
    CATALOGUE,
    REMEDY_REACTIONS,
    HealthPolicy,
    XidList,
    parse_xids,
    unknown_words,
)
from tessera.agent.inventory.device_state import Reaction
from tessera.nvml.errors import XIDS, Remedy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        (",", set()),
        ("not-an-int", set()),
        ("68", {68}),
        ("-68", set()),
        ("68  ", {68}),
        ("68,", {68}),
        (",68", {68}),
        ("68,67", {67, 68}),
        ("68,not-an-int,67", {67, 68}),
        ("9" * 5000, set()),
        ("\N{ARABIC-INDIC DIGIT SIX}", set()),
    ],
)
def test_a_list_of_xids(text: str, expected: set[int]) -> None:
    assert parse_xids(text) == XidList(xids=frozenset(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", ()), ("68, 67 ,,all", ()), ("13;31", ("13;31",)), ("-68,XIDs,0x1f", ("-68", "0x1f"))],
)
def test_words_that_are_no_xid_are_returned(text: str, expected: tuple[str, ...]) -> None:
    assert unknown_words(text) == expected


@pytest.mark.parametrize("text", ["all", "xids", "ALL", "12, all"])
def test_every_xid(text: str) -> None:
    assert 555 in parse_xids(text)


def policy(disable: str = "", enable: str = "") -> HealthPolicy:
    return HealthPolicy.from_environment({"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable})


@pytest.mark.parametrize(
    ("disable", "enable", "ignored", "counted"),
    [
        ("", "", {13, 31, 43, 45, 68}, {11, 48, 79, 94, 555}),
        ("all", "", {13, 31, 43, 45, 68, 48, 555}, set()),
        ("xids", "", {13, 31, 43, 45, 68, 48, 555}, set()),
        ("", "all", set(), {13, 31, 43, 45, 68, 63, 555}),
        ("11", "11", {13, 31, 43, 45, 68}, {11, 555}),
        ("48", "", {48, 13}, {555}),
        ("", "13", {31, 43}, {13}),
        ("all", "48", {13, 79, 555}, {48}),
    ],
)
def test_the_two_variables(disable: str, enable: str, ignored: set[int], counted: set[int]) -> None:
    chosen = policy(disable, enable)
    assert {xid for xid in ignored if chosen.reaction(xid) is not Reaction.IGNORE} == set()
    assert {xid for xid in counted if chosen.reaction(xid) < Reaction.WITHHOLD} == set()


@pytest.mark.parametrize(
    ("xid", "reaction"),
    [
        (63, Reaction.DEGRADE),
        (94, Reaction.WITHHOLD),
        (48, Reaction.RESET),
        (95, Reaction.RESET),
        (119, Reaction.RESET),
        (79, Reaction.REBOOT),
        (13, Reaction.IGNORE),
        (9999, Reaction.WITHHOLD),
    ],
)
def test_by_default(xid: int, reaction: Reaction) -> None:
    assert policy().reaction(xid) is reaction


def test_an_ignored_xid_that_is_enabled_drains_at_least() -> None:
    assert policy(enable="43").reaction(43) is Reaction.WITHHOLD


def test_no_error_that_needs_a_reset_counts_as_one_of_the_program() -> None:
    assert policy().reaction(109) is Reaction.RESET
    assert {xid for xid in APPLICATION_XIDS if CATALOGUE[xid] >= Reaction.RESET} == set()


def test_every_xid_has_its_own_name_and_a_reaction() -> None:
    assert len({each.name for each in XIDS.values()}) == len(XIDS)
    assert set(CATALOGUE) == set(XIDS)
    assert set(Remedy) == set(REMEDY_REACTIONS)


def test_nothing_in_the_catalogue_is_ignored_there() -> None:
    assert Reaction.IGNORE not in CATALOGUE.values()
    assert set(CATALOGUE) >= APPLICATION_XIDS
