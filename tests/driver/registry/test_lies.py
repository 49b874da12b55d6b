"""Registries that lie: whatever they answer is an outcome with a name, and never the end of whoever asked."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tessera.api.image_reference import parse, parse_repository
from tessera.driver.registry.client import RegistryClient
from tessera.driver.registry.credentials import Keyring
from tessera.driver.registry.wire import RegistryError

DEEP = b'{"schemaVersion":2,"manifests":' + b"[" * 50_000
DIGEST = "sha256:" + "0" * 64


def answer(status: str = "200 OK", body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def redirect(location: str) -> bytes:
    return answer("307 Temporary Redirect", b"", f"Location: {location}")


def challenge(text: str) -> bytes:
    return answer("401 Unauthorized", b"", f"WWW-Authenticate: {text}")


LIES: dict[str, bytes | Callable[[str], bytes]] = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "no JSON": answer(body=b"\xff\xfe<html>"),
    "nested without end": answer(body=DEEP),
    "a list": answer(body=b"[]"),
    "tags that are none": answer(body=b'{"tags":["\\u001b[2J","a b","../x",""]}'),
    "numbers for texts": answer(body=b'{"manifests":[{"digest":5,"size":"x"}]}'),
    "a digest that is none": answer(
        body=b'{"manifests":[{"digest":"../../x","platform":{"os":"linux","architecture":"amd64"}}]}'
    ),
    "a configuration that is none": answer(body=b'{"config":{"digest":"file:///etc/passwd","size":-1},"layers":[]}'),
    "an endless number": answer(body=b'{"config":{"digest":"x","size":1' + b"0" * 5000 + b'},"layers":[]}'),
    "more than anybody reads": answer(body=b" " * (5 << 20)),
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
    "less than it says": b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{}",
    "a header without end": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    "itself again": lambda host: redirect(f"http://{host}/v2/"),
    "a port that is none": redirect("http://127.0.0.1:99999/x"),
    "a port of letters": redirect("http://127.0.0.1:abc/x"),
    "no host": redirect("http:///x"),
    "half an address": redirect("http://[::1/x"),
    "a file": redirect("file:///etc/passwd"),
    "a name of bytes": redirect("http://\xff\xfe.x/"),
    "a name without end": redirect("http://" + "a" * 300 + ".local/x"),
    "a token from nowhere": challenge('Bearer realm="http://127.0.0.1:99999/token",service="x"'),
    "a token from half an address": challenge('Bearer realm="http://[::1",service="x"'),
    "a token from a file": challenge('Bearer realm="file:///etc/passwd",service="x"'),
    "a token from no host": challenge('Bearer realm="https://",service="x"'),
    "a token from here": lambda host: challenge(f'Bearer realm="http://{host}/token",service="x"'),
    "status 999": answer("999 What"),
    "status 100 only": b"HTTP/1.1 100 Continue\r\n\r\n",
}


@asynccontextmanager
async def liar(lie: bytes | Callable[[str], bytes]) -> AsyncIterator[str]:
    """Answers every request with the same bytes; yields its host."""
    host = ""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(lie(host) if callable(lie) else lie)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    host = "{}:{}".format(*server.sockets[0].getsockname())
    async with server:
        yield host


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_a_lie_is_told_in_words(client: RegistryClient, lie: bytes | Callable[[str], bytes]) -> None:
    async with liar(lie) as host:
        image = parse(f"{host}/nvidia/driver:535")
        for asked in (
            client.find_image(image, "amd64", Keyring()),
            client.find_image(image.at(DIGEST), "amd64", Keyring()),
        ):
            with pytest.raises(RegistryError) as caught:
                await asked
            assert 0 < len(str(caught.value)) < 2000


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_tags_that_are_none_are_none_or_told(client: RegistryClient, lie: bytes | Callable[[str], bytes]) -> None:
    async with liar(lie) as host:
        try:
            assert await client.list_tags(parse_repository(f"{host}/nvidia/driver"), Keyring()) == ()
        except RegistryError:
            return  # an outcome with a name
