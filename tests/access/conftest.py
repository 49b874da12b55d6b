"""A process whose pages are guarded, in a cluster with readers and their rights."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from tests.support.api_clients import ADMINISTRATORS, in_process_client
from tests.support.api_user import ApiUser, ManualClock, pod

from tessera.access.page_reader import AGENT_AUDIENCE, PageReader
from tessera.access.reviewer import PageGuard, Reviewer
from tessera.doctor.manifests import install_manifests
from tessera.kube.client import Client
from tessera.kube.errors import ServiceUnavailable, Status
from tessera.kube.requests import Request, Response
from tessera.serving.status_server import serve_status
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.daemon.serve import pod_page_getter

SYSTEM = "/api/v1/namespaces/tessera-system"
#: Objects of the installation that the pages need.
NEEDED = {"tessera-reader", "tessera-usage-reader", "tessera-metrics-reader"}


class Agent:
    """What the port of a process shows; its metrics name a pod."""

    def metrics_text(self) -> bytes:
        return b'held{pod="merger-with-acme"} 1\n'

    def unready_reason(self) -> str:
        return ""


class GuardedPort:
    """A process with its port, an API server, and its users.

    Attributes:
        port: the port.
        server: the API server.
        admin: an administrator's requests.
        silent: True while the API server does not answer the process.
        asked: the plural of each review that the process has sent.
    """

    def __init__(self) -> None:
        self.clock = ManualClock()
        tokens = {f"token-{name}": UserInfo(name=name, groups=("system:authenticated",)) for name in ("ann", "eve")}
        self.server = ApiServer(self.clock, tokens=tokens)
        self.admin = ApiUser(self.server)
        self.silent = False
        self.asked: list[str] = []
        self.port = 0

    def guard(self, *, open_metrics: bool = False) -> PageGuard:
        """The guard of the process."""
        return PageGuard(Reviewer(self.own_client()), self.clock, audience=AGENT_AUDIENCE, open_metrics=open_metrics)

    def own_client(self) -> Client:
        """Requests of the process."""
        return Client(_Heard(self), field_manager="agent", clock=self.clock)

    def reader(self, user: str) -> PageReader:
        """Reads pages as a user, through the API server."""
        return PageReader(self.client(user), self.clock)

    def client(self, user: str) -> Client:
        """Requests of a user."""
        return in_process_client(self.server, self.clock, user, "system:authenticated")

    async def begin(self) -> None:
        """Makes the roles of the installation, and the pod of the process."""
        await self.admin("POST", "/api/v1/namespaces", {"metadata": {"name": "tessera-system"}})
        for each in install_manifests():
            if each["metadata"]["name"] in NEEDED:
                await self.admin("POST", collection_of(each), each)
        await self.admin("POST", f"{SYSTEM}/pods", pod("agent"))
        await self.admin.merge(f"{SYSTEM}/pods/agent/status", {"status": {"podIP": "127.0.0.1"}})

    async def bind(self, role: str, user: str, namespace: str = "tessera-system") -> None:
        """Binds a ClusterRole to a user, in a namespace or everywhere."""
        rbac = "rbac.authorization.k8s.io"
        where = f"/apis/{rbac}/v1" + (f"/namespaces/{namespace}/rolebindings" if namespace else "/clusterrolebindings")
        subject = {"kind": "User", "apiGroup": rbac, "name": user}
        reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": role}
        binding = {"metadata": {"name": f"{user}-{role}"}, "roleRef": reference, "subjects": [subject]}
        await self.admin("POST", where, binding)

    async def token(self, account: str, *audiences: str) -> str:
        """A token of a service account in tessera-system."""
        spec: dict[str, Any] = {"audiences": list(audiences)} if audiences else {}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = await self.admin("POST", f"{SYSTEM}/serviceaccounts/{account}/token", body)
        return str(made["status"]["token"])

    async def ask(self, path: str, token: str = "", **headers: str) -> tuple[int, str]:
        """Status and text of a page for one who connects to the port."""
        given = {"Authorization": f"Bearer {token}"} if token else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"http://127.0.0.1:{self.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url, headers=given) as answer:
            return answer.status, await answer.text()


class _Heard(InProcessTransport):
    """The process's transport; it notes reviews."""

    def __init__(self, port: GuardedPort) -> None:
        super().__init__(port.server, UserInfo(name="agent", groups=(ADMINISTRATORS,)))
        self._port = port

    async def request(self, request: Request) -> Response:
        if self._port.silent:
            raise ServiceUnavailable(Status(code=503, message="the API server is away"))
        self._port.asked.append(request.path.rpartition("/")[2])
        return await super().request(request)


def collection_of(manifest: dict[str, Any]) -> str:
    """The path to which an object is posted."""
    version, kind = manifest["apiVersion"], f"{manifest['kind'].lower()}s"
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = manifest["metadata"].get("namespace")
    return f"{root}/namespaces/{namespace}/{kind}" if namespace else f"{root}/{kind}"


@asynccontextmanager
async def guarded(*, open_metrics: bool = False) -> AsyncIterator[GuardedPort]:
    """A process whose pages are served."""
    found = GuardedPort()
    await found.begin()
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = serve_status(
        Agent(),
        0,
        address="127.0.0.1",
        on_listening=lambda _address, port: listening.set_result(port),
        documents={"/usage": lambda: b'{"node": "merger-with-acme"}'},
        guard=found.guard(open_metrics=open_metrics),
    )
    task = asyncio.create_task(serving)
    try:
        async with pod_page_getter("127.0") as found.server.parts.get_page:
            found.port = await listening
            yield found
    finally:
        task.cancel()
        await asyncio.wait({task})
