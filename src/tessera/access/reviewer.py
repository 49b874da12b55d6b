"""Asks the API server who a token belongs to and what a user may do, and guards pages with its answers.

A token goes to the API server and nowhere else: not into a log, an error or a key.

Answers of the API server are remembered for a while:

1. An answer is used without a question for half of its life; a refusal for a shorter time, if the user of this says so:
   somebody may be about to grant the right.
2. After that, the API server is asked again; while it does not answer, the old answer counts until its life is over.
3. A key is asked once at a time, however many callers wait for it.
4. The number of answers, and of questions a second, is bounded. The answer that was unused longest is forgotten.

A :class:`PageGuard` lets those read a page of a process who show a token with the right to it:

1. ``/metrics``, ``/usage`` and ``/queue`` name pods of all namespaces. A reader shows a bearer token of the API server
   or of this process's audience; its owner needs the right ``get`` on the path, as for kubelet's own pages.
2. An answer that lets a reader in counts for :data:`PAGE_ANSWER_LIFE`, and is asked for again
   after half of it. A refusal is remembered for less, since somebody may be about to grant the right.
3. While the API server does not answer, a reader that is not known gets 503 and no page.
4. Reviews of tokens that are not known have a pace, of which each address has an equal part.
"""

import asyncio
import hashlib
import math
import secrets
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from tessera.access.page_reader import PAGE_REFUSAL_LIFE, names_audience, read_token
from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.errors import ApiError
from tessera.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from tessera.serving.fair_shares import FairPace
from tessera.status_pages import METRICS_PATH, TEXT, Page

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BusyError(Exception):
    """The question may not be asked now: there were too many in this second."""


class SilentError(Exception):
    """The API server did not answer the question."""


class _Answer(NamedTuple, Generic[V]):
    """An answer, and the time of the question."""

    value: V
    asked: float


class ReviewCache(Generic[K, V]):
    """Answers by key.

    Args:
        clock: the time.
        life: seconds for which an answer counts.
        size: the number of answers.
        refusal: seconds for which an answer that is false is used without a question; half of its life if None.
    """

    def __init__(self, clock: Clock, life: float, size: int, *, refusal: float | None = None) -> None:
        self._clock = clock
        self._life = life
        self._size = size
        self._refusal = life / 2 if refusal is None else refusal
        #: The answers, the longest unused first.
        self._answers: dict[K, _Answer[V]] = {}
        #: The questions that are open, by key.
        self._open: dict[K, asyncio.Task[V]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def peek(self, key: K) -> V | None:
        """The answer, if it still counts."""
        found = self._answers.get(key)
        return None if found is None or self._age(found) >= self._life else found.value

    def fresh(self, key: K) -> V | None:
        """The answer, if it needs no question yet; it counts as used now."""
        found = self._answers.get(key)
        if found is None or self._age(found) >= (self._life / 2 if found.value else self._refusal):
            return None
        self._answers[key] = self._answers.pop(key)
        return found.value

    def asked(self, key: K) -> float:
        """The time of the question that was answered last, also if that counts no more; minus infinity if none was."""
        found = self._answers.get(key)
        return -math.inf if found is None else found.asked

    async def get(self, key: K, ask: Callable[[], Awaitable[V]], may_ask: Callable[[float], bool]) -> V:
        """The answer for a key.

        Args:
            key: what the answer is for.
            ask: asks the API server.
            may_ask: whether one more question may be asked at this time; one that is open already costs nothing.

        Raises:
            BusyError: there is no answer, and no question may be asked.
            SilentError: there is no answer, and the API server gave none.
        """
        fresh = self.fresh(key)
        if fresh is not None:
            return fresh
        question = self.begin(key, ask, may_ask)
        if question is None:
            return self._older(key, BusyError())
        try:
            # A caller that goes away does not take the answer from the others.
            return await asyncio.shield(question)
        except SilentError as error:
            return self._older(key, error)

    def _older(self, key: K, error: Exception) -> V:
        """The answer of before, if it still counts; otherwise raises the error."""
        value = self.peek(key)
        if value is None:
            raise error
        return value

    def begin(
        self, key: K, ask: Callable[[], Awaitable[V]], may_ask: Callable[[float], bool]
    ) -> asyncio.Task[V] | None:
        """The question for a key, one that is open already or a new one; None if no question may be asked.

        Args:
            key: what the question is for.
            ask: asks the API server.
            may_ask: as for :meth:`get`.
        """
        task = self._open.get(key)
        if task is None and may_ask(self._clock.monotonic()):
            task = self._open[key] = asyncio.ensure_future(self._answer(key, ask))
            task.add_done_callback(lambda done: self._end(key, done))
        return task

    def _end(self, key: K, done: asyncio.Task[V]) -> None:
        self._open.pop(key, None)
        if not done.cancelled():
            done.exception()  # if every caller has gone, nobody else looks at it

    async def _answer(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        asked = self._clock.monotonic()
        try:
            value = await ask()
        except (ApiError, OSError) as error:
            raise SilentError(str(error)) from error
        self._put(key, value, asked)
        return value

    def put(self, key: K, value: V) -> None:
        """Remembers an answer that was not asked for here."""
        self._put(key, value, self._clock.monotonic())

    def _put(self, key: K, value: V, asked: float) -> None:
        self._answers.pop(key, None)
        self._answers[key] = _Answer(value, asked)
        while len(self._answers) > self._size:
            del self._answers[next(iter(self._answers))]

    def forget(self, key: K) -> None:
        """Forgets the answer."""
        self._answers.pop(key, None)

    def _age(self, answer: _Answer[V]) -> float:
        return self._clock.monotonic() - answer.asked


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
