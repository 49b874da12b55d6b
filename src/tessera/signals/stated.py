"""How many pods owners state (``spec.replicas``): a service whose quota is full has fewer pods than it should.

Pods tell what exists, only the owner how many there should be. Owners are asked about, not watched: a watch of all
ReplicaSets of a cluster costs more than this. Rules:

- At most :data:`ASKED` are asked about in one round, of each namespace a first one before any gets a second: those
  whose pods have come or gone since they were asked about, then those asked about the longest ago.
- A number that was not heard for :data:`AGE` seconds is not known, nor that of another kind.
- A round waits :data:`ANSWER` seconds for answers: the page's other numbers must not age while the server is silent.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, NotFound
from tessera.kube.resources import CLONE_SETS, DEPLOYMENTS, REPLICASETS, STATEFULSETS, Deployment, ReplicaSet, Resource
from tessera.signals.page import SignalsPage
from tessera.signals.services import ServiceKey, first_of_each

#: Owners asked about in one round of 15 seconds: 1,000 services take four minutes, and four small requests a second.
ASKED = 64
#: Seconds.
AGE, ANSWER = 600.0, 5.0
#: Requests at a time.
_AT_ONCE = 8
#: What the controller may read (deploy/rbac.yaml).
_KINDS: Mapping[str, Resource[Any]] = {
    "CloneSet": CLONE_SETS,
    "Deployment": DEPLOYMENTS,
    "ReplicaSet": REPLICASETS,
    "StatefulSet": STATEFULSETS,
}


class _Answer(NamedTuple):
    """What is known of a service: when it was asked about and its pods then; the number and when it was heard."""

    asked: float = 0.0
    pods: int = -1
    heard: float = 0.0
    stated: int | None = None


_NONE = _Answer()


class StatedPods:
    """Asks owners, and remembers what they state.

    Args:
        client: asks the API server.
        clock: of the answers' age.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._answers: dict[ServiceKey, _Answer] = {}

    async def fill(self, page: SignalsPage) -> SignalsPage:
        """Returns the page with what the owners of its services state."""
        pods = {ServiceKey(each.namespace, each.kind, each.name): each.wanted for each in page.services}
        self._answers = {key: each for key, each in self._answers.items() if key in pods}
        turn = asyncio.Semaphore(_AT_ONCE)

        async def ask(key: ServiceKey) -> None:
            async with turn:
                found = await self._ask(key)
            self._answers[key] = found._replace(asked=self._clock.now(), pods=pods[key])

        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER):
                await asyncio.gather(*map(ask, self._next(pods)))
        oldest = self._clock.now() - AGE
        told = (self._answers.get(key, _NONE) for key in pods)
        known = (each.stated if each.heard >= oldest else None for each in told)
        pairs = zip(page.services, known, strict=True)
        services = tuple(msgspec.structs.replace(each, stated=number) for each, number in pairs)
        return msgspec.structs.replace(page, services=services)

    def _next(self, pods: Mapping[ServiceKey, int]) -> list[ServiceKey]:
        def asked(key: ServiceKey) -> float:
            known = self._answers.get(key, _NONE)
            return known.asked if known.pods == pods[key] else 0.0

        return first_of_each((key for key in pods if key.kind in _KINDS), ASKED, asked)

    async def _ask(self, key: ServiceKey) -> _Answer:
        """Returns what the owner states; what is known already if the server does not say it now."""
        try:
            found: Deployment | ReplicaSet = await self._client.get(_KINDS[key.kind], key.name, key.namespace)
        except NotFound:
            return _Answer(heard=self._clock.now())
        except (ApiError, OSError):
            return self._answers.get(key, _NONE)
        wanted = 1 if found.spec.replicas is None else max(0, found.spec.replicas)
        is_deleted = found.metadata.deletion_timestamp is not None
        return _Answer(heard=self._clock.now(), stated=0 if is_deleted else wanted)
