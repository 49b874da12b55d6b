"""A stand-in of Kueue for the lab, by its documentation: it is no Kueue, and simulated like all of the lab.

It makes Workloads for Jobs, pods and groups. It knows quota by flavor, best effort in the order of priority and age;
admission checks with Ready, Retry and Rejected; both gates of pods; eviction of workloads whose pods are not ready in
time, and of lower priorities; comparison of pods with their Workload. It leaves out cohorts, fair sharing, partial
admission, and topologies beyond the second gate.

It looks at everything once a second, so each reconciliation begins from the stored objects alone.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tessera.clock import Clock, parse_rfc3339, rfc3339
from tessera.kube.client.client import Client
from tessera.kube.client.errors import Conflict, NotFound
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import CRDS, JOBS, MUTATING_WEBHOOKS, NAMESPACES, PODS, ObjectReference
from tessera.kueue.names import ADMISSION_GATE, CONFIG_NAMESPACE, TOPOLOGY_GATE
from tessera_lab.kueue.definitions import make_definitions
from tessera_lab.kueue.objects import condition, is_leaving, is_true, key_of, kind, order
from tessera_lab.kueue.quota import Usage
from tessera_lab.kueue.requests import as_quantities, pod_set_requests
from tessera_lab.kueue.webhooks import MANAGED, SERVICE, KueueWebhooks, configuration
from tessera_lab.kueue.workloads import Job, are_equal, find_jobs, phase

Json = dict[str, Any]

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
        self._resources = resources
        self._version = version
        self._ready_timeout = ready_timeout
        self._hostname = hostname
        self._delays = delays
        self._events = EventRecorder(client, component="kueue", instance="0", clock=clock, rng=random.Random(0))
        self.webhooks = webhooks or KueueWebhooks()
        self.workloads = kind("workloads", "Workload", version, namespaced=True)
        self._local = kind("localqueues", "LocalQueue", version, namespaced=True)
        self._queues = kind("clusterqueues", "ClusterQueue", version)
        self._checks = kind("admissionchecks", "AdmissionCheck", version)
        self._flavors = kind("resourceflavors", "ResourceFlavor", version)

    async def install(self, reviewers: dict[tuple[str, str], Any], name: str = "kueue-mutating-webhook") -> None:
        """Creates the definitions and the webhooks' configuration; ``name`` decides who is called first."""
        await create_kinds(self._client, self._version, delays=self._delays)
        reviewers[CONFIG_NAMESPACE, SERVICE] = self.webhooks.review
        await self._client.create(MUTATING_WEBHOOKS.as_dicts(), configuration(name))
        await self._clock.sleep(PERIOD)

    async def run(self) -> None:
        """Reconciles until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run())
            while True:
                with suppress(Conflict, NotFound):
                    await self.reconcile()
                await self._clock.sleep(PERIOD)

    async def reconcile(self) -> None:
        """One look at everything."""
        jobs = (await self._client.list(JOBS.as_dicts())).items
        pods = (await self._client.list(PODS.as_dicts())).items
        workloads = {key_of(each): each for each in (await self._client.list(self.workloads)).items}
        found = {job.key: job for job in find_jobs(jobs, pods)}
        for key in workloads.keys() - found.keys():
            meta = workloads.pop(key)["metadata"]
            await self._client.delete(self.workloads, meta["name"], meta["namespace"])
        for key, job in found.items():
            await self._follow(job, workloads.get(key))
        await self._release_pods(pods)
        workloads = {key_of(each): each for each in (await self._client.list(self.workloads)).items}
        for key, item in workloads.items():
            await self._advance(found[key], item) if key in found else None
        await self._admit(found)

    # Objects and their Workloads

    async def _follow(self, job: Job, item: Json | None) -> None:
        if item is None:
            if job.incomplete:
                for pod in job.owners:
                    self._record("Pod", pod, "ErrWorkloadCompose", job.incomplete)
            elif not job.finished and not any(is_leaving(each) for each in job.owners):
                await self._create(job)
        elif not job.finished and not job.incomplete and not are_equal(item["spec"]["podSets"], job.pod_sets):
            await self._stop(job, "NoMatchingWorkload", "the pods are not those of the Workload")
            await self._client.delete(self.workloads, job.name, job.namespace)

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
        await self._client.create(self.workloads, body, job.namespace)

    async def _release_pods(self, pods: Any) -> None:
        """Takes the finalizer off pods that have ended or are deleted."""
        for pod in pods:
            meta = pod["metadata"]
            finalizers = meta.get("finalizers") or []
            if MANAGED in finalizers and (is_leaving(pod) or phase(pod) in {"Succeeded", "Failed"}):
                rest = [each for each in finalizers if each != MANAGED]
                with suppress(NotFound):
                    await self._client.merge_patch(
                        PODS.as_dicts(), meta["name"], {"metadata": {"finalizers": rest}}, meta["namespace"]
                    )

    # States of a Workload

    async def _advance(self, job: Job, item: Json) -> None:
        now = self._clock.now()
        if job.finished:
            if not is_true(item, "Finished"):
                await self._condition(item, "Finished", True, "Succeeded", "the job finished", drop=True)
            return
        if is_true(item, "Evicted"):
            return
        checks = item.get("status", {}).get("admissionChecks") or []
        reserved = is_true(item, "QuotaReserved")
        if any(each["state"] == "Rejected" for each in checks):
            text = "; ".join(each["message"] for each in checks if each["state"] == "Rejected")
            await self._evict(job, item, "Deactivated", f"The workload is deactivated: {text}")
            await self._client.merge_patch(self.workloads, job.name, {"spec": {"active": False}}, job.namespace)
        elif retries := [each for each in checks if each["state"] == "Retry"]:
            until = max(
                parse_rfc3339(each["lastTransitionTime"]) + (each.get("requeueAfterSeconds") or 0) for each in retries
            )
            text = "; ".join(f'"{each["name"]}" ({each["message"]})' for each in retries)
            message = f"Evicted due to AdmissionCheck in Retry state: {text}"
            await self._evict(job, item, "AdmissionCheck", message, until)
        elif reserved and not is_true(item, "Admitted"):
            if all(each["state"] == "Ready" for each in checks):
                await self._condition(item, "Admitted", True, "Admitted", "The workload is admitted")
                if self._ready_timeout is not None:
                    await self._condition(
                        item, "PodsReady", False, "WaitForStart", "Not all pods are ready or succeeded"
                    )
                await self._start(job, item)
        elif is_true(item, "Admitted"):
            await self._start(job, item)
            if job.ready:
                if not is_true(item, "PodsReady"):
                    await self._condition(
                        item, "PodsReady", True, "Started", "All pods reached readiness and the workload is running"
                    )
            elif self._ready_timeout is not None and not is_true(item, "PodsReady"):
                admitted = condition(item, "Admitted")
                assert admitted is not None
                if now >= parse_rfc3339(admitted["lastTransitionTime"]) + self._ready_timeout:
                    text = f"Exceeded the PodsReady timeout {job.namespace}/{job.name}"
                    await self._evict(job, item, "PodsReadyTimeout", text, now + BACKOFF)

    async def _start(self, job: Job, item: Json) -> None:
        labels = await self._node_labels(item)
        if job.kind == "Job":
            spec = job.owners[0]["spec"]
            if spec.get("suspend"):
                chosen: Json = {"template": {"spec": {"nodeSelector": labels}}} if labels else {}
                patch: Json = {"spec": {"suspend": False, **chosen}}
                await self._client.merge_patch(JOBS.as_dicts(), job.owners[0]["metadata"]["name"], patch, job.namespace)
            return
        for pod in job.pods:
            gates = pod["spec"].get("schedulingGates") or []
            chosen = {**(pod["spec"].get("nodeSelector") or {}), **labels}
            if any(gate["name"] == ADMISSION_GATE for gate in gates):
                rest = [gate for gate in gates if gate["name"] != ADMISSION_GATE]
            elif any(gate["name"] == TOPOLOGY_GATE for gate in gates):
                rest = [gate for gate in gates if gate["name"] != TOPOLOGY_GATE]
                chosen |= {"kubernetes.io/hostname": self._hostname} if self._hostname else {}
            else:
                continue
            patch = {"spec": {"schedulingGates": rest or None, "nodeSelector": chosen}}
            await self._client.merge_patch(
                PODS.as_dicts(),
                pod["metadata"]["name"],
                patch,
                job.namespace,
                resource_version=pod["metadata"]["resourceVersion"],
            )

    async def _node_labels(self, item: Json) -> Json:
        found: Json = {}
        for each in item["status"]["admission"]["podSetAssignments"]:
            for flavor in set((each.get("flavors") or {}).values()):
                stored = await self._client.get(self._flavors, flavor)
                found |= (stored.get("spec") or {}).get("nodeLabels") or {}
        return found

    async def _stop(self, job: Job, reason: str, text: str) -> None:
        if job.kind == "Job":
            meta = job.owners[0]["metadata"]
            await self._client.merge_patch(JOBS.as_dicts(), meta["name"], {"spec": {"suspend": True}}, job.namespace)
            return
        for pod in job.pods:
            gates = [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
            if ADMISSION_GATE in gates or is_leaving(pod):
                continue
            target = {
                "type": "TerminationTarget",
                "status": "True",
                "reason": reason,
                "message": text,
                "lastTransitionTime": rfc3339(self._clock.now()),
            }
            conditions = [*(pod["status"].get("conditions") or ()), target]
            name = pod["metadata"]["name"]
            await self._client.merge_patch(
                PODS.as_dicts(), name, {"status": {"conditions": conditions}}, job.namespace, subresource="status"
            )
            await self._client.delete(PODS, name, job.namespace)

    async def _evict(self, job: Job, item: Json, reason: str, text: str, until: float | None = None) -> None:
        """Takes the quota back, stops the pods, and lets the Workload wait."""
        self._record("Workload", item, f"EvictedDueTo{reason}", text)
        status = item.get("status", {})
        now = rfc3339(self._clock.now())
        checks = [
            {
                "name": each["name"],
                "state": "Pending",
                "lastTransitionTime": now,
                "message": f"Reset to Pending after eviction. Previously: {each['state']}",
            }
            for each in status.get("admissionChecks") or ()
        ]
        count = ((status.get("requeueState") or {}).get("count") or 0) + 1
        more: Json = {"admissionChecks": checks, "admission": None}
        if until is not None:
            more["requeueState"] = {"count": count, "requeueAt": rfc3339(until)}
        conditions = self._with(item, "Evicted", True, reason, text)
        conditions = self._with({"status": {"conditions": conditions}}, "QuotaReserved", False, "Pending", text)
        conditions = self._with({"status": {"conditions": conditions}}, "Admitted", False, "NoReservation", text)
        await self._status(item, {"conditions": conditions, **more})
        await self._stop(job, f"WorkloadEvictedDueTo{reason}", text)

    # Quota

    async def _admit(self, found: Mapping[str, Job]) -> None:
        queues = {each["metadata"]["name"]: each for each in (await self._client.list(self._queues)).items}
        local = {key_of(each): each for each in (await self._client.list(self._local)).items}
        checks = {each["metadata"]["name"]: each for each in (await self._client.list(self._checks)).items}
        workloads = list((await self._client.list(self.workloads)).items)
        usage = {name: Usage(queue) for name, queue in queues.items()}
        for item in workloads:
            admission = item.get("status", {}).get("admission")
            if admission and not is_true(item, "Finished") and admission["clusterQueue"] in usage:
                for stored, pods in zip(admission["podSetAssignments"], item["spec"]["podSets"], strict=True):
                    amounts = pod_set_requests(pods, self._resources)
                    usage[admission["clusterQueue"]].add(stored.get("flavors") or {}, amounts)
        waiting = [each for each in workloads if key_of(each) in found and self._is_waiting(each)]
        for item in sorted(waiting, key=order):
            key = f"{item['metadata']['namespace']}/{item['spec']['queueName']}"
            if key not in local:
                text = f"LocalQueue {item['spec']['queueName']} doesn't exist"
                await self._condition(item, "QuotaReserved", False, "Inadmissible", text)
                continue
            name = local[key]["spec"]["clusterQueue"]
            if name not in queues:
                text = f"ClusterQueue {name} doesn't exist"
                await self._condition(item, "QuotaReserved", False, "Inadmissible", text)
                continue
            rules = (queues[name]["spec"].get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
            needed = [rule["name"] for rule in rules]
            if any(not is_true(checks.get(each, {}), "Active") for each in needed):
                text = f"ClusterQueue {name} is inactive"
                await self._condition(item, "QuotaReserved", False, "Inadmissible", text)
                continue
            refused = await self._reserve(item, name, usage[name], needed)
            if refused:
                if (queues[name]["spec"].get("preemption") or {}).get("withinClusterQueue") == "LowerPriority":
                    await self._preempt(item, name, workloads, found)
                await self._condition(item, "QuotaReserved", False, "Pending", refused)
        await self._show_usage(queues, usage)

    async def _reserve(self, item: Json, name: str, usage: Usage, needed: list[str]) -> str:
        """Reserves quota; returns the reason if there is not enough."""
        assignments = []
        for pods in item["spec"]["podSets"]:
            amounts = pod_set_requests(pods, self._resources)
            flavors, text = usage.assign(pods["name"], amounts, old=self._version == "v1beta1")
            if text:
                return text
            usage.add(flavors, amounts)
            assignments.append(
                {
                    "name": pods["name"],
                    "flavors": flavors,
                    "resourceUsage": as_quantities(amounts),
                    "count": pods["count"],
                }
            )
        now = rfc3339(self._clock.now())
        states = [{"name": each, "state": "Pending", "lastTransitionTime": now, "message": ""} for each in needed]
        text = f"Quota reserved in ClusterQueue {name}"
        conditions = self._with(item, "QuotaReserved", True, "QuotaReserved", text)
        evicted = condition(item, "Evicted")
        if evicted is not None:
            again = {"status": {"conditions": conditions}}
            conditions = self._with(again, "Evicted", False, "QuotaReserved", f"Previously: {evicted['message']}")
        admission = {"clusterQueue": name, "podSetAssignments": assignments}
        await self._status(item, {"conditions": conditions, "admission": admission, "admissionChecks": states})
        return ""

    async def _preempt(self, item: Json, queue: str, workloads: list[Json], found: Mapping[str, Job]) -> None:
        """Evicts the lowest of lower priority; the next look sees the quota that it leaves."""
        victims = [
            each
            for each in workloads
            if (each.get("status", {}).get("admission") or {}).get("clusterQueue") == queue
            and each["spec"].get("priority", 0) < item["spec"].get("priority", 0)
            and key_of(each) in found
            and not found[key_of(each)].finished
        ]
        if victims:
            victim = min(victims, key=lambda each: int(each["spec"].get("priority", 0)))
            text = f"Preempted to accommodate a workload (UID: {item['metadata']['uid']})"
            await self._evict(found[key_of(victim)], victim, "Preempted", text)

    def _is_waiting(self, item: Json) -> bool:
        if is_true(item, "QuotaReserved") or is_true(item, "Finished") or item["spec"].get("active") is False:
            return False
        until = (item.get("status", {}).get("requeueState") or {}).get("requeueAt")
        return until is None or parse_rfc3339(until) <= self._clock.now()

    async def _show_usage(self, queues: Mapping[str, Json], usage: Mapping[str, Usage]) -> None:
        for name, queue in queues.items():
            flavors = [
                {
                    "name": flavor["name"],
                    "resources": [
                        {
                            "name": each["name"],
                            "total": as_quantities({"": usage[name].used(flavor["name"], each["name"])})[""],
                        }
                        for each in flavor["resources"]
                    ],
                }
                for group in queue["spec"].get("resourceGroups") or ()
                for flavor in group["flavors"]
            ]
            if flavors != queue.get("status", {}).get("flavorsReservation"):
                patch = {"status": {"flavorsReservation": flavors}}
                await self._client.merge_patch(self._queues, name, patch, subresource="status")

    # Writes

    async def _condition(
        self, item: Json, type_: str, status: bool, reason: str, text: str, *, drop: bool = False
    ) -> None:
        conditions = self._with(item, type_, status, reason, text)
        if conditions != item.get("status", {}).get("conditions"):
            await self._status(item, {"conditions": conditions, **({"admission": None} if drop else {})})

    def _with(self, item: Json, type_: str, status: bool, reason: str, text: str) -> list[Json]:
        """The conditions with this one; its time changes with its status alone."""
        before = condition(item, type_)
        made = {
            "type": type_,
            "status": str(status),
            "reason": reason,
            "message": text,
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        if before is not None and before["status"] == made["status"]:
            made["lastTransitionTime"] = before["lastTransitionTime"]
        rest = [each for each in item.get("status", {}).get("conditions") or () if each["type"] != type_]
        return sorted([*rest, made], key=lambda each: str(each["type"]))

    async def _status(self, item: Json, patch: Json) -> None:
        meta = item["metadata"]
        stored = await self._client.merge_patch(
            self.workloads, meta["name"], {"status": patch}, meta["namespace"], subresource="status"
        )
        item["status"] = stored.get("status", {})

    def _record(self, kind: str, item: Json, reason: str, text: str) -> None:
        meta = item["metadata"]
        about = ObjectReference(
            api_version="v1" if kind == "Pod" else self.workloads.api_version,
            kind=kind,
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
        )
        self._events.record(about, reason, text, type="Warning")
