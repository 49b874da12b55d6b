"""What a new pod's ResourceClaims ask for, and the claims that its limits become: the webhook's part of the claims.

A review shows only the names of claims and templates. They are read when a pod comes, and not watched: a cluster may
have hundreds of thousands of claims, and a watch needs the right to list those of all tenants. DeviceClasses are few,
and are watched, so a class that changes counts for the next pod. Rules:

- No gate depends on the answer: the controller places pods without the gate too, and frees those at the gate whose
  claims are of other drivers. So a pod is not gated if its claims do not exist yet, or cannot be read in time.
- A template for limits is owned by its DeviceClass, and goes with it. A pod that needs one is refused if it cannot be
  made. A dry run makes none.
- A template never changes, and pods of one owner name the same, so it is remembered for a while. One that was made
  again meanwhile counts as its predecessor.

Limits become claims where namespace or pod chooses so: the API server sends pods of namespaces with the label
``tessera.dev/device-api: dra``, and pods whose node selector has it. Kubernetes does the same in kube-scheduler
(extended resources by DRA), which allocates the claim at once, so nobody else could place it. Rules:

- A limit becomes a claim if a DeviceClass of Tessera's driver stands for it, by ``extendedResourceName`` or by the name
  that Kubernetes gives each class. Quotas for the resource then count pods with limits, and claims of that class. Other
  limits stay, and go to nodes of the device plugin.
- Each limit is one claim, of a template that the class and the number name. So a namespace has few templates.
- An init container uses the claim of an app container that asks for as much, since the pod holds its devices anyway.
- Limits that requirements became stay, since the webhook would add them anew.
- A pod that its author bound to a node stays as it is.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import msgspec

from tessera.api.pod_annotations import CHOSEN, KEYS
from tessera.clock import Clock
from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, ClaimSpec, is_our_class
from tessera.dra.limits import CLAIM_ENTRIES
from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, ApiError, NotFound
from tessera.kube.informer import Informer, is_served, wait_served
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources.pods import PodClaim
from tessera.nesting import decode_json
from tessera.text import list_names, one_line
from tessera.webhook.base import NO_CLAIMS, KnownClaims, PodClaims, PodRefused, Rule, WebhookMetrics, refuse_oversized
from tessera.webhook.pod_json import Operation, PodSchema, Spec, add_operation, size_of

Json = Mapping[str, Any]

#: Prefix of the extended resource that Kubernetes gives a class without ``extendedResourceName``
#: (``ResourceDeviceClassPrefix`` of k8s.io/api/resource/v1).
IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"


class ClaimTemplate(NamedTuple):
    """A template of claims for some devices of a class."""

    device_class: str
    devices: int

    @property
    def name(self) -> str:
        """Its name in every namespace."""
        return f"{self.device_class}-x{self.devices}"

    @property
    def spec(self) -> dict[str, Any]:
        """Its ``spec``."""
        exactly = {"deviceClassName": self.device_class, "count": self.devices}
        return {"spec": {"devices": {"requests": [{"name": "devices", "exactly": exactly}]}}}


class _Limit(NamedTuple):
    """A limit that becomes a claim: the container's list and index, and the resource."""

    field: str
    number: int
    resource: str
    template: ClaimTemplate


class LimitClaims(NamedTuple):
    """The operations of a JSON patch that turn limits into claims, and the templates that they name."""

    operations: Sequence[Operation] = ()
    templates: Sequence[ClaimTemplate] = ()


def claim_limits(pod: Json, classes: Mapping[str, str]) -> LimitClaims:
    """Returns what turns a pod's limits into claims; nothing if no limit becomes one.

    Args:
        pod: the pod to be created.
        classes: by extended resource, the class that stands for it.

    Raises:
        PodRefused: a container asks for more devices than a claim may have.
    """
    spec, annotations = pod.get("spec") or {}, (pod.get("metadata") or {}).get("annotations") or {}
    if spec.get("nodeName") or not annotations.keys().isdisjoint((*KEYS, CHOSEN)):
        return LimitClaims()
    found = list(_limits(spec, classes))
    if not found:
        return LimitClaims()
    taken = {each.get("name") for each in spec.get("resourceClaims") or ()}
    free = (name for name in (f"limit-{number}" for number in count()) if name not in taken)
    claims: dict[_Limit, str] = {}
    made: list[tuple[str, ClaimTemplate]] = []
    for each in found:
        shared = _shared(each, claims) if _runs_once(spec, each) else None
        if shared is None:
            shared = next(free)
            made.append((shared, each.template))
        claims[each] = shared
    entries = [{"name": name, "resourceClaimTemplateName": template.name} for name, template in made]
    containers = {(each.field, each.number): None for each in found}
    operations = [
        add_operation(("spec", "resourceClaims"), [*(spec.get("resourceClaims") or ()), *entries]),
        *(
            _container(spec, place, {limit: claims[limit] for limit in found if limit[:2] == place})
            for place in containers
        ),
    ]
    return LimitClaims(operations, tuple(dict.fromkeys(template for _, template in made)))


