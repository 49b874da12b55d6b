"""Parses path, method and query of a request, as Kubernetes' ``RequestInfo`` does.

Pure; the registry decides later if such a resource exists.
"""

from urllib.parse import unquote

import msgspec

from tessera.kube.requests import Request
from tessera_lab.apiserver.status import bad_request_error, no_such_path_error

#: Subresources of a namespace; any other word after a namespace's name is a resource inside it.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
_VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class QueryParameters:
    """The query's parameters; of repeated ones the first counts."""

    def __init__(self, request: Request) -> None:
        self._values: dict[str, str] = {}
        for key, value in request.query:
            self._values.setdefault(key, value)

    def text(self, key: str) -> str:
        """The parameter, empty when absent."""
        return self._values.get(key, "")

    def flag(self, key: str) -> bool:
        """True if a boolean parameter is true; a parameter without a value is true, as in Kubernetes."""
        return self._values.get(key, "false").lower() not in {"false", "0"}

    def number(self, key: str) -> int | None:
        """An integer parameter, None when absent.

        Raises:
            StatusError: 400, it is no integer.
        """
        text = self._values.get(key, "")
        try:
            return int(text) if text else None
        except ValueError:
            raise bad_request_error(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a resource.

    Attributes:
        verb: Kubernetes' verb; ``watch`` and ``deletecollection`` included.
        parts: the path after the subresource, for proxies.
    """

    verb: str
    group: str
    version: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    parts: tuple[str, ...] = ()


def route(request: Request, query: QueryParameters) -> Route | None:
    """Parses a request for a resource; None if the path names no resource (discovery, ``/version``).

    Raises:
        StatusError: 404, the path is not valid; 405, the method is not valid.
    """
    parts = [unquote(part) for part in request.path.split("/")[1:]]
    if parts and parts[-1] == "":
        parts.pop()
    match parts:
        case ["api", version, _, *_]:
            return _resource(request.method, "", version, parts[2:], query)
        case ["apis", group, version, _, *_]:
            return _resource(request.method, group, version, parts[3:], query)
        case _:
            return None


def _resource(method: str, group: str, version: str, rest: list[str], query: QueryParameters) -> Route:
    namespace = ""
    if rest[0] == "namespaces":
        if len(rest) == 1 or len(rest) == 2 or (len(rest) == 3 and rest[2] in _NAMESPACE_SUBRESOURCES):
            namespace = rest[1] if len(rest) > 1 else ""
        else:
            namespace, rest = rest[1], rest[2:]
    if any(part == "" for part in rest):
        raise no_such_path_error()
    resource, name, subresource, *parts = (*rest, "", "", "")[: max(3, len(rest))]
    return Route(
        verb=_verb(method, name, query),
        group=group,
        version=version,
        resource=resource,
        namespace=namespace,
        name=name,
        subresource=subresource,
        parts=tuple(part for part in parts if part),
    )


def _verb(method: str, name: str, query: QueryParameters) -> str:
    verb = _VERBS.get(method, "")
    if verb == "get" and not name:
        return "watch" if query.flag("watch") else "list"
    return "deletecollection" if verb == "delete" and not name else verb
