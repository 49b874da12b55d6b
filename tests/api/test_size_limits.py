"""A pod over a limit is told which, by how much and what to do."""

from typing import Any

import msgspec
import pytest

from tessera.api.slice_requests import find_excess
from tessera.kube.resources import PodSpec


def affinity(terms: list[dict[str, Any]]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def term(*values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "k", "operator": "In", "values": values}]}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ""),
        ({"affinity": {}}, ""),
        ({"affinity": affinity([term("v")] * 100)}, ""),
        ({"affinity": affinity([term("v")] * 12_000)}, "node affinity has 12,000 terms, at most 100 terms"),
        (
            {"affinity": affinity([{"matchExpressions": term("v")["matchExpressions"] * 501}])},
            "501 or more expressions",
        ),
        ({"affinity": affinity([term(*map(str, range(5_001)))])}, "5,001 or more values, at most 5,000 values"),
        (
            {"nodeSelector": {f"k{i}": "v" for i in range(101)}},
            "node selector has 101 or more labels, at most 100 labels",
        ),
        ({"tolerations": [{"key": "k"}] * 201}, "the pod has 201 or more tolerations"),
        (
            {"containers": [{"name": "c"}] * 150, "initContainers": [{"name": "c"}] * 51},
            "the pod has 201 or more containers",
        ),
        ({"containers": [{"resources": {"limits": {f"r{i}": "1" for i in range(1001)}}}]}, "1,001 or more quantities"),
    ],
)
def test_what_is_over_a_limit(spec: dict[str, Any], words: str) -> None:
    found = find_excess(msgspec.convert(spec, PodSpec))
    assert words in found
    assert bool(found) == bool(words)
