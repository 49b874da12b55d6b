"""The condition Available of APIServices: whether their Service answers discovery (kube-aggregator's controller)."""

import asyncio
import contextlib
import random
from collections.abc import Mapping
from typing import Any

from tessera.clock import Clock, rfc3339
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, NotFound
from tessera.kube.resources import API_SERVICES
from tessera.kube.watch.informer import Informer

#: Seconds between two looks at a Service; kube-aggregator looks as often at those that do not answer.
_PERIOD = 5.0


class ApiServiceController:
    """Keeps the condition.

    Args:
        client: calls the API server.
        clock: the time.
        rng: for jitter.
    """

    def __init__(self, client: Client, clock: Clock, rng: random.Random) -> None:
        self._client = client
        self._clock = clock
        self._changed = asyncio.Event()
        self._services: Informer[dict[str, Any]] = Informer(client, API_SERVICES, clock=clock, rng=rng)
        self._services.add_handler(lambda _: self._changed.set())

    async def run(self) -> None:
        """Looks at each APIService when it changes, and again and again, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._services.run())
            while True:
                self._changed.clear()
                for each in list(self._services.cache.values()):
                    with contextlib.suppress(NotFound):
                        await self._look(each)
                if not self._services.cache:
                    await self._changed.wait()
                else:
                    await self._clock.sleep(_PERIOD)

    async def _look(self, service: Mapping[str, Any]) -> None:
        found = await self._condition(service["spec"])
        before = (service.get("status") or {}).get("conditions") or ()
        if any(all(each.get(key) == value for key, value in found.items()) for each in before):
            return
        condition = {**found, "lastTransitionTime": rfc3339(self._clock.now())}
        patch = {"status": {"conditions": [condition]}}
        await self._client.merge_patch(API_SERVICES, service["metadata"]["name"], patch, subresource="status")

    async def _condition(self, spec: Mapping[str, Any]) -> dict[str, str]:
        if not spec.get("service"):
            reason, text = "Local", "Local APIServices are always available"
            return {"type": "Available", "status": "True", "reason": reason, "message": text}
        try:
            await self._client.request("GET", f"/apis/{spec['group']}/{spec['version']}")
        except (ApiError, OSError) as error:
            text = f"failing or missing response: {' '.join(str(error).split())}"
            return {"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck", "message": text}
        return {"type": "Available", "status": "True", "reason": "Passed", "message": "all checks passed"}
