"""A lab's control plane in one process on virtual time, for tests of its controllers, scheduler and nodes."""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from tests.support.api_clients import ADMINISTRATORS, in_process_client

from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.resources import EVENTS, PODS
from tessera.kube.resources.meta import Resource
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.kubelet.containers.launcher import NodeSoftware
from tessera_lab.kubelet.context import InProcessPlugins, KubeletOptions
from tessera_lab.kubelet.node.node import SimulatedNode
from tessera_lab.scheduler.scheduler import Scheduler
from tessera_lab.workloads.suite import WorkloadControllers

Object = dict[str, Any]


class ControlPlaneLab:
    """An API server, and the parts that a test starts with it."""

    def __init__(self) -> None:
        self.clock = LoopClock(epoch=1_700_000_000)
        self.server = ApiServer(self.clock)
        self.api = self.client("somebody")
        self._tasks: list[asyncio.Task[None]] = []

    def client(self, name: str) -> Client:
        return in_process_client(self.server, self.clock, name, ADMINISTRATORS)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    def start_scheduler(self) -> Scheduler:
        scheduler = Scheduler(self.client("system:kube-scheduler"), clock=self.clock, rng=random.Random(1))
        self.start(scheduler.run())
        return scheduler

    def start_workloads(self) -> None:
        client = self.client("system:kube-controller-manager")
        self.start(WorkloadControllers(client, clock=self.clock, rng=random.Random(2), ca="PEM").run())

    def start_controllers(self) -> None:
        """Starts the controllers of workloads, and the scheduler."""
        self.start_workloads()
        self.start_scheduler()

    async def start_nodes(self, *names: str, **options: Any) -> list[SimulatedNode]:
        """Starts nodes and returns once they are registered; other options go to their :class:`KubeletOptions`."""
        machine, plugins = options.pop("machine", None), options.pop("plugins", None)
        software = NodeSoftware(entrypoint=options.pop("entrypoint", None), catalogue=options.pop("catalogue", None))
        nodes = [
            SimulatedNode(
                name,
                self.client(f"system:node:{name}"),
                clock=self.clock,
                rng=random.Random(name),
                options=KubeletOptions(**options),
                plugins=plugins or InProcessPlugins(),
                machine=machine,
                software=software,
            )
            for name in names
        ]
        for node in nodes:
            self.start(node.run())
        await self.clock.sleep(0.1)
        return nodes

    async def pod(self, name: str, *command: str, namespace: str = "default", **spec: Any) -> Object:
        container = {"name": "main", "image": "app", "command": list(command)}
        body = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
        return await self.api.create(PODS.as_dicts(), body, namespace)

    async def get(self, resource: Resource[Any], name: str, namespace: str | None = "default") -> Object:
        return await self.api.get(resource.as_dicts(), name, namespace)

    async def exists(self, resource: Resource[Any], name: str, namespace: str | None = "default") -> bool:
        with suppress(NotFound):
            await self.api.get(resource.as_dicts(), name, namespace)
            return True
        return False

    async def all(self, resource: Resource[Any], namespace: str | None = None) -> list[Object]:
        return list((await self.api.list(resource.as_dicts(), namespace)).items)

    async def phase_after(self, seconds: float, name: str) -> str:
        await self.clock.sleep(seconds)
        return await self.phase(name)

    async def phase(self, name: str) -> str:
        return str((await self.get(PODS, name))["status"]["phase"])

    async def notes(self, name: str, namespace: str = "default") -> list[tuple[str, str]]:
        """Reasons and messages of the events about an object, oldest first."""
        await self.clock.sleep(0.01)
        events = [each for each in await self.all(EVENTS, namespace) if each["involvedObject"]["name"] == name]
        events.sort(key=lambda each: (each["firstTimestamp"], int(each["metadata"]["resourceVersion"])))
        return [(each["reason"], each["message"]) for each in events]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
