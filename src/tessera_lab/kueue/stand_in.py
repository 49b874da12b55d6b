"""A stand-in of Kueue for the lab, by its documentation: it is no Kueue, and simulated like all of the lab.

It makes Workloads for Jobs, pods and groups. It knows quota by flavor, best effort in the order of priority and age;
admission checks with Ready, Retry and Rejected; both gates of pods; eviction of workloads whose pods are not ready in
time, and of lower priorities; comparison of pods with their Workload. It leaves out cohorts, fair sharing, partial
admission, and topologies beyond the second gate.

It looks at everything once a second, so each reconciliation begins from the stored objects alone.

Its CustomResourceDefinitions have the public field names of ``kueue.x-k8s.io`` (Kueue 0.13 to 0.19).

Written as tables of fields, so that a manifest with a field which Kueue does not have is refused by strict validation.
Rules that Kueue adds to its schemas (lengths, CEL) are left out, but for the few that a manifest of ours could break.
"""

import asyncio
import copy
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any

from tessera.clock import Clock, parse_rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Conflict, NotFound
from tessera.kube.resources import CRDS, JOBS, MUTATING_WEBHOOKS, NAMESPACES, PODS
from tessera.kueue.objects import CONFIG_NAMESPACE, GROUP
from tessera_lab.kueue.admission import Admission
from tessera_lab.kueue.eviction import Eviction, JobControl, WorkloadStatus
from tessera_lab.kueue.webhooks import SERVICE, KueueWebhooks, configuration
from tessera_lab.kueue.workloads import Job, are_equal, condition, find_jobs, is_leaving, is_true, key_of, make_kinds

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_INT: Json = {"type": "integer"}
_BOOL: Json = {"type": "boolean"}
_TIME: Json = {"type": "string", "format": "date-time"}
_QUANTITY: Json = {"x-kubernetes-int-or-string": True}
_ANY: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXTS: Json = {"type": "object", "additionalProperties": _TEXT}
_AMOUNTS: Json = {"type": "object", "additionalProperties": _QUANTITY}
_CONDITIONS: Json = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            **dict.fromkeys(("type", "status", "reason", "message"), _TEXT),
            "lastTransitionTime": _TIME,
            "observedGeneration": _INT,
        },
    },
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}


def fields(required: str = "", /, **properties: Any) -> Json:
    """An object's schema; ``required`` names fields with blanks between them."""
    made: Json = {"type": "object", "properties": properties}
    return {**made, "required": required.split()} if required else made


def several(item: Json, key: str = "", most: int = 0) -> Json:
    """A list's schema; with a key, an associative one."""
    made: Json = {"type": "array", "items": item}
    if key:
        made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return {**made, "maxItems": most} if most else made


