"""Answers reviews: the requests of ``kubectl auth can-i`` and ``auth whoami``, and TokenReviews.

Nothing is stored; a review is the request's object with its status filled in. Without an authorizer everything is
allowed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.authz.identity import ISSUER, TokenAuthenticator, encode_user
from tessera_lab.apiserver.interfaces import Attributes, AuthorizationDecision, Authorizer, Obj, UserInfo
from tessera_lab.apiserver.request.server_state import ServerState
from tessera_lab.apiserver.status import bad_request_error

_ACCESS = frozenset({"selfsubjectaccessreviews", "subjectaccessreviews", "localsubjectaccessreviews"})
_PLURALS = _ACCESS | {"selfsubjectrulesreviews", "selfsubjectreviews", "tokenreviews"}


class _Everything:
    """Allows everything: the server has no authorizer."""

    def authorize(self, attributes: Attributes) -> AuthorizationDecision:
        del attributes
        return AuthorizationDecision(allowed=True)

    def rules(self, user: UserInfo, namespace: str) -> tuple[Sequence[Obj], Sequence[Obj]]:
        del user, namespace
        everything: Obj = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        return [everything], [{"verbs": ["*"], "nonResourceURLs": ["*"]}]


class ReviewHandler:
    """Answers all review kinds."""

    def __init__(self, core: ServerState, identities: TokenAuthenticator) -> None:
        self._core = core
        self._identities = identities

    def covers(self, plural: str) -> bool:
        """True if the resource is a review."""
        return plural in _PLURALS

    def answer(self, plural: str, review: Mapping[str, Any], user: UserInfo) -> Obj:
        """Answers a review.

        Args:
            plural: which kind of review.
            review: the review as sent.
            user: sender of the review.

        Raises:
            tessera_lab.apiserver.status.StatusError: 400, the spec does not have exactly one question.
        """
        authorizer = self._core.parts.authorizer or _Everything()
        meta = {**(review.get("metadata") or {}), "creationTimestamp": None}
        status = self._status(plural, review.get("spec") or {}, user, authorizer)
        return {**review, "metadata": meta, "status": status}

    def _status(self, plural: str, spec: Mapping[str, Any], user: UserInfo, authorizer: Authorizer) -> Obj:
        match plural:
            case "selfsubjectreviews":
                return {"userInfo": encode_user(user)}
            case "tokenreviews":
                return self._token(spec)
            case "selfsubjectrulesreviews":
                resources, others = authorizer.rules(user, spec.get("namespace", ""))
                return {"resourceRules": list(resources), "nonResourceRules": list(others), "incomplete": False}
            case "selfsubjectaccessreviews":
                return review_access(spec, user, authorizer)
        attributes = UserInfo(name=spec.get("user", ""), groups=tuple(spec.get("groups") or ()))
        return review_access(spec, attributes, authorizer)

    def _token(self, spec: Mapping[str, Any]) -> Obj:
        token, wanted = spec.get("token", ""), spec.get("audiences") or [ISSUER]
        user = self._identities.authenticate(token, wanted)
        if user is None:
            return {"user": {}, "error": "the token is not valid or has expired"}
        met = [each for each in wanted if each in self._identities.audiences(token)]
        return {"authenticated": True, "user": encode_user(user), "audiences": met}


def review_access(spec: Mapping[str, Any], user: UserInfo, authorizer: Authorizer) -> Obj:
    """Returns the status of an access review about ``user``.

    Raises:
        tessera_lab.apiserver.status.StatusError: 400, the spec has neither or both of resource and path.
    """
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (resource is None) == (path is None):
        raise bad_request_error(
            "spec.resourceAttributes and spec.nonResourceAttributes: exactly one of them must be specified"
        )
    if path is not None:
        attributes = Attributes(user=user, verb=path.get("verb", ""), path=path.get("path", ""))
    else:
        names = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
        attributes = Attributes(user=user, **{name: (resource or {}).get(name, "") for name in names})
    decision = authorizer.authorize(attributes)
    return {"allowed": decision.allowed, **({"reason": decision.reason} if decision.reason else {})}
