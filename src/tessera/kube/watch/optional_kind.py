"""Watches a kind that a cluster may not serve.

Everybody may read discovery, so a cluster without the kind costs one small request a minute, later less, and no log
line. The kind is watched once it is served.
"""

import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec

from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import Resource
from tessera.kube.watch.informer import Informer, WatchEvent

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Seconds until the second check if a group is served, and most between two later ones: a cluster gets an autoscaler
#: once, and most clusters never get one.
LOOK_AGAIN, LOOK_SELDOM = 60.0, 600.0


async def wait_served(look: Callable[[], Awaitable[T]], clock: Clock, *, seldom: float = LOOK_SELDOM) -> T:
    """Looks, with growing pauses, until the server has something; returns what was found.

    Args:
        look: returns what the server has; something false if it has it not.
        clock: times the pauses.
        seldom: most seconds between two looks.
    """
    pause = LOOK_AGAIN
    while not (found := await look()):
        await clock.sleep(pause)
        pause = min(pause * 2, seldom)
    return found


class _Version(msgspec.Struct, frozen=True):
    version: str = ""


class _Group(msgspec.Struct, frozen=True, rename="camel"):
    """``metav1.APIGroup``."""

    preferred_version: _Version = _Version()


class OptionalKind(Generic[T]):
    """Watches one kind that the cluster may not serve.

    Args:
        client: the API server.
        resource: the kind; of its versions, the server's preferred one is read.
        clock: the time, for pauses.
        rng: random numbers for jitter.
        on_event: see :meth:`~tessera.kube.watch.informer.Informer.add_handler`.
        look_seldom: most seconds between two looks if the kind is served.

    Attributes:
        resource: the kind, at the version that is read.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        *,
        clock: Clock,
        rng: random.Random,
        on_event: Callable[[WatchEvent[T]], None],
        look_seldom: float = LOOK_SELDOM,
    ) -> None:
        self.resource = resource
        self._look_seldom = look_seldom
        self._client = client
        self._clock = clock
        self._rng = rng
        self._on_event = on_event

    async def run(self) -> None:
        """Waits until the kind is served and then watches it, until cancelled."""
        version = await wait_served(self._version, self._clock, seldom=self._look_seldom)
        self.resource = dataclasses.replace(self.resource, version=version)
        _log.info("follows %s at %s", self.resource.label, version)
        informer = Informer(self._client, self.resource, clock=self._clock, rng=self._rng)
        informer.add_handler(self._on_event)
        await informer.run()

    async def _version(self) -> str:
        """The server's preferred version; empty if the group is not served, or the server does not answer."""
        try:
            answer = await self._client.request("GET", f"/apis/{self.resource.group}")
            return msgspec.json.decode(answer.body, type=_Group).preferred_version.version or self.resource.version
        except (ApiError, ConnectionError, TimeoutError, msgspec.DecodeError):
            return ""
