"""Registry authentication: reads ``WWW-Authenticate`` challenges, gets tokens from token servers and keeps them.

The header's grammar is RFC 9110, 11.6.1: schemes with parameters, several in one header or in several headers. Tokens
follow the distribution project's specification: GET with Basic for a user and password, GET without credentials, or
POST as in OAuth2 for a refresh token.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlencode, urlsplit

import msgspec

from tessera.api.image_reference import Reference
from tessera.clock import Clock
from tessera.driver.limits import TOKEN_ANSWER
from tessera.driver.registry.credentials import Login
from tessera.driver.registry.wire import AccessRefused, RegistryAnswer, RegistryHttp, RegistryUnreachable, is_plain_at

#: Most characters: a registry's header WWW-Authenticate; the rest is not read. Real ones have some hundred.
CHALLENGE = 8_192
#: Most seconds: time for which a registry's token is used, whatever its server says. A token that was withdrawn is
#: replaced within the hour.
TOKEN_LIFE = 3_600

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - a word of the grammar
_PARAMETER = re.compile(rf'({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))\s*(?:,\s*|$)')
_SCHEME = re.compile(rf"({_TOKEN})(?:\s+|\s*,\s*|$)")
_ESCAPED = re.compile(r"\\(.)")


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """One way to authenticate.

    Attributes:
        scheme: ``bearer`` or ``basic``, in lower case; other schemes are not supported.
        parameters: names in lower case: realm, service, scope, error.
    """

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """All challenges in an answer's headers, in sequence; a header is read up to the first part that is malformed."""
    return tuple(each for header in headers for each in _of_header(header[:CHALLENGE]))


def choose_challenge(found: Iterable[Challenge]) -> Challenge | None:
    """The challenge to answer: a token is preferred over a password, since a stolen token is worth less."""
    known = [each for each in found if each.scheme in ("bearer", "basic")]
    return min(known, key=lambda each: each.scheme != "bearer", default=None)


def may_be_asked(realm: str, registry: str, *, plain: bool) -> bool:
    """True if a token server is asked, with credentials or without.

    The registry itself names its token server, so it could name any server. Over TLS the protocol allows this. Over
    plain HTTP, only the registry's own host is asked, and only if the registry itself is reached over plain HTTP.

    Args:
        realm: URL of the token server.
        registry: host of the registry, with its port.
        plain: the registry is reached over plain HTTP.
    """
    try:
        own = urlsplit(f"//{registry}").hostname
    except ValueError:
        return False
    return realm.startswith("https://") or (plain and is_plain_at(realm, own))


def _of_header(header: str) -> Iterator[Challenge]:
    rest = header.strip()
    while rest and (scheme := _SCHEME.match(rest)):
        rest = rest[scheme.end() :]
        parameters: dict[str, str] = {}
        while found := _PARAMETER.match(rest):
            value = found[3] if found[2] is None else _ESCAPED.sub(r"\1", found[2])
            parameters.setdefault(found[1].lower(), value)
            rest = rest[found.end() :]
        yield Challenge(scheme=scheme[1].lower(), parameters=parameters)


#: Lifetime of a token in seconds if its server does not say it (the specification's default); safety margin, seconds.
_DEFAULT_LIFE = 60.0
_MARGIN = 10.0
#: Tokens in the cache: one for each repository and login; the oldest is forgotten, and asked for again.
_TOKENS = 512


