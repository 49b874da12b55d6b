"""A node and its ConfigMaps on an API server in this process, and an agent's following of them, on virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.support.agent_runtime import make_parts
from tests.support.api_clients import in_process_client
from tests.support.tasks import cancel_tasks

from tessera.agent.base.node_objects import NodeMirror
from tessera.agent.base.settings import AgentOptions, ConfigMapName
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.config import ConfigWatcher
from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.resources import CONFIGMAPS, NAMESPACES, NODES, Resource
from tessera_lab.apiserver.main.server import ApiServer

NODE, NAMESPACE = "node-1", "tessera-system"


class Admin:
    """The cluster, and one agent at a time that follows what is asked of its node.

    Attributes:
        changes: what wakes the agent's parts.
        agent: the desired profile and layout.
    """

    def __init__(self, folder: Path) -> None:
        self.clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)
        self.client = self.user("admin", "system:masters")
        self.folder = folder
        self.changes = ChangeNotifier()
        self.agent: ConfigWatcher
        self._tasks: list[asyncio.Task[None]] = []

    def user(self, name: str, *groups: str) -> Client:
        return in_process_client(self.server, self.clock, name, *groups, "system:authenticated")

    async def begin(self, **labels: str) -> None:
        await self.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": NAMESPACE}})
        await self.client.create(NODES.as_dicts(), {"metadata": {"name": NODE}})
        await self.label(**labels)

    async def label(self, **labels: str | None) -> None:
        """Sets the labels ``profile`` and ``layout``."""
        names = {"profile": "nvidia.com/device-plugin.config", "layout": "nvidia.com/mig.config"}
        patch = {"metadata": {"labels": {names[key]: value for key, value in labels.items()}}}
        await self.client.merge_patch(NODES, NODE, patch)
        await self.settle()

    async def files(self, name: str, texts: Mapping[str, str] | None) -> None:
        """The ConfigMap holds these texts, or is gone."""
        if texts is None:
            await self.client.delete(CONFIGMAPS, name, NAMESPACE)
        else:
            await self.client.apply(CONFIGMAPS.as_dicts(), name, {"data": dict(texts)}, NAMESPACE)
        await self.settle()

    async def grant(self, user: str) -> None:
        """The user may do everything from now on."""
        group = "rbac.authorization.k8s.io"
        bindings = Resource(group, "v1", "clusterrolebindings", "ClusterRoleBinding", False, dict)
        binding = {
            "metadata": {"name": user},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "User", "name": user, "apiGroup": group}],
        }
        await self.client.create(bindings, binding)

    async def start(
        self, *, profile_default: str = "", layout_default: str = "", groups: Sequence[str] = ("system:masters",)
    ) -> None:
        """An agent starts, in place of the one before."""
        await self.stop()
        client, rng = self.user("agent", *groups), random.Random(1)
        mirror = NodeMirror(self.client, NODE, clock=self.clock, rng=rng)
        nodes = mirror.informer
        nodes.add_handler(lambda _event: self.changes.notify())
        options = AgentOptions(
            node_name=NODE,
            sharing_config=ConfigMapName(NAMESPACE, "sharing-profiles"),
            sharing_default=profile_default,
            mig_config=ConfigMapName(NAMESPACE, "mig-layouts"),
            mig_default=layout_default,
            state_dir=self.folder,
        )
        runtime = make_parts(
            client=client, options=options, mirror=mirror, changes=self.changes, clock=self.clock, rng=rng
        )
        self.agent = ConfigWatcher(runtime)
        self._tasks = [asyncio.create_task(nodes.run()), asyncio.create_task(self.agent.run())]
        await nodes.wait_synced()
        await self.agent.wait_first_read()

    async def stop(self) -> None:
        await cancel_tasks(self._tasks)
        self._tasks = []

    async def settle(self, seconds: float = 0.5) -> None:
        await self.clock.sleep(seconds)


@pytest.fixture
async def admin(tmp_path: Path, virtual_time: None) -> AsyncIterator[Admin]:
    """Who changes a node's configuration, on virtual time."""
    made = Admin(tmp_path)
    yield made
    await made.stop()
