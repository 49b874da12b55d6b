"""``pods/NAME:PORT/proxy/PATH`` and ``services/NAME:PORT/proxy/PATH``: requests to pods, through the API server.

Simulated servers take every method; of a container that runs for real only pages are got. Only pods with an address of
this lab are reached, so a forged status leads nowhere else. The request's headers are passed on, but for those of the
connection and for Authorization, which a real server removes once it knows the user. TLS to the pod and WebSockets are
answered 501.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.kube.client.requests import Response
from tessera_lab.apiserver.request.server_state import ResourceRequest, ServerParts
from tessera_lab.apiserver.status import StatusError, bad_request_error, not_implemented_error

_HIGHEST_PORT = 65_535
_KEPT_BACK = frozenset(
    {"authorization", "host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
)


def split_proxy_name(text: str) -> tuple[str, str, str]:
    """Splits ``[SCHEME:]NAME[:PORT]`` into scheme, name and port; absent parts are empty.

    Raises:
        StatusError: 400, there are too many parts.
    """
    parts = text.split(":")
    if len(parts) > 3:
        raise bad_request_error(f"invalid pod request {text!r}")
    if len(parts) == 3:
        return parts[0], parts[1], parts[2]
    return "", parts[0], parts[1] if len(parts) == 2 else ""


async def proxy_to_pod(request: ResourceRequest, pod: Mapping[str, Any], port: str, parts: ServerParts) -> Response:
    """Passes a request on to a pod.

    Args:
        request: the request; its path after ``proxy`` is the page's.
        pod: the pod.
        port: its port as text; empty for the first one that the pod declares.
        parts: have the simulated servers, and get pages of pods that listen.

    Raises:
        StatusError: 400, the port is not valid; 501, the pod cannot be reached here; 503, it does not answer.
    """
    number, meta = _port(pod, port), pod["metadata"]
    passed = {name: value for name, value in request.request.headers.items() if name not in _KEPT_BACK}
    path = "/" + "/".join(request.route.parts)
    if parts.servers is not None:
        sent = msgspec.structs.replace(request.request, path=path, headers=passed)
        with contextlib.suppress(LookupError):
            return await parts.servers.answer(meta["namespace"], meta["name"], number, sent)
    if request.request.method != "GET" or parts.get_page is None:
        raise not_implemented_error("the proxy subresource of pods that do not listen on this machine")
    address = (pod.get("status") or {}).get("podIP", "")
    try:
        return await parts.get_page(address, number, path, passed)
    except LookupError:
        raise not_implemented_error(f"the proxy to the address {address!r}") from None
    except OSError as error:
        message = f"error trying to reach service: dial tcp {address}:{number}: {error}"
        raise StatusError(503, "ServiceUnavailable", message) from None


def choose_endpoint(service: Mapping[str, Any], endpoints: Mapping[str, Any], port: str) -> tuple[str, int]:
    """Returns the pod behind a Service that gets a request, and the pod's port: the first that is ready.

    Args:
        service: the Service.
        endpoints: its Endpoints.
        port: number or name of the Service's port; empty for the one without a name.

    Raises:
        StatusError: 503 in the words of Kubernetes' ``ResourceLocation`` (pkg/registry/core/service/storage).
    """
    name, title = port, service["metadata"]["name"]
    if port.isascii() and port.isdecimal():
        found = [each for each in service["spec"].get("ports") or () if str(each["port"]) == port]
        if not found:
            raise StatusError(503, "ServiceUnavailable", f'no service port {port} found for service "{title}"')
        name = found[0].get("name") or ""
    for subset in endpoints.get("subsets") or ():
        ports = [each["port"] for each in subset.get("ports") or () if (each.get("name") or "") == name]
        pods = [each["targetRef"]["name"] for each in subset.get("addresses") or () if each.get("targetRef")]
        if ports and pods:
            return pods[0], ports[0]
    raise StatusError(503, "ServiceUnavailable", f'no endpoints available for service "{title}"')


def _port(pod: Mapping[str, Any], text: str) -> int:
    if not text:
        declared = (each for container in pod["spec"]["containers"] for each in container.get("ports") or ())
        return next((int(each["containerPort"]) for each in declared), 80)
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:6]) <= _HIGHEST_PORT:
        raise bad_request_error(f"invalid port {text!r}")
    return int(text)
