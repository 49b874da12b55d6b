"""Refusals of an API server as exceptions that read like kubectl's messages.

The class follows ``Status.reason`` first and the HTTP code second, because the reason is the finer of the two: 409 is
both ``AlreadyExists`` and ``Conflict``. Breaks of the connection are not here: they stay ``ConnectionError`` and
``TimeoutError``, since nothing is known about what the server did.
"""

# ruff: noqa: N818 - the classes carry the reasons' own names from k8s.io/apimachinery StatusReason

import re
from collections.abc import Mapping
from http import HTTPStatus

import msgspec

#: Most characters: an answer of an API server that is no Status, in a message. The title of a proxy's error page fits.
ANSWER_SHOWN = 300
#: In a refusal by an authorizer (Kubernetes, ``responsewriters.Forbidden``).
_BY_AUTHORIZER = re.compile(r" cannot [a-z]+ (resource|path) \"")


class StatusCause(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of one field."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The object that a Status is about; ``kind`` holds the resource's plural name."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] | None = ()
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """``metav1.Status``; ``status`` is ``Success`` or ``Failure``."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class ApiError(Exception):
    """The server answered and refused.

    Attributes:
        status: the server's Status.
        retry_after: seconds it asks to wait before another try, ``None`` if it does not ask.
    """

    def __init__(self, status: Status, *, retry_after: float | None = None) -> None:
        super().__init__(status)
        self.status = status
        details = status.details
        if retry_after is None and details is not None and details.retry_after_seconds > 0:
            retry_after = float(details.retry_after_seconds)
        self.retry_after = retry_after

    @property
    def code(self) -> int:
        """The HTTP status code."""
        return self.status.code

    @property
    def reason(self) -> str:
        """The machine-readable reason, ``""`` where the server gave none."""
        return self.status.reason

    @property
    def message(self) -> str:
        """The server's own sentence."""
        return self.status.message

    @property
    def causes(self) -> tuple[StatusCause, ...]:
        """The faults of single fields (of an ``Invalid``)."""
        details = self.status.details
        return (details.causes or ()) if details else ()

    def __str__(self) -> str:
        where = f" ({self.reason})" if self.reason else ""
        return f"Error from server{where}: {self.message}"


class BadRequest(ApiError):
    """400: the request makes no sense to the server."""


class Unauthorized(ApiError):
    """401: the credentials are missing, expired or unknown."""


class Forbidden(ApiError):
    """403: RBAC, admission or a quota refuses."""

    @property
    def lacks_right(self) -> bool:
        """True if RBAC or another authorizer refuses: admission and quotas forbid in other words."""
        return _BY_AUTHORIZER.search(self.message) is not None


class Intercepted(ApiError):
    """403 by a proxy or gateway before the API server: the answer is no Status."""


class NotFound(ApiError):
    """404: no such object, or no such resource on this server."""


class MethodNotAllowed(ApiError):
    """405: the resource has no such verb."""


class AlreadyExists(ApiError):
    """409 on create: the name is taken."""


class Conflict(ApiError):
    """409 on a write: the object changed since, a precondition failed, or another manager owns a field."""


class Expired(ApiError):
    """410: the resourceVersion or the continue token is too old; list again."""


class UnsupportedMediaType(ApiError):
    """415: the server does not take this kind of body."""


class Invalid(ApiError):
    """422: the object breaks its schema; :attr:`ApiError.causes` names the fields."""


class TooManyRequests(ApiError):
    """429: slow down, or (on eviction) a disruption budget forbids it now."""


class InternalError(ApiError):
    """500."""


class ServiceUnavailable(ApiError):
    """503."""


class ServerTimeout(ApiError):
    """504: the server gave up; the write may or may not have happened."""


class BrokenAnswer(ApiError):
    """The server carried out the request, but its answer does not fit the expected type."""


_BY_REASON: Mapping[str, type[ApiError]] = {
    "BadRequest": BadRequest,
    "Unauthorized": Unauthorized,
    "Forbidden": Forbidden,
    "NotFound": NotFound,
    "MethodNotAllowed": MethodNotAllowed,
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Expired": Expired,
    "Gone": Expired,
    "UnsupportedMediaType": UnsupportedMediaType,
    "Invalid": Invalid,
    "TooManyRequests": TooManyRequests,
    "InternalError": InternalError,
    "ServiceUnavailable": ServiceUnavailable,
    "ServerTimeout": ServerTimeout,
    "Timeout": ServerTimeout,
}

_BY_CODE: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    409: Conflict,
    410: Expired,
    415: UnsupportedMediaType,
    422: Invalid,
    429: TooManyRequests,
    500: InternalError,
    503: ServiceUnavailable,
    504: ServerTimeout,
}


def error_from_status(status: Status, *, retry_after: float | None = None) -> ApiError:
    """The exception for a Status; an unknown reason and code give a plain :class:`ApiError`."""
    kind = _BY_REASON.get(status.reason) or _BY_CODE.get(status.code) or ApiError
    return kind(status, retry_after=retry_after)


def error_from_response(code: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The exception for an answer with an HTTP status of 400 or more.

    A body that is no Status (a proxy's page, an aggregated server) is quoted, cut to 300 characters.
    """
    retry_after = _retry_after(headers)
    if status := _status_of(code, body):
        return error_from_status(status, retry_after=retry_after)
    text = body.decode(errors="replace").strip()[:ANSWER_SHOWN] or "empty answer"
    kind = Intercepted if code == HTTPStatus.FORBIDDEN else _BY_CODE.get(code, ApiError)
    reason = kind.__name__ if kind in _BY_CODE.values() else ""
    return kind(Status(code=code, reason=reason, message=f"HTTP status {code}: {text}"), retry_after=retry_after)


def _status_of(code: int, body: bytes) -> Status | None:
    try:
        status = msgspec.json.decode(body, type=Status)
    except (ValueError, RecursionError):  # no JSON, no UTF-8; nested
        return None
    return msgspec.structs.replace(status, code=status.code or code) if status.message or status.reason else None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds; Kubernetes never sends the date form, which is read as no answer."""
    try:
        return float(headers["retry-after"])
    except (KeyError, ValueError):
        return None


def is_unanswered(error: ApiError | OSError) -> bool:
    """True if the server gave no answer of use: what was asked for may be there, and the asker's to read."""
    return (
        not isinstance(error, ApiError)
        or isinstance(error, TooManyRequests | Intercepted)
        or error.code not in range(400, 500)
    )


def note_unanswered(what: str, error: ApiError | OSError, failed: dict[str, str] | None) -> None:
    """Notes what the API server did not answer, and why; raises any other error, and this one if nobody takes notes."""
    if failed is None or not is_unanswered(error):
        raise error
    failed[what] = " ".join(str(error).split())


def describe_unanswered(failed: Mapping[str, str]) -> str:
    """What :func:`note_unanswered` has noted, in one line; empty if that is nothing."""
    return f"{', '.join(sorted(failed))} could not be read: {next(iter(failed.values()))}" if failed else ""
