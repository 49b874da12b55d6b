"""A registry and a clock that the test sets, and a resolver that uses both."""

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, ImageQuery
from tessera.driver.registry.client import RegistryClient
from tessera.driver.registry.credentials import Keyring
from tessera.driver.registry.resolver import RegistryResolver, Secrets
from tessera.driver.registry.wire import RegistryHttp, Trust
from tessera.gpu_operator.driver_policy import ImageSource


class ManualClock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return 1e9 + self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nobody waits here, and not {seconds} s")


class ImageRepository:
    """A registry in the test's own event loop: the test sets images and status, and reads the requests."""

    def __init__(self) -> None:
        self.images: dict[str, tuple[str, ...]] = {}
        self.status = 200
        self.retry_after = ""
        self.requests: list[str] = []
        self.host = ""
        #: Tag, architecture and digest of all that was ever given out.
        self.given: set[tuple[str, str, str]] = set()
        self._blobs: dict[str, bytes] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        self.requests.append(f"{request.method} {name}")
        await asyncio.sleep(0)
        if self.status != 200:
            return web.Response(status=self.status, headers={"Retry-After": self.retry_after})
        body = self._blobs.get(name) or self._index(name)
        if not body:
            return web.Response(status=404)
        digest = "sha256:" + hashlib.sha256(body).hexdigest()
        return web.Response(body=body, headers={"Docker-Content-Digest": digest})

    def _index(self, tag: str) -> bytes:
        if tag not in self.images:
            return b""
        entries = []
        for architecture in self.images[tag]:
            body = json.dumps({"config": {"size": 1}, "layers": [{"size": 99}], "for": [tag, architecture]}).encode()
            digest = "sha256:" + hashlib.sha256(body).hexdigest()
            self._blobs[digest] = body
            self.given.add((tag, architecture, digest))
            entries.append({"digest": digest, "platform": {"architecture": architecture, "os": "linux"}})
        return json.dumps({"manifests": entries}).encode()

    def source(self, version: str = "580.65.06", **more: object) -> ImageSource:
        return msgspec.structs.replace(
            ImageSource(repository=f"{self.host}/nvidia", image="driver", version=version), **more
        )

    def query(self, pool: PoolKey, kind: ImageKind = ImageKind.PRECOMPILED, version: str = "580.65.06") -> ImageQuery:
        return ImageQuery(source=self.source(version), pool=pool, kind=kind)


async def no_secrets(names: tuple[str, ...]) -> Keyring:
    """No credentials, for any names."""
    del names
    return Keyring()


@asynccontextmanager
async def resolving(
    clock: ManualClock, secrets: Secrets = no_secrets, seconds: float = 5.0
) -> AsyncIterator[RegistryResolver]:
    client = RegistryClient(RegistryHttp(Trust(plain=("*",)), total=seconds, environment={}), clock)
    made = RegistryResolver(clock, client=client, secrets=secrets, rng=random.Random(7))
    try:
        yield made
    finally:
        await made.close()
