"""Commands in containers, over a real WebSocket to the lab's API server."""

from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from tessera.cli.base.pod_exec import PROTOCOLS, Executed, run_in_container
from tessera.clock import SystemClock
from tessera.kube.cluster_config import ClusterConfig
from tessera.kube.credentials import Credential, StaticCredentials
from tessera.kube.errors import ApiError, BadRequest, Forbidden, NotFound
from tessera.kube.http import HttpTransport
from tessera.kube.requests import Request
from tessera_lab.apiserver.interfaces import CommandResult, UserInfo
from tessera_lab.apiserver.main.http_server import HttpServer
from tessera_lab.apiserver.main.server import ApiServer

ADMIN = UserInfo(name="admin", groups=("system:masters",))
NOBODY = UserInfo(name="nobody")
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {"containers": [{"name": "c", "image": "x"}]},
}


async def run(namespace: str, pod: str, container: str, command: Sequence[str]) -> CommandResult:
    """The program of the only container there is."""
    if (namespace, pod, container) != ("default", "p", "c"):
        raise LookupError
    match command:
        case ["echo", *words]:
            return CommandResult(0, " ".join(words).encode())
        case ["large"]:
            return CommandResult(0, bytes(range(256)) * 1000)
        case ["false"]:
            return CommandResult(3, b"some", b"wrong\n")
        case _:
            return CommandResult(127, b"", b"no such command\n")


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    tokens = {"good": ADMIN, "weak": NOBODY}
    api = ApiServer(SystemClock(), tokens=tokens)
    api.parts.run_command = run
    server = HttpServer(api, None)
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def transport(server: HttpServer) -> AsyncIterator[HttpTransport]:
    made = connection(server, "good")
    pods = "/api/v1/namespaces/default/pods"
    media = {"content-type": "application/json"}
    answer = await made.request(Request(method="POST", path=pods, headers=media, body=msgspec.json.encode(POD)))
    assert answer.status == 201, answer.body
    yield made
    await made.close()


def connection(server: HttpServer, token: str) -> HttpTransport:
    """A transport with a bearer token."""
    return HttpTransport(
        ClusterConfig(server=server.url, credentials=StaticCredentials(Credential(authorization=f"Bearer {token}")))
    )


async def test_what_a_command_writes_comes_back(transport: HttpTransport) -> None:
    done = await run_in_container(transport, "default", "p", "c", ["echo", "a b", "&c=d"])
    assert done == Executed(b"a b &c=d", b"", "")


async def test_large_output_comes_whole(transport: HttpTransport) -> None:
    done = await run_in_container(transport, "default", "p", "c", ["large"])
    assert done.stdout == bytes(range(256)) * 1000


async def test_a_command_that_fails_says_how(transport: HttpTransport) -> None:
    done = await run_in_container(transport, "default", "p", "c", ["false"])
    assert (done.stdout, done.stderr) == (b"some", b"wrong\n")
    assert done.failure == "command terminated with non-zero exit code: exit status 3"


@pytest.mark.parametrize(
    ("pod", "container", "error", "said"),
    [
        ("ghost", "c", NotFound, 'pods "ghost" not found'),
        ("p", "ghost", BadRequest, "container ghost is not valid for pod p"),
    ],
)
async def test_a_refusal_is_the_servers_own(
    transport: HttpTransport, pod: str, container: str, error: type[ApiError], said: str
) -> None:
    with pytest.raises(error, match=said):
        await run_in_container(transport, "default", pod, container, ["echo"])


async def test_a_command_that_cannot_be_run_says_so(transport: HttpTransport) -> None:
    done = await run_in_container(transport, "default", "p", "c", ["ls"])
    assert (done.stderr, done.failure.split()[-1]) == (b"no such command\n", "127")


async def test_a_terminal_has_one_stream_with_its_own_line_ends(transport: HttpTransport) -> None:
    query = [("stdout", "true"), ("stderr", "true"), ("tty", "true"), ("command", "false")]
    request = Request(method="GET", path="/api/v1/namespaces/default/pods/p/exec", query=query)
    async with transport.websocket(request, PROTOCOLS) as socket:
        assert await socket.receive_bytes() == b"\x01wrong\r\nsome"


async def test_who_may_not_run_commands_is_told(server: HttpServer, transport: HttpTransport) -> None:
    del transport
    weak = connection(server, "weak")
    with pytest.raises(Forbidden, match='cannot get resource "pods/exec"'):
        await run_in_container(weak, "default", "p", "c", ["echo"])
    await weak.close()
