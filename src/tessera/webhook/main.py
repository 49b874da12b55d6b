"""The webhook process: watched copies of Instaslices, Nodes and a ConfigMap, the certificate, and the servers.

It has no state, so any number may run.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from functools import partial

from prometheus_client import generate_latest

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE, OWN_DOMAIN
from tessera.api.nodes.node_cards import UndecidedNodes
from tessera.api.nodes.node_groups import NODE_GROUPS_KEY, NODE_GROUPS_MAP, parse_node_groups
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.resources import CONFIGMAPS, NODES, ConfigMap
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.kube.watch.informer import Informer, read_parts
from tessera.serving.connection import server_context
from tessera.serving.status_server import serve_status
from tessera.webhook.admission.review import Reviewer, ReviewError
from tessera.webhook.base import (
    CLAIM_PATH,
    LIMIT_PATH,
    NO_CLAIMS,
    PATHS,
    REVIEW_PATH,
    KnownClaims,
    PodClaims,
    WebhookMetrics,
    WebhookOptions,
)
from tessera.webhook.nodes.capabilities import Capabilities, GpuNodeWatcher
from tessera.webhook.serving.certificate_manager import CertificateManager, GivenCertificate
from tessera.webhook.serving.certificates import Certificate, load_certificate
from tessera.webhook.serving.server import Answer, serve_reviews

_log = logging.getLogger(__name__)


async def run(options: WebhookOptions, client: Client, clock: Clock, *, rng: random.Random | None = None) -> None:
    """Runs one replica until cancelled.

    Args:
        options: names and ports.
        client: the API server; its identity needs the rights that ``deploy/`` grants to the webhook.
        clock: gives the time.
        rng: for jitter; seeded in tests.

    Raises:
        ExceptionGroup: a part failed, and only a restart of the process can repair it.
    """
    await WebhookReplica(options, client, clock, rng=rng or random.Random()).run()


#: What is read of a Node.
_READS = read_parts("metadata.labels", "spec", "status", annotations=(OWN_DOMAIN,))


class WebhookReplica:
    """One replica; a :class:`~tessera.status_pages.ProcessStatus`.

    :meth:`review` may be called at once; the replica learns the cluster's GPU resources while it runs.

    Attributes:
        capabilities: the present GPU resources of the cluster.
        metrics: this replica's metrics.
    """

    def __init__(self, options: WebhookOptions, client: Client, clock: Clock, *, rng: random.Random) -> None:
        self._options = options
        self._clock = clock
        self._objects = Informer(client, INSTASLICES, namespace=INSTASLICE_NAMESPACE, clock=clock, rng=rng)
        self._nodes = Informer(client, NODES, clock=clock, rng=rng)
        self._new_nodes = UndecidedNodes(clock.now)
        self.capabilities = Capabilities(any_new_nodes=options.any_new_nodes, new_nodes=self._new_nodes)
        self.capabilities.set_groups(None)
        self._gpus = GpuNodeWatcher(self.capabilities)
        self._groups = Informer(
            client,
            CONFIGMAPS,
            namespace=options.namespace,
            field_selector=f"metadata.name={NODE_GROUPS_MAP}",
            clock=clock,
            rng=rng,
        )
        self.metrics = WebhookMetrics()
        self._reviewer = Reviewer(self.capabilities, self.metrics.count)
        made = options.claims
        self._claims = PodClaims() if made is None else made(client, clock, rng, self.metrics)
        self._context = server_context()
        self._trusted = asyncio.Event()
        kind = GivenCertificate if options.given_secret else CertificateManager
        self._certificates = kind(options, client, clock, rng=rng, serve=self._serve)

    @property
    def reviews(self) -> Mapping[str, Answer]:
        """What answers the reviews, by path."""
        others = {path: partial(self.review, path=path) for path in PATHS}
        return {**others, CLAIM_PATH: self._review_claims, LIMIT_PATH: self._review_limits}

    async def _review_claims(self, body: bytes) -> bytes:
        """Reviews a pod with ResourceClaims, which are read first."""
        return self.review(body, CLAIM_PATH, claims=await self._claims.read_claims(body))

    async def _review_limits(self, body: bytes) -> bytes:
        """Reviews a pod whose limits become ResourceClaims, whose templates are made first."""
        return self.review(body, LIMIT_PATH, claims=await self._claims.make_templates(body))

    def review(self, body: bytes, path: str = REVIEW_PATH, *, claims: KnownClaims = NO_CLAIMS) -> bytes:
        """Returns the answer to an AdmissionReview; both are JSON.

        Args:
            body: the review.
            path: that of :data:`~tessera.webhook.base.PATHS` to which it came.
            claims: what is known of the pod's ResourceClaims.

        Raises:
            ReviewError: the body is no AdmissionReview v1 of a pod, or of an object with templates of pods.
        """
        began = self._clock.monotonic()
        try:
            return self._reviewer.review(body, path, claims=claims)
        except ReviewError:
            self.metrics.count("malformed")
            raise
        finally:
            self.metrics.observe(self._clock.monotonic() - began)

    def metrics_text(self) -> bytes:
        """See :meth:`~tessera.status_pages.ProcessStatus.metrics_text`."""
        return generate_latest(self.metrics.registry)

    def unready_reason(self) -> str:
        """Reason that the API server should not send reviews yet; empty if it may."""
        if not self._objects.synced or not self._nodes.synced:
            return "the cluster's cards are not listed yet"
        if not self._groups.reflector.attempted.is_set():
            return f"the ConfigMap {NODE_GROUPS_MAP} is not listed yet"
        return self._certificates.unready_reason

    async def run(self) -> None:
        """Runs until cancelled."""
        self._objects.add_handler(self._gpus.instaslice_changed)
        self._nodes.add_handler(self._gpus.node_changed, reads=_READS)
        self._nodes.add_handler(self._new_nodes.node_changed)
        self._groups.add_handler(self._groups_changed)
        options = self._options
        async with asyncio.TaskGroup() as group:
            group.create_task(self._objects.run())
            group.create_task(self._nodes.run())
            group.create_task(self._groups.run())
            group.create_task(self._note_missing_groups())
            group.create_task(self._certificates.run())
            group.create_task(self._claims.run())
            if options.health_port is not None:
                group.create_task(serve_status(self, options.health_port, address=options.address))
            await self._objects.wait_synced()
            await self._nodes.wait_synced()
            # One try suffices: without the right to list, the groups stay unknown, and admission allows for any.
            await self._groups.reflector.attempted.wait()
            await self._trusted.wait()
            if options.port is not None:
                group.create_task(serve_reviews(options, self._context, self.reviews))
            if options.on_ready is not None:
                options.on_ready()

    async def _note_missing_groups(self) -> None:
        """Notes that there are no groups once the list shows no file."""
        await self._groups.wait_synced()
        if not self._groups.cache.values():
            self.capabilities.set_groups(())

    def _groups_changed(self, event: WatchEvent[ConfigMap]) -> None:
        """Takes in the groups of nodes that may come; those of a file with a mistake are unknown."""
        text = "" if event.kind is EventKind.DELETED else event.object.data.get(NODE_GROUPS_KEY, "")
        try:
            groups = parse_node_groups(text)
        except ValueError as error:
            _log.warning("%s; until then pods for any new nodes are admitted", error)
            self.capabilities.set_groups(None)
            return
        self.capabilities.set_groups(groups)

    def _serve(self, certificate: Certificate) -> None:
        load_certificate(self._context, certificate)
        self._trusted.set()
