"""Reads the pages of agents and controller through the API server, with a token that these ask for.

The API server's proxy asks for the right ``get pods/proxy`` in Tessera's namespace; the page asks for a token of the
service account ``tessera-reader``, which the API server makes for those who may create ``serviceaccounts/token`` of it.
The ClusterRole ``tessera-usage-reader`` has both.

A process of a version without guarded pages needs no token, and its installation has no such account. So a token that
cannot be had is an error only once a page asks for one. A refusal counts as long as one of the page itself.

Pages that name pods are guarded by it. The commands read agents and controller through the API server's proxy, which
removes the header ``Authorization``. So a token comes in a header of its own, and never is the user's: it belongs to
one service account, and is made for readers of these pages only, so that a node that sees it can do nothing else with
it (docs/decisions/guarded-pages.md).
"""

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, Intercepted, NotFound, Unauthorized
from tessera.kube.requests import Response
from tessera.kube.resources import PODS, SERVICE_ACCOUNTS
from tessera.nesting import decode_json

#: The audiences of tokens for the pages of agents, and for those of the controller.
AGENT_AUDIENCE, CONTROLLER_AUDIENCE = "agents.tessera.dev", "controller.tessera.dev"
#: The header that the API server's proxy passes on.
TOKEN_HEADER = "tessera-token"  # noqa: S105 - a header's name
#: The service account whose tokens open the pages.
READER_ACCOUNT = "tessera-reader"
#: Most seconds: the time for which agents and controller remember that a token may not read a page. Somebody who grants
#: the right waits no longer; a program with a wrong token costs no more.
PAGE_REFUSAL_LIFE = 10


class _Claims(msgspec.Struct, frozen=True):
    aud: tuple[str, ...] | str = ()


def read_token(headers: Mapping[str, str]) -> str:
    """The token that a reader shows: Prometheus sends ``Authorization``; empty if there is none."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get(TOKEN_HEADER, "")


def names_audience(token: str, audience: str) -> bool:
    """Whether a token says that it is made for this audience. This chooses the question; the API server answers it."""
    parts = token.split(".")
    if len(parts) != 3:
        return False
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), type=_Claims)
    except (binascii.Error, ValueError, RecursionError):
        return False
    return audience == claims.aud or audience in ((claims.aud,) if isinstance(claims.aud, str) else claims.aud)


#: Seconds for which a token is asked: the least that the API server gives. Another one is asked for after half of it.
LIFE = 600
#: Seconds until a token is asked for again that the API server did not make for another reason than a missing right or
#: account: it may be starting.
_RETRY = 1.0


class _Token(NamedTuple):
    """A token, or why there is none, and until when it is used."""

    text: str
    refusal: ApiError | None
    until: float


class _Made(msgspec.Struct, frozen=True):
    token: str = ""


class PageReader:
    """Reads pages of Tessera's pods.

    Args:
        client: of the user, or of the process, that reads.
        clock: the time.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._tokens: dict[str, _Token] = {}
        self._asking = asyncio.Lock()

    async def get(self, namespace: str, pod: str, port: int, path: str, audience: str) -> Response:
        """Gets a page.

        Args:
            namespace: of the pod.
            pod: its name.
            port: its port.
            path: of the page.
            audience: of the tokens that the page asks for.

        Raises:
            Forbidden: the reader may not use the proxy, or not have the token that the page asks for.
            Unauthorized: the page does not accept the token.
            ApiError: another refusal, of the API server or of the page.
            OSError: no answer.
        """
        token = await self._token(namespace, audience)
        address = PODS.path(namespace, f"{pod}:{port}", f"proxy{path}")
        try:
            return await self._client.request(
                "GET", address, headers={TOKEN_HEADER: token.text} if token.text else {}, accept="*/*"
            )
        except Intercepted as error:  # the page's own words
            raise Forbidden(error.status) from error
        except Unauthorized as error:
            if token.refusal is not None:
                raise token.refusal from error
            raise

    async def _token(self, namespace: str, audience: str) -> _Token:
        async with self._asking:
            held = self._tokens.get(audience)
            if held is None or self._clock.monotonic() >= held.until:
                held = self._tokens[audience] = await self._ask(namespace, audience)
            return held

    async def _ask(self, namespace: str, audience: str) -> _Token:
        path = SERVICE_ACCOUNTS.path(namespace, READER_ACCOUNT, "token")
        spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": LIFE}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        now = self._clock.monotonic()
        try:
            answer = await self._client.request("POST", path, body=body)
        except ApiError as error:
            lasts = isinstance(error, Forbidden | NotFound)
            return _Token("", error, now + (PAGE_REFUSAL_LIFE if lasts else _RETRY))
        made = msgspec.convert(decode_json(answer.body).get("status", {}), _Made)
        return _Token(made.token, None, now + LIFE / 2)
