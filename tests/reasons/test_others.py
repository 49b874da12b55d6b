"""Pods of other namespaces have no name in a text for one namespace, and are told of once."""

import pytest

from tessera.reasons.reason import Blocker, Full
from tessera.reasons.words import for_namespace, name_blockers, name_pods
from tessera.visibility import OTHERS_POD

ANOTHER = "a pod of another namespace"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["team/a"], "team/a"),
        ([OTHERS_POD], ANOTHER),
        ([OTHERS_POD, "team/a"], f"team/a, {ANOTHER}"),
        ([OTHERS_POD] * 3, "3 pods of other namespaces"),
        ([OTHERS_POD, "team/a", OTHERS_POD], "team/a, 2 pods of other namespaces"),
    ],
)
def test_pods_are_listed_and_those_of_others_counted(names: list[str], text: str) -> None:
    assert name_pods(names) == text


def free(*pods: str) -> Full:
    frees = tuple(Blocker(pod, "n1", "1g.5gb", start=start) for start, pod in enumerate(pods))
    return for_namespace(Full(profiles=("3g.20gb",), frees=frees), "team")


@pytest.mark.parametrize(
    ("holders", "text"),
    [
        (["team/a"], "room comes when team/a (1g.5gb, memory slot 0) on node n1 ends"),
        (["other/x"], f"room comes when {ANOTHER} (1g.5gb, memory slot 0) on node n1 ends"),
        (
            ["other/x", "other/y", "third/z"],
            (
                "room comes when pods of other namespaces (1g.5gb, memory slot 0; 1g.5gb, memory slot 1; 1g.5gb, memory"
                " slot 2) on node n1 end"
            ),
        ),
        (
            ["other/x"] * 7,
            (
                "room comes when pods of other namespaces (1g.5gb, memory slot 0; 1g.5gb, memory slot 1; 1g.5gb, memory"
                " slot 2; 1g.5gb, memory slot 3; 1g.5gb, memory slot 4 and 2 more) on node n1 end"
            ),
        ),
        (
            ["other/x", "team/a", "other/y"],
            (
                "room comes when team/a (1g.5gb, memory slot 1) and pods of other namespaces (1g.5gb, memory slot 0;"
                " 1g.5gb, memory slot 2) on node n1 end"
            ),
        ),
    ],
)
def test_who_must_end_is_told_with_the_phrase_for_others_once(holders: list[str], text: str) -> None:
    assert name_blockers(free(*holders)) == text


def test_a_holder_is_named_with_its_card_and_slots_as_why_names_them() -> None:
    frees = (Blocker("team/a", "n1", "3g.20gb", "GPU-1", 4, 4), Blocker("team/b", "n1", "3g.20gb", "GPU-2", 0, 4))
    found = name_blockers(Full(profiles=("7g.40gb",), frees=frees), {"GPU-1": 0})
    assert found == (
        "room comes when team/a (3g.20gb on GPU 0, memory slots 4-7) and team/b (3g.20gb, memory slots 0-3) on node n1"
        " end"
    )
