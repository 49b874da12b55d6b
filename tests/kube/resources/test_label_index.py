"""The index finds the nodes for which a requirement holds, as a test of each node does."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.kube.resources.selectors import LabelIndex, Requirement

KEYS = st.sampled_from(["a", "b"])
VALUES = st.sampled_from(["", "x", "-1", "7", "+12", "1_0", "9" * 30])
LABELS = st.dictionaries(KEYS, VALUES)
REQUIREMENTS = st.builds(
    Requirement,
    key=KEYS,
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
    values=st.lists(VALUES, max_size=2).map(tuple),
)
#: The new labels of one of three nodes; None removes the node.
CHANGES = st.lists(st.tuples(st.integers(0, 2), st.none() | LABELS, REQUIREMENTS), max_size=8)


@settings(max_examples=examples(300), deadline=None)
@given(CHANGES)
def test_index_and_requirement_agree_after_every_change(
    changes: list[tuple[int, dict[str, str] | None, Requirement]],
) -> None:
    index = LabelIndex()
    nodes: dict[int, dict[str, str]] = {}
    for number, labels, test in changes:
        before = nodes.pop(number, None)
        if labels is not None:
            nodes[number] = labels
        if before is not None and labels is not None:
            differing = {key for key in before.keys() | labels.keys() if before.get(key) != labels.get(key)}
            assert set(index.change(before, labels, 1 << number)) == differing
        elif labels is not None:
            index.add(labels, 1 << number)
        elif before is not None:
            index.remove(before, 1 << number)
        expected = sum(1 << each for each, has in nodes.items() if test.matches(has))
        assert index.nodes_matching(test.key, test.operator, test.values) == expected


def test_an_unknown_operator_matches_no_node() -> None:
    index = LabelIndex()
    index.add({"a": "x"}, 1)
    assert index.nodes_matching("a", "Resembles", ("x",)) == 0
