"""The client against registries that page, redirect, fail, lie, or want what they should not get."""

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from tests.driver.registry.servers import PASSWORD, docker_config, serving

from tessera.api.image_reference import parse, parse_repository
from tessera.clock import SystemClock
from tessera.driver.registry.client import RegistryClient
from tessera.driver.registry.credentials import Keyring, parse_docker_config
from tessera.driver.registry.wire import (
    AccessRefused,
    ImageNotFound,
    RegistryError,
    RegistryHttp,
    RegistryUnreachable,
    Trust,
)

NOBODY = Keyring()
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def always(answer: Callable[[], web.StreamResponse]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        del request
        return answer()

    return handle


async def failure(client: RegistryClient, handler: Handler) -> RegistryError:
    """Returns the error of a request for an image to a server with this handler."""
    async with serving(handler) as host:
        with pytest.raises(RegistryError) as told:
            await client.find_image(parse(f"{host}/a/b:1"), "amd64", NOBODY)
    return told.value


async def test_tags_come_page_by_page_and_only_from_the_registry_itself(client: RegistryClient) -> None:
    pages = {"": (["a", "b"], "c1"), "c1": (["b", "c"], "c2"), "c2": (["d"], "")}

    async def handle(request: web.Request) -> web.StreamResponse:
        tags, following = pages[request.query.get("last", "")]
        # One link is relative, the other names another host, where nobody must go.
        host = "" if following == "c1" else "http://elsewhere.test"
        link = {"Link": f'<{host}/v2/a/b/tags/list?n=2&last={following}>; rel="next"'} if following else {}
        return web.json_response({"name": "a/b", "tags": tags}, headers=link)

    async with serving(handle) as host:
        assert await client.list_tags(parse_repository(f"{host}/a/b"), NOBODY) == ("a", "b", "c", "d")


async def test_pages_without_end_are_given_up(client: RegistryClient) -> None:
    def page() -> web.Response:
        return web.json_response({"tags": []}, headers={"Link": '</v2/a/b/tags/list?last=x>; rel="next"'})

    async with serving(always(page)) as host:
        with pytest.raises(RegistryUnreachable, match="at most 1,000 pages"):
            await client.list_tags(parse_repository(f"{host}/a/b"), NOBODY)


async def test_a_repository_whose_tags_are_null_has_none(client: RegistryClient) -> None:
    async with serving(always(lambda: web.json_response({"name": "a/b", "tags": None}))) as host:
        assert await client.list_tags(parse_repository(f"{host}/a/b"), NOBODY) == ()


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, AccessRefused, r"does not let a/b be read without credentials \(401\)"),
        (403, AccessRefused, r"without credentials \(403\)"),
        (404, ImageNotFound, r"has no a/b:1 \(404\)"),
        (429, RegistryUnreachable, r"wants fewer requests \(429\)"),
        (500, RegistryUnreachable, "answers 500 for a/b:1"),
        (503, RegistryUnreachable, "answers 503"),
        (418, RegistryUnreachable, "answers 418"),
    ],
)
async def test_every_status_is_one_of_the_named_outcomes(
    client: RegistryClient, status: int, kind: type[RegistryError], words: str
) -> None:
    told = await failure(client, always(lambda: web.Response(status=status, text="no")))
    assert type(told) is kind
    with pytest.raises(kind, match=words):
        raise told


async def test_how_long_a_registry_wants_peace_is_kept(client: RegistryClient) -> None:
    told = await failure(client, always(lambda: web.Response(status=429, headers={"Retry-After": "90"})))
    assert told.after == 90


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>please log in</html>", "is no manifest"),
        (b"\xff\xfe", "is no manifest"),
        (b"[]", "is no manifest"),
        (b"{}", "neither an image nor an index"),
        (b'{"schemaVersion":1,"architecture":"amd64","fsLayers":[]}', "push the image again with a current tool"),
        (b'{"manifests":[{"digest":"../../x","platform":{"architecture":"amd64","os":"linux"}}]}', "no sha256 digest"),
        (b'{"config":{"digest":"sha256:x"},"layers":[]}', "no sha256 digest"),
        (b"x" * (5 << 20), "the answer is too long: at most 4,194,304 bytes"),
    ],
)
async def test_what_is_no_manifest_is_no_answer(client: RegistryClient, body: bytes, words: str) -> None:
    told = await failure(client, always(lambda: web.Response(body=body)))
    assert isinstance(told, RegistryUnreachable)
    assert words in str(told)


