"""Kueue's manager in a lab: a Deployment as its manifests have it, whose container is the stand-in.

As the real one, it reads its Configuration when it starts, so a change counts after a restart of the Deployment. Its
webhooks and its visibility API are called in this process while the container runs.

A :class:`Visibility` is Kueue's visibility API: places of pending Workloads, in the order of the stand-in.

In a cluster it is an aggregated API, which Kueue's own process serves. Who may read is decided before a request comes
here.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import yaml

from tessera.cli.base.durations import parse_duration
from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.requests import Request, Response
from tessera.kube.resources import API_SERVICES, CONFIGMAPS, DEPLOYMENTS, MUTATING_WEBHOOKS, SERVICES
from tessera.kueue.charges import read_settings
from tessera.kueue.objects import (
    CONFIG_KEY,
    CONFIG_MAP,
    CONFIG_NAMESPACE,
    CONFIGURATION_GROUP,
    MANAGER,
    VISIBILITY_GROUP,
)
from tessera_lab.apiserver.admission.webhooks.callers import Reviewer
from tessera_lab.kubelet.images.catalogue import FAILED_EXIT, ImageProgram, ProgramContext
from tessera_lab.kueue.stand_in import StandIn, create_kinds
from tessera_lab.kueue.webhooks import SERVICE, KueueWebhooks, configuration
from tessera_lab.kueue.workloads import is_true, kind, order

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


#: Services that are called in this process, by namespace and name.
Reviewers = dict[tuple[str, str], Reviewer]
Services = dict[tuple[str, str], Callable[[Request], Awaitable[Response]]]

VERSION = "v1beta2"
#: The image's name says what runs in the lab.
IMAGE = "registry.k8s.io/kueue/kueue:simulated-by-the-lab"
VISIBILITY_SERVICE = "kueue-visibility-server"
WEBHOOKS = "kueue-mutating-webhook-configuration"
_LABELS = {"control-plane": "controller-manager"}
#: Seconds of ``waitForPodsReady`` without a timeout, in Kueue 0.19 and newer.
_READY_TIMEOUT = 1800.0
#: Seconds between two looks for the manager.
_POLL = 0.1

#: Kueue's Configuration before a site has changed it, as far as the stand-in follows it.
DEFAULT = {
    "apiVersion": f"{CONFIGURATION_GROUP}/{VERSION}",
    "kind": "Configuration",
    "integrations": {"frameworks": ["batch/job", "pod", "deployment", "statefulset"]},
}


async def install_kueue(client: Client, clock: Clock, reviewers: Reviewers, seconds: float) -> None:
    """Creates the objects of Kueue's manifests, and waits until the manager runs.

    Raises:
        TimeoutError: it did not start within ``seconds``.
    """
    await create_kinds(client, VERSION)
    await _create_manager(client)
    end = clock.monotonic() + seconds
    while (CONFIG_NAMESPACE, SERVICE) not in reviewers:
        if clock.monotonic() > end:
            raise TimeoutError(f"Kueue's manager did not start within {seconds:g} s")
        await clock.sleep(_POLL)
    await client.create(MUTATING_WEBHOOKS.as_dicts(), configuration(WEBHOOKS))


async def _create_manager(client: Client) -> None:
    text = yaml.safe_dump(DEFAULT, sort_keys=False)
    await client.create(CONFIGMAPS.as_dicts(), {**_named(CONFIG_MAP), "data": {CONFIG_KEY: text}}, CONFIG_NAMESPACE)
    for name, port in ((SERVICE, 9443), (VISIBILITY_SERVICE, 8082)):
        spec: Json = {"selector": _LABELS, "ports": [{"name": "https", "port": 443, "targetPort": port}]}
        await client.create(SERVICES.as_dicts(), {**_named(name), "spec": spec}, CONFIG_NAMESPACE)
    container = {"name": "manager", "image": IMAGE, "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8081}}}
    template = {"metadata": {"labels": _LABELS}, "spec": {"containers": [container]}}
    # No two managers side by side: the stand-in elects no leader.
    rules = {"replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": _LABELS}}
    deployment = {**_named(MANAGER), "spec": {**rules, "template": template}}
    await client.create(DEPLOYMENTS.as_dicts(), deployment, CONFIG_NAMESPACE)
    service = {"namespace": CONFIG_NAMESPACE, "name": VISIBILITY_SERVICE, "port": 443}
    names: Json = {"group": VISIBILITY_GROUP, "version": VERSION, "service": service, "insecureSkipTLSVerify": True}
    priorities = {"groupPriorityMinimum": 100, "versionPriority": 100}
    await client.create(API_SERVICES, {**_named(f"{VERSION}.{VISIBILITY_GROUP}"), "spec": {**names, **priorities}})


def _named(name: str) -> Json:
    return {"metadata": {"name": name}}


def manager_program(client: Client, clock: Clock, reviewers: Reviewers, services: Services) -> ImageProgram:
    """Makes the program of :data:`IMAGE`.

    Args:
        client: an administrator.
        clock: the lab's time.
        reviewers: the webhooks of this process, to which the container adds its own while it runs.
        services: the services of this process, likewise.
    """

    async def run(context: ProgramContext) -> int:
        try:
            stand_in = _stand_in(client, clock, await _read_configuration(client))
        except (ApiError, ValueError, yaml.YAMLError) as error:
            context.log(f"unable to load the configuration: {' '.join(str(error).split())}")
            return FAILED_EXIT
        visibility = Visibility(client, VERSION)
        reviewers[CONFIG_NAMESPACE, SERVICE] = stand_in.webhooks.review
        services[CONFIG_NAMESPACE, VISIBILITY_SERVICE] = visibility.answer
        context.ready()
        context.log("a stand-in of Kueue runs; Kueue itself does not run in this lab")
        try:
            await stand_in.run()
        except* (ApiError, OSError) as errors:
            context.log(f"stopped: {errors.exceptions[0]}")
        finally:
            del reviewers[CONFIG_NAMESPACE, SERVICE], services[CONFIG_NAMESPACE, VISIBILITY_SERVICE]
        return FAILED_EXIT

    return run


async def _read_configuration(client: Client) -> Json:
    """The Configuration.

    Raises:
        ValueError: there is none, or it is none.
    """
    try:
        stored = await client.get(CONFIGMAPS, CONFIG_MAP, CONFIG_NAMESPACE)
    except NotFound:
        raise ValueError(f"there is no ConfigMap {CONFIG_NAMESPACE}/{CONFIG_MAP}") from None
    found = yaml.safe_load(stored.data.get(CONFIG_KEY, ""))
    if not isinstance(found, dict) or found.get("kind") != "Configuration":
        raise ValueError(f"{CONFIG_KEY} in ConfigMap {CONFIG_NAMESPACE}/{CONFIG_MAP} is no Configuration")
    return found


def _stand_in(client: Client, clock: Clock, configuration: Json) -> StandIn:
    waits = configuration.get("waitForPodsReady") or {}
    timeout = parse_duration(waits["timeout"]) if waits.get("timeout") else _READY_TIMEOUT
    return StandIn(
        client,
        clock,
        resources=configuration.get("resources") or {},
        version=VERSION,
        # As in Kueue 0.19, it is on where it is not set.
        ready_timeout=None if read_settings(configuration).waits_for_pods is False else timeout,
        webhooks=KueueWebhooks(everything=bool(configuration.get("manageJobsWithoutQueueName"))),
    )
