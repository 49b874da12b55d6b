"""Visitors of the page and their rights: the user of a laptop's kubeconfig, or bearer tokens in the cluster.

:class:`OwnRights` is the page on a laptop: whoever reaches it is its user, whose kubeconfig has limited what was read.
:class:`TokenGate` is the page in the cluster:

1. A token is judged by a TokenReview. The page keeps it only as long as its connection, and its hash under a key that
   nobody else has.
2. A token is judged again while its connection is open, so that one that was withdrawn ends it.
3. Tokens that the page does not know have a pace of their own, of which each address has an equal part, and refused
   ones a memory of their own: whoever tries many delays those of the same address, and never those who are in.

:class:`Rights` says what a person may see:

1. Who may not list nodes gets no names of nodes; a pod's names go to those who may list pods in its namespace.
2. A Workload of Kueue is for those who may list Workloads in its namespace; without any, nobody is asked about.
3. A right that could not be asked for counts as missing: names stay hidden. Rights to Workloads have paces of their
   own, so that Kueue's many namespaces delay no name of a pod.
4. Rights are asked for the namespaces that the documents name. A namespace counts for some minutes after its last
   document, so that a short job's coming and going does not give its readers a new snapshot each time.

Answers about rights are remembered (:class:`AnsweredRights`):

1. Three paces: of rights that a person has, so that neither new visitors nor the many rights that people lack let them
   run out; of rights that were never asked for; of rights that were refused, whose answers may well be late.
2. Of the rights of one person, those that were never asked for come first, then those whose answer is the oldest: what
   the pace does not allow now is next, however many there are.
3. Each person has an equal part of a pace; the service accounts of a namespace have one together.
"""

import asyncio
import hashlib
import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from tessera.access.reviewer import BusyError, Person, ReviewCache, Reviewer, Right, SilentError
from tessera.clock import Clock
from tessera.kueue.objects import GROUP
from tessera.serving.fair_shares import FairPace
from tessera.visibility import FULL, About, Visibility

#: Most seconds: the time for which the page believes an answer about a token or a right; it asks again after half of
#: it. A right that was withdrawn hides names on open pages within it, also while the API server does not answer.
RIGHTS_LIFE = 60
#: Most seconds: the time for which the page remembers that a token is not valid, or that a right is missing, as far as
#: its pace lets it ask. Somebody who makes the token or grants the right waits no longer.
REFUSAL_LIFE = 10


class AnsweredRights:
    """Answers about rights.

    Args:
        reviewer: asks the API server.
        clock: the time.
        rate: questions a second at each of the three paces.
        size: the number of answers that are remembered.
    """

    def __init__(self, reviewer: Reviewer, clock: Clock, *, rate: int, size: int) -> None:
        self._reviewer = reviewer
        self._held: FairPace[str] = FairPace(rate)
        self._new: FairPace[str] = FairPace(rate)
        self._refused: FairPace[str] = FairPace(rate)
        self._answers: ReviewCache[tuple[Person, Right], bool] = ReviewCache(
            clock, RIGHTS_LIFE, size, refusal=REFUSAL_LIFE
        )

    async def may(self, person: Person, rights: Sequence[Right]) -> list[bool]:
        """Whether the person has each right; those without a fresh answer are asked for at the same time.

        Args:
            person: whose rights.
            rights: the likeliest first.
        """
        missing = [right for right in rights if self._answers.fresh((person, right)) is None]
        missing.sort(key=lambda right: self._answers.asked((person, right)))
        # A task for each question that is asked: of thousands of rights, the pace allows some.
        questions = [each for right in missing if (each := self._begin(person, right)) is not None]
        if questions:
            await asyncio.wait(questions)
        return [bool(self._answers.peek((person, right))) for right in rights]

    def _begin(self, person: Person, right: Right) -> asyncio.Task[bool] | None:
        key = (person, right)
        pace = self._held if self._answers.peek(key) else self._refused
        if self._answers.asked(key) == -math.inf:
            pace = self._new
        return self._answers.begin(
            key, lambda: self._reviewer.review_access(person, right), lambda now: pace.take(now, person.share)
        )


#: Most namespaces with Workloads that wait in Kueue whose rights are asked for at a time; further ones take turns, for
#: which a quarter is kept. Each is a review for each reader who may not list all Workloads.
KUEUE_NAMED = 128
#: Most reviews of known tokens and of rights to nodes and pods. Rights that a reader has, new ones, and refused ones
#: have this number each, divided among those who ask; what could not be asked stays hidden. 256 readers with 10 rights
#: each, asked again each 30 s, need 86; an API server answers thousands.
PAGE_REVIEWS = 100