_USAGE = several(fields("name", name=_TEXT, resources=several(fields(name=_TEXT, total=_QUANTITY, borrowed=_QUANTITY))))
_QUOTA = fields(
    "name nominalQuota", name=_TEXT, nominalQuota=_QUANTITY, borrowingLimit=_QUANTITY, lendingLimit=_QUANTITY
)
_GROUP = fields(
    "coveredResources flavors",
    coveredResources=several(_TEXT, most=64),
    flavors=several(fields("name resources", name=_TEXT, resources=several(_QUOTA, "name", 64)), "name", 64),
)
_CHECKS = fields(admissionChecks=several(fields("name", name=_TEXT, onFlavors=several(_TEXT)), "name"))
_SELECTOR = fields(
    matchLabels=_TEXTS,
    matchExpressions=several(fields("key operator", key=_TEXT, operator=_TEXT, values=several(_TEXT))),
)
_CLUSTER_QUEUE = {
    "resourceGroups": several(_GROUP, most=16),
    "queueingStrategy": {"type": "string", "enum": ["StrictFIFO", "BestEffortFIFO"], "default": "BestEffortFIFO"},
    "namespaceSelector": _SELECTOR,
    "flavorFungibility": fields(whenCanBorrow=_TEXT, whenCanPreempt=_TEXT, preference=_TEXT),
    "preemption": fields(
        reclaimWithinCohort=_TEXT,
        borrowWithinCohort=fields(policy=_TEXT, maxPriorityThreshold=_INT),
        withinClusterQueue=_TEXT,
    ),
    "admissionChecksStrategy": _CHECKS,
    "stopPolicy": {"type": "string", "enum": ["None", "Hold", "HoldAndDrain"], "default": "None"},
    "fairSharing": fields(weight=_QUANTITY),
    "admissionScope": fields(admissionMode=_TEXT),
}
_QUEUE_STATUS = fields(
    conditions=_CONDITIONS,
    flavorsReservation=_USAGE,
    flavorsUsage=_USAGE,
    pendingWorkloads=_INT,
    reservingWorkloads=_INT,
    admittedWorkloads=_INT,
    fairSharing=_ANY,
)
_POD_SET = fields(
    "count template",
    name={"type": "string", "default": "main"},
    template=_ANY,
    count=_INT,
    minCount=_INT,
    topologyRequest=fields(required=_TEXT, preferred=_TEXT, unconstrained=_BOOL),
)
_ASSIGNMENT = fields("name", name=_TEXT, flavors=_TEXTS, resourceUsage=_AMOUNTS, count=_INT, topologyAssignment=_ANY)
_CHECK_STATE = fields(
    "name state lastTransitionTime message",
    name=_TEXT,
    state={"type": "string", "enum": ["Pending", "Ready", "Retry", "Rejected"]},
    lastTransitionTime=_TIME,
    message={"type": "string", "maxLength": 32768},
    requeueAfterSeconds=_INT,
    retryCount=_INT,
    podSetUpdates=several(
        fields("name", name=_TEXT, labels=_TEXTS, annotations=_TEXTS, nodeSelector=_TEXTS, tolerations=several(_ANY)),
        "name",
    ),
)
_WORKLOAD = {
    "podSets": several(_POD_SET, "name", 18),
    "queueName": _TEXT,
    "priority": _INT,
    "active": {"type": "boolean", "default": True},
    "maximumExecutionTimeSeconds": _INT,
}
_WORKLOAD_STATUS = fields(
    conditions=_CONDITIONS,
    admission=fields(
        "clusterQueue podSetAssignments", clusterQueue=_TEXT, podSetAssignments=several(_ASSIGNMENT, "name")
    ),
    requeueState=fields(count=_INT, requeueAt=_TIME),
    reclaimablePods=several(fields("name count", name=_TEXT, count=_INT), "name"),
    admissionChecks=several(_CHECK_STATE, "name"),
    resourceRequests=several(fields("name", name=_TEXT, resources=_AMOUNTS), "name"),
    schedulingStats=_ANY,
    unhealthyNodes=several(fields("name", name=_TEXT)),
)
_FLAVOR = fields(nodeLabels=_TEXTS, nodeTaints=several(_ANY), tolerations=several(_ANY), topologyName=_TEXT)
_LEVELS = several(fields("nodeLabel", nodeLabel={"type": "string", "minLength": 1, "maxLength": 316}), "nodeLabel", 16)
_TOPOLOGY = fields("levels", levels={**_LEVELS, "minItems": 1})
_LOCAL_QUEUE = fields(clusterQueue=_TEXT, stopPolicy=_TEXT, fairSharing=fields(weight=_QUANTITY))
_PARAMETERS = fields("apiGroup kind name", apiGroup=_TEXT, kind=_TEXT, name=_TEXT)

