"""``pods/log``: the log of a container's present or previous run, whole, in part, or followed to its end.

Errors are kubelet's (``pkg/kubelet/kubelet_pods.go``, ``validateContainerLogStatus``) and the API server's validation
of PodLogOptions. One stream alone, which real clusters serve behind a feature gate, is answered 501.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from tessera.clock import parse_rfc3339, rfc3339_micro
from tessera.kube.client.requests import Response
from tessera_lab.apiserver.container_log import ContainerLog, LogLine
from tessera_lab.apiserver.interfaces import Logs, StatusCause
from tessera_lab.apiserver.request.server_state import ResourceRequest
from tessera_lab.apiserver.status import bad_request_error, invalid_error, not_implemented_error

TEXT = "text/plain"
#: Kubelet's words for a container that waits for its image; for all others it gives the reason itself.
_IMAGE_WAITS = {"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}
_SMALLEST = {"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1}


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
