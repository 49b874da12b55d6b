"""A stand-in of Kueue for the lab, by its documentation: it is no Kueue, and simulated like all of the lab.

It makes Workloads for Jobs, pods and groups. It knows quota by flavor, best effort in the order of priority and age;
admission checks with Ready, Retry and Rejected; both gates of pods; eviction of workloads whose pods are not ready in
time, and of lower priorities; comparison of pods with their Workload. It leaves out cohorts, fair sharing, partial
admission, and topologies beyond the second gate.

It looks at everything once a second, so each reconciliation begins from the stored objects alone.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any

from tessera.clock import Clock, parse_rfc3339
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Conflict, NotFound
from tessera.kube.resources import CRDS, JOBS, MUTATING_WEBHOOKS, NAMESPACES, PODS
from tessera.kueue.names import CONFIG_NAMESPACE
from tessera_lab.kueue.admission import Admission
from tessera_lab.kueue.definitions import make_definitions
from tessera_lab.kueue.eviction import Eviction
from tessera_lab.kueue.job_control import JobControl
from tessera_lab.kueue.objects import condition, is_leaving, is_true, key_of, make_kinds
from tessera_lab.kueue.webhooks import SERVICE, KueueWebhooks, configuration
from tessera_lab.kueue.workload_status import WorkloadStatus
from tessera_lab.kueue.workloads import Job, are_equal, find_jobs

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
