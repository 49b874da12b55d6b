"""The webhook process: watched copies of Instaslices, Nodes and a ConfigMap, the certificate, and the servers.

It has no state, so any number may run. The TLS context lives as long as the port of reviews: a new certificate is
loaded into it and serves from the next handshake on; open connections continue. Reviews run on the process's event
loop, one after the other; one that reads objects first lets others go before.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from inspect import isawaitable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import generate_latest

from tessera.api.instaslice import INSTASLICES, Instaslice
from tessera.api.names import INSTASLICE_NAMESPACE, NODE_GROUPS_KEY, NODE_GROUPS_MAP, OWN_DOMAIN
from tessera.api.nodes.node_cards import CardGeometries, UndecidedNodes
from tessera.api.nodes.node_groups import parse_node_groups
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, decode_offers
from tessera.clock import Clock
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.client import Client
from tessera.kube.informer import Informer, ObjectInformer, read_parts
from tessera.kube.resources import CONFIGMAPS, NODES, ConfigMap, Node
from tessera.limits import REVIEW_BODY
from tessera.serving.bounded_port import BOUNDS, Bounds, ConnectionPort
from tessera.serving.connection import Connection, server_context
from tessera.serving.status_server import listening_socket, serve_status
from tessera.status_pages import TEXT, Page
from tessera.webhook.base import (
    CLAIM_PATH,
    LIMIT_PATH,
    PATHS,
    PodClaims,
    WebhookMetrics,
    WebhookOptions,
)
from tessera.webhook.capabilities import Capabilities, GpuNode, on_demand_cards, read_gpu_node
from tessera.webhook.certificate_manager import CertificateManager, GivenCertificate
from tessera.webhook.certificates import Certificate, load_certificate
from tessera.webhook.review import Reviewer, ReviewError

#: Returns the answer to a body.
Answer = Callable[[bytes], bytes | Awaitable[bytes]]


async def serve_reviews(options: WebhookOptions, context: ssl.SSLContext, reviews: Mapping[str, Answer]) -> None:
    """Answers AdmissionReviews until cancelled.

    Args:
        options: address, port, and the function to call once the port is open.
        context: a context with a certificate.
        reviews: what answers the reviews, by path.

    Raises:
        OSError: the port is taken.
    """
    listener = listening_socket(options.address, options.port or 0)
    port = ReviewPort(reviews, context)
    if options.on_listening is not None:
        options.on_listening(*listener.getsockname()[:2])
    await port.serve(listener)


class ReviewPort(ConnectionPort):
    """Answers requests with whole bodies.

    Args:
        reviews: what answers the bodies, by path; called on the loop.
        context: for TLS; None for plain HTTP.
        bounds: the limits.
    """

    def __init__(self, reviews: Mapping[str, Answer], context: ssl.SSLContext | None, bounds: Bounds = BOUNDS) -> None:
        super().__init__("reviews", context, bounds)
        self._reviews = reviews

    async def respond(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        """See :meth:`ConnectionPort.respond`."""
        connection.set_deadline(self._bounds.body_time, "without the whole body in time")
        body = await self._read_body(request)
        if body is None:
            text = f"the body is too long: {REVIEW_BODY} are allowed; make the pod smaller\n"
            response = web.Response(status=413, text=text)
            response.force_close()
            return response
        status, content_type, content = await self._answer(request.method, request.path, body)
        return web.Response(status=status, body=content, headers={"content-type": content_type})

    async def _answer(self, method: str, path: str, body: bytes) -> Page:
        review = self._reviews.get(path)
        if review is None:
            return Page(404, TEXT, f"reviews are answered at {', '.join(self._reviews)}\n".encode())
        if method != "POST":
            return Page(405, TEXT, b"reviews are sent by POST\n")
        try:
            answer = review(body)
            return Page(200, "application/json", await answer if isawaitable(answer) else answer)
        except ReviewError as error:
            return Page(400, TEXT, f"{error}\n".encode(errors="replace"))

    async def _read_body(self, request: web.BaseRequest) -> bytes | None:
        """Returns the body; None if it is too long.

        Raises:
            ConnectionError: the rest of the body will not come.
        """
        if (request.content_length or 0) > REVIEW_BODY:
            return None
        chunks = bytearray()
        try:
            async for chunk in request.content.iter_any():
                chunks += chunk
                if len(chunks) > REVIEW_BODY:
                    return None
            return bytes(chunks)
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise ConnectionResetError from error
        finally:
            chunks.clear()  # frees the memory now, before the exception's frames are collected


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


class GpuNodeWatcher:
    """Watches nodes and Instaslice objects.

    Args:
        known: is told of each node with GPUs whenever its :class:`~.capabilities.GpuNode` has changed.
    """

    def __init__(self, known: Capabilities) -> None:
        self._known = known
        #: All nodes, and all Instaslice objects by node.
        self._nodes: dict[str, Node] = {}
        self._instaslices: dict[str, Instaslice] = {}
        #: By node in ``_nodes``, its annotation and the offers in it, which are decoded once.
        self._decoded: dict[str, tuple[str, tuple[NodeOffer, ...]]] = {}
        self._geometries = CardGeometries()
        #: The nodes with GPUs as ``known`` has them.
        self._gpu_nodes: dict[str, GpuNode] = {}

    def values(self) -> Iterable[GpuNode]:
        """Returns all nodes with GPUs."""
        return self._gpu_nodes.values()

    def node_changed(self, event: WatchEvent[Node]) -> None:
        """Takes in a change of a node."""
        name = event.object.metadata.name
        if event.kind is EventKind.DELETED:
            self._nodes.pop(name, None)
            self._decoded.pop(name, None)
        else:
            self._nodes[name] = event.object
            self._read(name, event.object.metadata.annotations.get(OFFERS_ANNOTATION, ""))
        self._update(name)

    def instaslice_changed(self, event: WatchEvent[Instaslice]) -> None:
        """Takes in a change of a node's Instaslice object."""
        name = event.object.metadata.name
        if event.kind is EventKind.DELETED:
            self._instaslices.pop(name, None)
        else:
            self._instaslices[name] = event.object
        self._update(name)

    def _read(self, name: str, text: str) -> None:
        if name in self._decoded and self._decoded[name][0] == text:
            return
        try:
            offers = decode_offers(text) if text else ()
        except ValueError as error:
            _log.warning("node %s: %s; until then it counts as a node without offers", name, error)
            offers = ()
        self._decoded[name] = (text, offers)

    def _update(self, name: str) -> None:
        node, instaslice = self._nodes.get(name), self._instaslices.get(name)
        _, offers = self._decoded.get(name, ("", ()))
        cards = on_demand_cards(node, instaslice, self._geometries)
        found = read_gpu_node(name, node, offers, instaslice, cards)
        if found == self._gpu_nodes.get(name):
            return
        if found is None:
            del self._gpu_nodes[name]
            self._known.drop(name)
        else:
            self._gpu_nodes[name] = found
            self._known.put(found)


