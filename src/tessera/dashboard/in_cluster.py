"""The live page as a process of the cluster: it reads with its own account, and shows visitors what they may see.

A restart loses nothing but the curves of the last hours, so any number may run. The page is served as plain HTTP, for
an ingress or ``kubectl port-forward``, or with the certificate of a mounted Secret, which is read again when it
changes.

The aggregated API runs once the cluster has told who its front proxy is, and again whenever that changes. Each replica
makes its own authority with one certificate, keeps both keys in memory, and adds the authority to the ``caBundle`` of
the APIService. So there is no Secret to read or to lose, and replicas need not agree: the API server trusts those of
all. Authorities that have expired are removed; of too many, the newest stay.
"""

import asyncio
import base64
import binascii
import contextlib
import logging
import random
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tessera.access.reviewer import Reviewer
from tessera.clock import Clock
from tessera.dashboard.explainer import PodEvents, PrivateExplainer
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.origins import PageNames, Provider
from tessera.dashboard.past import PastReader, Prometheus
from tessera.dashboard.server import PageAddress, PageServer
from tessera.dashboard.source import ClusterSource
from tessera.dashboard.view.front_proxy import CONFIG_MAP, NAMESPACE, FrontProxy, read_front_proxy
from tessera.dashboard.view.server import ViewAnswers, ViewPort
from tessera.dashboard.visitors import Rights, TokenGate
from tessera.kube.client import Client
from tessera.kube.informer import ObjectInformer
from tessera.kube.resources import API_SERVICES, CONFIGMAPS
from tessera.kube.retries import Backoff
from tessera.serving.connection import server_context
from tessera.serving.status_server import listening_socket, serve_status
from tessera.status_pages import OnListening
from tessera.webhook.certificate_manager import keep_trusted
from tessera.webhook.certificates import (
    Certificate,
    issue,
    load_certificate,
    renewal_time,
    widen_trust,
)

API_SERVICE = "v1alpha1.view.tessera.dev"
NAMES = ("tessera-dashboard.tessera-system.svc",)
#: Days for which a certificate is valid; it is replaced after two thirds of them.
_DAYS = 90
#: Seconds between two looks at its age.
_AGE_LOOK = 600.0


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
        self._services = ObjectInformer(client, API_SERVICES, API_SERVICE, clock=clock, rng=rng)
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
            await keep_trusted(
                partial(self._advance, renewed), self._changed, self._backoff, f"APIService {API_SERVICE}"
            )

    async def _advance(self, renewed: asyncio.Event) -> float:
        now = self._clock.now()
        if now >= renewal_time(self._certificate):
            self._certificate = issue(NAMES, now, _DAYS)
            renewed.set()
        found = self._services.object
        text = widen_trust([_bundle(found)], [self._certificate.bundle], now) if found is not None else None
        if found is not None and text is not None:
            metadata = found["metadata"]
            version = metadata["resourceVersion"] if isinstance(metadata, dict) else None
            patch = {"spec": {"caBundle": text}}
            await self._client.merge_patch(API_SERVICES, API_SERVICE, patch, resource_version=version)
        return _AGE_LOOK


def _bundle(service: dict[str, object]) -> bytes:
    spec = service.get("spec")
    try:
        return base64.b64decode(str(spec.get("caBundle") or ""), validate=True) if isinstance(spec, dict) else b""
    except binascii.Error:
        return b""


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
        self._config = ObjectInformer(client, CONFIGMAPS, CONFIG_MAP, namespace=NAMESPACE, clock=clock, rng=rng)
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
        found = self._config.object
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


_log = logging.getLogger(__name__)

