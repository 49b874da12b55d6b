"""Pods are told at last, also if nothing changes on the node any more."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from tests.agent.inventory.test_device_users import GPU, Listing, accepted, listed
from tests.support.agent_runtime import make_parts
from tests.support.api_clients import in_process_client
from tests.support.tasks import cancel_tasks

from tessera.agent.base.node_objects import ApiMirror, ObjectEvents, changed_pod_facts
from tessera.agent.base.settings import AgentOptions
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.health.pod_reporter import PartHolders, PodReporter
from tessera.agent.inventory.device_state import DeviceUsers
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.api.names import GPU_CONDITION, GPU_NEEDS_RESET, GPU_RECOVERED
from tessera.clock import LoopClock, rfc3339
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.requests import Request
from tessera.kube.resources import NAMESPACES, PODS
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.server import ApiServer, error_response
from tessera_lab.apiserver.status import forbidden_error
from tessera_lab.kubelet.device_plugins.inprocess import InProcessKubelet
from tessera_lab.simulation.virtual_time import run_virtual

#: Seconds in which the API server lets the agent write no status of a pod.
WITHOUT_RIGHT = 60.0


class Node:
    """A node whose card is well again, with a pod that was told of its fault."""

    def __init__(self, folder: Path) -> None:
        self.clock = LoopClock(0.0)
        self.server = ApiServer(self.clock)
        self.client = in_process_client(self.server, self.clock, "agent", "system:masters")
        rng, machine, kubelet = random.Random(1), SimulatedMachine("1xA100-40GB", seed="n"), InProcessKubelet()
        kubelet.start(accepted, Listing(listed("web", (GPU, machine.uuids()), namespace="team")))
        hardware = InlineNvml(machine, self.clock)
        mirror = ApiMirror(self.client, node_name="node-1", namespace="default", clock=self.clock, rng=rng)
        mirror.pods.add_handler(lambda event: self.runtime.changes.notify(changed_pod_facts(event)))
        events = EventRecorder(self.client, component="tessera-agent", clock=self.clock, rng=rng)
        self.runtime = make_parts(
            options=AgentOptions(node_name="node-1", state_dir=folder),
            client=self.client,
            clock=self.clock,
            hardware=hardware,
            kubelet=kubelet,
            mirror=mirror,
            events=events,
            object_events=ObjectEvents(events, mirror),
        )
        self.inventory = InventoryReader(hardware, self.runtime.changes)
        self.reporter = PodReporter(
            self.runtime,
            health=HealthMonitor(self.runtime),
            holders=PartHolders(DeviceUsers(kubelet, mirror), list, mirror, self.inventory),
        )

    async def prepare(self) -> None:
        await self.inventory.refresh()
        await self.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": "team"}})
        await self.pod("web")
        told = {
            "type": GPU_CONDITION,
            "status": "False",
            "reason": GPU_NEEDS_RESET,
            "message": "XID 48",
            "lastTransitionTime": rfc3339(0.0),
        }
        status = {"status": {"phase": "Running", "conditions": [told]}}
        await self.client.merge_patch(PODS, "web", status, "team", subresource="status")

    async def pod(self, name: str) -> None:
        spec = {"nodeName": "node-1", "containers": [{"name": "c", "image": "cuda"}]}
        await self.client.create(PODS.as_dicts(), {"metadata": {"name": name}, "spec": spec}, "team")

    async def told(self) -> str:
        condition = (await self.client.get(PODS, "web", "team")).status.condition(GPU_CONDITION)
        return condition.reason if condition is not None else ""


def test_a_pod_learns_that_its_card_is_well_once_the_agent_may_write_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last change on the node comes while the agent waits, and the fault is over: only time is left."""

    async def scene() -> None:
        node = Node(tmp_path)
        handle = node.server.handle

        async def refuse_at_first(request: Request, user: UserInfo) -> Any:
            if request.method == "PATCH" and node.clock.monotonic() < WITHOUT_RIGHT:
                return error_response(forbidden_error("", "pods", "web", "the agent's role is being changed"))
            return await handle(request, user)

        await node.prepare()
        monkeypatch.setattr(node.server, "handle", refuse_at_first)
        async with asyncio.TaskGroup() as group:
            mirroring = group.create_task(_mirror(node))
            reporting = group.create_task(node.reporter.run())
            await node.clock.sleep(WITHOUT_RIGHT)
            assert await node.told() == GPU_NEEDS_RESET
            await node.pod("other")
            await node.clock.sleep(1_200)
            await cancel_tasks([mirroring, reporting])
        assert await node.told() == GPU_RECOVERED

    run_virtual(scene())


async def _mirror(node: Node) -> None:
    async with asyncio.TaskGroup() as group:
        await node.runtime.mirror.start(group)
