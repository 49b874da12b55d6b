"""What a pod's own process answers: its log, ``exec`` and ``portforward``.

``pods/log`` gives the log of a container's present or previous run, whole, in part, or followed to its end. Errors are
kubelet's (``pkg/kubelet/kubelet_pods.go``, ``validateContainerLogStatus``) and those of the API server's validation of
PodLogOptions. One stream alone, which real clusters serve behind a feature gate, is answered 501.

Of ``exec`` and ``portforward`` here are the rights, the upgrade to a WebSocket, and what the client gets. Kubectl uses
WebSockets since 1.30; SPDY, which it used before, is refused. The input of a command is not read.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from tessera.clock import parse_rfc3339, rfc3339_micro
from tessera.kube.requests import Response
from tessera_lab.apiserver.container_log import ContainerLog, LogLine
from tessera_lab.apiserver.handlers.claim_rights import not_allowed_error
from tessera_lab.apiserver.interfaces import CommandResult, Logs, OpenConnection, StatusCause
from tessera_lab.apiserver.request.server_state import ResourceRequest, ServerParts
from tessera_lab.apiserver.status import StatusError, bad_request_error, invalid_error, not_implemented_error
from tessera_lab.limits import TUNNELS

TEXT = "text/plain"
#: Kubelet's words for a container that waits for its image; for all others it gives the reason itself.
_IMAGE_WAITS = {"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}
_SMALLEST = {"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1}
#: The protocol of a port-forward: SPDY in the messages of a WebSocket (KEP-4006).
TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io"


class LogStream:
    """A log that is followed: what there is, then what comes, until the run ends."""

    def __init__(self, log: ContainerLog, head: bytes, request: ResourceRequest) -> None:
        self._head = head
        self._request = request
        self._batches = log.follow()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields whole lines."""
        if self._head:
            yield self._head
        async for lines in self._batches:
            yield _encode(lines, self._request)

    def end(self) -> None:
        """Does nothing: a reader that stops holds nothing of the log."""


def read_pod_log(
    request: ResourceRequest, pod: Mapping[str, Any], logs: Logs | None, now: float
) -> Response | LogStream:
    """The log as text.

    Args:
        request: whose query has the PodLogOptions.
        pod: the pod.
        logs: the logs of all nodes; None if the server has no nodes.
        now: seconds since 1970.

    Raises:
        StatusError: 400 or 422 in Kubernetes' words, or 501.
    """
    if logs is None:
        raise not_implemented_error("the log subresource of pods")
    if request.query.text("stream"):
        raise not_implemented_error("stream of the log subresource of pods")
    limits = {name: _number(request, name) for name in _SMALLEST}
    since = _since(request, limits["sinceSeconds"], now)
    container = choose_container(request.query.text("container"), pod)
    previous = request.query.flag("previous")
    try:
        log = logs(request.namespace, request.route.name, container, previous)
    except LookupError:
        raise bad_request_error(_missing(pod, container, previous=previous)) from None
    lines = [line for line in log.lines() if line.at >= since]
    tail = limits["tailLines"]
    body = _encode(lines if tail is None else lines[max(0, len(lines) - tail) :], request)
    if request.query.flag("follow") and not previous:
        return LogStream(log, body, request)
    return Response(status=200, headers={"content-type": TEXT}, body=body[: limits["limitBytes"]])


def _encode(lines: Iterable[LogLine], request: ResourceRequest) -> bytes:
    stamps = request.query.flag("timestamps")
    return "".join(f"{rfc3339_micro(at)} {text}\n" if stamps else f"{text}\n" for at, text in lines).encode()


def _number(request: ResourceRequest, name: str) -> int | None:
    value, least = request.query.number(name), _SMALLEST[name]
    if value is not None and value < least:
        rule = "must be greater than 0" if least else "must be greater than or equal to 0"
        cause = StatusCause(field=name, message=f"Invalid value: {value}: {rule}", reason="FieldValueInvalid")
        raise invalid_error("", "PodLogOptions", request.route.name, [cause])
    return value


def _since(request: ResourceRequest, seconds: int | None, now: float) -> float:
    """The time of the first line that is asked for."""
    time = request.query.text("sinceTime")
    if time and seconds is not None:
        text = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"
        raise invalid_error(
            "", "PodLogOptions", "", [StatusCause(field="", message=text, reason="FieldValueForbidden")]
        )
    if seconds is not None:
        return now - seconds
    try:
        return parse_rfc3339(time) if time else 0.0
    except ValueError:
        raise bad_request_error(f'parsing time "{time}": no RFC 3339 time') from None


def choose_container(requested: str, pod: Mapping[str, Any]) -> str:
    """The container that a request names, or the pod's only one.

    Raises:
        StatusError: 400, the pod has none of that name, or several and none was named.
    """
    spec = pod["spec"]
    apps = [each["name"] for each in spec["containers"]]
    names = [each["name"] for each in spec.get("initContainers") or ()] + apps
    name = pod["metadata"]["name"]
    if requested:
        if requested not in names:
            raise bad_request_error(f"container {requested} is not valid for pod {name}")
        return requested
    if len(apps) > 1:
        raise bad_request_error(
            f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]"
        )
    first: str = apps[0]
    return first


def _missing(pod: Mapping[str, Any], container: str, *, previous: bool) -> str:
    named = f'container "{container}" in pod "{pod["metadata"]["name"]}"'
    if previous:
        return f"previous terminated {named} not found"
    reason = _waiting_reason(pod, container)
    return f"{named} is waiting to start: {_IMAGE_WAITS.get(reason, reason)}"


def _waiting_reason(pod: Mapping[str, Any], container: str) -> str:
    status = pod.get("status") or {}
    statuses: Sequence[Mapping[str, Any]] = (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    )
    for each in statuses:
        if each["name"] == container:
            return str((each.get("state") or {}).get("waiting", {}).get("reason") or "ContainerCreating")
    return "ContainerCreating"


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
