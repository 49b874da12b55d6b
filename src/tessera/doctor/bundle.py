"""Collects what a support case needs: findings, Tessera's objects, nodes, events, logs and metrics, without secrets.

The collector never reads a Secret, and asks for nothing that could write. A part that the asker may not read is named
in the manifest with the reason; the rest is collected all the same. Of tenants' pods it takes names, requests and
states, never a command, an argument, a volume or a variable. Everything goes through
:class:`~tessera.doctor.archive.Redaction`.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera import __version__
from tessera.access.page_reader import AGENT_AUDIENCE, CONTROLLER_AUDIENCE, PageReader
from tessera.api.instaslice import INSTASLICES
from tessera.api.names import (
    INSTASLICE_NAMESPACE,
    NODE_GROUPS_MAP,
    OWN_LAYOUTS,
    OWN_PROFILES,
    REPAIRS_MAP,
    SYSTEM_NAMESPACE,
)
from tessera.api.nodes.usage import AGENT_PORT
from tessera.api.queues import QUEUES
from tessera.clock import Clock, rfc3339
from tessera.doctor.archive import ARCHIVE_VALUES, Archive, Redaction, environment_values, gpu_pod, uses_gpus
from tessera.doctor.examination import examine
from tessera.doctor.facts import WEBHOOK, Object, Refusal, worst
from tessera.doctor.reading import followed_config_maps, try_to_read
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.kube.client import Client
from tessera.kube.errors import Expired
from tessera.kube.resources import (
    CONFIGMAPS,
    CRDS,
    DAEMONSETS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
)
from tessera.kube.resources.meta import Resource
from tessera.limits import Limit
from tessera.nesting import decode_json
from tessera.status_pages import METRICS_PATH

ARCHIVE_OBJECTS = Limit(
    1_000,
    "objects",
    "objects of one kind in a support archive",
    "a case is about a few of them; the manifest counts the others",
)
ARCHIVE_PROCESSES = Limit(
    40,
    "pods",
    "pods of Tessera whose log and metrics a support archive has, those that are not ready first",
    "each is one request to its node; the manifest names the others",
)

#: Most lines: last lines of a pod's log in a support archive. An hour of an agent with a broken card.
ARCHIVE_LOG_LINES = 5_000

#: Fetches the decision records of a pod of Tessera, by its name and its container's.
FetchRecords = Callable[[str, str], Awaitable[bytes]]

#: ConfigMaps in Tessera's namespace that the archive has; the followed ones are found by the agents' arguments.
CONFIG_MAPS = (
    OWN_PROFILES,
    OWN_LAYOUTS,
    "driver-images",
    "driver-next-kernels",
    NODE_GROUPS_MAP,
    REPAIRS_MAP,
    "driver-policies",
    "driver-rollouts",
    "provisioning-records",
)
#: Objects of Tessera by the name of their file: kind, and namespace.
_OBJECTS: Mapping[str, tuple[Resource[Any], str | None]] = {
    "instaslices": (INSTASLICES, INSTASLICE_NAMESPACE),
    "clusterpolicies": (CLUSTER_POLICIES, None),
    "nvidiadrivers": (NVIDIA_DRIVERS, None),
    "queues": (QUEUES, None),
    "daemonsets": (DAEMONSETS, SYSTEM_NAMESPACE),
    "deployments": (DEPLOYMENTS, SYSTEM_NAMESPACE),
    "jobs": (JOBS, SYSTEM_NAMESPACE),
    "leases": (LEASES, SYSTEM_NAMESPACE),
}
_APP = "app.kubernetes.io/name"
#: Ports with the metrics of each process.
_METRICS = {"tessera-agent": 8082, "tessera-controller": 8081, "tessera-webhook": 8081}
#: Requests that wait for nodes at a time.
_AT_ONCE = 8
#: What is never collected, for the manifest.
NEVER = (
    ("Secrets", "never read"),
    ("kubeconfig and token of the asker", "never written"),
    ("values of environment variables", "they may be secrets; names are kept"),
    ("commands, arguments and volumes of tenants' pods", "not needed; names, requests and states are kept"),
    ("labels and annotations under unknown names", "people may write anything there; the names are kept"),
    ("addresses of nodes", "not needed"),
)


async def collect(
    client: Client, clock: Clock, *, trial_namespace: str = "default", fetch_records: FetchRecords | None = None
) -> Archive:
    """Collects an archive.

    Args:
        client: the asker's.
        clock: the asker's clock.
        trial_namespace: as for :func:`~tessera.doctor.examination.examine`.
        fetch_records: fetches decision records; None to leave them out.

    Raises:
        ConnectionError: the API server does not answer at all.
    """
    collector = _Collector(client, clock)
    for what, why in NEVER:
        collector.archive.omit(what, why)
    await collector.read_pods()
    findings = await examine(client, clock, trial_namespace)
    collector.add_json("doctor.json", "findings of tessera doctor", {"verdict": worst(findings), "findings": findings})
    await collector.add_versions()
    await collector.add_nodes()
    await collector.add_objects()
    await collector.add_config_maps()
    await collector.add_events()
    await collector.add_processes(fetch_records)
    return collector.archive


class _Collector:
    """One collection.

    Attributes:
        archive: what was collected so far.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        self.archive = Archive()
        self._client, self._reader = client, PageReader(client, clock)
        self._clock = clock
        self._redaction = Redaction()
        #: Tessera's own pods; those of tenants that ask for GPUs, without what may be secret.
        self._own: Sequence[Object] = ()

    def add_json(self, path: str, what: str, value: Any) -> None:
        """Adds a value without secrets."""
        plain = msgspec.to_builtins(value)
        clean = self._redaction.object({"value": plain})["value"]
        self.archive.add_json(path, what, clean)

    async def read_pods(self) -> None:
        """Reads pods first: the values of their environments are taken out of everything else."""
        own, tenants, values, names = [], [], set[str](), set[str]()
        found = await try_to_read(self._gpu_pods())
        if isinstance(found, Refusal):
            self.archive.omit("pods that ask for GPUs", found.reason)
            found = []
        for pod in found:
            tenants.append(gpu_pod(pod))
            values |= set(environment_values(pod))
            names |= {pod["metadata"]["name"], pod["metadata"]["namespace"]}
        listed = await try_to_read(self._list(PODS, SYSTEM_NAMESPACE))
        if isinstance(listed, Refusal):
            self.archive.omit("pods of Tessera", listed.reason)
        else:
            own = list(listed)
            values |= {value for each in own for value in environment_values(each)}
            names |= {each["metadata"]["name"] for each in own} | {SYSTEM_NAMESPACE, INSTASLICE_NAMESPACE}
        lines = {line.strip() for value in values for line in value.splitlines()}
        escaped = {msgspec.json.encode(value).decode()[1:-1] for value in values}
        self._redaction = Redaction(values | lines | escaped, names)
        if self._redaction.unsearched:
            what = (
                f"a search for {self._redaction.unsearched:,} more values of tenants' environments in logs and events"
            )
            self.archive.omit(what, f"the limit is {ARCHIVE_VALUES:,}; look through the logs before you send them")
        self._own = own
        self.add_json("pods-with-gpus.json", "pods that ask for GPUs: names, requests, states", tenants)
        self._add_limited("objects/pods.json", "pods of Tessera", own)

    async def add_versions(self) -> None:
        """Adds the versions of this program and of the API server."""
        answer = await try_to_read(self._client.request("GET", "/version"))
        kubernetes = answer.reason if isinstance(answer, Refusal) else decode_json(answer.body)
        images = sorted({each.get("image", "") for pod in self._own for each in pod["spec"].get("containers", ())})
        versions = {
            "tessera": __version__,
            "python": sys.version.split()[0],
            "kubernetes": kubernetes,
            "images": images,
            "made": rfc3339(self._clock.now()),
        }
        self.add_json("versions.json", "versions", versions)

    async def add_nodes(self) -> None:
        """Adds nodes: labels, annotations, conditions, amounts and versions."""
        found = await try_to_read(self._list(NODES))
        if isinstance(found, Refusal):
            self.archive.omit("nodes", found.reason)
            return
        ordered = sorted(found, key=lambda each: not _has_gpus(each))
        self._add_limited("nodes.json", "nodes, those with GPUs first", [_node(each) for each in ordered])

    async def add_objects(self) -> None:
        """Adds Tessera's own objects."""
        for name, (resource, namespace) in _OBJECTS.items():
            found = await try_to_read(self._list(resource, namespace))
            if isinstance(found, Refusal):
                self.archive.omit(f"objects of {name}", found.reason)
            else:
                self._add_limited(f"objects/{name}.json", f"objects of {name}", found)
        hook = await try_to_read(self._client.get(MUTATING_WEBHOOKS.as_dicts(), WEBHOOK))
        if isinstance(hook, Refusal):
            self.archive.omit("the webhook's configuration", hook.reason)
        else:
            self.add_json("objects/webhook.json", "the webhook's configuration", hook)
        definitions = await try_to_read(self._list(CRDS))
        if not isinstance(definitions, Refusal):
            shown = [_definition(each) for each in definitions if each["spec"]["group"] in _GROUPS]
            self.add_json("objects/definitions.json", "definitions of kinds: versions and conditions", shown)

    async def add_config_maps(self) -> None:
        """Adds the ConfigMaps with settings and records."""
        found: dict[str, Any] = {}
        for namespace, name in sorted(
            {*((SYSTEM_NAMESPACE, name) for name in CONFIG_MAPS), *followed_config_maps(self._own)}
        ):
            config = await try_to_read(self._client.get(CONFIGMAPS.as_dicts(), name, namespace))
            if isinstance(config, Refusal):
                if not config.missing:
                    self.archive.omit(f"ConfigMap {namespace}/{name}", config.reason)
                continue
            found[f"{namespace}/{name}"] = config
        self.add_json("objects/configmaps.json", "profiles, layouts, and records of drivers and nodes", found)

    async def add_events(self) -> None:
        """Adds Tessera's Events, and those about nodes and in its namespaces, the latest ones."""
        found = await try_to_read(self._events())
        if isinstance(found, Refusal):
            self.archive.omit("events", found.reason)
            return
        found.sort(key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""), reverse=True)
        self._add_limited("events.json", "events of Tessera, about nodes and in its namespaces, latest first", found)

    async def add_processes(self, fetch_records: FetchRecords | None) -> None:
        """Adds logs, metrics and, if asked for, decision records of Tessera's pods, those first that are not ready."""
        pods = sorted(self._own, key=lambda each: (_is_ready(each), each["metadata"]["name"]))
        chosen, rest = pods[:ARCHIVE_PROCESSES], pods[ARCHIVE_PROCESSES:]
        if rest:
            names = ", ".join(each["metadata"]["name"] for each in rest[:10])
            self.archive.omit(
                f"logs and metrics of {len(rest)} more pods", f"the limit is {ARCHIVE_PROCESSES}: {names}"
            )
        free = asyncio.Semaphore(_AT_ONCE)

        async def read(reading: Awaitable[bytes]) -> bytes | Refusal:
            async with free:
                return await try_to_read(reading)

        parts = [part for pod in chosen for part in self._parts_of(pod, fetch_records)]
        contents = await asyncio.gather(*(read(reading) for _, _, reading in parts))
        for (path, what, _), content in zip(parts, contents, strict=True):
            if isinstance(content, Refusal):
                self.archive.omit(what, content.reason)
            else:
                text = self._redaction.text(content.decode(errors="replace"))
                self.archive.add(path, what, text.encode(), from_end=path.startswith("logs/"))
        if fetch_records is None:
            self.archive.omit("decision records", "not asked for: --records")

    def _parts_of(self, pod: Object, fetch_records: FetchRecords | None) -> Iterator[tuple[str, str, Awaitable[bytes]]]:
        """File, description and content of everything of one pod."""
        name, app = pod["metadata"]["name"], (pod["metadata"].get("labels") or {}).get(_APP, "")
        restarts = {each["name"]: each.get("restartCount", 0) for each in _statuses(pod)}
        for container in [each["name"] for each in pod["spec"].get("containers", ())]:
            yield f"logs/{name}.{container}.log", f"log of {name}, {container}", self._log(name, container)
            if restarts.get(container):
                path, what = f"logs/{name}.{container}.previous.log", f"log before the restart of {name}, {container}"
                yield path, what, self._log(name, container, previous=True)
        if app in _METRICS:
            yield f"metrics/{name}.txt", f"metrics of {name}", self._metrics(name, _METRICS[app])
        if fetch_records is not None and app in {"tessera-agent", "tessera-controller"}:
            container = pod["spec"]["containers"][0]["name"]
            yield f"records/{name}.jsonl", f"decision records of {name}", fetch_records(name, container)

    async def _log(self, pod: str, container: str, *, previous: bool = False) -> bytes:
        query = [("container", container), ("tailLines", str(int(ARCHIVE_LOG_LINES))), ("timestamps", "false")]
        query += [("previous", "true")] if previous else []
        path = f"{PODS.path(SYSTEM_NAMESPACE, pod)}/log"
        return (await self._client.request("GET", path, query=query, accept="*/*")).body

    async def _metrics(self, pod: str, port: int) -> bytes:
        audience = AGENT_AUDIENCE if port == AGENT_PORT else CONTROLLER_AUDIENCE
        return (await self._reader.get(SYSTEM_NAMESPACE, pod, port, METRICS_PATH, audience)).body

    async def _list(self, resource: Resource[Any], namespace: str | None = None) -> Sequence[Object]:
        return (await self._client.list(resource.as_dicts(), namespace)).items

    async def _gpu_pods(self) -> list[Object]:
        """The pods that ask for GPUs; of a large cluster only a page of all pods is in memory."""
        return await self._filtered(
            PODS, lambda pod: uses_gpus(pod) and pod["metadata"]["namespace"] != SYSTEM_NAMESPACE
        )

    async def _events(self) -> list[Object]:
        return await self._filtered(EVENTS, _is_ours)

    async def _filtered(self, resource: Resource[Any], keeps: Callable[[Object], bool]) -> list[Object]:
        kept: list[Object] = []
        token, more = "", True
        while more and len(kept) <= ARCHIVE_OBJECTS:
            try:
                page = await self._client.page(resource.as_dicts(), token=token)
            except Expired:
                self.archive.omit(f"the rest of the {resource.plural}", "the list took longer than the server keeps it")
                break
            kept += [each for each in page.items if keeps(each)]
            token, more = page.token, bool(page.token)
        return kept

    def _add_limited(self, path: str, what: str, objects: Sequence[Any]) -> None:
        self.add_json(path, what, objects[:ARCHIVE_OBJECTS])
        if len(objects) > ARCHIVE_OBJECTS:
            self.archive.omit(f"{what}: {len(objects) - ARCHIVE_OBJECTS:,} more", f"the limit is {ARCHIVE_OBJECTS:,}")


