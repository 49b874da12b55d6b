"""``pods/log``: what a container has printed so far, as kubelet keeps it.

The whole log or its last lines. Following it, and choosing by time or bytes, is answered 501.
"""

from collections.abc import Mapping
from typing import Any

from tessera.kube.transport.interface import Response
from tessera_lab.apiserver.interfaces import Logs
from tessera_lab.apiserver.request.server_state import Ask
from tessera_lab.apiserver.status import bad_request, not_implemented

_NOT_PLAYED = ("sinceSeconds", "sinceTime", "timestamps", "limitBytes", "stream")


def answer(ask: Ask, pod: Mapping[str, Any], logs: Logs | None) -> Response:
    """The log as text.

    Raises:
        StatusError: 400 in Kubernetes' words, or 501.
    """
    if logs is None:
        raise not_implemented("the log subresource of pods")
    _check_options(ask)
    container = _container(ask.query.text("container"), pod)
    try:
        lines = list(logs(ask.namespace, ask.route.name, container))
    except LookupError:
        why = f'container "{container}" in pod "{ask.route.name}" is waiting to start: {_waiting(pod, container)}'
        raise bad_request(why) from None
    tail = ask.query.number("tailLines")
    if tail is not None:
        lines = lines[len(lines) - tail :] if tail < len(lines) else lines
    return Response(
        status=200,
        headers={"content-type": "text/plain"},
        body="".join(f"{line}\n" for line in lines).encode(),
    )


def _check_options(ask: Ask) -> None:
    for name in _NOT_PLAYED:
        if ask.query.text(name) not in {"", "false"}:
            raise not_implemented(f"{name} of the log subresource of pods")
    if ask.query.flag("follow"):
        raise not_implemented("following a log")
    if ask.query.flag("previous"):
        raise not_implemented("the log of a previous container")


def _container(asked: str, pod: Mapping[str, Any]) -> str:
    spec = pod["spec"]
    apps = [each["name"] for each in spec["containers"]]
    names = [each["name"] for each in spec.get("initContainers") or ()] + apps
    name = pod["metadata"]["name"]
    if asked:
        if asked not in names:
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    if len(apps) > 1:
        raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")
    first: str = apps[0]
    return first


def _waiting(pod: Mapping[str, Any], container: str) -> str:
    status = pod.get("status") or {}
    for each in status.get("containerStatuses") or ():
        if each["name"] == container:
            return str((each.get("state") or {}).get("waiting", {}).get("reason") or "ContainerCreating")
    return "ContainerCreating"
