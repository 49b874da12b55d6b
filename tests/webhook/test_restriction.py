"""The nodes that a pod's node selector, required node affinity and node name admit."""

from typing import Any

import pytest

from tessera.webhook.capabilities import Capabilities, GpuNode, GroupNode
from tessera.webhook.restriction import read_restriction

LABELS = {"zone": "a", "cards": "8"}


def affinity(*terms: Any) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def label(key: str, sign: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": sign, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "possible"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a", "rack": "1"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        (affinity(label("zone", "NotIn", "a")), False),
        (affinity(label("zone", "DoesNotExist")), False),
        (affinity(label("rack", "DoesNotExist")), True),
        (affinity(label("rack", "Gt", "7")), True),
        (affinity(label("cards", "Gt", "8")), False),
        (affinity(label("zone", "In", "b"), label("cards", "Exists")), True),
        (affinity(label("zone", "Resembles", "a")), False),
        (affinity({}), False),
        (affinity(), False),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}), True),
    ],
)
def test_whether_a_new_node_of_which_some_labels_are_known_may_be_left(spec: dict[str, Any], possible: bool) -> None:
    assert read_restriction(spec).may_admit(LABELS) is possible


def field(sign: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": sign, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "possible"),
    [
        ({}, True),
        ({"nodeSelector": {"kubernetes.io/hostname": "host-n"}}, False),
        ({"nodeSelector": {"kubernetes.io/hostname": "later"}}, True),
        ({"nodeName": "n"}, False),
        ({"nodeName": "later"}, True),
        (affinity(label("kubernetes.io/hostname", "In", "host-n")), False),
        (affinity(label("kubernetes.io/hostname", "In", "host-n", "later")), True),
        (affinity(label("kubernetes.io/hostname", "NotIn", "host-n")), True),
        (affinity(label("kubernetes.io/hostname", "Exists")), True),
        (affinity(label("zone", "In", "a")), True),
        (affinity(field("In", "n")), False),
        (affinity(field("In", "later")), True),
        (affinity(field("NotIn", "n")), True),
        (affinity(field("In", "n"), label("zone", "Exists")), True),
    ],
)
def test_a_new_node_of_a_group_has_no_name_of_a_present_one(spec: dict[str, Any], possible: bool) -> None:
    known = Capabilities.of([GpuNode(name="n", labels=LABELS | {"kubernetes.io/hostname": "host-n"})])
    known.groups = (GroupNode("group", {"cards": "8"}),)
    assert bool(known.groups_for(spec)) is possible


@pytest.mark.parametrize(
    ("spec", "left"),
    [
        ({}, True),
        ({"nodeSelector": None, "affinity": {"podAffinity": {}}}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "a", "rack": "1"}}, False),
        (affinity(label("zone", "In", "a", "b")), True),
        (affinity(label("zone", "In", "b")), False),
        (affinity(label("zone", "NotIn", "b")), True),
        (affinity(label("rack", "In", "1")), False),
        (affinity(label("rack", "NotIn", "1")), True),
        (affinity(label("zone", "Exists")), True),
        (affinity(label("zone", "DoesNotExist")), False),
        (affinity(label("cards", "Gt", "7")), True),
        (affinity(label("cards", "Lt", "8")), False),
        (affinity(label("zone", "Gt", "7")), False),
        (affinity(label("zone", "Resembles", "a")), False),
        (affinity(label("zone", "In", "b"), label("zone", "In", "a")), True),
        (affinity({"matchExpressions": [*label("zone", "Exists")["matchExpressions"] * 2]}), True),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}), True),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}]}), False),
        (affinity({}), False),
        (affinity(), False),
        ({"nodeName": "n"}, True),
        ({"nodeName": "another"}, False),
        ({"nodeSelector": {"zone": "b"}, **affinity(label("zone", "Exists"))}, False),
    ],
)
def test_whether_a_node_is_left(spec: dict[str, Any], left: bool) -> None:
    known = Capabilities.of([GpuNode(name="n", labels=LABELS), GpuNode(name="m", labels={"zone": "c"})])
    assert ("n" in known.names(known.selected_by(spec))) is left
