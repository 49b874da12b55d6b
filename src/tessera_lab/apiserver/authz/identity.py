"""Identities of clients: bearer tokens, client certificates, service-account tokens issued by this server.

A token is a JWT signed with a key that lives as long as the server. A service account's token is invalid once the
account, or the pod that the token is bound to, is gone. A token that is bound to a pod names the pod and its node
(``ServiceAccountTokenPodNodeInfo``, on by default since Kubernetes 1.30).
"""

import base64
import hashlib
import hmac
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from tessera.clock import rfc3339
from tessera_lab.apiserver.interfaces import GroupResource, Obj, UserInfo
from tessera_lab.apiserver.request.server_state import ServerState
from tessera_lab.apiserver.status import not_found_error

SERVICE_ACCOUNTS = GroupResource("", "serviceaccounts")
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
ANONYMOUS = UserInfo(name="system:anonymous", groups=(UNAUTHENTICATED,))
ISSUER = "https://kubernetes.default.svc.cluster.local"
#: Prefix of the ``extra`` keys of a UserInfo.
EXTRA = "authentication.kubernetes.io/"
#: Default lifetime of a token, and the shortest one allowed, seconds (TokenRequest).
DEFAULT_LIFE, SHORTEST_LIFE = 3600, 600


class BoundObject(msgspec.Struct, frozen=True):
    """The object that a token is bound to."""

    name: str
    uid: str


class _Kubernetes(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: str
    serviceaccount: BoundObject
    pod: BoundObject | None = None
    node: BoundObject | None = None


class _Claims(msgspec.Struct, frozen=True):
    iss: str
    sub: str
    aud: tuple[str, ...]
    iat: int
    nbf: int
    exp: int
    jti: str
    kubernetes: _Kubernetes = msgspec.field(name="kubernetes.io")


def service_account_user(
    namespace: str, name: str, uid: str = "", extra: Mapping[str, tuple[str, ...]] | None = None
) -> UserInfo:
    """The identity of a service account; ``extra`` describes its token, see :func:`bound_pod_extra`."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return UserInfo(name=f"system:serviceaccount:{namespace}:{name}", groups=groups, uid=uid, extra=extra or {})


def bound_pod_extra(pod: BoundObject, node: BoundObject | None) -> dict[str, tuple[str, ...]]:
    """The ``extra`` fields of a user whose token is bound to a pod."""
    extra = {f"{EXTRA}pod-name": (pod.name,), f"{EXTRA}pod-uid": (pod.uid,)}
    if node is not None:
        extra |= {f"{EXTRA}node-name": (node.name,), f"{EXTRA}node-uid": (node.uid,)}
    return {key: values for key, values in extra.items() if values[0]}


def certificate_user(common_name: str, organizations: Sequence[str]) -> UserInfo:
    """The identity of a client certificate: CN is the user, O the groups."""
    return UserInfo(name=common_name, groups=(*organizations, AUTHENTICATED))


class TokenAuthenticator:
    """Finds the user of a bearer token.

    Args:
        core: stored service accounts, and the clock.
        static: tokens of users.

    Attributes:
        static: tokens that are valid as long as they are listed here, with their users.
    """

    def __init__(self, core: ServerState, static: Mapping[str, UserInfo]) -> None:
        self._core = core
        self.static = dict(static)
        self._key = core.rng.randbytes(32)

    def authenticate(self, token: str, audiences: Collection[str] = (ISSUER,)) -> UserInfo | None:
        """The user of a token; None if the token is not valid (any more), or not for any of these audiences.

        Tokens of users are valid for the API server only.
        """
        known = self.static.get(token)
        if known is not None:
            return known if ISSUER in audiences else None
        claims = self._claims(token)
        if claims is not None and not set(claims.aud) & set(audiences):
            return None
        if claims is None or not claims.nbf <= self._core.clock.now() + 1 or claims.exp <= self._core.clock.now():
            return None
        held = claims.kubernetes
        for resource, bound in ((SERVICE_ACCOUNTS, held.serviceaccount), (GroupResource("", "pods"), held.pod)):
            if bound is None:
                continue
            found = self._core.store.get(resource, held.namespace, bound.name)
            if found is None or found["metadata"]["uid"] != bound.uid:
                return None
        extra: dict[str, tuple[str, ...]] = {f"{EXTRA}credential-id": (f"JTI={claims.jti}",)}
        if held.pod is not None:
            extra |= bound_pod_extra(held.pod, held.node)
        return service_account_user(held.namespace, held.serviceaccount.name, held.serviceaccount.uid, extra)

    def issue_token(
        self, namespace: str, name: str, *, life: float, audiences: Sequence[str] = (), pod: Obj | None = None
    ) -> str:
        """Issues a token for a service account.

        Raises:
            StatusError: 404, there is no such account.
        """
        account = self._core.store.get(SERVICE_ACCOUNTS, namespace, name)
        if account is None:
            raise not_found_error("", "serviceaccounts", name)
        now = int(self._core.clock.now())
        bound = BoundObject(pod["metadata"]["name"], pod["metadata"]["uid"]) if pod else None
        claims = _Claims(
            iss=ISSUER,
            sub=f"system:serviceaccount:{namespace}:{name}",
            aud=tuple(audiences) or (ISSUER,),
            iat=now,
            nbf=now,
            exp=now + int(life),
            jti=self._core.new_uid(),
            kubernetes=_Kubernetes(
                namespace, BoundObject(name, account["metadata"]["uid"]), bound, self._node(pod) if pod else None
            ),
        )
        signed = _b64(b'{"alg":"HS256","typ":"JWT"}') + "." + _b64(msgspec.json.encode(claims))
        return signed + "." + self._signature(signed)

    def _node(self, pod: Obj) -> BoundObject | None:
        """Returns the pod's node, without a UID if there is no such Node."""
        name = pod["spec"].get("nodeName")
        found = self._core.store.get(GroupResource("", "nodes"), "", name) if name else None
        return BoundObject(name, found["metadata"]["uid"] if found else "") if name else None

    def audiences(self, token: str) -> tuple[str, ...]:
        """The audiences of a token that is valid."""
        claims = self._claims(token)
        return claims.aud if claims is not None else (ISSUER,)

    def expiry(self, token: str) -> str:
        """The expiry time of a token that this server issued, as ``metav1.Time``."""
        claims = self._claims(token)
        assert claims is not None
        return rfc3339(claims.exp)

    def _signature(self, signed: str) -> str:
        return _b64(hmac.new(self._key, signed.encode(), hashlib.sha256).digest())

    def _claims(self, token: str) -> _Claims | None:
        signed, _, signature = token.rpartition(".")
        if not signed or not hmac.compare_digest(signature.encode(), self._signature(signed).encode()):
            return None
        body = signed.partition(".")[2]
        return msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=_Claims)


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def encode_user(user: UserInfo) -> dict[str, Any]:
    """Encodes a user as in a review's status."""
    shown: dict[str, Any] = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        shown["uid"] = user.uid
    if user.extra:
        shown["extra"] = {key: list(values) for key, values in user.extra.items()}
    return shown
