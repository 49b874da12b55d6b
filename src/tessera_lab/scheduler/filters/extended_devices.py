"""Extended resources that a DeviceClass stands for, which the scheduler turns into a claim since Kubernetes 1.36.

A node whose device plugin offers the resource serves it as ever. On another node the scheduler allocates devices of the
class, and makes the claim itself before it binds the pod: one request for each container and resource. A class stands
for its ``extendedResourceName`` and for ``deviceclass.resource.kubernetes.io/NAME``; of several the newest counts. Left
out: init containers cannot use devices of other containers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.kube.quantity import parse_quantity
from tessera_lab.scheduler.state.claim_cache import ClaimCache
from tessera_lab.scheduler.state.node_cache import CachedNode, CachedPod

Json = Mapping[str, Any]


class ExtendedClaim(msgspec.Struct, frozen=True):
    """A claim that the scheduler makes for a pod.

    Attributes:
        uid: stands for the UID of the claim, which is not made yet.
        requests: ``spec.devices.requests``.
        mappings: ``requestMappings`` of the pod's status.
        allocation: its devices; None before they are chosen.
    """

    uid: str
    requests: Sequence[Json]
    mappings: Sequence[Json]
    allocation: Json | None = None

    @property
    def claim(self) -> Json:
        """The claim as far as it is known."""
        return {"metadata": {"uid": self.uid}, "spec": {"devices": {"requests": self.requests}}}


class ExtendedDevices:
    """The extended resources of one pod that classes stand for."""

    def __init__(self, pod: CachedPod, cache: ClaimCache) -> None:
        self._pod = pod
        self._classes = {name: found for name in pod.requests if (found := cache.class_of(name))}

    def delegated(self, node: CachedNode) -> frozenset[str]:
        """Resources that the node's device plugins do not offer, and a class does."""
        return frozenset(name for name in self._classes if not node.allocatable.get(name))

    def claim(self, names: frozenset[str]) -> ExtendedClaim:
        """The claim for these resources."""
        made = list(self._requests(names))
        uid = f"extended-resources/{self._pod.uid}"
        return ExtendedClaim(uid, [request for request, _ in made], [mapping for _, mapping in made])

    def _requests(self, names: frozenset[str]) -> Iterator[tuple[Json, Json]]:
        """Yields each request with its mapping."""
        spec = self._pod.spec
        for index, container in enumerate((*(spec.get("initContainers") or ()), *spec.get("containers", ()))):
            resources = container.get("resources") or {}
            amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
            for number, resource in enumerate(sorted(names & amounts.keys())):
                count = int(parse_quantity(str(amounts[resource])))
                name = f"container-{index}-request-{number}"
                exactly = {"deviceClassName": self._classes[resource], "allocationMode": "ExactCount", "count": count}
                mapping = {"containerName": container["name"], "resourceName": resource, "requestName": name}
                if count:
                    yield {"name": name, "exactly": exactly}, mapping


def extended_devices(pod: CachedPod, cache: ClaimCache) -> ExtendedDevices | None:
    """The pod's extended resources that classes stand for; None if there are none."""
    return ExtendedDevices(pod, cache) if any(map(cache.class_of, pod.requests)) else None