#: Of each kind: plural, namespaced, and by version the schemas of spec and status.
_KINDS: dict[str, tuple[str, bool, dict[str, tuple[Json, Json]]]] = {
    "Workload": (
        "workloads",
        True,
        {
            "v1beta1": (
                fields("podSets", **_WORKLOAD, priorityClassName=_TEXT, priorityClassSource=_TEXT),
                _WORKLOAD_STATUS,
            ),
            "v1beta2": (
                fields("podSets", **_WORKLOAD, priorityClassRef=fields(group=_TEXT, kind=_TEXT, name=_TEXT)),
                _WORKLOAD_STATUS,
            ),
        },
    ),
    "ClusterQueue": (
        "clusterqueues",
        False,
        {
            "v1beta1": (fields(**_CLUSTER_QUEUE, cohort=_TEXT, admissionChecks=several(_TEXT)), _QUEUE_STATUS),
            "v1beta2": (fields(**_CLUSTER_QUEUE, cohortName=_TEXT, concurrentAdmissionPolicy=_ANY), _QUEUE_STATUS),
        },
    ),
    "LocalQueue": (
        "localqueues",
        True,
        {
            "v1beta1": (_LOCAL_QUEUE, fields(**_QUEUE_STATUS["properties"], flavors=several(_ANY), flavorUsage=_USAGE)),
            "v1beta2": (_LOCAL_QUEUE, _QUEUE_STATUS),
        },
    ),
    "ResourceFlavor": ("resourceflavors", False, {"v1beta1": (_FLAVOR, {}), "v1beta2": (_FLAVOR, {})}),
    "Topology": ("topologies", False, {"v1beta1": (_TOPOLOGY, {}), "v1beta2": (_TOPOLOGY, {})}),
    "AdmissionCheck": (
        "admissionchecks",
        False,
        {
            "v1beta1": (
                fields("controllerName", controllerName=_TEXT, retryDelayMinutes=_INT, parameters=_PARAMETERS),
                fields(conditions=_CONDITIONS),
            ),
            "v1beta2": (
                fields("controllerName", controllerName=_TEXT, parameters=_PARAMETERS),
                fields(conditions=_CONDITIONS),
            ),
        },
    ),
}


def make_definitions(*versions: str, delays: bool = True) -> list[Json]:
    """Returns the definitions with these versions served; the last one is stored.

    Args:
        versions: of Kueue's API.
        delays: False leaves out the fields of a check's delay, which Kueue 0.13 does not have.
    """
    made = copy.deepcopy([_definition(kind, *facts, versions) for kind, facts in _KINDS.items()])
    for each in made if not delays else ():
        for version in each["spec"]["versions"]:
            status = version["schema"]["openAPIV3Schema"]["properties"].get("status", {})
            states = status.get("properties", {}).get("admissionChecks", {})
            for field in ("requeueAfterSeconds", "retryCount"):
                states.get("items", {}).get("properties", {}).pop(field, None)
    return made


def _definition(
    kind: str, plural: str, namespaced: bool, schemas: dict[str, tuple[Json, Json]], versions: tuple[str, ...]
) -> Json:
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": names,
            "versions": [
                {**_version(name, *schemas[name], stored=name == versions[-1]), **_columns(kind)} for name in versions
            ],
        },
    }


def _version(name: str, spec: Json, status: Json, *, stored: bool) -> Json:
    whole = fields(
        apiVersion=_TEXT, kind=_TEXT, metadata={"type": "object"}, spec=spec, **({"status": status} if status else {})
    )
    made: Json = {"name": name, "served": True, "storage": stored, "schema": {"openAPIV3Schema": whole}}
    return {**made, "subresources": {"status": {}}} if status else made


#: The columns of ``kubectl get workloads``: name, path and type.
_WORKLOAD_COLUMNS = (
    ("Queue", ".spec.queueName", "string"),
    ("Reserved in", ".status.admission.clusterQueue", "string"),
    ("Admitted", ".status.conditions[?(@.type=='Admitted')].status", "string"),
    ("Finished", ".status.conditions[?(@.type=='Finished')].status", "string"),
    ("Age", ".metadata.creationTimestamp", "date"),
)


def _columns(kind: str) -> Json:
    if kind != "Workload":
        return {}
    columns = [{"name": name, "jsonPath": path, "type": type_} for name, path, type_ in _WORKLOAD_COLUMNS]
    return {"additionalPrinterColumns": columns}


