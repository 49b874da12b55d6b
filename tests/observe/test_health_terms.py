"""Explanations of errors: every XID, other terms, and words that are none."""

import pytest

from tessera.agent.inventory.device_state import Reaction
from tessera.api.nodes.health import SOURCE_WORDS, name_source
from tessera.nvml.errors import XIDS, Remedy
from tessera.observe.health_terms import REACTIONS, TERMS, UnknownTermError, explain_term, explain_xid


@pytest.mark.parametrize("word", ["79", "xid 79", "XID79", "XID-79"])
def test_an_xid_is_explained_with_its_name_remedy_and_reaction(word: str) -> None:
    found = explain_term(word)
    assert (found.term, found.name) == ("XID 79", "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS")
    assert (found.asks, found.reaction) == (Remedy.RESTART_NODE.value, REACTIONS[Reaction.REBOOT])


def test_an_xid_that_is_not_listed_says_what_happens() -> None:
    found = explain_xid(7777)
    assert (found.name, found.reaction) == ("", REACTIONS[Reaction.WITHHOLD])
    assert "does not list it" in found.meaning


def test_a_context_switch_timeout_asks_for_a_reset_and_the_difference_is_explained() -> None:
    found = explain_xid(109)
    assert found.reaction == REACTIONS[Reaction.RESET]
    assert "device plugin" in found.note


def test_each_source_of_errors_has_words_for_screens() -> None:
    terms = {each.replace("_", "-") for each in TERMS if explain_term(each).reaction.startswith(("shows", "allocates"))}
    assert terms - SOURCE_WORDS.keys() == set()
    assert SOURCE_WORDS.keys() - terms <= {"double-bit-ecc", "probe", "driver"}
    assert [name_source(each) for each in ("nvlink-errors", "XID 79")] == ["NVLink errors", "XID 79"]


def test_every_term_has_all_parts() -> None:
    for found in [*map(explain_term, TERMS), *map(explain_xid, XIDS)]:
        assert all((found.term, found.meaning, found.asks, found.reaction, found.source))


@pytest.mark.parametrize("word", ["", "zz", "-1", "9" * 50, "\N{ARABIC-INDIC DIGIT SIX}", "79; rm"])
def test_a_word_that_is_no_term_is_answered_with_those_that_are(word: str) -> None:
    with pytest.raises(UnknownTermError, match="hw_thermal"):
        explain_term(word)
