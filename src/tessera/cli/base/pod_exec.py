"""Runs a command in a container, as ``kubectl exec`` does: a WebSocket with one channel for each stream.

The protocol is Kubernetes' ``v4.channel.k8s.io`` and ``v5.channel.k8s.io`` (k8s.io/apimachinery
pkg/util/remotecommand): the first byte of a message names its stream, and the last message is a Status.
No library served: the official client brings a second HTTP stack for this one call.
"""

from collections.abc import Sequence

import aiohttp
import msgspec

from tessera.kube.errors import Status, error_from_response
from tessera.kube.http import HttpTransport
from tessera.kube.requests import Request
from tessera.limits import RECORD_SIZE

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
#: Channels of the protocol.
STDOUT, STDERR, STATUS = 1, 2, 3


class Executed(msgspec.Struct, frozen=True):
    """Output and result of a command.

    Attributes:
        stdout: its standard output.
        stderr: its standard error.
        failure: why it failed, in the words of the API server; empty if it ended with 0.
    """

    stdout: bytes
    stderr: bytes
    failure: str


async def run_in_container(
    transport: HttpTransport, namespace: str, pod: str, container: str, command: Sequence[str]
) -> Executed:
    """Runs a command to its end, without input.

    Args:
        transport: connection to the API server.
        namespace: the pod's namespace.
        pod: the pod's name.
        container: the container's name.
        command: program and arguments; no shell takes part.

    Raises:
        ApiError: the API server refuses.
        ConnectionError: the connection broke before the command had ended.
        ValueError: the command wrote more than :data:`.RECORD_SIZE`.
    """
    query = [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", each) for each in command)]
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
    request = Request(method="GET", path=path, query=query)
    try:
        async with transport.websocket(request, PROTOCOLS) as socket:
            return await _read(socket, f"pod {namespace}/{pod}")
    except aiohttp.WSServerHandshakeError as error:
        # A refused handshake has no text; the same request without an upgrade is refused with one.
        answer = await transport.request(request)
        if answer.status < 400:
            raise ConnectionError(f"pod {namespace}/{pod}: exec was answered {error.status}") from error
        raise error_from_response(answer.status, answer.headers, answer.body) from error


async def _read(socket: aiohttp.ClientWebSocketResponse, pod: str) -> Executed:
    channels: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray(), STATUS: bytearray()}
    left = int(RECORD_SIZE)
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY:
            continue
        left -= len(message.data)
        if left < 0:
            raise ValueError(f"{pod}: the command wrote too much ({RECORD_SIZE})")
        if message.data and message.data[0] in channels:
            channels[message.data[0]] += message.data[1:]
    if not channels[STATUS]:
        raise ConnectionError(f"{pod}: the connection broke before the command had ended")
    status = msgspec.json.decode(channels[STATUS], type=Status)
    failure = "" if status.status == "Success" else status.message or "the command failed"
    return Executed(bytes(channels[STDOUT]), bytes(channels[STDERR]), failure)