#: Seconds between two looks.
PERIOD = 1.0
#: First pause before an evicted Job is admitted again (``backoffBaseSeconds``).
BACKOFF = 60.0


async def create_kinds(client: Client, version: str, *, delays: bool = True) -> None:
    """Creates Kueue's definitions and its namespace; for the arguments see :class:`StandIn`."""
    for definition in make_definitions(version, delays=delays):
        await client.create(CRDS.as_dicts(), definition)
    await client.create(NAMESPACES.as_dicts(), {"metadata": {"name": CONFIG_NAMESPACE}})


class StandIn:
    """Kueue's controllers.

    Args:
        client: an administrator.
        clock: the time.
        resources: ``resources`` of the Configuration.
        version: of the API that is served and used.
        ready_timeout: ``waitForPodsReady.timeout`` in seconds; None turns it off.
        webhooks: the webhooks.
        hostname: the node that topologies choose for each pod, put into its node selector.
        delays: False for the fields of Kueue 0.13, where a check cannot say when to ask again.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        resources: Mapping[str, Any],
        version: str = "v1beta2",
        ready_timeout: float | None = None,
        webhooks: KueueWebhooks | None = None,
        hostname: str = "",
        delays: bool = True,
    ) -> None:
        self._client = client
        self._clock = clock
        self._version = version
        self._ready_timeout = ready_timeout
        self._delays = delays
        self.webhooks = webhooks or KueueWebhooks()
        kinds = make_kinds(version)
        self._workloads = kinds.workloads
        self._status = WorkloadStatus(client, clock, kinds.workloads)
        self._jobs = JobControl(client, clock, kinds.flavors, hostname)
        self._eviction = Eviction(clock, self._status, self._jobs)
        self._admission = Admission(
            client, clock, kinds, resources=resources, status=self._status, eviction=self._eviction
        )

    async def install(self, reviewers: dict[tuple[str, str], Any], name: str = "kueue-mutating-webhook") -> None:
        """Creates the definitions and the webhooks' configuration; ``name`` decides who is called first."""
        await create_kinds(self._client, self._version, delays=self._delays)
        reviewers[CONFIG_NAMESPACE, SERVICE] = self.webhooks.review
        await self._client.create(MUTATING_WEBHOOKS.as_dicts(), configuration(name))
        await self._clock.sleep(PERIOD)

    async def run(self) -> None:
        """Reconciles until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._status.send_events())
            while True:
                with suppress(ApiError):  # the next look begins from what is stored
                    await self.reconcile()
                await self._clock.sleep(PERIOD)

    async def reconcile(self) -> None:
        """One look at everything."""
        jobs = (await self._client.list(JOBS.as_dicts())).items
        pods = (await self._client.list(PODS.as_dicts())).items
        workloads = {key_of(each): each for each in (await self._client.list(self._workloads)).items}
        found = {job.key: job for job in find_jobs(jobs, pods)}
        for key in workloads.keys() - found.keys():
            meta = workloads.pop(key)["metadata"]
            await self._client.delete(self._workloads, meta["name"], meta["namespace"])
        for key, job in found.items():
            await self._try(self._follow(job, workloads.get(key)), job)
        await self._jobs.release(pods)
        workloads = {key_of(each): each for each in (await self._client.list(self._workloads)).items}
        for key, item in workloads.items():
            if key in found:
                await self._try(self._advance(found[key], item), found[key])
        await self._admission.admit(found)

    async def _try(self, step: Awaitable[None], job: Job) -> None:
        """Does a step; what the server refuses waits for the next look, and concerns this job alone."""
        try:
            await step
        except (Conflict, NotFound):
            pass
        except ApiError as error:
            owner = job.owners[0]
            self._status.record("Job" if job.kind == "Job" else "Pod", owner, "ReconcileFailed", error.message)

    # Objects and their Workloads

    async def _follow(self, job: Job, item: Json | None) -> None:
        if item is None:
            if job.incomplete:
                for pod in job.owners:
                    self._status.record("Pod", pod, "ErrWorkloadCompose", job.incomplete)
            elif not job.finished and not any(is_leaving(each) for each in job.owners):
                await self._create(job)
        elif not job.finished and not job.incomplete and not are_equal(item["spec"]["podSets"], job.pod_sets):
            await self._jobs.stop(job, "NoMatchingWorkload", "the pods are not those of the Workload")
            await self._client.delete(self._workloads, job.name, job.namespace)

    async def _create(self, job: Job) -> None:
        owner = "Job" if job.kind == "Job" else "Pod"
        references = [
            {
                "apiVersion": "batch/v1" if owner == "Job" else "v1",
                "kind": owner,
                "name": each["metadata"]["name"],
                "uid": each["metadata"]["uid"],
                "controller": job.kind != "Group",
            }
            for each in job.owners
        ]
        body = {
            "metadata": {"name": job.name, "ownerReferences": references},
            "spec": {"queueName": job.queue, "podSets": job.pod_sets, "priority": job.priority()},
        }
        await self._client.create(self._workloads, body, job.namespace)

    # States of a Workload

    async def _advance(self, job: Job, item: Json) -> None:
        if job.finished:
            if not is_true(item, "Finished"):
                await self._status.set_condition(item, "Finished", True, "Succeeded", "the job finished", drop=True)
            return
        if is_true(item, "Evicted"):
            return
        checks = item.get("status", {}).get("admissionChecks") or []
        if rejected := [each for each in checks if each["state"] == "Rejected"]:
            await self._deactivate(job, item, rejected)
        elif retries := [each for each in checks if each["state"] == "Retry"]:
            await self._send_back(job, item, retries)
        elif is_true(item, "QuotaReserved") and not is_true(item, "Admitted"):
            if all(each["state"] == "Ready" for each in checks):
                await self._status.set_condition(item, "Admitted", True, "Admitted", "The workload is admitted")
                if self._ready_timeout is not None:
                    text = "Not all pods are ready or succeeded"
                    await self._status.set_condition(item, "PodsReady", False, "WaitForStart", text)
                await self._jobs.start(job, item)
        elif is_true(item, "Admitted"):
            await self._jobs.start(job, item)
            await self._watch_start(job, item)

    async def _deactivate(self, job: Job, item: Json, rejected: list[Json]) -> None:
        text = "; ".join(each["message"] for each in rejected)
        await self._eviction.evict(job, item, "Deactivated", f"The workload is deactivated: {text}")
        await self._client.merge_patch(self._workloads, job.name, {"spec": {"active": False}}, job.namespace)

    async def _send_back(self, job: Job, item: Json, retries: list[Json]) -> None:
        until = max(
            parse_rfc3339(each["lastTransitionTime"]) + (each.get("requeueAfterSeconds") or 0) for each in retries
        )
        text = "; ".join(f'"{each["name"]}" ({each["message"]})' for each in retries)
        message = f"Evicted due to AdmissionCheck in Retry state: {text}"
        await self._eviction.evict(job, item, "AdmissionCheck", message, until)

    async def _watch_start(self, job: Job, item: Json) -> None:
        """Evicts an admitted Workload whose pods are not ready in time."""
        if is_true(item, "PodsReady"):
            return
        if job.ready:
            text = "All pods reached readiness and the workload is running"
            await self._status.set_condition(item, "PodsReady", True, "Started", text)
        elif self._ready_timeout is not None:
            admitted = condition(item, "Admitted")
            assert admitted is not None
            now = self._clock.now()
            if now >= parse_rfc3339(admitted["lastTransitionTime"]) + self._ready_timeout:
                text = f"Exceeded the PodsReady timeout {job.namespace}/{job.name}"
                await self._eviction.evict(job, item, "PodsReadyTimeout", text, now + BACKOFF)
