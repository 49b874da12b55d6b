"""The proxy to pods: names with ports, words of refusals, and addresses that are not the lab's."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.api_user import ApiUser

from tessera.kube.requests import Response

POD = "/api/v1/namespaces/default/pods/"


@pytest.fixture
async def asked(api: ApiUser, make_pod: Any) -> list[tuple[str, int, str]]:
    """A pod with the address 127.1.0.2; pages that were asked for, by address, port and path."""
    pages: list[tuple[str, int, str]] = []

    async def get(address: str, port: int, path: str, _headers: Mapping[str, str]) -> Response:
        if not address.startswith("127.1."):
            raise LookupError(address)
        if port == 1:
            raise ConnectionRefusedError(111, "connection refused")
        pages.append((address, port, path))
        return Response(status=200, headers={"content-type": "text/plain"}, body=b"hello")

    api.server.parts.get_page = get
    made = make_pod("a")
    made["spec"]["containers"][0]["ports"] = [{"containerPort": 8080}]
    await api("POST", POD[:-1], made)
    await api.merge(f"{POD}a/status", {"status": {"podIP": "127.1.0.2"}})
    return pages


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("a:8082/proxy/metrics", (8082, "/metrics")),
        ("a/proxy/metrics", (8080, "/metrics")),
        ("http:a:8082/proxy/x/y", (8082, "/x/y")),
        ("a:8082/proxy", (8082, "/")),
    ],
)
async def test_a_page_is_got_from_the_pod(
    api: ApiUser, asked: list[tuple[str, int, str]], path: str, page: tuple[int, str]
) -> None:
    answer = await api.raw("GET", POD + path)
    assert (answer.status, answer.body) == (200, b"hello")
    assert asked == [("127.1.0.2", *page)]


async def test_headers_are_passed_on_without_those_that_prove_the_user(api: ApiUser, make_pod: Any) -> None:
    passed: dict[str, str] = {}

    async def get(_address: str, _port: int, _path: str, headers: Mapping[str, str]) -> Response:
        passed.update(headers)
        return Response(status=200)

    api.server.parts.get_page = get
    await api("POST", POD[:-1], make_pod("a"))
    await api.raw("GET", f"{POD}a:8082/proxy/usage", authorization="Bearer mine", tessera_token="t")
    assert "authorization" not in passed
    assert passed.get("tessera-token") == "t"


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("b:1/proxy/x", 404, '"b" not found'),
        ("a:0/proxy/x", 400, "invalid port '0'"),
        ("a:99999/proxy/x", 400, "invalid port '99999'"),
        ("a:http/proxy/x", 400, "invalid port 'http'"),
        ("a:b:c:d/proxy/x", 400, "invalid pod request"),
        ("a:1/proxy/x", 503, "connection refused"),
    ],
)
async def test_what_cannot_be_reached_is_refused(
    api: ApiUser, asked: list[tuple[str, int, str]], path: str, code: int, words: str
) -> None:
    answer = await api("GET", POD + path)
    assert answer["code"] == code
    assert words in answer["message"]
    assert asked == []


async def test_a_forged_address_leads_nowhere(api: ApiUser, asked: list[tuple[str, int, str]]) -> None:
    await api.merge(f"{POD}a/status", {"status": {"podIP": "169.254.169.254"}})
    answer = await api("GET", f"{POD}a:80/proxy/latest")
    assert (answer["code"], asked) == (501, [])


async def test_other_methods_are_not_implemented(api: ApiUser, asked: list[tuple[str, int, str]]) -> None:
    assert (await api("POST", f"{POD}a:8082/proxy/x", {}))["code"] == 501
    assert asked == []
