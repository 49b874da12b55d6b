"""How the API server finds a webhook behind a Service: through the Endpoints that the workload controllers keep."""

from collections.abc import Mapping
from typing import Any

from tessera_lab.apiserver.interfaces import GroupResource, Reader

_SERVICES, _ENDPOINTS = GroupResource("", "services"), GroupResource("", "endpoints")


class ServiceResolver:
    """Service, namespace and port to an address; always the first ready one, since a lab balances nothing."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __call__(self, namespace: str, name: str, port: int) -> tuple[str, int] | None:
        """Host and port of a ready pod, None if there is no such service, port or ready pod."""
        service = self._reader.get(_SERVICES, namespace, name)
        endpoints = self._reader.get(_ENDPOINTS, namespace, name)
        if service is None or endpoints is None:
            return None
        named = next((each.get("name") for each in service["spec"].get("ports", ()) if each["port"] == port), None)
        for subset in endpoints.get("subsets") or ():
            found = _port(subset, named)
            for address in subset.get("addresses") or ():
                if found is not None:
                    return address["ip"], found
        return None


def _port(subset: Mapping[str, Any], name: str | None) -> int | None:
    return next((each["port"] for each in subset.get("ports") or () if each.get("name") == name), None)
