"""Good devices that kube-scheduler leaves empty for pods that hold withheld ones."""

import msgspec
import pytest

from tessera.api.nodes.card_faults import (
    CARDS_ANNOTATION,
    CardFault,
    encode_cards,
    read_withheld_holds,
    unblocking_steps,
)
from tessera.kube.resources import Node

GPU = "nvidia.com/gpu"
UNWELL = CardFault("GPU-1", "XID 48", index=1, asks="reset")
CORDON = CardFault("GPU-2", "cordon", index=2, asks="uncordon")


def node(capacity: int, left: int, held: int, *faults: CardFault) -> Node:
    text = encode_cards((), faults, {GPU: held} if held else {})
    return msgspec.convert(
        {
            "metadata": {"name": "n1", "annotations": {CARDS_ANNOTATION: text}},
            "status": {"capacity": {GPU: str(capacity)}, "allocatable": {GPU: str(left)}},
        },
        Node,
    )


@pytest.mark.parametrize(
    ("left", "held", "used", "free", "blocked"),
    [
        (6, 2, 8, 0, 0),  # all good cards are held
        (6, 2, 6, 2, 2),
        (6, 2, 5, 3, 2),
        (6, 2, 7, 1, 1),
        (6, 1, 6, 1, 1),  # one of the two withheld cards is free
        (6, 3, 6, 2, 2),  # kubelet has not published the third yet
    ],
)
def test_a_free_device_is_left_empty_for_each_pod_on_a_withheld_one(
    left: int, held: int, used: int, free: int, blocked: int
) -> None:
    hold = read_withheld_holds(node(8, left, held))[GPU]
    assert (hold.count_free(used), hold.count_blocked(hold.count_free(used))) == (free, blocked)
    assert max(0, left - used) == free - blocked  # what kube-scheduler gives away


@pytest.mark.parametrize(("left", "held"), [(8, 2), (6, 0), (9, 1)])
def test_nothing_is_said_of_devices_that_kube_scheduler_still_counts(left: int, held: int) -> None:
    assert read_withheld_holds(node(8, left, held)) == {}


def test_an_annotation_of_a_hostile_node_costs_that_node_its_own_sums() -> None:
    hostile = node(8, 6, 1)
    for text in ('{"held":{"nvidia.com/gpu":-1}}', '{"held":{"a b":1}}', '{"held":{"nvidia.com/gpu":1e99}}', "["):
        hostile.metadata.annotations[CARDS_ANNOTATION] = text
        assert read_withheld_holds(hostile) == {}


def test_the_sentence_and_the_steps_name_objects_and_numbers() -> None:
    seen = node(8, 6, 2, UNWELL, CORDON)
    hold = read_withheld_holds(seen)[GPU]
    sentence = "node n1: pods hold 2 withheld nvidia.com/gpu; kube-scheduler counts these 2 against the 6 that are left"
    assert hold.describe() == f"{sentence}, and leaves up to 2 free ones empty"
    assert hold.describe(1) == f"{sentence}, and leaves 1 of 1 free one empty"
    assert list(unblocking_steps(seen)) == [
        (
            "delete the pods on withheld cards of n1, so that their owners start them on good ones; see them:"
            " tessera health n1"
        ),
        "or give a cordoned card back: tessera uncordon n1/2",
    ]
