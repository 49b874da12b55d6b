"""One pod on its node, from admission to its last status.

A worker is one task per pod UID. It admits the pod (one pod at a time on the whole node, devices included), runs its
containers, writes its status, and, when the API object is being deleted, stops the containers and confirms the
deletion with a delete of grace zero, as kubelet does. Containers that are active at the pod's deadline are stopped, and
the pod fails.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tessera.clock import until_set
from tessera.kube.errors import ApiError, Conflict, Invalid, NotFound
from tessera.kube.event_recorder import make_reference
from tessera.kube.resources import PODS
from tessera.kube.resources.meta import key_of, uid_of
from tessera.kubelet.interfaces import ContainerAllocateResponse
from tessera_lab.apiserver.patch.strategic_merge import STRATEGIC
from tessera_lab.kubelet.claim_manager import ClaimError
from tessera_lab.kubelet.containers.containers import SIGKILL_EXIT, SIGTERM_EXIT, PodContainers
from tessera_lab.kubelet.containers.environment import PodFieldValues, environment
from tessera_lab.kubelet.containers.probes import Probe, ProbeRunner, ProgramRun
from tessera_lab.kubelet.containers.runtime import CreatedContainer
from tessera_lab.kubelet.devices.device_ledger import DeviceAllocationError, PodUid
from tessera_lab.kubelet.pod_status import (
    ContainerRecord,
    container_records,
    mark_after_reboot,
    pod_status,
    rejected_status,
    status_patch,
)
from tessera_lab.kubelet.pods.node_services import AdmissionRejection, NodeServices
from tessera_lab.scheduler.state.claim_cache import claim_names
from tessera_lab.scheduler.state.node_cache import CachedPod, build_pod_info

Json = Mapping[str, Any]

#: Annotation of a pod: its simulated containers ignore SIGTERM, and kubelet kills them after the grace period.
IGNORES_SIGTERM = "lab.tessera.dev/ignores-sigterm"

#: Shortest time for a container to end after SIGTERM, seconds (kubelet's ``minimumGracePeriodInSeconds``).
_SHORTEST_GRACE = 2.0

#: Seconds that kubelet takes to refuse a pod. It must not be 0: if a node refuses every pod, the owner creates the next
#: one at once, and virtual time would never advance.
REJECTION = 0.01

#: Reason and message of a pod that kubelet has ended at its ``activeDeadlineSeconds``
#: (``pkg/kubelet/active_deadline.go``).
OVERDUE = {
    "phase": "Failed",
    "reason": "DeadlineExceeded",
    "message": "Pod was active on the node longer than the specified deadline",
}

#: Seconds after which kubelet tries a failed preparation of claims again: the shortest and the longest that were seen
#: on kubelet 1.36.2; and seconds between attempts to unprepare them.
_PREPARE_AGAIN, _UNPREPARE_AGAIN = (64.0, 85.0), 8.0

#: Seconds before kubelet repeats a failed write of a status.
_WRITE_AGAIN = 1.0


class PodWorker:
    """The life of one pod.

    Attributes:
        pod: the newest state of the API object.
        records: its containers.
        needs: its requests of resources and ports.
        started: when kubelet first saw it, seconds since 1970.
        active: true if it holds resources of the node.

    Args:
        pod: the API object.
        services: services of its node.
        before: the pod's worker before the node rebooted.
    """

    def __init__(self, pod: Json, services: NodeServices, before: "PodWorker | None" = None) -> None:
        self.pod = pod
        self.records: list[ContainerRecord] = container_records(pod["spec"]) if before is None else before.records
        self.needs = _needs(pod)
        self.active = True
        self._services = services
        self._uid = PodUid(pod["metadata"]["uid"])
        self.started: float = services.clock.now() if before is None else before.started
        self._rebooted = before is not None
        self._down = False
        self._started_monotonic = services.clock.monotonic()
        self._own_address: str | None = None
        self._pod_ip = ""
        self._rejected: AdmissionRejection | None = None
        self._containers: PodContainers | None = None
        self._deleted = asyncio.Event()
        self._changed = asyncio.Event()
        self._gone = False
        #: True if the pod was deleted, or its deadline was over, and its containers have ended.
        self._stopped = False
        #: True if its deadline ended it.
        self._overdue = False
        self._status_due = asyncio.Event()
        #: The body of the last write of the status; kubelet does not write the same again (``status_manager``).
        self._written: dict[str, Any] | None = None
        self._writing = asyncio.Lock()
        self._reference = make_reference(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"], self._uid)

    @property
    def is_deleted(self) -> bool:
        """True if the API object is gone."""
        return self._gone

    # Events of the API

    def update(self, pod: Json) -> None:
        """Handles a change of the API object."""
        self.pod = pod
        self._changed.set()
        if self._containers is not None:
            self._containers.change(pod)
        if pod["metadata"].get("deletionTimestamp"):
            self._deleted.set()

    def note_object_deleted(self) -> None:
        """The API object is gone: stops at once and writes no status.

        Kubelet counts only pods that the API server has when it admits others (``GetActivePods`` in ``pkg/kubelet``).
        So the pod holds neither devices nor ports from now on, although its containers take a moment to stop.
        """
        self._gone = True
        self._release_devices()
        self._changed.set()
        self._deleted.set()

    def node_down(self) -> None:
        """The node goes down: the pod's devices stay in kubelet's checkpoint, and the worker writes no more status."""
        self._down = True

    # Life cycle

    async def run(self) -> None:
        """Runs until the API object is gone, or this kubelet is stopped."""
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self._write_statuses())
            try:
                if (self.pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}:
                    await self._run_pod()
                self._return_resources()
                await self._unprepare_claims()
                await self._deleted.wait()
                if not self._gone:
                    await self._confirm_deletion()
            finally:
                writer.cancel()
                self._return_resources()

    async def _run_pod(self) -> None:
        if self._rebooted:
            mark_after_reboot(self.pod["spec"], self.records, self._services.clock.now())
            if self._deleted.is_set():
                return
        async with self._services.node.admission:
            if not self._deleted.is_set():
                self._rejected = await self._admit()
        if self._rejected is not None:
            self._return_resources()
            await self._services.clock.sleep(REJECTION)
            self.record_event(self._rejected.reason, self._rejected.message, type="Warning")
            await self._write()
            return
        self._started_monotonic = self._services.clock.monotonic()
        self._own_address = None if self.pod["spec"].get("hostNetwork") else self._services.network.allocate()
        self._pod_ip = self._own_address or self._services.network.host_ip
        if self._rebooted and self.pod["spec"].get("restartPolicy") != "Never":
            self.record_event("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
        containers = self._containers = PodContainers(
            self.pod,
            self.records,
            host=self,
            runtime=self._services.launcher.runtime,
            clock=self._services.clock,
            rng=self._services.rng,
        )
        life = asyncio.create_task(self._run_containers(containers))
        stop = asyncio.create_task(self._await_end())
        try:
            self.note_status_change()
            await asyncio.wait([life, stop], return_when=asyncio.FIRST_COMPLETED)
            if not life.done():
                overdue = not self._deleted.is_set()
                await self._stop(containers, life)
                self._overdue = overdue
            if not life.cancelled():
                life.result()
            containers.mark_stopped(0)
            self._stopped = self._deleted.is_set() or self._overdue
        finally:
            stop.cancel()
            containers.kill()  # a container that still runs here ends with the machine, not with the pod
            life.cancel()
            await asyncio.wait([life])
        self._return_resources()
        if not self._gone:
            await self._write()

    async def _run_containers(self, containers: PodContainers) -> None:
        if not self.pod["spec"].get("hostNetwork"):
            await self._services.node.wait_for_network()
        await self._prepare_claims()
        await containers.run()

    async def _prepare_claims(self) -> None:
        """Returns once all claims are prepared; kubelet tries again with its next sync of the pod."""
        while claim_names(self.pod):
            try:
                await self._services.claims.prepare(self.pod)
            except ClaimError as error:
                text = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
                self.record_event("FailedPrepareDynamicResources", text, type="Warning")
                await self._services.clock.sleep(self._services.rng.uniform(*_PREPARE_AGAIN))
            else:
                self.note_status_change()
                return

    async def _unprepare_claims(self) -> None:
        """Returns once the claims that only this pod uses are unprepared; a deleted pod stays until then."""
        while not self._down and self._services.claims.uses_claims(self._uid):
            try:
                await self._services.claims.unprepare(self._uid)
            except ClaimError as error:
                text = f"error killing pod: unprepare dynamic resources: {error}"
                self.record_event("FailedKillPod", text, type="Warning")
                await self._services.clock.sleep(_UNPREPARE_AGAIN)

    async def _admit(self) -> AdmissionRejection | None:
        # As in kubelet, a pod that has devices from before the boot is checked for them first.
        if self._rebooted:
            return await self._allocate_devices() or self._services.node.admit_pod(self.needs)
        return self._services.node.admit_pod(self.needs) or await self._allocate_devices()

    async def _allocate_devices(self) -> AdmissionRejection | None:
        try:
            await self._services.devices.allocate(self.pod, self._uid)
        except DeviceAllocationError as refusal:
            text = f"Allocate failed due to {refusal}, which is unexpected"
            return AdmissionRejection("UnexpectedAdmissionError", text)
        return None

    async def _await_end(self) -> None:
        """Returns once the pod is being deleted, or its deadline is over. Kubelet tests no deadline after that."""
        while not self._deleted.is_set():
            self._changed.clear()
            seconds = self.pod["spec"].get("activeDeadlineSeconds")
            left = None if seconds is None else self.started + seconds - self._services.clock.now()
            if left is not None and left <= 0:
                return
            await until_set(self._changed, left)

    async def _stop(self, containers: PodContainers, life: asyncio.Task[None]) -> None:
        containers.announce_stop()
        exit_code = SIGTERM_EXIT
        if IGNORES_SIGTERM in (self.pod["metadata"].get("annotations") or {}) and not self._gone:
            await self._await_grace(life, 0.0)
            exit_code = SIGKILL_EXIT
        life.cancel()
        await self._await_grace(life, _SHORTEST_GRACE)
        if not life.done():
            containers.kill()
            exit_code = SIGKILL_EXIT
            await asyncio.wait([life])
        containers.mark_stopped(exit_code)

    async def _await_grace(self, life: asyncio.Task[None], least: float) -> None:
        """Returns once the containers have ended, or their grace is over; a shorter one begins anew, as in kubelet."""
        loop, grace = asyncio.get_running_loop(), self._grace()
        end = loop.time() + max(least, grace)
        while not life.done() and loop.time() < end:
            self._changed.clear()
            if self._grace() < grace:
                grace = self._grace()
                end = min(end, loop.time() + max(least, grace))
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait([life, changed], timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    def _grace(self) -> float:
        """Seconds that the containers may take to end now."""
        if self._gone:
            return 0.0
        if self._deleted.is_set():
            return float(self.pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))

    def _return_resources(self) -> None:
        """Releases the node's resources that the pod holds, its address too."""
        self._release_devices()
        if self._own_address is not None:
            self._services.network.release(self._own_address)
            self._own_address = None

    def _release_devices(self) -> None:
        """Releases the devices and ports that admission counts."""
        self.active = False
        if not self._down:
            self._services.devices.release(self._uid)

    async def _confirm_deletion(self) -> None:
        while not self._gone and not await self._try_confirm_deletion():
            await self._services.clock.sleep(_WRITE_AGAIN)

    async def _try_confirm_deletion(self) -> bool:
        name, namespace = self.pod["metadata"]["name"], self.pod["metadata"]["namespace"]
        try:
            await self._services.client.delete(PODS, name, namespace, uid=self._uid, grace_seconds=0)
        except (NotFound, Conflict):
            return True
        except (ApiError, ConnectionError, TimeoutError):
            return False
        return True

    @property
    def address(self) -> str:
        """The pod's address; empty before it has one."""
        return self._pod_ip

    # For the containers (tessera_lab.kubelet.containers.containers.PodHost)

    async def environment(self, container: Json) -> dict[str, str]:
        """The variables of the container's spec."""
        facts = PodFieldValues(
            self.pod,
            pod_ip=self._pod_ip,
            host_ip=self._services.network.host_ip,
            allocatable=self._services.node.allocatable(),
        )
        own = {"HOSTNAME": str(self.pod["spec"].get("hostname") or self.pod["metadata"]["name"])}
        return own | await environment(container, facts, self._services.node.read_data)

    async def pre_start(self, container: str) -> None:
        """PreStartContainer of the container's devices."""
        await self._services.devices.pre_start(self._uid, container)

    def allocations(self, container: str) -> Sequence[ContainerAllocateResponse]:
        """The Allocate responses of device plugins for the container, and one with the CDI devices of its claims."""
        found = self._services.devices.allocations(self._uid, container)
        spec = next(each.spec for each in self.records if each.name == container)
        names = [name for _, _, each in self._services.claims.devices(self.pod, spec) for name in each.cdi_devices]
        return (*found, ContainerAllocateResponse(cdi_devices=tuple(dict.fromkeys(names)))) if names else found

    def listen_address(self) -> str:
        """The pod's address if it is one of this machine, on which its servers can listen; else empty."""
        return self._pod_ip if self._services.launcher.pods_listen() else ""

    def start_real(self, record: ContainerRecord, created: CreatedContainer) -> asyncio.Task[int] | None:
        """The container's process if it is run for real."""

        def note_ready() -> None:
            record.ready = True
            self.note_status_change()

        return self._services.launcher.start_real(
            self.pod, self._pod_ip, record.name, created, log=record.write, ready=note_ready
        )

    def reports_readiness(self, created: CreatedContainer) -> bool:
        """True if the container's process says when it is ready."""
        return self._services.launcher.reports_readiness(created)

    def start_program(self, record: ContainerRecord, created: CreatedContainer) -> ProgramRun | None:
        """The run of the image's program, with the container's probes."""
        given = self._services.launcher.start_program(self.pod, self._pod_ip, created, record.write)
        if given is None:
            return None
        program, context = given
        probing = ProbeRunner(
            record,
            startup=Probe.of(record.spec, "startupProbe"),
            readiness=Probe.of(record.spec, "readinessProbe"),
            health=context.health,
            clock=context.clock,
            pod_began=self._started_monotonic,
            changed=self.note_status_change,
            record_failure=lambda text: self.record_event("Unhealthy", text, type="Warning"),
        )
        return ProgramRun(program, context, probing)

    def record_event(
        self,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",  # noqa: A002 - an event's own word
    ) -> None:
        """Records an event about the pod."""
        self._services.events.record(self._reference, reason, note, type=type)

    def note_status_change(self) -> None:
        """Wakes the writer of the status."""
        self._status_due.set()

    # Status

    async def _write_statuses(self) -> None:
        while True:
            await self._status_due.wait()
            await self._write()

    async def _write(self) -> None:
        """Writes the present status until the API server has it or the pod is gone."""
        async with self._writing:
            self._status_due.clear()
            while not self._gone and not await self._try_write():
                await self._services.clock.sleep(_WRITE_AGAIN)

    async def _try_write(self) -> bool:
        metadata = self.pod["metadata"]
        path = PODS.path(metadata["namespace"], metadata["name"], "status")
        body = {"metadata": {"uid": self._uid}, "status": status_patch(self._status())}
        if body == self._written:
            return True
        try:
            await self._services.client.request("PATCH", path, body=body, content_type=STRATEGIC)
        except (NotFound, Conflict):
            return True
        except Invalid as error:  # another pod has its name
            return any(cause.field == "metadata.uid" for cause in error.causes)
        except (ApiError, ConnectionError, TimeoutError):
            return False
        self._written = body
        return True

    def _status(self) -> dict[str, Any]:
        if self._rejected is not None:
            return rejected_status(self._rejected.reason, self._rejected.message, self.started)
        for record in self.records:
            # A pod that has ended holds no device any more, and its status keeps their last health.
            health: dict[str, Mapping[str, bool | None]] = {
                **self._services.devices.ledger.health(self._uid, record.name),
                **self._services.claims.health(self.pod, record.spec),
            }
            record.devices = health or record.devices
        status = pod_status(
            self.pod,
            self.records,
            now=self._services.clock.now(),
            started=self.started,
            host_ip=self._services.network.host_ip,
            pod_ip=self._pod_ip,
            deleted=self._stopped,
        )
        return status | OVERDUE if self._overdue else status


def _needs(pod: Json) -> CachedPod:
    """What admission counts: extended resources that the pod has by a claim are not the node's."""
    found = build_pod_info(key_of(pod), uid_of(pod), 0.0, pod["spec"])
    mapped = ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()
    claimed = {each["resourceName"] for each in mapped}
    rest = {name: value for name, value in found.requests.items() if name not in claimed}
    return msgspec.structs.replace(found, requests=rest) if claimed else found
