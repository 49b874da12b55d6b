"""Workloads of the stand-in of Kueue, from pods as users write them."""

from typing import Any

import pytest

from tessera.api.pod_annotations import KUEUE_COUNT_ANNOTATION, KUEUE_GROUP_NAME
from tessera.kueue.objects import QUEUE_LABEL
from tessera_lab.kueue.webhooks import MANAGED
from tessera_lab.kueue.workloads import find_jobs


def member(name: str, count: str) -> dict[str, Any]:
    labels = {QUEUE_LABEL: "slices", KUEUE_GROUP_NAME: "g", MANAGED: "true"}
    meta = {
        "name": name,
        "namespace": "team-a",
        "uid": name,
        "labels": labels,
        "annotations": {KUEUE_COUNT_ANNOTATION: count},
    }
    return {"metadata": meta, "spec": {"containers": [{"name": "c"}]}}


@pytest.mark.parametrize("count", ["x", "", "-1", "\u00b2", "2"])
def test_a_group_of_a_size_that_is_no_number_stops_nobody(count: str) -> None:
    (found,) = find_jobs([], [member("a", count), member("b", count)])
    assert (found.kind, len(found.pods), found.incomplete) == ("Group", 2, "")


def test_a_group_without_all_of_its_pods_is_incomplete() -> None:
    (found,) = find_jobs([], [member("a", "2")])
    assert "fewer runnable pods" in found.incomplete
