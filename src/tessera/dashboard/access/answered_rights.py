"""Asks for rights of one kind and remembers the answers, with paces and a memory of their own.

1. Three paces: of rights that a person has, so that neither new visitors nor the many rights that people lack let them
   run out; of rights that were never asked for; of rights that were refused, whose answers may well be late, since a
   right that is not known counts as missing.
2. Of the rights of one person, those that were never asked for come first, then those whose answer is the oldest: what
   the pace does not allow now is next, however many there are.
3. Each person has an equal part of a pace; the service accounts of a namespace have one together.
"""

import asyncio
import math
from collections.abc import Sequence

from tessera.access.reviewer import Person, ReviewCache, Reviewer, Right
from tessera.clock import Clock
from tessera.serving.fair_shares import FairPace

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