#: Files of the certificate, as in a Secret of the type ``kubernetes.io/tls``.
CERTIFICATE, KEY = "tls.crt", "tls.key"
#: Seconds between two looks at these files; kubelet writes a changed Secret within a minute or two.
_LOOK = 30.0


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Options of :class:`PageReplica`.

    Attributes:
        address: address of the servers; None for all addresses, IPv6 too.
        port: port of the page; None opens none.
        http_port: plain HTTP port for ``/healthz`` and ``/readyz``; None opens none.
        api_port: port of the aggregated API; None opens none.
        keda_port: port of KEDA's external scaler; None opens none.
        keda_tls_folder: folder with that port's certificate and the authority of its callers; None, or one without
            them, for plain gRPC.
        origins: origins by which visitors reach the page, besides their own machine's.
        nameless: True if visitors without a token see the page without names.
        provider: by which visitors may sign in; None if by a token alone.
        prometheus: has the past of the curves; None if the page shows what it saw itself.
        tls_folder: folder with the page's certificate and key; None, or one without them, for plain HTTP.
        on_listening: called with address and port of the page once it is open.
    """

    address: str | None = None
    port: int | None = 8088
    http_port: int | None = 8081
    api_port: int | None = None
    keda_port: int | None = None
    keda_tls_folder: Path | None = None
    origins: tuple[str, ...] = ()
    nameless: bool = False
    provider: Provider | None = None
    prometheus: Prometheus | None = None
    tls_folder: Path | None = None
    on_listening: OnListening | None = None


class PageReplica:
    """One replica; a :class:`~tessera.status_pages.ProcessStatus`.

    Args:
        options: names and ports.
        client: the API server; its identity needs the rights that ``deploy/dashboard/`` grants.
        clock: the time.
        rng: for jitter.
    """

    def __init__(self, options: PageOptions, client: Client, clock: Clock, rng: random.Random) -> None:
        self._options = options
        self._clock = clock
        self._feeds = FeedGroup()
        reviewer = Reviewer(client)
        rights = Rights(reviewer, clock, lambda: self._feeds.about)
        gate = TokenGate(reviewer, rights, clock, nameless=options.nameless)
        self._source = ClusterSource(
            client,
            self._feeds,
            watched=lambda: self._server.readers > 0,
            clock=clock,
            rng=rng,
            account="the page's account",
        )
        explainer = PrivateExplainer(self._source, self._feeds.redactor)
        past = PastReader(options.prometheus, clock) if options.prometheus is not None else None
        answers = ViewAnswers(self._source, explainer, rights, self._feeds.redactor, clock, past)
        self._api = ViewApi(client, clock, rng, answers)
        self._tls = _Certificate(options.tls_folder) if options.tls_folder is not None else None
        names = PageNames(options.origins, loopback=True)
        context = self._tls.context if self._tls is not None and self._tls.load() else None
        address = PageAddress(options.address, options.port or 0, names, context, options.provider)
        events = PodEvents(client, own_account=False)
        self._server = PageServer(self._feeds, explainer.explain, address, gate, events=events.read, past=past)

    def metrics_text(self) -> None:
        """See :meth:`~tessera.status_pages.ProcessStatus.metrics_text`; the page has no metrics."""

    def unready_reason(self) -> str:
        """The kind of object that is not read yet; empty once the page can be shown."""
        return self._source.missing

    async def run(self) -> None:
        """Runs until cancelled."""
        options = self._options
        async with asyncio.TaskGroup() as group:
            group.create_task(self._source.run())
            if options.port is not None:
                group.create_task(self._server.run(options.on_listening))
            if options.http_port is not None:
                group.create_task(serve_status(self, options.http_port, address=options.address))
            if options.api_port is not None:
                group.create_task(self._api.run(options.address, options.api_port))
            if options.keda_port is not None:
                group.create_task(self._serve_keda(options.keda_port))
            if self._tls is not None:
                group.create_task(self._tls.follow(self._clock))

    async def _serve_keda(self, port: int) -> None:
        from tessera.dashboard.view.keda import ScalerPort  # gRPC takes memory, and few clusters need it here

        scaler = ScalerPort(self._source.read_signals, self._clock)
        scaler.bind(self._options.address, port, self._options.keda_tls_folder)
        await scaler.run()


class _Certificate:
    """A certificate in a folder, which serves from the next handshake on after it changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded = b""
        self.context = server_context()

    def load(self) -> bool:
        """Loads the files if they have changed; False if there are none.

        Raises:
            OSError: a file cannot be read.
            ssl.SSLError: OpenSSL refuses them.
        """
        certificate, key = self._folder / CERTIFICATE, self._folder / KEY
        if not certificate.exists():
            return False
        content = certificate.read_bytes() + key.read_bytes()
        if content != self._loaded:
            self.context.load_cert_chain(certificate, key)
            self._loaded = content
        return True

    async def follow(self, clock: Clock) -> None:
        """Looks at the files until cancelled; a broken pair leaves the one before."""
        while True:
            await clock.sleep(_LOOK)
            try:
                self.load()
            except OSError as error:  # ssl.SSLError is one
                _log.warning("the certificate in %s cannot be used: %s", self._folder, error)
