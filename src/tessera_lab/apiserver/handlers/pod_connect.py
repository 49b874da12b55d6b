"""``exec`` in a pod: its rights, its upgrade to a WebSocket, and the command.

Kubectl uses WebSockets since 1.30; SPDY, which it used before, is refused. The input of a command is not read.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera_lab.apiserver.handlers.access import not_allowed_error
from tessera_lab.apiserver.handlers.pod_log import choose_container
from tessera_lab.apiserver.interfaces import CommandResult
from tessera_lab.apiserver.request.server_state import ResourceRequest, ServerParts
from tessera_lab.apiserver.status import StatusError, bad_request_error, not_implemented_error


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
