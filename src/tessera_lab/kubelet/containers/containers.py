"""The life of a pod's containers on a node: start, run, restart, stop.

The order is kubelet's: ordinary init containers run one after the other, each until it succeeds; after a sidecar the
next one begins as soon as the sidecar has started; then the app containers run at the same time, but start (pull,
create, PreStartContainer) one after another. This module changes records and reports each change;
:mod:`tessera_lab.kubelet.pod_status` computes the pod's status from them.
"""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from tessera.api.names import SIMULATED_RUNTIME
from tessera.clock import Clock
from tessera.kubelet.interfaces import ContainerAllocateResponse, PluginError
from tessera.nvml.errors import NvmlError
from tessera_lab.apiserver.container_log import ContainerLog
from tessera_lab.kubelet.containers.environment import CdiError, ContainerConfigError, command_line
from tessera_lab.kubelet.containers.gpu_processes import ContainerOwner
from tessera_lab.kubelet.containers.probes import ProgramRun
from tessera_lab.kubelet.containers.runtime import ContainerRuntime, CreatedContainer
from tessera_lab.kubelet.images.node_images import ImagePuller, format_pull_duration
from tessera_lab.kubelet.pod_status import ContainerRecord, ContainerRole, Running, Terminated, Waiting
from tessera_lab.kubelet.servers.behaviour import HttpBehaviour, ServerError, declared_server
from tessera_lab.simulation.supervision import CREATE_RETRY, CrashBackoff, describe_error, is_being_cancelled

Json = Mapping[str, Any]

_log = logging.getLogger(__name__)

#: Exit codes of a container that was stopped: by SIGTERM, and by SIGKILL after the grace period.
SIGTERM_EXIT = 143
SIGKILL_EXIT = 137

#: Exit code of a container whose GPU is missing; the same as for a command that the runtime cannot start.
NO_GPU_EXIT = 128

#: Exit code of a container whose simulation failed.
DIED_EXIT = 1


class PodHost(Protocol):
    """Interface of the node to the containers of one pod."""

    async def environment(self, container: Json) -> dict[str, str]:
        """The variables of the container's spec. Raises ConfigError."""
        ...

    async def pre_start(self, container: str) -> None:
        """PreStartContainer of the container's devices. Raises PluginError."""
        ...

    def allocations(self, container: str) -> Sequence[ContainerAllocateResponse]:
        """The Allocate responses of device plugins for the container."""
        ...

    def listen_address(self) -> str:
        """The pod's address if it is one of this machine, on which its servers can listen; else empty."""
        ...

    def start_real(self, record: ContainerRecord, created: CreatedContainer) -> asyncio.Task[int] | None:
        """Starts the container as a real process; None if it is not one of Tessera's."""
        ...

    def reports_readiness(self, created: CreatedContainer) -> bool:
        """True if the container's process says when it is ready."""
        ...

    def start_program(self, record: ContainerRecord, created: CreatedContainer) -> ProgramRun | None:
        """Returns the run of its image's program; None if the image has none."""
        ...

    def record_event(
        self,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",  # noqa: A002 - an event's own word
    ) -> None:
        """Records an event about the pod."""
        ...

    def note_status_change(self) -> None:
        """A record changed: the pod's status must be written."""
        ...


