"""What Services lead to: their endpoints, and the condition Available of APIServices.

Every Service with a selector gets Endpoints and one EndpointSlice, by which the API server finds a webhook's pod. A pod
is listed as soon as it has an address, as ready while its condition Ready holds. One slice holds all addresses, since a
lab's Services have few.

An APIService is Available while its Service answers discovery (kube-aggregator's controller).
"""

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.clock import Clock, rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.informer import Informer, WatchEvent
from tessera.kube.resources import API_SERVICES, SERVICES
from tessera.kube.resources.meta import Resource, key_of
from tessera_lab.workloads.base.mirrors import ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, is_being_deleted, labels_of, owner_reference
from tessera_lab.workloads.base.pods import is_ready, phase
from tessera_lab.workloads.base.work_queue import WorkQueue

ENDPOINT_SLICES: Resource[dict[str, Any]] = Resource(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, dict
)
MANAGED_BY = "endpointslice-controller.k8s.io"
#: Seconds between two looks at a Service; kube-aggregator looks as often at those that do not answer.
_PERIOD = 5.0


ENDPOINTS: Resource[dict[str, Any]] = Resource("", "v1", "endpoints", "Endpoints", True, dict)


class EndpointsController:
    """Keeps the addresses behind Services."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._written: dict[str, Any] = {}
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.services.add_handler(lambda event: self._queue.add(key_of(event.object)))
        mirrors.pods.add_handler(self._on_pod)

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    def _on_pod(self, event: WatchEvent[dict[str, Any]]) -> None:
        pod = event.object
        for service in self._mirrors.services.cache.values():
            if service["metadata"]["namespace"] == pod["metadata"]["namespace"] and (
                service_selects(service, pod) or (event.old is not None and service_selects(service, event.old))
            ):
                self._queue.add(key_of(service))

    async def _reconcile(self, key: str) -> None:
        service = self._mirrors.services.cache.get(key)
        if service is None:
            if self._written.pop(key, None) is not None:
                await self._delete(key)
            return
        if not service["spec"].get("selector"):
            return
        pods = sorted(
            (
                pod
                for pod in self._mirrors.pods.cache.values()
                if _same_namespace(service, pod) and service_selects(service, pod)
            ),
            key=key_of,
        )
        listed = [
            pod for pod in pods if (pod.get("status") or {}).get("podIP") and phase(pod) in {"Running", "Pending"}
        ]
        desired = (endpoints(service, listed), endpoint_slice(service, listed))
        if self._written.get(key) == desired:
            return
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
        await self._mirrors.client.apply(ENDPOINTS, name, desired[0], namespace)
        await self._mirrors.client.apply(ENDPOINT_SLICES, desired[1]["metadata"]["name"], desired[1], namespace)
        self._written[key] = desired

    async def _delete(self, key: str) -> None:
        """The slice goes with its owner; Endpoints have none and are deleted by name."""
        namespace, _, name = key.partition("/")
        try:
            await self._mirrors.client.delete(ENDPOINTS, name, namespace)
        except NotFound:
            return


def service_selects(service: Json, pod: Json) -> bool:
    """True if the Service's selector matches the pod's labels; an empty selector matches none."""
    selector = service["spec"].get("selector") or {}
    labels = labels_of(pod)
    return bool(selector) and all(labels.get(name) == value for name, value in selector.items())


def endpoints(service: Json, pods: Sequence[Json]) -> dict[str, Any]:
    """The Endpoints object."""
    ready = [_address(pod) for pod in pods if _is_listed(service, pod)]
    rest = [_address(pod) for pod in pods if not _is_listed(service, pod)]
    subset: dict[str, Any] = {"ports": ports(service, pods)}
    subset |= {"addresses": ready} if ready else {}
    subset |= {"notReadyAddresses": rest} if rest else {}
    return {
        "metadata": {"labels": dict(labels_of(service))},
        "subsets": [subset] if pods else [],
    }


def endpoint_slice(service: Json, pods: Sequence[Json]) -> dict[str, Any]:
    """The EndpointSlice object."""
    name = service["metadata"]["name"]
    labels = {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": MANAGED_BY}
    return {
        "metadata": {
            "name": f"{name}-lab",
            "labels": {**labels_of(service), **labels},
            "ownerReferences": [owner_reference(SERVICES, service)],
        },
        "addressType": "IPv4",
        "ports": ports(service, pods),
        "endpoints": [_endpoint(service, pod) for pod in pods],
    }


def ports(service: Json, pods: Sequence[Json]) -> list[dict[str, Any]]:
    """The ports of the pods behind the Service's ports; named target ports are looked up in the first pod."""
    found: list[dict[str, Any]] = []
    for port in service["spec"].get("ports") or ():
        number = _target(port, pods)
        if number is not None:
            name = {"name": port["name"]} if port.get("name") else {}
            found.append({**name, "port": number, "protocol": port.get("protocol") or "TCP"})
    return found


