"""``GET pods/NAME:PORT/proxy/PATH``: a page of a container that runs for real, through the API server.

Only pods with an address of this lab are reached, so a forged status leads nowhere else. The request's headers are
passed on, but for those of the connection and for Authorization, which a real server removes once it knows the user.
Other methods, TLS to the pod and WebSockets are answered 501.
"""

from collections.abc import Mapping
from typing import Any

from tessera.kube.transport.interface import Response
from tessera_lab.apiserver.interfaces import GetPage
from tessera_lab.apiserver.request.server_state import ResourceRequest
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


async def get_pod_page(request: ResourceRequest, pod: Mapping[str, Any], port: str, get: GetPage | None) -> Response:
    """Gets a page of a pod.

    Args:
        request: the request; its path after ``proxy`` is the page's.
        pod: the pod.
        port: its port as text; empty for the first one that the pod declares.
        get: gets the page; None if no pod of this server listens.

    Raises:
        StatusError: 400, the port is not valid; 501, the pod cannot be reached here; 503, it does not answer.
    """
    if request.request.method != "GET" or get is None:
        raise not_implemented_error("the proxy subresource of pods that do not listen on this machine")
    number = _port(pod, port)
    address = (pod.get("status") or {}).get("podIP", "")
    try:
        passed = {name: value for name, value in request.request.headers.items() if name not in _KEPT_BACK}
        return await get(address, number, "/" + "/".join(request.route.parts), passed)
    except LookupError:
        raise not_implemented_error(f"the proxy to the address {address!r}") from None
    except OSError as error:
        message = f"error trying to reach service: dial tcp {address}:{number}: {error}"
        raise StatusError(503, "ServiceUnavailable", message) from None


def _port(pod: Mapping[str, Any], text: str) -> int:
    if not text:
        declared = (each for container in pod["spec"]["containers"] for each in container.get("ports") or ())
        return next((int(each["containerPort"]) for each in declared), 80)
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:6]) <= _HIGHEST_PORT:
        raise bad_request_error(f"invalid port {text!r}")
    return int(text)