class _TokenAnswer(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float = _DEFAULT_LIFE


class _CachedHeader(msgspec.Struct, frozen=True):
    header: str
    until: float


class TokenCache:
    """Tokens by repository and identity.

    Args:
        wire: the HTTP client for token servers.
        clock: the time, for the end of tokens.
    """

    def __init__(self, wire: RegistryHttp, clock: Clock) -> None:
        self._wire = wire
        self._clock = clock
        self._headers: dict[tuple[str, Login], _CachedHeader] = {}

    def cached_header(self, reference: Reference, login: Login) -> str:
        """The Authorization header that worked for the repository and is still valid; empty if there is none."""
        found = self._headers.get((reference.repository, login))
        return found.header if found is not None and self._clock.monotonic() < found.until else ""

    def forget(self, reference: Reference, login: Login) -> None:
        """Drops the header that the registry rejected."""
        self._headers.pop((reference.repository, login), None)

    def keep(self, reference: Reference, login: Login, header: str, seconds: float) -> None:
        """Keeps the header that the registry accepted."""
        while len(self._headers) >= _TOKENS:
            del self._headers[next(iter(self._headers))]
        life = min(max(seconds, 0.0), TOKEN_LIFE) - _MARGIN
        self._headers[reference.repository, login] = _CachedHeader(header, self._clock.monotonic() + life)

    async def fetch(self, reference: Reference, login: Login, challenge: Challenge) -> str:
        """Gets the Authorization header for a challenge from the token server that the challenge names.

        Raises:
            AccessRefused: the server gives this identity no token, or must not get its credentials.
            RegistryUnreachable: the server does not answer.
        """
        realm = challenge.parameters.get("realm", "")
        if not realm.startswith(("https://", "http://")):
            raise AccessRefused(f"{reference.registry} requires a token and names no server for it")
        plain = self._wire.trust.scheme(reference.host) == "http"
        if not may_be_asked(realm, reference.host, plain=plain):
            raise AccessRefused(
                f"{reference.registry} names {realm.partition('?')[0]} as its token server, over plain HTTP: it is not"
                " asked, and the credentials are not sent there; have the registry name an https:// server"
            )
        asked = {"service": challenge.parameters.get("service", "")}
        if "scope=" not in realm.partition("?")[2]:
            asked["scope"] = _pull_scope(challenge.parameters.get("scope", ""), reference.path)
        answer = await self._ask(realm, {name: value for name, value in asked.items() if value}, login)
        return self._token_header(reference, login, answer)

    async def _ask(self, realm: str, asked: Mapping[str, str], login: Login) -> RegistryAnswer:
        if login.refresh:
            form = {**asked, "grant_type": "refresh_token", "client_id": "tessera", "refresh_token": login.refresh}
            return await self._wire.send("POST", realm, form=form, largest=TOKEN_ANSWER)
        joined = "&" if "?" in realm else "?"
        headers = {"authorization": login.basic} if login.basic else {}
        return await self._wire.send("GET", f"{realm}{joined}{urlencode(asked)}", headers=headers, largest=TOKEN_ANSWER)

    def _token_header(self, reference: Reference, login: Login, answer: RegistryAnswer) -> str:
        if answer.status == 429 or answer.status >= 500:
            raise RegistryUnreachable(f"the token server of {reference.registry} answers {answer.status}")
        if answer.status != 200:
            raise AccessRefused(
                f"the token server of {reference.registry} gives no token for {reference.path} ({answer.status}) "
                f"{login.text}"
            )
        try:
            given = msgspec.json.decode(answer.body, type=_TokenAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # The answer may contain a token, so the text contains nothing of the answer.
            raise RegistryUnreachable(f"the token server of {reference.registry} answers no token in JSON") from None
        token = given.token or given.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise RegistryUnreachable(f"the token server of {reference.registry} answers without a token")
        header = f"Bearer {token}"
        self.keep(reference, login, header, given.expires_in)
        return header


def _pull_scope(scope: str, path: str) -> str:
    """The scope to request: the registry's own without write actions; ``pull`` if the registry names none.

    Some registries name a scope that includes pushing, and then refuse it to users who may only read.
    """
    found = []
    for each in scope.split():
        repository, _, actions = each.rpartition(":")
        kept = [action for action in actions.split(",") if action not in ("push", "delete", "*")]
        found.append(f"{repository}:{','.join(kept) or 'pull'}")
    return " ".join(found) or f"repository:{path}:pull"
