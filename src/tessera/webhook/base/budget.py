"""Bounds the cost of a review: the size of the pod before any work, and CPU time during the work.

The bounds on size keep reviews short. The bound on time catches costs that they miss: each part of a decision, and each
container and alternative in it, checks the time first. A review that has used its time is refused with that reason.
"""

import time
from collections.abc import Callable

from tessera.api.pods.size_limits import PodSize, find_size_excess
from tessera.limits import REVIEW_TIME


class PodRefused(Exception):  # noqa: N818 - a verdict, not a fault
    """The pod must not be created; the text is shown to its author."""


#: Called before each piece of work. Raises :class:`Refused` once the review has used its time.
SpendTime = Callable[[], None]


def spend_nothing() -> None:
    """The work is not counted."""


class ReviewBudget:
    """The CPU time of one review, from construction on.

    Args:
        seconds: CPU seconds of this thread since some start.
    """

    def __init__(self, seconds: Callable[[], float] = time.thread_time) -> None:
        self._seconds = seconds
        self._end = seconds() + REVIEW_TIME / 1000

    def spend(self) -> None:
        """Goes on if there is time left.

        Raises:
            Refused: there is none.
        """
        if self._seconds() > self._end:
            raise PodRefused(
                f"the review of this pod took more than it may ({REVIEW_TIME}); give it fewer containers, resources, "
                "annotations or alternatives of node affinity"
            )


def refuse_oversized(size: PodSize) -> None:
    """Refuses a pod with more of something than a review goes over.

    Raises:
        Refused: the text names what, the count and the limit.
    """
    if why := find_size_excess(size):
        raise PodRefused(why)
