"""Pages of agents, and an API server whose proxy answers with them."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.support.api_user import ApiUser, ManualClock, pod

from tessera.api.instaslice import INSTASLICES
from tessera.api.nodes.usage import CardUsage, DeviceUsage, LeaseUsage, NodeUsage
from tessera.doctor.manifests import install_manifests
from tessera.forecast.queue_page import CONTROLLER_PORT, QUEUE_PATH, QueuePage, encode_page
from tessera.kube.client import Client
from tessera.kube.requests import Response
from tessera.kube.resources import CRDS
from tessera.signals.page import SIGNALS_PATH, SignalsPage
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

GIB = 2.0**30
AGENTS = "/api/v1/namespaces/tessera-system/pods"


def lease(pod_name: str, device: str = "GPU-1", **more: Any) -> LeaseUsage:
    """A lease of a whole card that is busy."""
    given: dict[str, Any] = {
        "namespace": "team",
        "uid": f"uid-{pod_name}",
        "container": "main",
        "kind": "whole",
        "share": 1.0,
    }
    return LeaseUsage(pod=pod_name, device=device, **given | {"state": "busy"} | more)


def card(uuid: str = "GPU-1", index: int = 0, **values: float) -> CardUsage:
    """A card that measures these values."""
    return CardUsage(uuid=uuid, index=index, model="NVIDIA H100", values={"memory_total": 80 * GIB, **values})


def mig_card(*devices: DeviceUsage) -> CardUsage:
    """A card in MIG mode with these devices."""
    return CardUsage(uuid="GPU-1", model="NVIDIA H100", mig=True, values={"memory_total": 80 * GIB}, devices=devices)


class AgentCluster:
    """An API server with a pod for each agent; its proxy answers with ``pages`` by the pod's address.

    Attributes:
        pages: body of the page by address; an exception is raised instead.
        signals: the controller's page of services.
        queue: the page of the controller, which :meth:`add_controller` makes.
        shown: the token that came with each request for a page; empty if none did.
    """

    def __init__(self) -> None:
        self.server = ApiServer(ManualClock())
        self.api = ApiUser(self.server)
        self.pages: dict[str, bytes | Exception] = {}
        self.queue = b""
        self.signals: bytes | Exception = msgspec.json.encode(SignalsPage(leads=True))
        self.shown: list[str] = []
        self.server.parts.get_page = self._get

    async def _get(self, address: str, port: int, path: str, headers: Mapping[str, str]) -> Response:
        self.shown.append(headers.get("tessera-token", ""))
        assert (port, path) in {(8082, "/usage"), (CONTROLLER_PORT, QUEUE_PATH), (CONTROLLER_PORT, SIGNALS_PATH)}
        body = self.pages[address] if path == "/usage" else self.queue if path == QUEUE_PATH else self.signals
        if isinstance(body, Exception):
            raise body
        return Response(status=200, headers={"content-type": "application/json"}, body=body)

    async def begin(self, *, kind: bool = True) -> None:
        """Makes Tessera's namespace and, unless not wanted, the kind Instaslice."""
        if kind:
            await self.add_kind()
        await self.api("POST", "/api/v1/namespaces", {"metadata": {"name": "tessera-system"}})

    async def add_kind(self) -> None:
        """Makes the kind Instaslice."""
        (found,) = [each for each in install_manifests() if each["metadata"]["name"] == INSTASLICES.label]
        await self.client().create(CRDS.as_dicts(), found)

    async def add_agent(
        self, node: str, page: NodeUsage | bytes | Exception, *, owned: bool = True, ready: bool = False
    ) -> None:
        """Adds the pod of an agent, and its page."""
        address = f"10.0.0.{len(self.pages) + 1}"
        self.pages[address] = msgspec.json.encode(page) if isinstance(page, NodeUsage) else page
        made = pod(f"agent-{node}", nodeName=node)
        made["metadata"]["labels"] = {"app.kubernetes.io/name": "tessera-agent"}
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "tessera-agent", "uid": "u", "controller": True}
        made["metadata"]["ownerReferences"] = [owner] if owned else []
        await self.api("POST", AGENTS, made)
        conditions = [{"type": "Ready", "status": str(ready)}]
        await self.api.merge(f"{AGENTS}/agent-{node}/status", {"status": {"podIP": address, "conditions": conditions}})

    async def add_controller(self, page: QueuePage) -> None:
        """Adds the controller's pod, and its page."""
        self.queue = encode_page(page)
        made = pod("controller", nodeName="node")
        made["metadata"]["labels"] = {"app.kubernetes.io/name": "tessera-controller"}
        await self.api("POST", AGENTS, made)
        await self.api.merge(f"{AGENTS}/controller/status", {"status": {"podIP": "10.0.1.1"}})

    def client(self, user: UserInfo | None = None) -> Client:
        """A client of an administrator, or of ``user``."""
        transport = InProcessTransport(self.server, user) if user is not None else self.api.transport
        return Client(transport, field_manager="test", clock=ManualClock())


@pytest.fixture
def cluster() -> AgentCluster:
    return AgentCluster()
