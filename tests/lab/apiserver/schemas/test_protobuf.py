"""Protobuf bodies, as recorded from kubectl 1.32 and 1.36 beside what it prints for the same command with -o json."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_lab.apiserver.schemas.protobuf import MAGIC, decode_body, read_fields, read_varint, to_signed

RECORDED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("kubectl_bodies.json").read_text())
BODIES = {each["command"]: bytes.fromhex(each["body"]) for each in RECORDED}
WITH_JSON = [each for each in RECORDED if each["json"]]


def settled(value: Any) -> Any:
    """A JSON value without what says nothing: null, empty maps and lists."""
    if isinstance(value, dict):
        kept = {key: settled(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each not in (None, {}, [])}
    return [settled(each) for each in value] if isinstance(value, list) else value


def without_namespace(value: Any) -> Any:
    """Client-side output names the namespace, which in the request stands in the path."""
    meta = {key: each for key, each in value.get("metadata", {}).items() if key != "namespace"}
    return {**value, "metadata": meta}


@pytest.mark.parametrize("recorded", WITH_JSON, ids=[each["command"] for each in WITH_JSON])
def test_what_kubectl_sends_is_what_it_prints(recorded: dict[str, Any]) -> None:
    found = decode_body(bytes.fromhex(recorded["body"]))
    assert without_namespace(settled(found)) == without_namespace(settled(recorded["json"]))


def test_an_access_review() -> None:
    found = decode_body(BODIES["kubectl auth can-i create pods -n x"])
    assert found["kind"] == "SelfSubjectAccessReview"
    assert found["spec"] == {"resourceAttributes": {"namespace": "x", "verb": "create", "resource": "pods"}}
    path = decode_body(BODIES["kubectl auth can-i get /healthz"])
    assert path["spec"] == {"nonResourceAttributes": {"path": "/healthz", "verb": "get"}}


def test_reviews_and_tokens() -> None:
    assert decode_body(BODIES["kubectl auth can-i --list"])["spec"] == {"namespace": "default"}
    assert decode_body(BODIES["kubectl auth whoami"])["kind"] == "SelfSubjectReview"
    assert decode_body(BODIES["kubectl create token robot --duration=1h"])["spec"]["expirationSeconds"] == 3600


def test_a_pointer_s_zero_is_a_value() -> None:
    body = MAGIC + bytes.fromhex("0a15") + b"\n\x07apps/v1\x12\nDeployment" + bytes.fromhex("120412020800")
    assert decode_body(body)["spec"] == {"replicas": 0}


def test_a_kind_that_is_not_known_is_refused_by_name() -> None:
    body = next(each for command, each in BODIES.items() if "ingress" in command)
    with pytest.raises(ValueError, match=r"Ingress in 'networking.k8s.io/v1' is not known .*kubectl create -f"):
        decode_body(body)


def test_a_field_that_is_not_known_is_refused() -> None:
    body = MAGIC + b"\n\x0f\n\x02v1\x12\tNamespace" + bytes.fromhex("1203c23e00")
    with pytest.raises(ValueError, match=r"field 1000 of core/v1.Namespace is not known"):
        decode_body(body)


@pytest.mark.parametrize("body", [b"", b"{}", MAGIC, MAGIC + b"\x0a\xff", MAGIC + b"\x0b"])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"proto|kind without name"):
        decode_body(body)


def encoded(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        out.append((value & 0x7F) | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_come_back(value: int) -> None:
    found, end = read_varint(encoded(value), 0)
    assert to_signed(found) == value
    assert end == len(encoded(value))


@given(st.binary(max_size=40))
def test_any_bytes_are_fields_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(read_fields(data))
