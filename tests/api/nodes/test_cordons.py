"""The annotations by which a person cordons cards: what is read, and its bounds."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.api.nodes.node_marks import Cordon, cordon_key, read_cordons
from tessera.limits import CORDON_REASON, NODE_CARDS


def test_each_annotation_cordons_one_card() -> None:
    annotations = {cordon_key("GPU-2"): " fan is loud\n", "tessera.dev/cards": "{}", cordon_key("GPU-1"): ""}
    assert read_cordons(annotations) == (Cordon("GPU-1", ""), Cordon("GPU-2", "fan is loud"))


def test_a_key_fits_into_an_annotation() -> None:
    assert len(cordon_key("GPU-5a3e1b2c-0000-1111-2222-333344445555").partition("/")[2]) <= 63


def test_reasons_and_cards_are_bounded_and_other_keys_are_no_cards() -> None:
    many = {cordon_key(f"GPU-{number}"): "x\x1b[2J" * 200 for number in range(NODE_CARDS + 5)}
    found = read_cordons(many | {cordon_key("GPU-a b"): "", cordon_key("0"): "", cordon_key("GPU-"): ""})
    assert len(found) == NODE_CARDS
    assert all(len(each.reason) <= CORDON_REASON and each.reason.isprintable() for each in found)


@given(st.dictionaries(st.text(max_size=8).map(lambda text: cordon_key(f"GPU-{text}")), st.text(max_size=600)))
def test_any_annotations_are_answered_in_one_line_each(annotations: dict[str, str]) -> None:
    for each in read_cordons(annotations):
        assert cordon_key(each.gpu) in annotations
        assert each.reason.isprintable()
