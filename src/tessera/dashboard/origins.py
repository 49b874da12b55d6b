"""The web addresses that the page knows: its own names, and the OpenID Connect provider for sign-in. Pure.

A browser sends the name that its user typed as the header Host, and the page that sent a request as Origin. Another
site that the visitor has open shows in Origin. A site whose name was pointed to the page's address (DNS rebinding)
shows in Host.

The browser speaks with the provider (authorization code with PKCE, as a public client), and sends the ID token that it
gets as a bearer token, as kubectl does. So the page's process has no client secret, no session and no request to the
provider, and the API server alone judges tokens: it must know the same issuer and client.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from ipaddress import IPv4Address
from urllib.parse import urlsplit

import msgspec

#: Names of the visitor's own machine.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_USUAL_PORTS = {"http": 80, "https": 443}


class PageNames:
    """Names that a request may carry.

    Args:
        origins: origins of the page: ``https://gpu.example.com``.
        loopback: True if the visitor's own machine under any port is one of them, as with ``kubectl port-forward``, and
            with a lab, whose pods have addresses of that machine.

    Raises:
        ValueError: one is no origin.
    """

    def __init__(self, origins: Collection[str] = (), *, loopback: bool = False) -> None:
        self._origins = {host: text.rstrip("/") for text in origins for host in _hosts(text)}
        self._loopback = loopback

    def admit(self, host: str, origin: str | None) -> bool:
        """Whether a request with these headers may be answered; ``origin`` is None if it has none."""
        host = host.lower()
        own = {self._origins[host]} if host in self._origins else set()
        if not own and self._loopback and _is_loopback(_name_of(host)):
            own = {f"http://{host}", f"https://{host}"}
        return bool(own) and (origin is None or origin in own)


def _hosts(origin: str) -> Iterator[str]:
    """The values of the header Host for an origin: browsers leave the usual port out."""
    parts = urlsplit(origin)
    path = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if parts.scheme not in _USUAL_PORTS or not parts.hostname or path:
        raise ValueError(f'"{origin}" is no origin of a page; write a scheme and a name, as in https://gpu.example.com')
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.port in {None, _USUAL_PORTS[parts.scheme]}:
        yield name
    yield f"{name}:{parts.port or _USUAL_PORTS[parts.scheme]}"


def _is_loopback(name: str) -> bool:
    """Whether this names the visitor's own machine; no other name can be pointed to an address that is written out."""
    if name in LOOPBACK:
        return True
    try:
        return IPv4Address(name).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    name, separator, port = host.rpartition(":")
    return name if separator and port.isascii() and port.isdecimal() else host


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
