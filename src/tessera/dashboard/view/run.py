"""Runs the aggregated API: once the cluster has told who its front proxy is, and again whenever that changes.

Each replica makes its own authority with one certificate, keeps both keys in memory, and adds the authority to the
``caBundle`` of the APIService. So there is no Secret to read or to lose, and replicas need not agree: the API server
trusts those of all. Authorities that have expired are removed; of too many, the newest stay.
"""

import asyncio
import base64
import binascii
import contextlib
import logging
import random
import ssl

from tessera.clock import Clock
from tessera.dashboard.view.front_proxy import CONFIG_MAP, NAMESPACE, FrontProxy, read_front_proxy
from tessera.dashboard.view.server import ViewAnswers, ViewPort
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import API_SERVICES, CONFIGMAPS, ConfigMap
from tessera.kube.retries import Backoff
from tessera.kube.watch.informer import Informer
from tessera.serving.connection import server_context
from tessera.serving.status_server import listening_socket
from tessera.webhook.certificates import (
    Certificate,
    authority_fingerprints,
    issue,
    join_bundles,
    load_certificate,
    renewal_time,
)

API_SERVICE = "v1alpha1.view.tessera.dev"
NAMES = ("tessera-dashboard.tessera-system.svc",)
#: Days for which a certificate is valid; it is replaced after two thirds of them.
_DAYS = 90
#: Seconds between two looks at its age.
_LOOK = 600.0


class Trust:
    """Makes the certificate, and lets the API server trust it.

    Args:
        client: the API server.
        clock: the time.
        rng: for jitter.
    """

    def __init__(self, client: Client, clock: Clock, rng: random.Random) -> None:
        self._client = client
        self._clock = clock
        self._backoff = Backoff(rng)
        self._changed = asyncio.Event()
        self._certificate = issue(NAMES, clock.now(), _DAYS)
        self._services: Informer[dict[str, object]] = Informer(
            client, API_SERVICES, field_selector=f"metadata.name={API_SERVICE}", clock=clock, rng=rng
        )
        self._services.add_handler(lambda _: self._changed.set())

    def serve(self, context: ssl.SSLContext) -> None:
        """Serves the certificate with this context."""
        load_certificate(context, self._certificate)

    @property
    def certificate(self) -> Certificate:
        """The certificate that is served; another object once it was renewed."""
        return self._certificate

    async def run(self, renewed: asyncio.Event) -> None:
        """Keeps the certificate valid and trusted until cancelled; sets ``renewed`` with each new one."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._services.run())
            await self._services.wait_synced()
            while True:
                self._changed.clear()
                if self._clock.now() >= renewal_time(self._certificate):
                    self._certificate = issue(NAMES, self._clock.now(), _DAYS)
                    renewed.set()
                await self._wait(await self._attempt())

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _attempt(self) -> float:
        try:
            await self._make_trusted()
        except (ApiError, OSError) as error:
            pause = self._backoff.next()
            _log.warning("APIService %s: %s; again in %.1f s", API_SERVICE, error, pause)
            return pause
        self._backoff.reset()
        return _LOOK

    async def _make_trusted(self) -> None:
        found = self._services.cache.get(API_SERVICE)
        if found is None:
            return
        present, own = _bundle(found), self._certificate.bundle
        if authority_fingerprints(own) <= authority_fingerprints(present):
            return
        text = base64.b64encode(join_bundles([own, present], self._clock.now())).decode()
        metadata = found["metadata"]
        version = metadata["resourceVersion"] if isinstance(metadata, dict) else None
        patch = {"spec": {"caBundle": text}}
        await self._client.merge_patch(API_SERVICES, API_SERVICE, patch, resource_version=version)


def _bundle(service: dict[str, object]) -> bytes:
    spec = service.get("spec")
    try:
        return base64.b64decode(str(spec.get("caBundle") or ""), validate=True) if isinstance(spec, dict) else b""
    except binascii.Error:
        return b""


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
