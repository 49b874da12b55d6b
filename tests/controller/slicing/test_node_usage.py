"""A pod counts on one node at a time, with what it asks for now."""

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.resource_amounts import NodeUsage

A, B = PodUid("a"), PodUid("b")
ONE, TWO = NodeName("node-1"), NodeName("node-2")


def test_pods_of_a_node_add_up() -> None:
    charges = NodeUsage()
    assert charges.assign(A, ONE, {"cpu": 500, "pods": 1}) is None
    assert charges.assign(B, ONE, {"cpu": 250, "pods": 1}) is None
    assert charges.used == {ONE: {"cpu": 750, "pods": 2}}


def test_a_pod_that_moves_or_shrinks_or_goes_names_the_node_with_more_room() -> None:
    charges = NodeUsage()
    charges.assign(A, ONE, {"cpu": 500})
    assert charges.assign(A, TWO, {"cpu": 500}) == ONE
    assert charges.assign(A, TWO, {"cpu": 300}) == TWO
    assert charges.used == {TWO: {"cpu": 300}}
    assert charges.assign(A, None, {}) == TWO
    assert charges.used == {}


def test_the_same_again_changes_nothing() -> None:
    charges = NodeUsage()
    charges.assign(A, ONE, {"cpu": 500})
    assert charges.assign(A, ONE, {"cpu": 500}) is None
    assert charges.used == {ONE: {"cpu": 500}}