#: Most answers about rights to nodes and pods that the page remembers; the one that was unused longest is forgotten.
#: 256 readers with 64 namespaces each.
PAGE_RIGHTS = 16_384
#: Most reviews of rights to Kueue's Workloads. Rights that a reader has, new ones, and refused ones have this number
#: each. 150 readers with 50 namespaces learn in 76 s what they may see; apart from pods, whose names do not wait for
#: it.
KUEUE_REVIEWS = 100
#: Most answers about rights to Kueue's Workloads that the page remembers; the one that was unused longest is forgotten.
#: 256 readers with 128 namespaces each; some 300 bytes an answer.
KUEUE_RIGHTS = 32_768
#: Most namespaces with cards or waiting pods whose rights are asked for a reader; names of others stay hidden. Each is
#: a review; a reader who may list the pods of all namespaces needs one.
PAGE_NAMESPACES = 512

#: Seconds for which a namespace counts after its last document.
_REMEMBERED = 600.0
_NODES, _PODS = Right("list", "nodes"), Right("list", "pods")
_WORKLOADS = Right("list", "workloads", group=GROUP)


class Rights:
    """Decides what persons see.

    Args:
        reviewer: asks the API server.
        clock: the time.
        about: the namespaces that the documents are about now.
    """

    def __init__(self, reviewer: Reviewer, clock: Clock, about: Callable[[], About]) -> None:
        self._about = about
        self._of_objects = AnsweredRights(reviewer, clock, rate=PAGE_REVIEWS, size=PAGE_RIGHTS)
        self._of_workloads = AnsweredRights(reviewer, clock, rate=KUEUE_REVIEWS, size=KUEUE_RIGHTS)
        self._pods, self._workloads = _RecentNamespaces(clock, PAGE_NAMESPACES), _RecentNamespaces(clock, KUEUE_NAMED)

    async def visibility(self, person: Person) -> Visibility:
        """Returns the present rights of a person."""
        about = self._about()
        found = await self._visibility(person, self._pods.current(about.pods))
        names = self._workloads.current(about.workloads)
        if not names:
            return found
        names.sort(key=lambda name: not found.allows_pods(name))  # who lists pods there may well list Workloads
        return found._replace(workloads=await _allowed(self._of_workloads, person, _WORKLOADS, names))

    async def visibility_in(self, person: Person, namespace: str) -> Visibility:
        """Returns the present rights of a person; of pods, only those in one namespace or in all."""
        return await self._visibility(person, [namespace])

    async def lists(self, person: Person, namespace: str, kinds: Sequence[str]) -> frozenset[str]:
        """The kinds of these, by plural names, that the person may list in a namespace."""
        found = await self._of_objects.may(person, [Right("list", each, namespace) for each in kinds])
        return frozenset(kind for kind, may in zip(kinds, found, strict=True) if may)

    async def _visibility(self, person: Person, names: Sequence[str]) -> Visibility:
        nodes, _ = await self._of_objects.may(person, [_NODES, _PODS])
        return Visibility(nodes=nodes, namespaces=await _allowed(self._of_objects, person, _PODS, names))


async def _allowed(
    answers: AnsweredRights, person: Person, right: Right, names: Sequence[str]
) -> frozenset[str] | None:
    """The namespaces of these in which the person has the right; None if it is for all."""
    (everywhere,) = await answers.may(person, [right])
    if everywhere:
        return None
    found = await answers.may(person, [right._replace(namespace=name) for name in names])
    return frozenset(name for name, may in zip(names, found, strict=True) if may)


class _RecentNamespaces:
    """The namespaces that documents of one kind have named of late, at most so many."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._most = most
        #: The time of the last document about each namespace, the longest ago first.
        self._named: dict[str, float] = {}

    def current(self, named: frozenset[str]) -> list[str]:
        """The namespaces that count, those with the newest documents first.

        Args:
            named: those that documents name now.
        """
        now = self._clock.monotonic()
        for name in named:
            self._named.pop(name, None)
            self._named[name] = now
        for name in [name for name, last in self._named.items() if now - last > _REMEMBERED]:
            del self._named[name]
        for name in list(self._named)[: -self._most]:
            del self._named[name]
        return list(reversed(self._named))


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
