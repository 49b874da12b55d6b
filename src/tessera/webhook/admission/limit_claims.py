"""Turns a pod's limits into ResourceClaims, where namespace or pod chooses so.

The API server sends pods of namespaces with the label ``tessera.dev/device-api: dra``, and pods whose node selector has
it. Kubernetes does the same in kube-scheduler (extended resources by DRA), which allocates the claim at once, so nobody
else could place it. Rules:

- A limit becomes a claim if a DeviceClass of Tessera's driver stands for it, by ``extendedResourceName`` or by the name
  that Kubernetes gives each class. Quotas for the resource then count pods with limits, and claims of that class.
  Other limits stay, and go to nodes of the device plugin.
- Each limit is one claim, of a template that the class and the number name. So a namespace has few templates.
- An init container uses the claim of an app container that asks for as much, since the pod holds its devices anyway.
- Limits that requirements became stay, since the webhook would add them anew.
- A pod that its author bound to a node stays as it is.

Pure: the templates that are needed are returned.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from tessera.api.pods.requirements import CHOSEN, KEYS
from tessera.kube.quantity import count_or_zero
from tessera.limits.claims import CLAIM_ENTRIES
from tessera.text import one_line
from tessera.webhook.admission.pod_json import Operation, add_operation
from tessera.webhook.base import PodRefused, Rule

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