async def test_content_that_is_not_what_its_digest_says_is_refused(client: RegistryClient) -> None:
    async with serving(always(lambda: web.Response(body=b'{"config":{},"layers":[]}'))) as host:
        with pytest.raises(RegistryUnreachable, match="not the requested one"):
            await client.find_image(parse(f"{host}/a@sha256:{'0' * 64}"), "amd64", NOBODY)


async def test_a_head_without_a_digest_says_nothing(client: RegistryClient) -> None:
    async with serving(always(lambda: web.Response(body=b"{}"))) as host:
        assert await client.find_digest(parse(f"{host}/a:1"), NOBODY) == ""


async def test_a_redirect_is_followed_and_credentials_stay_behind(client: RegistryClient) -> None:
    """Blobs lie in a storage whose links are signed; it must not learn who reads."""
    config = b'{"architecture": "amd64", "os": "linux"}'
    told: list[str] = []

    async def storage(request: web.Request) -> web.StreamResponse:
        told.append(request.headers.get("authorization", ""))
        return web.Response(body=config)

    async with serving(storage) as store:

        async def handle(request: web.Request) -> web.StreamResponse:
            if "authorization" not in request.headers:
                return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
            if "blobs" in request.path:
                raise web.HTTPTemporaryRedirect(f"http://{store}/blob?signature=secret")
            digest = "sha256:" + hashlib.sha256(config).hexdigest()
            return web.json_response({"config": {"digest": digest, "size": 40}, "layers": [{"size": 2}]})

        async with serving(handle) as host:
            keys = parse_docker_config(docker_config(host), where="a test")
            found = await client.find_image(parse(f"{host}/a:1"), "amd64", keys)
    assert found.size_bytes == 42
    assert told == [""]


async def test_redirects_in_a_circle_end(client: RegistryClient) -> None:
    told = await failure(client, always(lambda: web.Response(status=307, headers={"Location": "/v2/again"})))
    assert "at most 5 redirects are followed" in str(told)


@pytest.mark.parametrize("location", ["http://[", "ftp://x.test/y", "file:///etc/passwd"])
async def test_redirects_lead_to_http_only(client: RegistryClient, location: str) -> None:
    told = await failure(client, always(lambda: web.Response(status=302, headers={"Location": location})))
    assert isinstance(told, RegistryUnreachable)


@pytest.mark.parametrize("names", ["redirect", "token server"])
async def test_a_plain_registry_leads_to_no_other_plain_host(client: RegistryClient, names: str) -> None:
    """Such as an address that answers only to machines of the cloud, or only in the cluster."""
    asked: list[str] = []

    async def inside(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.json_response({"token": "t"})

    async with serving(inside) as other:
        place = f"http://{other.replace('127.0.0.1', 'localhost')}/latest/meta-data"
        answer = {
            "redirect": lambda: web.Response(status=307, headers={"Location": place}),
            "token server": lambda: web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="{place}"'}),
        }[names]
        told = await failure(client, always(answer))
    assert asked == []
    assert "localhost" in str(told)
    assert "https://" in str(told)


async def test_credentials_go_to_no_other_host_over_plain_http(client: RegistryClient) -> None:
    challenge = {"WWW-Authenticate": 'Bearer realm="http://elsewhere.test/token",service="s"'}
    async with serving(always(lambda: web.Response(status=401, headers=challenge))) as host:
        keys = parse_docker_config(docker_config(host), where="a test")
        with pytest.raises(AccessRefused, match="the credentials are not sent there") as told:
            await client.find_image(parse(f"{host}/a:1"), "amd64", keys)
    assert PASSWORD not in str(told.value)


async def test_whom_a_registry_redirects_to_is_not_told_who_asks(client: RegistryClient) -> None:
    seen: list[str] = []

    async def other(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("authorization", ""))
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="give me"'})

    async with (
        serving(other) as thief,
        serving(always(lambda: web.Response(status=307, headers={"Location": f"http://{thief}/"}))) as host,
    ):
        keys = parse_docker_config(docker_config(host), where="a test")
        with pytest.raises(AccessRefused):
            await client.find_image(parse(f"{host}/a:1"), "amd64", keys)
    assert set(seen) == {""}


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (lambda: web.Response(status=503), RegistryUnreachable, "token server of .* answers 503"),
        (lambda: web.Response(text="secret-token but no JSON"), RegistryUnreachable, "no token in JSON"),
        (lambda: web.json_response({}), RegistryUnreachable, "without a token"),
        (lambda: web.json_response({"token": "a\r\nb"}), RegistryUnreachable, "without a token"),
        (lambda: web.Response(status=403), AccessRefused, r"no token for a/b \(403\)"),
    ],
)
async def test_a_token_server_that_fails_is_named_and_tells_no_secrets(
    client: RegistryClient, answer: Callable[[], web.StreamResponse], kind: type[RegistryError], words: str
) -> None:
    async with serving(always(answer)) as realm:
        challenge = {"WWW-Authenticate": f'Bearer realm="http://{realm}/t"'}
        told = await failure(client, always(lambda: web.Response(status=401, headers=challenge)))
    assert type(told) is kind
    with pytest.raises(kind, match=words):
        raise told
    assert "secret-token" not in str(told)


