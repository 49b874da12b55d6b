"""The front over real sockets: TLS, certificates, tokens, streams. The client is the project's own."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tessera.clock import SystemClock
from tessera_lab.apiserver.authz.certificates import CertificateAuthority
from tessera_lab.apiserver.interfaces import GroupResource, UserInfo
from tessera_lab.apiserver.main.http_server import HttpServer
from tessera_lab.apiserver.main.server import ApiServer

TOKENS = {"secret": UserInfo(name="admin", groups=("system:masters",))}
HOLDER = {"Authorization": "Bearer secret"}


@pytest.fixture
async def front() -> AsyncIterator[Any]:
    clock = SystemClock()
    authority = CertificateAuthority(clock.now())
    served = HttpServer(ApiServer(clock, tokens=TOKENS), authority)
    await served.start()
    trust = ssl.create_default_context(cadata=authority.certificate.decode())
    connector = aiohttp.TCPConnector(ssl=trust)
    async with aiohttp.ClientSession(base_url=served.url, connector=connector) as session:
        yield served, authority, session
    await served.close()


async def test_a_token_tells_who_asks(front: Any) -> None:
    _, _, session = front
    async with session.get("/api/v1/namespaces", headers=HOLDER) as answer:
        assert answer.status == 200
        assert (await answer.json())["kind"] == "NamespaceList"
    async with session.get("/api/v1/namespaces", headers={"Authorization": "Bearer wrong"}) as answer:
        assert answer.status == 401
        assert (await answer.json())["message"] == "Unauthorized"
    async with session.get("/api/v1/namespaces") as answer:
        assert answer.status == 403
        assert 'User "system:anonymous" cannot list resource "namespaces"' in (await answer.json())["message"]


async def test_a_client_certificate_tells_who_asks(front: Any, tmp_path: Any) -> None:
    served, authority, _ = front
    pair = authority.issue_client_certificate("jane", ("system:masters",))
    (tmp_path / "c").write_bytes(pair.certificate)
    (tmp_path / "k").write_bytes(pair.key)
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.load_cert_chain(tmp_path / "c", tmp_path / "k")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    url = f"{served.url}/apis/authentication.k8s.io/v1/selfsubjectreviews"
    async with aiohttp.ClientSession() as session, session.post(url, json=review, ssl=context) as answer:
        user = (await answer.json())["status"]["userInfo"]
    assert (user["username"], user["groups"]) == ("jane", ["system:masters", "system:authenticated"])


async def test_a_watch_streams_lines_and_ends_with_the_front(front: Any) -> None:
    served, _, session = front
    maps = "/api/v1/namespaces/default/configmaps"
    async with session.get(maps, params={"watch": "1"}, headers=HOLDER) as stream:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
        async with session.post(maps, json=body, headers=HOLDER) as made:
            assert made.status == 201
        async with asyncio.timeout(60):
            line = await stream.content.readline()
            assert line.startswith(b'{"type":"ADDED","object":{')
            await served.close()
            assert await stream.content.read() == b""


async def test_impersonation_needs_the_right(front: Any) -> None:
    _, _, session = front
    async with session.get("/api/v1/pods", headers={**HOLDER, "Impersonate-User": "bob"}) as answer:
        assert 'User "bob" cannot list resource "pods"' in (await answer.json())["message"]


async def test_health_and_version_are_public(front: Any) -> None:
    _, _, session = front
    for path in ("/readyz", "/version"):
        async with session.get(path) as answer:
            assert answer.status == 200


async def test_a_client_that_goes_away_leaves_no_watch_behind(front: Any) -> None:
    served, _, session = front
    hub = served.server.core.hubs.of(GroupResource("", "configmaps"))
    async with session.get("/api/v1/configmaps", params={"watch": "1"}, headers=HOLDER):
        assert len(hub) == 1
    async with asyncio.timeout(60):
        while len(hub):  # noqa: ASYNC110 - the front tells nobody when a client is gone
            await asyncio.sleep(0)
