"""The OpenID Connect provider by which visitors of the page may sign in. Pure.

The browser speaks with the provider (authorization code with PKCE, as a public client), and sends the ID token that it
gets as a bearer token, as kubectl does. So the page's process has no client secret, no session and no request to the
provider, and the API server alone judges tokens: it must know the same issuer and client.
"""

import re
from collections.abc import Sequence

import msgspec

from tessera.dashboard.names import LOOPBACK

#: What a provider is asked for: without ``openid`` there is no ID token.
_SCOPES = ("openid", "email")
#: An issuer: its address has no query (OpenID Connect Discovery 1.0, section 3), and a path may follow.
_ISSUER = re.compile(
    r"(?P<origin>(?P<scheme>https?)://(?P<name>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:\d{1,5})?)(/[!-~]*)?"
)
#: A scope, RFC 6749, section 3.3.
_SCOPE = re.compile(r"[!#-\[\]-~]+")


class Provider(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A provider, and the page as its client. Nothing of it is secret.

    Attributes:
        issuer: its address.
        client_id: the page's name there.
        scope: what the page asks for, with blanks between.
    """

    issuer: str
    client_id: str
    scope: str

    @property
    def origin(self) -> str:
        """Scheme, name and port of the issuer, for the Content-Security-Policy."""
        return origin_of(self.issuer)


def origin_of(issuer: str) -> str:
    """Scheme, name and port of an issuer.

    Raises:
        ValueError: it is none, or not HTTPS and on another machine.
    """
    parts = _ISSUER.fullmatch(issuer)
    if parts is None or "?" in issuer or "#" in issuer:
        raise ValueError(f'"{issuer}" is no issuer; write its address without a query, as in https://login.example.com')
    if parts["scheme"] == "http" and parts["name"] not in LOOPBACK:
        raise ValueError(f'"{issuer}" is not HTTPS: who can read the network would sign in as your users')
    return parts["origin"]


def make_provider(issuer: str | None, client_id: str | None, more_scopes: Sequence[str]) -> Provider | None:
    """The provider for the options ``--oidc-...``; None if there is none.

    Raises:
        ValueError: one is wrong, or goes without another.
    """
    if not issuer and not client_id and not more_scopes:
        return None
    if not issuer or not client_id:
        raise ValueError("--oidc-issuer and --oidc-client-id go together, as those of kube-apiserver")
    origin_of(issuer)
    wrong = [each for each in more_scopes if not _SCOPE.fullmatch(each)]
    if wrong:
        raise ValueError(f'"{wrong[0]}" is no scope; name each by an option of its own')
    return Provider(issuer=issuer, client_id=client_id, scope=" ".join(dict.fromkeys((*_SCOPES, *more_scopes))))