@pytest.mark.parametrize(
    ("realm", "scope", "wanted"),
    [
        ("/t", "", "repository:a/b:pull"),
        ("/t", 'scope="repository:a/b:pull,push"', "repository:a/b:pull"),
        ("/t", 'scope="repository:a/b:metadata_read"', "repository:a/b:metadata_read"),
        ("/t", 'scope="repository:a/b:*"', "repository:a/b:pull"),
        ("/t", 'scope="repository:a/b:pull repository:c:pull"', "repository:a/b:pull repository:c:pull"),
        ("/t?scope=repository:a/b:pull", "", "repository:a/b:pull"),
    ],
)
async def test_a_token_is_asked_for_reading_only_and_for_one_scope(
    client: RegistryClient, realm: str, scope: str, wanted: str
) -> None:
    seen: list[list[str]] = []

    async def tokens(request: web.Request) -> web.StreamResponse:
        seen.append(request.query.getall("scope"))
        return web.json_response({"access_token": "x", "expires_in": 300})

    async with serving(tokens) as server:
        challenge = {"WWW-Authenticate": f'Bearer realm="http://{server}{realm}",{scope}'}
        await failure(client, always(lambda: web.Response(status=401, headers=challenge)))
    assert seen == [[wanted]]


@pytest.mark.parametrize("header", ["Bearer", 'Bearer realm="javascript:x"', "Negotiate abc=", "", "Bearer service=x"])
async def test_a_challenge_that_cannot_be_met_is_a_refusal(client: RegistryClient, header: str) -> None:
    told = await failure(client, always(lambda: web.Response(status=401, headers={"WWW-Authenticate": header})))
    assert type(told) is AccessRefused


async def test_a_proxy_of_the_environment_is_used_with_its_own_password() -> None:
    seen: list[dict[str, Any]] = []

    async def proxy(request: web.Request) -> web.StreamResponse:
        seen.append({"target": request.raw_path, "who": request.headers.get("proxy-authorization", "")})
        return web.json_response({"tags": ["1"]})

    async with serving(proxy) as host:
        wire = RegistryHttp(Trust(plain=("*",)), environment={"HTTP_PROXY": f"http://me:pass@{host}"})
        client = RegistryClient(wire, SystemClock())
        try:
            assert await client.list_tags(parse_repository("registry.test/a"), NOBODY) == ("1",)
        finally:
            await client.close()
    assert seen[0]["target"].startswith("http://registry.test/v2/a/tags/list")
    assert base64.b64decode(seen[0]["who"].removeprefix("Basic ")) == b"me:pass"


async def test_attestations_in_an_index_are_no_platforms(client: RegistryClient) -> None:
    entries = [{"digest": f"sha256:{'1' * 64}", "platform": {"architecture": "unknown", "os": "unknown"}}]
    told = await failure(client, always(lambda: web.Response(body=json.dumps({"manifests": entries}).encode())))
    assert "is there for no platform, not for linux/amd64" in str(told)
