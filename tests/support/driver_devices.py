"""The devices of a driver of a test's own, for the conformance tests."""

from collections.abc import Callable
from typing import Any

from tests.support.conformance_api import Api
from tests.support.device_claims import API, claim, device_class, resource_slice
from tests.support.pod_claims import Claims

Obj = dict[str, Any]


class Devices:
    """A driver's class and slices, deleted after the test."""

    def __init__(self, api: Api, claims: Claims, word: str, cleanup: Callable[[str], None]) -> None:
        self.api = api
        self.claims = claims
        self.driver = f"{word}.example.com"
        self.word = word
        self._cleanup = cleanup
        self._slices = 0

    async def device_class(self, *expressions: str, name: str = "", **spec: Any) -> str:
        """Creates a class of the driver's devices."""
        name = name or self.word
        self._cleanup(f"{API}/deviceclasses/{name}")
        made = device_class(name, f'device.driver == "{self.driver}"', *expressions, **spec)
        (await self.api("POST", f"{API}/deviceclasses", made)).ok()
        return name

    async def publish(self, node: str, *devices: Obj, slices: int = 1, **spec: Any) -> None:
        """Creates a slice of a node's pool."""
        name = f"{self.word}-{self._slices}"
        self._slices += 1
        self._cleanup(f"{API}/resourceslices/{name}")
        made = resource_slice(name, self.driver, node, *devices, slices=slices, **spec)
        (await self.api("POST", f"{API}/resourceslices", made)).ok()

    async def pod(self, name: str, *requests: Obj, **devices: Any) -> None:
        """Creates a claim and a pod of one name."""
        (await self.api("POST", self.claims.claims, claim(name, *requests, **devices))).ok()
        await self.claims.pod(name, {"name": "gpu", "resourceClaimName": name})

    async def results(self, name: str) -> list[Obj]:
        """The devices of a claim, once it has some."""
        found = await self.claims.until(name, lambda each: bool(each["status"].get("allocation")))
        results: list[Obj] = found["status"]["allocation"]["devices"]["results"]
        return results

    async def names(self, name: str) -> list[str]:
        return [each["device"] for each in await self.results(name)]
