"""Bounds the cost of a review: the pod's size before any work, and CPU time during the work.

The size limits keep reviews short. The time limit bounds costs that the size limits miss: the time is checked before
each part of a decision, each container and each alternative. A pod whose review has used its time is refused with that
reason.
"""

import time
from collections.abc import Callable

from tessera.api.pods.size_limits import PodSize, find_size_excess
from tessera.limits.processes import REVIEW_TIME


class PodRefused(Exception):  # noqa: N818 - a verdict, not a fault
    """The pod must not be created; the text is shown to its author."""


#: Called before each piece of work. Raises :class:`PodRefused` once the review has used its time.
SpendTime = Callable[[], None]


def spend_nothing() -> None:
    """Sets no limit."""


class ReviewBudget:
    """The CPU time of one review, from its construction on.

    Args:
        seconds: returns the CPU seconds of this thread since some start.
    """

    def __init__(self, seconds: Callable[[], float] = time.thread_time) -> None:
        self._seconds = seconds
        self._end = seconds() + REVIEW_TIME / 1000

    def spend(self) -> None:
        """Returns if there is time left.

        Raises:
            PodRefused: no time is left.
        """
        if self._seconds() > self._end:
            raise PodRefused(
                f"the review of this pod took more than it may ({REVIEW_TIME}); give it fewer containers, resources, "
                "annotations or alternatives of node affinity"
            )


def refuse_oversized(size: PodSize) -> None:
    """Refuses a pod that exceeds a size limit of a review.

    Raises:
        PodRefused: the text names the part, the count and the limit.
    """
    if why := find_size_excess(size):
        raise PodRefused(why)
