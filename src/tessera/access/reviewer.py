"""Asks the API server who a token belongs to, and what a user may do: TokenReview and SubjectAccessReview.

A token goes to the API server and nowhere else: not into a log, an error or a key.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tessera.kube.client.client import Client
from tessera.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS


class Person(NamedTuple):
    """A user, as the API server knows it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def share(self) -> str:
        """The name under which requests count. Service accounts of a namespace share one: a tenant can make many."""
        match self.name.split(":"):
            case ["system", "serviceaccount", namespace, _]:
                return f"namespace/{namespace}"
        return f"user/{self.name}"


class Right(NamedTuple):
    """A right: to do something with all objects of a kind, in one namespace or (if empty) in the whole cluster."""

    verb: str
    resource: str
    namespace: str = ""
    group: str = ""


class PathRight(NamedTuple):
    """A right to a path that is no resource, such as ``/metrics``: a nonResourceURL of RBAC."""

    verb: str
    path: str


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: tuple[str, ...] = ()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class Reviewer:
    """Sends reviews.

    Args:
        client: of an account that may create them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def review_token(self, token: str, audience: str = "") -> Person | None:
        """The owner of a token; None if the API server does not accept it.

        Args:
            token: the token.
            audience: for whom it must be made; empty for the API server itself.

        Raises:
            ApiError: the API server refused the review.
            OSError: it did not answer.
        """
        wanted = {"audiences": [audience]} if audience else {}
        made = await self._client.create(TOKEN_REVIEWS, {"spec": {"token": token, **wanted}})
        status = msgspec.convert(made.get("status", {}), _TokenStatus)
        user = status.user
        if not status.authenticated or not user.username:
            return None
        if audience and audience not in status.audiences:  # an authenticator that does not look at audiences
            return None
        extra = tuple(sorted((key, tuple(values)) for key, values in user.extra.items()))
        return Person(user.username, user.uid, user.groups, extra)

    async def review_access(self, person: Person, right: Right | PathRight) -> bool:
        """Whether the person has the right.

        Raises:
            ApiError: the API server refused the review.
            OSError: it did not answer.
        """
        spec = {**_question(right), "user": person.name, "groups": list(person.groups)}
        if person.uid:
            spec["uid"] = person.uid
        if person.extra:
            spec["extra"] = {key: list(values) for key, values in person.extra}
        made = await self._client.create(SUBJECT_ACCESS_REVIEWS, {"spec": spec})
        status = msgspec.convert(made.get("status", {}), _AccessStatus)
        return status.allowed and not status.denied


def _question(right: Right | PathRight) -> dict[str, Any]:
    if isinstance(right, PathRight):
        return {"nonResourceAttributes": {"verb": right.verb, "path": right.path}}
    attributes: dict[str, Any] = {"verb": right.verb, "resource": right.resource, "group": right.group}
    attributes["version"] = "*" if right.group else "v1"
    if right.namespace:
        attributes["namespace"] = right.namespace
    return {"resourceAttributes": attributes}
