"""Reads what a new pod's ResourceClaims ask for, and makes the templates of claims that stand for limits.

A review shows only the names of claims and templates. They are read when a pod comes, and not watched: a cluster may
have hundreds of thousands of claims, and a watch needs the right to list those of all tenants. DeviceClasses are few,
and are watched, so a class that changes counts for the next pod. Rules:

- No gate depends on the answer: the controller places pods without the gate too, and frees those at the gate whose
  claims are of other drivers. So a pod is not gated if its claims do not exist yet, or cannot be read in time.
- A template for limits is owned by its DeviceClass, and goes with it. A pod that needs one is refused if it cannot be
  made. A dry run makes none.
- A template never changes, and pods of one owner name the same, so it is remembered for a while. One that was made
  again meanwhile counts as its predecessor.
"""

import asyncio
import contextlib
import logging
import random
from typing import Any

import msgspec

from tessera.api.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, ClaimSpec, is_our_class
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.client.errors import AlreadyExists, ApiError, NotFound
from tessera.kube.resources.pods import PodClaim
from tessera.kube.watch.informer import Informer, wait_served
from tessera.text import list_names, one_line
from tessera.webhook.admission.limit_claims import IMPLICIT_PREFIX, ClaimTemplate, claim_limits
from tessera.webhook.admission.pod_json import PodSchema, Spec, size_of
from tessera.webhook.admission.review import NO_CLAIMS, KnownClaims
from tessera.webhook.base import PodRefused, WebhookMetrics, refuse_oversized

_log = logging.getLogger(__name__)

#: Seconds for all reads of a review; ``deploy/admission.yaml`` gives the whole review one more.
_READ_TIME = 2.0
#: Seconds for which a template is remembered, and most templates that are; all are forgotten together.
_KEPT, _TEMPLATES = 10.0, 4096
#: Most claims that are read for one pod.
_OF_A_POD = 8


#: What a body that is no review of a pod may raise; the review names the error.
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    resource_claims: tuple[PodClaim, ...] = ()


