"""AdmissionReviews that are none: each gets an answer or the reason, never a fault."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.claims.admission import claim_limits
from tessera.webhook.base import LIMIT_PATH, NO_CLAIMS, REVIEW_PATH, KnownClaims
from tessera.webhook.capabilities import Capabilities, GpuNode
from tessera.webhook.review import Reviewer, ReviewError

KNOWN = Capabilities.of([GpuNode(name="n", labels={"a": "1"}, on_demand=frozenset({"1g.5gb", "2g.10gb"}))])
TERMS = [
    {
        "matchExpressions": [{"key": "a", "operator": "Gt", "values": ["0"]}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
    }
]
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "u",
        "operation": "CREATE",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "object": {
            "metadata": {
                "name": "p",
                "annotations": {"tessera.dev/gpu-memory": "10Gi", "kubernetes.io/x": "y"},
                "labels": {"app": "a"},
                "ownerReferences": [{"name": "o", "uid": "u", "controller": True}],
            },
            "spec": {
                "nodeSelector": {"a": "1"},
                "schedulingGates": [{"name": "other"}],
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS},
                    }
                },
                "initContainers": [{"name": "i", "restartPolicy": "Always", "env": [{"name": "A", "value": "b"}]}],
                "containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}],
            },
        },
    },
}
PLAIN = json.dumps(REVIEW).replace("tessera.dev/gpu-memory", "x")
SLICED = json.loads(PLAIN.replace('"cpu"', '"nvidia.com/mig-1g.5gb"'))
SHARED = json.loads(PLAIN.replace('"cpu"', '"nvidia.com/gpu"'))

#: Limits of these pods become claims.
CLASSES = {"nvidia.com/gpu": "a", "nvidia.com/mig-1g.5gb": "b", "cpu": "c"}
MAPPED = KnownClaims(of_limits=lambda pod: claim_limits(pod, CLASSES).operations)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "1", "-1", "1e999999999", "9" * 5000, "\x00", "tessera.dev/ecc", "Always", "In", "DELETE"]),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just([None]),
    st.just([{}]),
    st.just([[]]),
    st.just({"a": None}),
    st.just({"a": {}}),
    st.just([1]),
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from paths(each, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


PATHS = {name: list(paths(found)) for name, found in (("r", REVIEW), ("s", SLICED), ("g", SHARED))}
MADE = {"r": REVIEW, "s": SLICED, "g": SHARED}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize(
    "new", [None, True, 1, -1.5, 10**30, "", "x", "9" * 5000, [], {}, [None], [[]], [{}], [1], {"a": None}, {"a": {}}]
)
def test_every_field_in_turn_may_be_anything(name: str, new: Any) -> None:
    reviewer = Reviewer(KNOWN)
    answered = 0
    for path in PATHS[name]:
        body = json.dumps(changed(MADE[name], path, new)).encode()
        with suppress(ReviewError):
            for path_of, claims in ((REVIEW_PATH, NO_CLAIMS), (LIMIT_PATH, MAPPED)):
                answer = msgspec.json.decode(reviewer.review(body, path_of, claims=claims))
                answered += answer["response"].keys() >= {"uid", "allowed"}
    assert answered, "fields that are not read may be anything"


@settings(max_examples=examples(500))
@given(name=st.sampled_from(sorted(MADE)), data=st.data())
def test_several_fields_at_once_may_be_anything(name: str, data: st.DataObject) -> None:
    found: Any = MADE[name]
    for _ in range(data.draw(st.integers(1, 4))):
        found = changed(found, data.draw(st.sampled_from(list(paths(found)))), data.draw(VALUES))
    with suppress(ReviewError):
        Reviewer(KNOWN).review(json.dumps(found).encode())


@settings(max_examples=examples(300))
@given(name=st.sampled_from(sorted(MADE)), data=st.data())
def test_any_byte_may_be_any_other(name: str, data: st.DataObject) -> None:
    body = bytearray(json.dumps(MADE[name]).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ReviewError):
        Reviewer(KNOWN).review(bytes(body))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"a":' + b"[" * 1_000_000, "nested too deeply"),
        (json.dumps(changed(SLICED, ("request", "object", "spec", "containers"), 5)).encode(), "`$.spec.containers`"),
        (json.dumps(changed(SLICED, ("request", "object"), [])).encode(), "request.object is no pod: Expected"),
        (b"\xff", "the body is no AdmissionReview"),
        (b"", "the body is no AdmissionReview"),
    ],
)
def test_the_reason_names_the_field(body: bytes, why: str) -> None:
    with pytest.raises(ReviewError) as error:
        Reviewer(KNOWN).review(body)
    assert why in str(error.value)