def _limits(spec: Json, classes: Mapping[str, str]) -> Iterator[_Limit]:
    """Yields the limits that become claims, those of app containers first."""
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            for resource, amount in ((container.get("resources") or {}).get("limits") or {}).items():
                devices = count_or_zero(str(amount))
                if resource in classes and devices > 0:
                    _refuse_many(container, resource, devices)
                    yield _Limit(field, index, resource, ClaimTemplate(classes[resource], devices))


def _refuse_many(container: Json, resource: str, devices: int) -> None:
    if devices > CLAIM_ENTRIES:
        raise PodRefused(
            Rule.IMPOSSIBLE,
            f'container "{one_line(container.get("name") or "")}": asks for {devices} of {one_line(resource)}, which'
            f" becomes a ResourceClaim here, and a claim has at most {CLAIM_ENTRIES:d} devices: ask for fewer",
        )


def _runs_once(spec: Json, limit: _Limit) -> bool:
    return limit.field == "initContainers" and spec[limit.field][limit.number].get("restartPolicy") != "Always"


def _shared(limit: _Limit, claims: Mapping[_Limit, str]) -> str | None:
    enough = (
        name
        for other, name in claims.items()
        if other.template.device_class == limit.template.device_class
        and other.template.devices >= limit.template.devices
    )
    return next(enough, None)


def _container(spec: Json, place: tuple[str, int], claims: Mapping[_Limit, str]) -> Operation:
    field, index = place
    resources = spec[field][index]["resources"]
    gone = {each.resource for each in claims}
    kept = {
        name: {resource: amount for resource, amount in (resources.get(name) or {}).items() if resource not in gone}
        for name in ("limits", "requests")
    }
    own = [*(resources.get("claims") or ()), *({"name": name} for name in dict.fromkeys(claims.values()))]
    return add_operation(("spec", field, str(index), "resources"), {**resources, **kept, "claims": own})


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


class ClaimReader(PodClaims):
    """Reads what the claims of new pods ask for.

    Args:
        driver: the driver whose devices are ours.
        client: the API server; it needs the right to watch DeviceClasses, and to get claims and templates.
        clock: gives the time.
        rng: for jitter.
        metrics: counts the pods whose claims could not be read.
    """

    def __init__(self, driver: str, client: Client, clock: Clock, rng: random.Random, metrics: WebhookMetrics) -> None:
        self._driver = driver
        self._client = client
        self._clock = clock
        self._metrics = metrics
        self._classes = Informer(client, DEVICE_CLASSES, clock=clock, rng=rng)
        self._decoder = msgspec.json.Decoder(_Review)
        self._pods = msgspec.json.Decoder(_Pod)
        self._schemas = msgspec.json.Decoder(PodSchema)
        #: By namespace and template, the classes that it names, and until when that is remembered.
        self._known: dict[tuple[str, str], tuple[frozenset[str], float]] = {}

    async def run(self) -> None:
        """Watches the classes until cancelled, once the server has the API."""
        await wait_served(lambda: is_served(self._client, DEVICE_CLASSES.api_version, self._clock), self._clock)
        await self._classes.run()

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
                    if not each.resource_claim_name and not each.resource_claim_template_name:
                        continue  # one of its PodGroup, which its status names once it is made
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
        known = KnownClaims(of_limits=lambda pod: claim_limits(pod, classes).operations)
        try:
            request = self._decoder.decode(body).request
            refuse_oversized(size_of(self._schemas.decode(request.object).spec or Spec()))
            wanted = claim_limits(decode_json(request.object, dict[str, Any]), classes).templates
        except (*_MALFORMED, PodRefused):
            return known  # the review tells the reason
        try:
            async with asyncio.timeout(_READ_TIME):
                for each in wanted if not request.dry_run else ():
                    await self._make_template(request.namespace, each)
        except (ApiError, ConnectionError, TimeoutError, ValueError) as error:
            names = list_names([each.name for each in wanted])
            return KnownClaims(problem=f"ResourceClaimTemplate {names} of its limits cannot be made: {one_line(error)}")
        return known

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
