"""The pods of a simulated node: one worker for each pod that is bound to it.

A worker outlives kubelet and ends with the machine. After a reboot its pod gets a new worker, which takes over the
records that are left on disk.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from tessera.kube.informer import EventKind, WatchEvent
from tessera.kube.resources.meta import key_of, uid_of
from tessera_lab.apiserver.container_log import ContainerLog
from tessera_lab.apiserver.interfaces import CommandResult
from tessera_lab.kubelet.containers.commands import run_at_once, signal_of
from tessera_lab.kubelet.devices.device_ledger import PodUid
from tessera_lab.kubelet.pod_status import ContainerRecord, Running
from tessera_lab.kubelet.pods.node_services import NodeServices
from tessera_lab.kubelet.pods.pod_worker import PodWorker
from tessera_lab.scheduler.state.node_cache import CachedPod
from tessera_lab.simulation.supervision import CREATE_RETRY, collect_result, describe_error

Json = Mapping[str, Any]

_log = logging.getLogger(__name__)


class PodWorkers:
    """Workers of one node's pods.

    Args:
        node: the node's name.
        services: the node's services for workers.
    """

    def __init__(self, node: str, services: NodeServices) -> None:
        self._node = node
        self._services = services
        self._workers: dict[str, PodWorker] = {}
        self._before: dict[str, PodWorker] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Runs workers in this task group from now on, as the machine is up."""
        self._tasks = tasks

    def close(self) -> None:
        """Drops the task group, as the machine is down and all workers have ended."""
        self._tasks = None
        self._workers.clear()

    def node_down(self) -> None:
        """Tells all workers that the machine goes down, and keeps them for the next boot."""
        self._before = dict(self._workers)
        for worker in self._workers.values():
            worker.node_down()

    def remove_missing(self, known: Iterable[str]) -> AbstractSet[str]:
        """Ends workers of pods that were deleted while kubelet was down.

        Args:
            known: UIDs of the pods that exist.

        Returns:
            UIDs of all pods that have a worker.
        """
        self._before.clear()
        for uid in self._workers.keys() - set(known):
            self._workers[uid].note_object_deleted()
        return self._workers.keys()

    def note_health(self, uids: Iterable[str]) -> None:
        """Writes the status of these pods anew: the health of their devices may have changed."""
        for uid in uids:
            if uid in self._workers:
                self._workers[uid].note_status_change()

    def list_other_pods(self, uid: str) -> list[CachedPod]:
        """Returns resources and ports of the other active pods of the node."""
        return [worker.needs for other, worker in self._workers.items() if worker.active and other != uid]

    def follow(self, event: WatchEvent[dict[str, Any]]) -> None:
        """Handles a pod that was added, changed or deleted."""
        pod = event.object
        uid = uid_of(pod)
        worker = self._workers.get(uid)
        if event.kind is EventKind.DELETED:
            if worker is not None:
                worker.note_object_deleted()
        elif worker is not None:
            worker.update(pod)
        elif self._tasks is not None:
            worker = self._workers[uid] = PodWorker(pod, self._services, self._before.get(uid))
            worker.update(pod)
            self._start(self._tasks, uid, worker)

    def _start(self, tasks: asyncio.TaskGroup, uid: str, worker: PodWorker) -> None:
        """Runs a worker, unless the machine is going down already: the next boot finds the pod in its first list."""
        work = self._work(uid, worker)
        try:
            tasks.create_task(work)
        except RuntimeError:  # a task group that is shutting down takes no more
            work.close()
            del self._workers[uid]

    async def _work(self, uid: str, worker: PodWorker) -> None:
        """Runs a pod's worker; after an error of the lab starts it again, with new containers."""
        try:
            while not await self._on_worker_end(worker) and not worker.is_deleted:
                again = PodWorker(worker.pod, self._services, worker)
                again.update(worker.pod)
                worker = self._workers[uid] = again
        finally:
            del self._workers[uid]

    async def _on_worker_end(self, worker: PodWorker) -> bool:
        """True if the worker reached the pod's end; after a failure it first waits as kubelet does."""
        error = await collect_result(worker.run())
        if error is None:
            return True
        _log.error("pod %s on %s", key_of(worker.pod), self._node, exc_info=error)
        worker.record_event("FailedSync", f"error syncing pod, skipping: {describe_error(error)}", type="Warning")
        await self._services.clock.sleep(CREATE_RETRY)
        return False

    def container_env(self, namespace: str, pod: str, container: str) -> Mapping[str, str]:
        """The environment of a container's present or last run.

        Raises:
            LookupError: the node has no such container.
        """
        return self._record(namespace, pod, container).env

    def address(self, uid: str) -> str:
        """The address of a pod as the node gave it, whatever its status says.

        Raises:
            LookupError: the node has no such pod.
        """
        return self._workers[uid].address

    def run_command(self, namespace: str, pod: str, container: str, command: Sequence[str]) -> CommandResult:
        """Runs a command in a simulated container (:mod:`tessera_lab.kubelet.containers.commands`).

        Raises:
            LookupError: the node has no such container, or it does not run.
        """
        record = self._record(namespace, pod, container)
        if isinstance(record.state, Running):
            number, runtime = signal_of(command), self._services.launcher.runtime
            if number and runtime.signal(self._uid(namespace, pod), container, number):
                return CommandResult(0)
            return run_at_once(command, self._services.launcher.runtime.surroundings(pod, record.env))
        raise LookupError(f"node {self._node}: container {container} of pod {namespace}/{pod} does not run")

    def log(self, namespace: str, pod: str, container: str, *, previous: bool = False) -> ContainerLog:
        """The log of a container's present or last run, or of the run before.

        Raises:
            LookupError: the node has no such container, or there was no such run.
        """
        found = self._record(namespace, pod, container).find_log(previous=previous)
        if found is None:
            raise LookupError(f"node {self._node}: container {container} of pod {namespace}/{pod} has not run")
        return found

    def running_pods(self) -> Sequence[tuple[Json, PodUid]]:
        """The active pods, each with its UID."""
        return [(worker.pod, PodUid(uid)) for uid, worker in self._workers.items() if worker.active]

    def _uid(self, namespace: str, pod: str) -> str:
        return next(uid for uid, worker in self._workers.items() if key_of(worker.pod) == f"{namespace}/{pod}")

    def _record(self, namespace: str, pod: str, container: str) -> ContainerRecord:
        for worker in self._workers.values():
            if key_of(worker.pod) == f"{namespace}/{pod}":
                for record in worker.records:
                    if record.name == container:
                        return record
        raise LookupError(f"node {self._node}: no container {container} of pod {namespace}/{pod}")
