"""Asks the API server who a token belongs to, and what a user may do: TokenReview and SubjectAccessReview.

A token goes to the API server and nowhere else: not into a log, an error or a key.

Answers of the API server are remembered for a while:

1. An answer is used without a question for half of its life; a refusal for a shorter time, if the user of this says so:
   somebody may be about to grant the right.
2. After that, the API server is asked again; while it does not answer, the old answer counts until its life is over.
3. A key is asked once at a time, however many callers wait for it.
4. The number of answers, and of questions a second, is bounded. The answer that was unused longest is forgotten.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS

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
