"""ConfigMaps, Secrets and other fields of bytes: what is stored can be read, and what cannot is refused at once."""

import base64
from typing import Any

import pytest
from tests.support.conformance_api import MERGE, Api, Kubectl, causes

MIB = 1 << 20


def _secret(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, **fields}


def _base64(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


@pytest.mark.parametrize(
    ("text", "byte"),
    [
        ("<YOUR_TOKEN>", 0),
        ("YWJj<", 4),
        ("YWJ", 0),
        ("YWJjYQ", 4),
        ("YWJjYQ=", 7),
        ("YWJjYQ=a", 6),
        ("YW=Jj", 2),
        ("YWJj=", 4),
        ("YWJj\nYW", 5),
    ],
)
async def test_what_is_not_base64_is_refused_at_its_byte(api: Api, core: str, text: str, byte: int) -> None:
    refused = (await api("POST", f"{core}/secrets", _secret(data={"T": text}))).refused(400, "BadRequest")
    assert refused == (
        f'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte {byte}'
    )


async def test_lines_within_base64_are_taken(api: Api, core: str) -> None:
    (await api("POST", f"{core}/secrets?dryRun=All", _secret(data={"T": "YW\nJj\r\nYQ==\n"}))).ok()


async def test_every_field_of_bytes_is_base64(api: Api, core: str, unique: str) -> None:
    config = {"metadata": {"name": "a"}, "binaryData": {"b": "%"}}
    assert "illegal base64 data" in (await api("POST", f"{core}/configmaps", config)).refused(400)
    hook = {
        "name": "a.example.com",
        "clientConfig": {"url": "https://example.com", "caBundle": "%"},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    body = {"metadata": {"name": unique}, "webhooks": [hook]}
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    assert "illegal base64 data" in (await api("POST", path, body)).refused(400)


async def test_a_patch_cannot_spoil_a_secret(api: Api, core: str) -> None:
    (await api("POST", f"{core}/secrets", _secret(stringData={"T": "good"}))).ok()
    patch = {"data": {"T": "<YOUR_TOKEN>"}}
    assert (await api("PATCH", f"{core}/secrets/a", patch, content=MERGE)).status in {400, 422}
    kept = (await api("GET", f"{core}/secrets/a")).ok()
    assert kept["data"] == {"T": base64.b64encode(b"good").decode()}


async def test_a_placeholder_of_a_sample_is_refused_in_words(kubectl: Kubectl) -> None:
    refused = await kubectl("create", "-f", "-", manifest=_secret(data={"HF_TOKEN": "<YOUR_TOKEN>"}), fails=True)
    assert "illegal base64 data at input byte 0" in refused


@pytest.mark.parametrize("key", ["", "a b", "a/b", ".", "..", "..a", "a" * 254])
async def test_keys_are_names_of_files(api: Api, core: str, key: str) -> None:
    for plural, field in (("secrets", "stringData"), ("configmaps", "data"), ("configmaps", "binaryData")):
        body = {"metadata": {"name": "a"}, field: {key: "YQ=="}}
        answer = await api("POST", f"{core}/{plural}", body)
        assert answer.refused(422, "Invalid")
        shown = "data" if field == "stringData" else field
        assert {field for field, _ in causes(answer)} == {f"{shown}[{key}]"}


async def test_a_key_is_text_or_bytes(api: Api, core: str) -> None:
    body = {"metadata": {"name": "a"}, "data": {"k": "v"}, "binaryData": {"k": "YQ=="}}
    answer = await api("POST", f"{core}/configmaps", body)
    assert answer.refused(422)
    assert causes(answer) == [("data[k]", 'Invalid value: "k": duplicate of key present in binaryData')]


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_mebibyte_is_the_most(api: Api, core: str) -> None:
    dry = "?dryRun=All"
    (await api("POST", f"{core}/secrets{dry}", _secret(data={"a": _base64(MIB - 1), "b": _base64(1)}))).ok()
    answer = await api("POST", f"{core}/secrets{dry}", _secret(data={"a": _base64(MIB), "b": _base64(1)}))
    assert answer.refused(422)
    assert causes(answer)[0][0] == "data"
    config = {"metadata": {"name": "a"}, "data": {"a": "x" * MIB}}
    (await api("POST", f"{core}/configmaps{dry}", config)).ok()
    answer = await api("POST", f"{core}/configmaps{dry}", {**config, "binaryData": {"b": "YQ=="}})
    assert answer.refused(422)
    assert "Too long" in causes(answer)[0][1]


async def test_a_secret_of_a_type_has_the_types_keys(api: Api, core: str) -> None:
    path = f"{core}/secrets?dryRun=All"
    for kind, missing in (
        ("kubernetes.io/tls", {"data[tls.crt]", "data[tls.key]"}),
        ("kubernetes.io/ssh-auth", {"data[ssh-privatekey]"}),
        ("kubernetes.io/basic-auth", {"data[username]", "data[password]"}),
        ("kubernetes.io/dockerconfigjson", {"data[.dockerconfigjson]"}),
        ("kubernetes.io/service-account-token", {"metadata.annotations[kubernetes.io/service-account.name]"}),
    ):
        answer = await api("POST", path, _secret(type=kind))
        assert answer.refused(422)
        assert {field for field, _ in causes(answer)} == missing
    (await api("POST", path, _secret(type="kubernetes.io/basic-auth", stringData={"password": "x"}))).ok()


async def test_a_secret_keeps_its_type(api: Api, core: str) -> None:
    (await api("POST", f"{core}/secrets", _secret())).ok()
    answer = await api("PATCH", f"{core}/secrets/a", {"type": "example.com/other"}, content=MERGE)
    assert answer.refused(422)
    assert causes(answer) == [("type", 'Invalid value: "example.com/other": field is immutable')]


async def test_a_value_of_null_is_empty(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/configmaps", {"metadata": {"name": "a"}, "data": {"k": None}})).ok()
    assert made["data"] == {"k": ""}
    made = (await api("POST", f"{core}/secrets", _secret(data={"k": None}, stringData={"s": None}))).ok()
    assert made["data"] == {"k": "", "s": ""}


async def test_annotations_have_a_limit(api: Api, core: str) -> None:
    body = {"metadata": {"name": "a", "annotations": {"a": "x" * 256 * 1024}}}
    answer = await api("POST", f"{core}/configmaps?dryRun=All", body)
    assert answer.refused(422)
    assert causes(answer)[0][0] == "metadata.annotations"


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_body_of_more_than_three_mebibytes_is_not_read(api: Api, core: str) -> None:
    body = {"metadata": {"name": "a"}, "data": {"a": "x" * 3 * MIB}}
    refused = (await api("POST", f"{core}/configmaps", body)).refused(413, "RequestEntityTooLarge")
    assert refused == "Request entity too large: limit is 3145728"
