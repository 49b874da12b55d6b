"""Kueue's visibility API: places of pending Workloads, in the order of the stand-in.

In a cluster it is an aggregated API, which Kueue's own process serves. Who may read is decided before a request comes
here.
"""

import re
from typing import Any

import msgspec

from tessera.kube.client.client import Client
from tessera.kube.client.requests import Request, Response
from tessera.kueue.names import VISIBILITY_GROUP
from tessera_lab.kueue.objects import is_true, kind, order

Json = dict[str, Any]

_PENDING = re.compile(r"(?:namespaces/([^/]+)/localqueues|clusterqueues)/([^/]+)/pendingworkloads")


class Visibility:
    """Answers requests for the API.

    Args:
        client: reads Workloads and queues.
        version: the version that is served.
    """

    def __init__(self, client: Client, version: str) -> None:
        self._client = client
        self._version = version

    async def answer(self, request: Request) -> Response:
        """The answer to a request below ``/apis/visibility.kueue.x-k8s.io``."""
        version = {"groupVersion": f"{VISIBILITY_GROUP}/{self._version}", "version": self._version}
        rest = request.path.removeprefix(f"/apis/{VISIBILITY_GROUP}").strip("/")
        if not rest:
            return respond(200, {"kind": "APIGroup", "name": VISIBILITY_GROUP, "preferredVersion": version})
        if rest == self._version:
            return respond(200, _resources(version["groupVersion"]))
        found = _PENDING.fullmatch(rest.removeprefix(f"{self._version}/"))
        if found is None:
            return respond(404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})
        items, query = await self._pending(found[1], found[2]), dict(request.query)
        offset, limit = int(query.get("offset", "0")), int(query.get("limit", "1000"))
        summary = {"apiVersion": version["groupVersion"], "kind": "PendingWorkloadsSummary"}
        return respond(200, {**summary, "items": items[offset : offset + limit]})

    async def _pending(self, namespace: str | None, queue: str) -> list[Json]:
        """Pending Workloads of a LocalQueue, or of a ClusterQueue where there is no namespace."""
        local = {
            (each["metadata"]["namespace"], each["metadata"]["name"]): each["spec"]["clusterQueue"]
            for each in (await self._client.list(kind("localqueues", "LocalQueue", self._version))).items
        }
        cluster_queue = queue if namespace is None else local.get((namespace, queue))
        listed = (await self._client.list(kind("workloads", "Workload", self._version))).items
        waiting = [each for each in listed if local.get(_queue(each)) == cluster_queue and _is_pending(each)]
        counts: dict[tuple[str, str], int] = {}
        places: list[Json] = []
        for place, each in enumerate(sorted(waiting, key=order)):
            key = _queue(each)
            own = counts[key] = counts.get(key, -1) + 1
            if namespace is None or key == (namespace, queue):
                places.append(_place(each, place, own))
        return places


def _queue(workload: Json) -> tuple[str, str]:
    return workload["metadata"]["namespace"], workload["spec"]["queueName"]


def _is_pending(workload: Json) -> bool:
    ended = is_true(workload, "QuotaReserved") or is_true(workload, "Finished")
    return not ended and workload["spec"].get("active") is not False


def _place(workload: Json, in_cluster_queue: int, in_local_queue: int) -> Json:
    meta = workload["metadata"]
    kept = ("name", "namespace", "creationTimestamp", "ownerReferences")
    return {
        "metadata": {key: meta[key] for key in kept if key in meta},
        "priority": workload["spec"].get("priority", 0),
        "localQueueName": workload["spec"]["queueName"],
        "positionInClusterQueue": in_cluster_queue,
        "positionInLocalQueue": in_local_queue,
    }


def _resources(group_version: str) -> Json:
    """The answer of discovery."""
    listed = [
        {"name": name, "singularName": "", "namespaced": namespaced, "kind": of, "verbs": ["get"]}
        for plural, namespaced, one in (("clusterqueues", False, "ClusterQueue"), ("localqueues", True, "LocalQueue"))
        for name, of in ((plural, one), (f"{plural}/pendingworkloads", "PendingWorkloadsSummary"))
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


def respond(status: int, body: Json) -> Response:
    """A JSON answer."""
    return Response(status=status, headers={"content-type": "application/json"}, body=msgspec.json.encode(body))
