"""Errors with Kubernetes' own texts: ``metav1.Status`` with reason, details and causes.

Texts follow ``k8s.io/apimachinery/pkg/api/errors``; clients and people match on them.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tessera_lab.apiserver.interfaces import Obj, StatusCause


class StatusSubject(NamedTuple):
    """The object that a ``Status`` is about; empty fields are left out of the details.

    Attributes:
        group: API group; empty for the core group.
        kind: resource or kind.
        name: the object's name.
        uid: its UID.
    """

    group: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""


class StatusError(Exception):
    """A request failed; the answer is a ``Status``.

    Args:
        code: HTTP status.
        reason: machine-readable reason; empty for none.
        message: text for people.
        subject: the object that the request was about.
        causes: single faults of the object.
        retry_after: seconds after which the client may repeat the request; 0 for none.

    Attributes:
        code: HTTP status.
        status: the ``metav1.Status`` document.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        subject: StatusSubject = StatusSubject(),  # noqa: B008 - a frozen value
        causes: Iterable[StatusCause] = (),
        retry_after: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        about = {"name": subject.name, "group": subject.group, "kind": subject.kind, "uid": subject.uid}
        details: dict[str, Any] = {key: value for key, value in about.items() if value}
        listed = [_cause(c) for c in causes]
        if listed:
            details["causes"] = listed
        if retry_after:
            details["retryAfterSeconds"] = retry_after
        self.status: Obj = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            **({"details": details} if details else {}),
            "code": code,
        }


def _cause(cause: StatusCause) -> dict[str, str]:
    shown = {"reason": cause.reason, "message": cause.message, "field": cause.field}
    return {key: value for key, value in shown.items() if value}


def qualified_name(group: str, resource: str) -> str:
    """A resource as texts name it: ``pods``, ``deployments.apps``."""
    return f"{resource}.{group}" if group else resource


def not_found_error(group: str, resource: str, name: str) -> StatusError:
    """404: no such object."""
    text = f'{qualified_name(group, resource)} "{name}" not found'
    return StatusError(404, "NotFound", text, subject=StatusSubject(group, resource, name))


def no_such_path_error() -> StatusError:
    """404: the server serves nothing at the path."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists_error(group: str, resource: str, name: str) -> StatusError:
    """409: create of a name that already exists."""
    text = f'{qualified_name(group, resource)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, subject=StatusSubject(group, resource, name))


def conflict_error(group: str, resource: str, name: str, reason: str) -> StatusError:
    """409: the write conflicts with the stored object."""
    text = f'Operation cannot be fulfilled on {qualified_name(group, resource)} "{name}": {reason}'
    return StatusError(409, "Conflict", text, subject=StatusSubject(group, resource, name))


#: Why an update with an old resourceVersion is refused.
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def invalid_error(group: str, kind: str, name: str, causes: Sequence[StatusCause]) -> StatusError:
    """422: the object is not valid."""
    each = [f"{c.field}: {c.message}" if c.field else c.message for c in causes]
    summary = each[0] if len(each) == 1 else "[" + ", ".join(each) + "]"
    shown = f"{kind}.{group}" if group else kind
    text = f'{shown} "{name}" is invalid: {summary}'
    return StatusError(422, "Invalid", text, subject=StatusSubject(group, kind, name), causes=causes)


def bad_request_error(reason: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", reason)


def forbidden_error(group: str, resource: str, name: str, reason: str) -> StatusError:
    """403: refused by authorization or admission."""
    text = f"{qualified_name(group, resource)} is forbidden: {reason}"
    if name:
        text = f'{qualified_name(group, resource)} "{name}" is forbidden: {reason}'
    return StatusError(403, "Forbidden", text, subject=StatusSubject(group, resource, name))


def expired_error(reason: str) -> StatusError:
    """410: a version or continue token older than the history kept."""
    return StatusError(410, "Expired", reason)


def method_not_allowed_error(group: str, resource: str, verb: str) -> StatusError:
    """405: the resource has no such verb."""
    del verb
    return StatusError(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
        subject=StatusSubject(group, resource),
    )


def unsupported_media_error(accepted: Sequence[str]) -> StatusError:
    """415: the body's Content-Type is not known here."""
    text = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return StatusError(415, "UnsupportedMediaType", text)


def not_acceptable_error(accepted: Sequence[str]) -> StatusError:
    """406: no representation that the client accepts."""
    text = "only the following media types are accepted: " + ", ".join(accepted)
    return StatusError(406, "NotAcceptable", text)


def not_implemented_error(feature: str) -> StatusError:
    """501: Kubernetes has the feature, this server does not."""
    return StatusError(501, "NotImplemented", f"{feature} is not implemented by this API server")


def unauthorized_error() -> StatusError:
    """401."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def too_many_requests_error(reason: str, *, retry_after: int, causes: Iterable[StatusCause] = ()) -> StatusError:
    """429 with Retry-After in seconds."""
    return StatusError(429, "TooManyRequests", reason, retry_after=retry_after, causes=causes)
