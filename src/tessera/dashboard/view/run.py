"""Runs the aggregated API: once the cluster has told who its front proxy is, and again whenever that changes."""

import asyncio
import contextlib
import logging
import random
import ssl

from tessera.clock import Clock
from tessera.dashboard.view.front_proxy import CONFIG_MAP, NAMESPACE, FrontProxy, read_front_proxy
from tessera.dashboard.view.server import ViewAnswers, ViewPort
from tessera.dashboard.view.trust import Trust
from tessera.kube.client.client import Client
from tessera.kube.resources import CONFIGMAPS, ConfigMap
from tessera.kube.watch.informer import Informer
from tessera.serving.connection import server_context
from tessera.serving.status_server import listening_socket

_log = logging.getLogger(__name__)


class ViewApi:
    """The API's process part.

    Args:
        client: the API server.
        clock: the time.
        rng: for jitter.
        answers: makes the objects.
    """

    def __init__(self, client: Client, clock: Clock, rng: random.Random, answers: ViewAnswers) -> None:
        self._answers = answers
        self._trust = Trust(client, clock, rng)
        self._changed = asyncio.Event()
        self._config: Informer[ConfigMap] = Informer(
            client,
            CONFIGMAPS,
            namespace=NAMESPACE,
            field_selector=f"metadata.name={CONFIG_MAP}",
            clock=clock,
            rng=rng,
        )
        self._config.add_handler(lambda _: self._changed.set())

    async def run(self, address: str | None, port: int) -> None:
        """Serves until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._config.run())
            group.create_task(self._trust.run(self._changed))
            await self._config.wait_synced()
            while True:
                self._changed.clear()
                serving = group.create_task(self._serve(address, port))
                await self._changed.wait()
                serving.cancel()
                await asyncio.wait([serving])

    async def _serve(self, address: str | None, port: int) -> None:
        found = self._config.cache.get(f"{NAMESPACE}/{CONFIG_MAP}")
        proxy = read_front_proxy(found.data) if found is not None else None
        if proxy is None:
            _log.warning("ConfigMap %s/%s names no front proxy: view.tessera.dev is not served", NAMESPACE, CONFIG_MAP)
            return
        with contextlib.suppress(asyncio.CancelledError):
            await ViewPort(proxy, self._answers, self._context(proxy)).serve(listening_socket(address, port))

    def _context(self, proxy: FrontProxy) -> ssl.SSLContext:
        context = server_context()
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=proxy.authority)
        self._trust.serve(context)
        return context
