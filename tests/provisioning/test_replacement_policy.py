from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.provisioning.milestones import Milestone, ProvisioningRecord
from tessera.provisioning.replacement import (
    HOUR,
    ReplacementAnswer,
    ReplacementDecision,
    decide_replacement,
)

NOW = 1_800_000_000.0
LATE = ProvisioningRecord(node="n", uid="u", group="a", at={Milestone.REGISTERED: NOW - 900})


def asked(
    record: ProvisioningRecord = LATE, history: tuple[ProvisioningRecord, ...] = (), **more: Any
) -> ReplacementDecision:
    given: dict[str, Any] = {"limit": 1, "now": NOW, "deleting": False, "cordoned": False, "shared_cause": ""}
    given["annotations"] = ({},)
    return decide_replacement(record, history, **{**given, **more})


def gone(seconds_ago: float, group: str = "a") -> ProvisioningRecord:
    return ProvisioningRecord(node="x", uid=f"x{seconds_ago}{group}", group=group, replaced=NOW - seconds_ago)


def test_by_default_no_node_is_replaced() -> None:
    assert asked(limit=0).answer is ReplacementAnswer.NOTHING


def test_a_node_within_the_limit_is_replaced() -> None:
    assert asked().answer is ReplacementAnswer.REPLACE
    assert asked(history=(gone(HOUR + 1), gone(5, group="b"))).answer is ReplacementAnswer.REPLACE


def test_at_the_limit_no_more_nodes_of_the_group_are_replaced() -> None:
    found = asked(history=(gone(5), gone(3000)), limit=2)
    assert found.answer is ReplacementAnswer.HELD
    for fact in ("2 nodes of group a in an hour", "replaced already", "the limit"):
        assert fact in found.text


@pytest.mark.parametrize(
    "annotations",
    [
        ({"karpenter.sh/do-not-disrupt": "true"},),
        ({}, {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}),
        ({}, {"cluster.x-k8s.io/skip-remediation": ""}),
    ],
)
def test_annotations_that_forbid_it_are_respected(annotations: tuple[dict[str, str], ...]) -> None:
    found = asked(annotations=annotations)
    assert found.answer is ReplacementAnswer.HELD
    assert "forbids it" in found.text


def test_an_annotation_that_says_no_forbids_nothing() -> None:
    assert asked(annotations=({"karpenter.sh/do-not-disrupt": "false"},)).answer is ReplacementAnswer.REPLACE


def test_a_node_that_a_person_cordoned_is_left_alone() -> None:
    assert asked(cordoned=True) == ReplacementDecision(answer=ReplacementAnswer.HELD, text="somebody cordoned it")


def test_a_replacement_under_way_is_not_asked_for_again() -> None:
    assert asked(deleting=True).answer is ReplacementAnswer.NOTHING


def test_one_that_was_counted_and_did_not_come_through_is_asked_for_again() -> None:
    counted = ProvisioningRecord(node="n", uid="u", group="a", replaced=NOW - 60)
    assert asked(counted, history=(counted,)).answer is ReplacementAnswer.REPLACE


def test_a_node_is_kept_where_another_one_would_come_no_further() -> None:
    assert asked(shared_cause="no image fits") == ReplacementDecision(
        answer=ReplacementAnswer.HELD, text="no image fits"
    )
    counted = ProvisioningRecord(node="n", uid="u", group="a", replaced=NOW - 60)
    assert asked(counted, shared_cause="no image fits").answer is ReplacementAnswer.HELD


def test_a_node_whose_cards_could_be_used_is_never_replaced() -> None:
    used = ProvisioningRecord(node="n", uid="u", at={Milestone.ALLOCATABLE: 1.0})
    assert asked(used).answer is ReplacementAnswer.NOTHING


@given(st.lists(st.floats(0, 4 * HOUR), max_size=40), st.integers(1, 5))
def test_in_no_hour_are_more_nodes_replaced_than_the_limit(times: list[float], limit: int) -> None:
    book: list[ProvisioningRecord] = []
    for number, seconds in enumerate(sorted(times)):
        late = ProvisioningRecord(node=f"n{number}", uid=f"u{number}", group="a")
        if asked(late, tuple(book), limit=limit, now=NOW + seconds).answer is ReplacementAnswer.REPLACE:
            book.append(ProvisioningRecord(node=late.node, uid=late.uid, group="a", replaced=NOW + seconds))
    replaced = [each.replaced for each in book if each.replaced is not None]
    for start in replaced:
        assert sum(1 for each in replaced if start <= each < start + HOUR) <= limit