class _Pod(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str = ""
    dry_run: bool | None = False
    object: msgspec.Raw = msgspec.Raw(b"{}")


class _Review(msgspec.Struct, frozen=True):
    request: _Request = _Request()


class ClaimReader:
    """Reads what the claims of new pods ask for.

    Args:
        driver: the driver whose devices are ours.
        client: the API server; it needs the right to watch DeviceClasses, and to get claims and templates.
        clock: gives the time.
        rng: for jitter.
        metrics: counts the pods whose claims could not be read.
    """

    def __init__(
        self, driver: str, client: Client, clock: Clock, *, rng: random.Random, metrics: WebhookMetrics
    ) -> None:
        self._driver = driver
        self._client = client
        self._clock = clock
        self._metrics = metrics
        self._classes = Informer(client, DEVICE_CLASSES, clock=clock, rng=rng)
        self._decoder = msgspec.json.Decoder(_Review)
        self._pods = msgspec.json.Decoder(_Pod)
        self._schemas = msgspec.json.Decoder(PodSchema)
        self._objects = msgspec.json.Decoder(dict[str, Any])
        #: By namespace and template, the classes that it names, and until when that is remembered.
        self._known: dict[tuple[str, str], tuple[frozenset[str], float]] = {}

    async def run(self) -> None:
        """Watches the classes until cancelled, once the server has the API."""
        await wait_served(self._is_served, self._clock)
        await self._classes.run()

    async def _is_served(self) -> bool:
        try:
            return await self._client.serves(DEVICE_CLASSES.api_version)
        except (ApiError, ConnectionError, TimeoutError):
            return True  # the informer tries again

    async def read_claims(self, body: bytes) -> KnownClaims:
        """Returns whether a claim of the pod in a review is known to ask for a device of ours.

        Args:
            body: the review; one that cannot be read has no claims.
        """
        try:
            request = self._decoder.decode(body).request
            claims = self._pods.decode(request.object).spec.resource_claims
        except _MALFORMED:
            return NO_CLAIMS
        try:
            async with asyncio.timeout(_READ_TIME):
                for each in claims[:_OF_A_POD]:
                    if self._are_ours(await self._read(request.namespace, each)):
                        return KnownClaims(ours=True)
        except (ApiError, ConnectionError, TimeoutError, ValueError) as error:
            _log.warning("a pod of namespace %s is not gated, its claims cannot be read: %s", request.namespace, error)
            self._metrics.count_unread_claims()
        return NO_CLAIMS

    async def make_templates(self, body: bytes) -> KnownClaims:
        """Makes the templates that the claims for the limits of a pod in a review need; returns the classes.

        Args:
            body: the review; of one that cannot be read no limit becomes a claim.
        """
        classes = self._mapped()
        try:
            request = self._decoder.decode(body).request
            refuse_oversized(size_of(self._schemas.decode(request.object).spec or Spec()))
            wanted = claim_limits(self._objects.decode(request.object), classes).templates
        except (*_MALFORMED, PodRefused):
            return KnownClaims(classes=classes)  # the review tells the reason
        try:
            async with asyncio.timeout(_READ_TIME):
                for each in wanted if not request.dry_run else ():
                    await self._make_template(request.namespace, each)
        except (ApiError, ConnectionError, TimeoutError, ValueError) as error:
            names = list_names([each.name for each in wanted])
            return KnownClaims(problem=f"ResourceClaimTemplate {names} of its limits cannot be made: {one_line(error)}")
        return KnownClaims(classes=classes)

    def _mapped(self) -> dict[str, str]:
        """The classes that stand for extended resources; of two the newer one, as for kube-scheduler."""
        ours = [each for each in self._classes.cache.values() if is_our_class(each, self._driver)]
        ours.sort(key=lambda each: (each.metadata.creation_timestamp, each.metadata.name))
        named = {each.spec.extended_resource_name: each.metadata.name for each in ours}
        implicit = {IMPLICIT_PREFIX + each.metadata.name: each.metadata.name for each in ours}
        return {name: found for name, found in {**implicit, **named}.items() if name}

    async def _make_template(self, namespace: str, wanted: ClaimTemplate) -> None:
        try:
            await self._read_template(namespace, wanted.name)
        except NotFound:
            found = self._classes.cache.get(wanted.device_class)
            uid = found.metadata.uid if found is not None else ""
            owner = {
                "apiVersion": DEVICE_CLASSES.api_version,
                "kind": DEVICE_CLASSES.kind,
                "name": wanted.device_class,
                "uid": uid,
            }
            labels = {"app.kubernetes.io/part-of": "tessera"}
            metadata = {"name": wanted.name, "labels": labels, "ownerReferences": [owner]}
            with contextlib.suppress(AlreadyExists):  # another replica made it
                body = {"metadata": metadata, "spec": wanted.spec}
                await self._client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace)

    def _are_ours(self, names: frozenset[str]) -> bool:
        found = (self._classes.cache.get(name) for name in names)
        return any(each is not None and is_our_class(each, self._driver) for each in found)

    async def _read(self, namespace: str, wanted: PodClaim) -> frozenset[str]:
        """Returns the classes that a claim names; none of one that does not exist, or that is allocated already.

        Raises:
            ValueError: the name or the namespace is none.
        """
        try:
            if wanted.resource_claim_template_name:
                return await self._read_template(namespace, wanted.resource_claim_template_name)
            claim = await self._client.get(RESOURCE_CLAIMS, wanted.resource_claim_name, namespace)
        except NotFound:
            return frozenset()
        return frozenset() if claim.status.allocation is not None else _classes_of(claim.spec)

    async def _read_template(self, namespace: str, name: str) -> frozenset[str]:
        now = self._clock.monotonic()
        names, until = self._known.get((namespace, name), (frozenset[str](), 0.0))
        if now < until:
            return names
        template = await self._client.get(RESOURCE_CLAIM_TEMPLATES, name, namespace)
        if len(self._known) >= _TEMPLATES:
            self._known.clear()
        names = _classes_of(template.spec.spec)
        self._known[namespace, name] = names, now + _KEPT
        return names


def _classes_of(spec: ClaimSpec) -> frozenset[str]:
    queries = (query for each in spec.devices.requests for query in (each.exactly, *each.first_available))
    return frozenset(each.device_class_name for each in queries if each is not None)