_GROUPS = frozenset({"inference.redhat.com", "nvidia.com"})
_NODE_STATUS = ("allocatable", "capacity", "conditions", "nodeInfo")


def _node(node: Object) -> dict[str, Any]:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    return {
        "metadata": node["metadata"],
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
        "status": {key: status[key] for key in _NODE_STATUS if key in status},
    }


def _has_gpus(node: Object) -> bool:
    names = [*(node["metadata"].get("labels") or {}), *((node.get("status") or {}).get("capacity") or {})]
    return any(name.startswith("nvidia.com/") for name in names)


def _definition(definition: Object) -> dict[str, Any]:
    versions = [
        {key: each.get(key) for key in ("name", "served", "storage")} for each in definition["spec"]["versions"]
    ]
    return {
        "metadata": definition["metadata"],
        "versions": versions,
        "status": {"conditions": (definition.get("status") or {}).get("conditions")},
    }


def _is_ours(event: Object) -> bool:
    reporter = str(event.get("reportingComponent") or (event.get("source") or {}).get("component") or "")
    return (
        reporter.startswith("tessera")
        or event["metadata"].get("namespace") in {SYSTEM_NAMESPACE, INSTASLICE_NAMESPACE}
        or (event.get("involvedObject") or {}).get("kind") == "Node"
    )


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _statuses(pod: Object) -> Sequence[Mapping[str, Any]]:
    return (pod.get("status") or {}).get("containerStatuses") or ()