class PodContainers:
    """The containers of one pod.

    Args:
        pod: the pod as decoded JSON.
        records: its containers; changed in place.
        host: the node's side.
        runtime: the node's container runtime.
        clock: for times and back-off.
        rng: for container ids.
    """

    def __init__(
        self,
        pod: Json,
        records: Sequence[ContainerRecord],
        *,
        host: PodHost,
        runtime: ContainerRuntime,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._pod = pod
        self._policy = pod["spec"].get("restartPolicy") or "Always"
        self._records = records
        self._host = host
        self._runtime = runtime
        self._clock = clock
        self._rng = rng
        self._starting = asyncio.Lock()
        self._programs: set[ProgramRun] = set()
        #: By container, its process; none of one that was changed since it began.
        self._processes: dict[str, asyncio.Task[int]] = {}
        self._pulling = ImagePuller(host, runtime.images, clock, self._wait)

    async def run(self) -> None:
        """Runs all containers until the pod is finished. Cancel it, after :meth:`announce_stop`, to stop them."""
        sidecars: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as pod:
            try:
                for record in self._records:
                    if record.role is ContainerRole.INIT:
                        await self._run_repeatedly(record)
                        if not record.is_done:
                            return
                    elif record.role is ContainerRole.SIDECAR:
                        started = asyncio.Event()
                        sidecars.append(pod.create_task(self._run_repeatedly(record, started)))
                        await started.wait()
                async with asyncio.TaskGroup() as group:
                    for record in self._records:
                        if record.role is ContainerRole.APP:
                            group.create_task(self._run_repeatedly(record))
            finally:
                for task in sidecars:
                    task.cancel()

    def change(self, pod: Json) -> None:
        """Handles a change of the pod: stops a container whose image is another now, which then starts anew.

        Kubelet does so whatever the restart policy, and pulls the image after that (``computePodActions`` in
        ``pkg/kubelet/kuberuntime``). The pod keeps its address, its volumes and its devices.
        """
        self._pod = pod
        specs = {each["name"]: each for part in ("initContainers", "containers") for each in pod["spec"].get(part, ())}
        for record in self._records:
            spec = specs[record.name]
            if record.role is ContainerRole.INIT or spec.get("image") == record.spec.get("image"):
                continue
            record.spec = spec
            process = self._processes.pop(record.name, None)
            if process is not None:
                self._host.record_event("Killing", f"Container {record.name} definition changed, will be restarted")
                process.cancel()

    def announce_stop(self) -> None:
        """Records events that every running container is being stopped."""
        for record in self._records:
            if isinstance(record.state, Running):
                self._host.record_event("Killing", f"Stopping container {record.name}")

    def kill(self) -> None:
        """Ends programs that are still stopping, after SIGKILL or because the machine is down."""
        for program in self._programs:
            program.kill()

    def mark_stopped(self, exit_code: int) -> None:
        """Records running containers as stopped, and waiting ones as never to run."""
        for record in self._records:
            if isinstance(record.state, Running):
                self._end(record, exit_code)
        self._host.note_status_change()

    # One container

    async def _run_repeatedly(self, record: ContainerRecord, started: asyncio.Event | None = None) -> None:
        """Starts the container, and starts it again after each end if its restart policy says so."""
        if not self._may_start(record):
            return
        backoff = CrashBackoff()
        while True:
            created = await self._start(record)
            if started is not None:
                started.set()
            began = self._clock.monotonic()
            try:
                exit_code = await self._process(record, created)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                exit_code = SIGTERM_EXIT
            except Exception as error:
                if is_being_cancelled():
                    raise
                _log.exception("process of container %s", record.name)
                record.write(f"simulated: the process died of an error of the lab: {describe_error(error)}")
                exit_code = DIED_EXIT
            finally:
                if record.log is not None:
                    record.log.end()
            self._end(record, exit_code)
            self._host.note_status_change()
            if self._processes.pop(record.name, None) is None:  # it was changed
                backoff = CrashBackoff()
            elif not self._restarts(record, exit_code):
                return
            else:
                await self._back_off(record, backoff.next_delay(self._clock.monotonic() - began))
            record.restarts += 1

    def _may_start(self, record: ContainerRecord) -> bool:
        """True if the container must be started; one that ran before the node's boot counts as restarted."""
        if isinstance(record.state, Terminated) and not self._restarts(record, record.state.exit_code):
            return False
        record.restarts += bool(record.container_id)
        return True

    def _restarts(self, record: ContainerRecord, exit_code: int) -> bool:
        if record.role is ContainerRole.SIDECAR:
            return True
        if record.role is ContainerRole.INIT and exit_code == 0:
            return False
        # For an init container Always means: until it succeeds.
        return self._policy == "Always" or (self._policy == "OnFailure" and exit_code != 0)

    async def _back_off(self, record: ContainerRecord, seconds: float) -> None:
        if not seconds:
            return
        metadata = self._pod["metadata"]
        pod = f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"
        text = f"back-off {format_pull_duration(seconds)} restarting failed container={record.name} pod={pod}"
        self._wait(record, "CrashLoopBackOff", text)
        self._host.record_event(
            "BackOff", f"Back-off restarting failed container {record.name} in pod {pod}", type="Warning"
        )
        await self._clock.sleep(seconds)

    async def _process(self, record: ContainerRecord, created: CreatedContainer) -> int:
        task = self._host.start_real(record, created)
        if task is None:
            for line in self._runtime.log_head(created):
                record.write(line)
            program = self._host.start_program(record, created)
            simulated = self._run_simulated(record, created) if program is None else self._run_program(record, program)
            task = asyncio.create_task(simulated)
        self._processes[record.name] = task
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise

    async def _run_program(self, record: ContainerRecord, program: ProgramRun) -> int:
        self._programs.add(program)
        try:
            code = await program.run()
            if program.killed_by_probe:
                self._host.record_event("Killing", f"Container {record.name} failed startup probe, will be restarted")
            return code
        finally:
            self._programs.discard(program)

    async def _run_simulated(self, record: ContainerRecord, created: CreatedContainer) -> int:
        try:
            metadata = self._pod["metadata"]
            owner = ContainerOwner(
                namespace=metadata["namespace"],
                pod=metadata["name"],
                uid=metadata["uid"],
                container=record.name,
                container_id=record.container_id,
            )
            return await self._runtime.run(created, owner, record.write, self._host.listen_address())
        except (NvmlError, MemoryError) as error:
            record.write(f"simulated: the container cannot use its GPU: {error}")
            return NO_GPU_EXIT

    # Starting

    async def _start(self, record: ContainerRecord) -> CreatedContainer:
        """Starts the container; tries again until it has started."""
        while True:
            async with self._starting:
                created = await self._try_start(record)
            if created is not None:
                return created
            await self._clock.sleep(CREATE_RETRY)
            await self._pulling.back_off(record)

    async def _try_start(self, record: ContainerRecord) -> CreatedContainer | None:
        if not await self._pulling.pull(record):
            return None
        try:
            env = await self._host.environment(record.spec)
            await self._host.pre_start(record.name)
            argv = command_line(record.spec, env)
            server = self._server(record, argv)
        except (ContainerConfigError, PluginError, ServerError) as error:
            self._fail(record, "CreateContainerConfigError", str(error))
            return None
        except Exception as error:
            if is_being_cancelled():
                raise
            _log.exception("environment of container %s", record.name)
            self._fail(record, "CreateContainerConfigError", describe_error(error))
            return None
        try:
            created = self._runtime.create(
                record.spec.get("image", ""),
                argv,
                env,
                self._host.allocations(record.name),
                server,
            )
        except CdiError as error:
            container_id = f"{self._rng.getrandbits(256):064x}"
            self._fail(record, "CreateContainerError", f'failed to generate container "{container_id}" spec: {error}')
            return None
        except Exception as error:
            if is_being_cancelled():
                raise
            _log.exception("making container %s", record.name)
            self._fail(record, "CreateContainerError", describe_error(error))
            return None
        self._host.record_event("Created", f"Created container: {record.name}")
        record.container_id = f"{SIMULATED_RUNTIME}{self._rng.getrandbits(256):064x}"
        record.env = created.env
        record.previous_log, record.log = record.log, ContainerLog(self._clock.now)
        record.image_id = self._runtime.images.image_id(created.image)
        record.started = True
        record.ready = not self._host.reports_readiness(created)
        if isinstance(record.state, Terminated):
            record.last = record.state
        record.state = Running(self._clock.now())
        self._host.record_event("Started", f"Started container {record.name}")
        self._host.note_status_change()
        return created

    def _server(self, record: ContainerRecord, argv: Sequence[str]) -> HttpBehaviour | None:
        """The server that the container declares; the pod's annotation is about its first one."""
        if record.name != self._pod["spec"]["containers"][0]["name"]:
            return None
        return declared_server(self._pod["metadata"].get("annotations") or {}, record.spec, argv)

    def _fail(self, record: ContainerRecord, reason: str, message: str) -> None:
        self._wait(record, reason, message)
        self._host.record_event("Failed", f"Error: {message}", type="Warning")

    def _wait(self, record: ContainerRecord, reason: str, message: str) -> None:
        if isinstance(record.state, Terminated):
            record.last = record.state
        if record.state != Waiting(reason, message):
            record.state = Waiting(reason, message)
            self._host.note_status_change()

    def _end(self, record: ContainerRecord, exit_code: int) -> None:
        state = record.state
        now = self._clock.now()
        started = state.started if isinstance(state, Running) else now
        record.state = Terminated(
            exit_code=exit_code,
            started=started,
            finished=now,
            container_id=record.container_id,
            message=_last_log_lines(record) if exit_code else "",
        )


def _last_log_lines(record: ContainerRecord) -> str:
    """Returns the end of a failed container's log (2 KiB or 80 lines) if ``terminationMessagePolicy`` asks for it."""
    if record.log is None or record.spec.get("terminationMessagePolicy") != "FallbackToLogsOnError":
        return ""
    return "\n".join(record.log.texts()[-80:])[-2048:]