def _target(port: Json, pods: Sequence[Json]) -> int | None:
    target = port.get("targetPort") or port["port"]
    if isinstance(target, int):
        return target
    for pod in pods:
        for container in pod["spec"].get("containers", ()):
            for each in container.get("ports") or ():
                if each.get("name") == target:
                    return int(each["containerPort"])
    return None


def _same_namespace(service: Json, pod: Json) -> bool:
    return bool(service["metadata"]["namespace"] == pod["metadata"]["namespace"])


def _is_listed(service: Json, pod: Json) -> bool:
    return is_ready(pod) or bool(service["spec"].get("publishNotReadyAddresses"))


def _reference(pod: Json) -> dict[str, str]:
    metadata = pod["metadata"]
    return {"kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}


def _address(pod: Json) -> dict[str, Any]:
    node = pod["spec"].get("nodeName")
    return {"ip": pod["status"]["podIP"], "targetRef": _reference(pod)} | ({"nodeName": node} if node else {})


def _endpoint(service: Json, pod: Json) -> dict[str, Any]:
    ready = _is_listed(service, pod)
    return {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": ready, "serving": is_ready(pod), "terminating": is_being_deleted(pod)},
        "nodeName": pod["spec"].get("nodeName", ""),
        "targetRef": _reference(pod),
    }


class ApiServiceController:
    """Keeps the condition.

    Args:
        client: calls the API server.
        clock: the time.
        rng: for jitter.
    """

    def __init__(self, client: Client, clock: Clock, rng: random.Random) -> None:
        self._client = client
        self._clock = clock
        self._changed = asyncio.Event()
        self._services: Informer[dict[str, Any]] = Informer(client, API_SERVICES, clock=clock, rng=rng)
        self._services.add_handler(lambda _: self._changed.set())

    async def run(self) -> None:
        """Looks at each APIService when it changes, and again and again, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._services.run())
            while True:
                self._changed.clear()
                for each in list(self._services.cache.values()):
                    with contextlib.suppress(NotFound):
                        await self._look(each)
                if not self._services.cache:
                    await self._changed.wait()
                else:
                    await self._clock.sleep(_PERIOD)

    async def _look(self, service: Mapping[str, Any]) -> None:
        found = await self._condition(service["spec"])
        before = (service.get("status") or {}).get("conditions") or ()
        if any(all(each.get(key) == value for key, value in found.items()) for each in before):
            return
        condition = {**found, "lastTransitionTime": rfc3339(self._clock.now())}
        patch = {"status": {"conditions": [condition]}}
        await self._client.merge_patch(API_SERVICES, service["metadata"]["name"], patch, subresource="status")

    async def _condition(self, spec: Mapping[str, Any]) -> dict[str, str]:
        if not spec.get("service"):
            reason, text = "Local", "Local APIServices are always available"
            return {"type": "Available", "status": "True", "reason": reason, "message": text}
        try:
            await self._client.request("GET", f"/apis/{spec['group']}/{spec['version']}")
        except (ApiError, OSError) as error:
            text = f"failing or missing response: {' '.join(str(error).split())}"
            return {"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck", "message": text}
        return {"type": "Available", "status": "True", "reason": "Passed", "message": "all checks passed"}