#: What is read of a Node.
_READS = read_parts("metadata.labels", "spec", "status", annotations=(OWN_DOMAIN,))


class WebhookReplica:
    """One replica; a :class:`~tessera.status_pages.ProcessStatus`.

    :meth:`review` may be called at once; the replica learns the cluster's GPU resources while it runs.

    Attributes:
        capabilities: the present GPU resources of the cluster.
        metrics: this replica's metrics.
        review: answers an AdmissionReview, see :meth:`.Reviewer.review`.
    """

    def __init__(self, options: WebhookOptions, client: Client, clock: Clock, *, rng: random.Random) -> None:
        self._options = options
        self._objects = Informer(client, INSTASLICES, namespace=INSTASLICE_NAMESPACE, clock=clock, rng=rng)
        self._nodes = Informer(client, NODES, clock=clock, rng=rng)
        self._new_nodes = UndecidedNodes(clock.now)
        self.capabilities = Capabilities(
            any_new_nodes=options.any_new_nodes, new_nodes=self._new_nodes, pod_keys=options.pod_keys
        )
        self.capabilities.set_groups(None)
        self._gpus = GpuNodeWatcher(self.capabilities)
        self._groups = ObjectInformer(
            client, CONFIGMAPS, NODE_GROUPS_MAP, namespace=options.namespace, clock=clock, rng=rng
        )
        self.metrics = WebhookMetrics()
        self.review = Reviewer(self.capabilities, self.metrics, clock.monotonic).review
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
        self._objects.add_handler(self._gpus.instaslice_changed, reads=read_parts("status.node_resources"))
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
        if self._groups.object is None:
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
