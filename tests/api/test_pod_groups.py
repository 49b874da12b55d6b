"""The size of a gang that a PodGroup states, whatever stands in the object."""

from typing import Any

import pytest

from tessera.api.pod_annotations import read_pod_group


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({"minMember": 4}, 4),
        ({"minMember": 256}, 256),
        ({"minMember": 257}, 0),
        ({"minMember": 0}, 1),
        ({"minMember": -3}, 1),
        ({"minMember": "4"}, 1),
        ({}, 1),
        (None, 1),
        ([], 1),
    ],
)
def test_the_size_is_min_member_within_the_limit(spec: Any, size: int) -> None:
    item = {"metadata": {"namespace": "team", "name": "train"}, "spec": spec}
    assert read_pod_group(item) == ("team/scheduling.x-k8s.io/pod-group=train", size)


@pytest.mark.parametrize("wrong", [None, [], "x", 1, True])
def test_a_group_without_an_object_of_metadata_or_spec_has_the_usual_size(wrong: object) -> None:
    assert read_pod_group({"metadata": wrong, "spec": wrong})[1] == 1
