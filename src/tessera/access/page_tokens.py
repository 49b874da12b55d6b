"""The tokens of the pages that name pods: for whom they are made, and in which header they come.

The commands read agents and controller through the API server's proxy, which removes the header ``Authorization``. So a
token comes in a header of its own, and never is the user's: it belongs to one service account, and is made for readers
of these pages only, so that a node that sees it can do nothing else with it (docs/decisions/guarded-pages.md).
"""

import base64
import binascii
from collections.abc import Mapping

import msgspec

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
