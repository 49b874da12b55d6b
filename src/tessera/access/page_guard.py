"""Lets those read a page of a process who show a token with the right to it, as the API server judges both.

1. ``/metrics``, ``/usage`` and ``/queue`` name pods of all namespaces. A reader shows a bearer token of the API server
   or of this process's audience; its owner needs the right ``get`` on the path, as for kubelet's own pages.
2. An answer that lets a reader in counts for :data:`PAGE_ANSWER_LIFE`, and is asked for again
   after half of it. A refusal is remembered for less, since somebody may be about to grant the right.
3. While the API server does not answer, a reader that is not known gets 503 and no page.
4. Reviews of tokens that are not known have a pace, of which each address has an equal part.
"""

import hashlib
import secrets
from collections.abc import Mapping

from tessera.access.page_reader import PAGE_REFUSAL_LIFE, names_audience, read_token
from tessera.access.reviewer import BusyError, PathRight, ReviewCache, Reviewer, SilentError
from tessera.clock import Clock
from tessera.serving.fair_shares import FairPace
from tessera.status_pages import METRICS_PATH, TEXT, Page

#: Most seconds: the time for which agents and controller believe that a token may read a page; they ask again after
#: half of it. Kubelet believes a token for 2 minutes and a right for 5; 5,000 agents ask 80 times a second.
PAGE_ANSWER_LIFE = 240
#: Most answers: tokens with the right to a page, and refused ones, each, that agents and controller remember, by hash.
#: Two Prometheus servers and the readers of two pages need ten.
PAGE_ANSWERS = 256
#: Most reviews of tokens that an agent or the controller does not know, divided among the addresses that send some;
#: more are refused with 429. A reader has a new token each five minutes; nobody makes an agent flood the API server.
READER_REVIEWS = 10

#: The role that gives the right to read metrics, and the one for all pages.
_ROLES = {METRICS_PATH: "tessera-metrics-reader"}
_PAGE_ROLE = "tessera-reader"
_NOT_ACCEPTED = Page(
    401, TEXT, b"the API server does not accept this token; send a valid one of an account that may get this page\n"
)


class _RefusedError(Exception):
    """The reader may not have the page.

    Attributes:
        page: what it gets instead.
    """

    def __init__(self, page: Page) -> None:
        super().__init__()
        self.page = page


class PageGuard:
    """Guards the pages of one process.

    Args:
        reviewer: asks the API server.
        clock: the time.
        audience: of tokens that are made for this process.
        open_metrics: true to show metrics to everybody.
    """

    def __init__(self, reviewer: Reviewer, clock: Clock, *, audience: str, open_metrics: bool = False) -> None:
        self._reviewer = reviewer
        self._audience = audience
        self._open_metrics = open_metrics
        self._secret = secrets.token_bytes(32)
        self._pace: FairPace[str] = FairPace(READER_REVIEWS)
        self._allowed: ReviewCache[bytes, bool] = ReviewCache(clock, PAGE_ANSWER_LIFE, PAGE_ANSWERS)
        self._refused: ReviewCache[bytes, Page] = ReviewCache(clock, PAGE_REFUSAL_LIFE, PAGE_ANSWERS)

    def guards(self, path: str) -> bool:
        """Whether a reader of the page needs a token; any thread may ask."""
        return path != METRICS_PATH or not self._open_metrics

    def token(self, headers: Mapping[str, str]) -> str:
        """The token that a reader shows; empty if it shows none."""
        return read_token(headers)

    async def refuse(self, path: str, token: str, address: str) -> Page | None:
        """Returns the refusal that a reader gets, or None if it may read the page.

        Args:
            path: of the page.
            token: that the reader shows.
            address: of the reader.
        """
        if not token.isascii():
            return _NOT_ACCEPTED
        digest = hashlib.blake2b(f"{path} {token}".encode(), key=self._secret).digest()
        known = self._allowed.peek(digest) is not None
        if refusal := None if known else self._refused.peek(digest):
            return refusal
        try:
            await self._allowed.get(
                digest, lambda: self._review(path, token), lambda now: known or self._pace.take(now, address)
            )
        except BusyError:
            return Page(429, TEXT, b"too many tokens are being checked; try again in a second\n")
        except SilentError:
            return Page(503, TEXT, b"the API server does not say whether this token may read the page; try again\n")
        except _RefusedError as error:
            self._allowed.forget(digest)
            self._refused.put(digest, error.page)
            return error.page
        return None

    async def _review(self, path: str, token: str) -> bool:
        person = await self._reviewer.review_token(
            token, self._audience if names_audience(token, self._audience) else ""
        )
        if person is None:
            raise _RefusedError(_NOT_ACCEPTED)
        if await self._reviewer.review_access(person, PathRight("get", path)):
            return True
        role = _ROLES.get(path, _PAGE_ROLE)
        text = f"{person.name} may not get {path}: bind the ClusterRole {role} to it\n"
        raise _RefusedError(Page(403, TEXT, text.encode()))
