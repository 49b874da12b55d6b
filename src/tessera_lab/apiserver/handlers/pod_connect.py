"""``exec`` and ``portforward`` of a pod: their rights, the upgrade to a WebSocket, and what the client gets.

Kubectl uses WebSockets since 1.30; SPDY, which it used before, is refused. The input of a command is not read.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from tessera_lab.apiserver.handlers.access import not_allowed_error
from tessera_lab.apiserver.handlers.pod_log import choose_container
from tessera_lab.apiserver.interfaces import CommandResult, OpenConnection
from tessera_lab.apiserver.request.server_state import ResourceRequest, ServerParts
from tessera_lab.apiserver.status import StatusError, bad_request_error, not_implemented_error
from tessera_lab.limits import TUNNELS


async def run_in_container(request: ResourceRequest, pod: Mapping[str, Any], parts: ServerParts) -> CommandResult:
    """Runs a command in a container of a pod.

    Raises:
        StatusError: 400 in Kubernetes' words; 403; 501 where no container can run commands.
    """
    check_right(request, parts)
    command = [value for key, value in request.request.query if key == "command"]
    if not command:
        raise bad_request_error("you must specify at least 1 container, command, and one of stdin, stdout, stderr")
    container = choose_container(request.query.text("container"), pod)
    if parts.run_command is None:
        raise not_implemented_error("the exec subresource of pods")
    try:
        result = await parts.run_command(request.namespace, request.route.name, container, command)
    except LookupError:
        raise bad_request_error(f"container not found ({container!r})") from None
    check_upgrade(request)
    return result


#: The protocol of a port-forward: SPDY in the messages of a WebSocket (KEP-4006).
TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io"


class PortForward(msgspec.Struct, frozen=True):
    """A port-forward that a client may begin.

    Attributes:
        pod: the pod's name.
        connect: opens a connection to a port of the pod.
        held: counts the port-forward while it lasts.
    """

    pod: str
    connect: OpenConnection
    held: AbstractContextManager[None]


class Tunnels:
    """The port-forwards that last, by the namespace of their pod."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def open(self, request: ResourceRequest, pod: Mapping[str, Any], parts: ServerParts) -> PortForward:
        """Returns the port-forward to a pod.

        Raises:
            StatusError: 400 or 403 in Kubernetes' words; 429, there are too many; 501 where no pod listens.
        """
        check_right(request, parts)
        servers, namespace, name = parts.servers, request.namespace, request.route.name
        if servers is None:
            raise not_implemented_error("the portforward subresource of pods")
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if phase != "Running":
            raise bad_request_error(f"unable to forward port because pod is not running. Current status={phase}")
        if self._open[namespace] >= TUNNELS:
            text = f"port-forwards to pods of namespace {namespace}: {TUNNELS} are allowed at a time"
            raise StatusError(429, "TooManyRequests", f"{text}; end another one first")
        check_upgrade(request)
        if TUNNEL_PROTOCOL not in request.request.headers.get("sec-websocket-protocol", ""):
            raise bad_request_error(f"unable to upgrade: the server has the subprotocol {TUNNEL_PROTOCOL} only")
        return PortForward(name, lambda port: servers.connect(namespace, name, port), self._hold(namespace))

    @contextmanager
    def _hold(self, namespace: str) -> Iterator[None]:
        self._open[namespace] += 1
        try:
            yield
        finally:
            self._open[namespace] -= 1


def check_right(request: ResourceRequest, parts: ServerParts) -> None:
    """Checks that the user may create what it connects to.

    A WebSocket is a GET. From 1.35 on the API server asks for the right to create too
    (AuthorizePodWebsocketUpgradeCreatePermission).
    """
    attributes = msgspec.structs.replace(request.attributes, verb="create")
    if not parts.create_to_connect or parts.authorizer is None:
        return
    decision = parts.authorizer.authorize(attributes)
    if not decision.allowed:
        raise not_allowed_error(attributes, decision.reason)


def check_upgrade(request: ResourceRequest) -> None:
    """Checks that the client upgrades to a WebSocket.

    Kubectl tries SPDY after each refusal of a WebSocket, and shows the user how that was refused: so all else is
    checked before.
    """
    upgrade = request.request.headers.get("upgrade", "").lower()
    if not upgrade:
        raise bad_request_error("Upgrade request required")
    if upgrade != "websocket":
        text = f"{request.route.subresource} by {upgrade} is not implemented by this API server"
        raise StatusError(501, "NotImplemented", f"{text}; kubectl from 1.30 on uses WebSockets")
