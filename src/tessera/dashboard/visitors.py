"""Who looks at the page, and who is let in: the user of a laptop's kubeconfig, or bearer tokens in the cluster.

:class:`OwnRights` is the page on a laptop: whoever reaches it is its user, whose kubeconfig has limited what was read.
:class:`TokenGate` is the page in the cluster:

1. A token is judged by a TokenReview. The page keeps it only as long as its connection, and its hash under a key that
   nobody else has.
2. A token is judged again while its connection is open, so that one that was withdrawn ends it.
3. Tokens that the page does not know have a pace of their own, of which each address has an equal part, and refused
   ones a memory of their own: whoever tries many delays those of the same address, and never those who are in.
"""

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from tessera.access.reviewer import BusyError, Person, ReviewCache, Reviewer, SilentError
from tessera.clock import Clock
from tessera.dashboard.rights import PAGE_REVIEWS, REFUSAL_LIFE, RIGHTS_LIFE, Rights
from tessera.serving.fair_shares import FairPace
from tessera.visibility import FULL, Visibility

#: Most tokens: valid bearer tokens that the page remembers, by hash; the one that was unused longest is forgotten. Four
#: for each reader.
PAGE_TOKENS = 1_024
#: Most tokens: refused bearer tokens that the page remembers, by hash; the one that was unused longest is forgotten. A
#: program that tries one again and again costs no review; they take no place of valid ones.
REFUSED_TOKENS = 1_024
#: Most reviews of tokens that the page does not know, divided among the addresses that send some; more are refused with
#: 429. People log in; the API server may check each by an external service. Tokens that are in use have their own pace.
TOKEN_REVIEWS = 20
#: Most readers: open feeds of one user, or of the service accounts of one namespace; the next is refused with 429.
#: Windows of a person; one user cannot take the places of all. Those without a token share four times as many.
PERSON_READERS = 16

#: Readers without a token have together as many feeds as this number of users.
_NAMELESS = 4
_REFUSED = "the API server does not accept this token"


class LoginNeededError(Exception):
    """The visitor has no token, or one that the API server does not accept; the text says which."""


class NotNowError(Exception):
    """The visitor cannot be judged now: too many are, or the API server does not answer.

    Attributes:
        code: the HTTP status, 429 or 503.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Visitor(NamedTuple):
    """One who looks at the page.

    Attributes:
        name: the user's name.
        key: the same for all connections that count as one user's.
        readers: the most feeds that they may have open.
        visibility: returns what the visitor may see now; raises :class:`LoginNeededError` once the token is not valid
            any more, and :class:`NotNowError` if it could not be judged.
    """

    name: str
    key: str
    readers: int
    visibility: Callable[[], Awaitable[Visibility]]


class Gate(Protocol):
    """Lets visitors in."""

    async def admit(self, authorization: str | None, address: str) -> Visitor:
        """The visitor who sends this header ``Authorization`` from this address.

        Raises:
            LoginNeededError: there is no valid token, and the page needs one.
            NotNowError: the token could not be judged.
        """
        ...


class OwnRights:
    """Takes everybody for the user of the kubeconfig.

    Args:
        readers: the most feeds that may be open.
    """

    def __init__(self, readers: int) -> None:
        self._owner = Visitor("", "", readers, self._visibility)

    async def admit(self, authorization: str | None, address: str) -> Visitor:
        """The user."""
        del authorization, address
        return self._owner

    @staticmethod
    async def _visibility() -> Visibility:
        return FULL


class TokenGate:
    """Lets those in whose tokens the API server accepts.

    Args:
        reviewer: asks the API server.
        rights: what persons may see.
        clock: the time.
        nameless: True if visitors without a token see the page without names.
    """

    def __init__(self, reviewer: Reviewer, rights: Rights, clock: Clock, *, nameless: bool) -> None:
        self._reviewer = reviewer
        self._rights = rights
        self._known_pace: FairPace[str] = FairPace(PAGE_REVIEWS)
        self._new_pace: FairPace[str] = FairPace(TOKEN_REVIEWS)
        self._nameless = nameless
        self._secret = secrets.token_bytes(32)
        self._known: ReviewCache[bytes, Person] = ReviewCache(clock, RIGHTS_LIFE, PAGE_TOKENS)
        self._refused: ReviewCache[bytes, bool] = ReviewCache(clock, REFUSAL_LIFE, REFUSED_TOKENS)

    async def admit(self, authorization: str | None, address: str) -> Visitor:
        """See :meth:`Gate.admit`."""
        if authorization is None:
            if not self._nameless:
                raise LoginNeededError("this page needs a token: send it as Authorization: Bearer TOKEN")
            return Visitor("", "nameless", _NAMELESS * PERSON_READERS, self._see_nothing)
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise LoginNeededError("the header Authorization is not of the form: Bearer TOKEN")
        person = await self.person(token, address)

        async def see() -> Visibility:
            return await self._rights.visibility(await self.person(token, address))

        return Visitor(person.name, person.share, PERSON_READERS, see)

    @staticmethod
    async def _see_nothing() -> Visibility:
        return Visibility()

    async def person(self, token: str, address: str) -> Person:
        """The owner of a token.

        Args:
            token: the token.
            address: who sends it.

        Raises:
            LoginNeededError: the API server does not accept it.
            NotNowError: it could not be asked.
        """
        digest = hashlib.blake2b(token.encode(), key=self._secret).digest()
        if self._refused.peek(digest):
            raise LoginNeededError(_REFUSED)
        known = self._known.peek(digest)
        pace, share = (self._new_pace, address) if known is None else (self._known_pace, known.share)
        try:
            return await self._known.get(digest, lambda: self._review(token), lambda now: pace.take(now, share))
        except BusyError:
            raise NotNowError("too many tokens are being checked; try again in a second", 429) from None
        except SilentError:
            raise NotNowError("the API server does not say whether this token is valid; try again", 503) from None
        except LoginNeededError:
            self._known.forget(digest)
            self._refused.put(digest, True)
            raise

    async def _review(self, token: str) -> Person:
        person = await self._reviewer.review_token(token)
        if person is None:
            raise LoginNeededError(_REFUSED)
        return person
