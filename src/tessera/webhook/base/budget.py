"""Bounds the cost of a review: the pod's size before any work, and CPU time during the work.

The size limits keep reviews short. The time limit bounds costs that the size limits miss: the time is checked before
each part of a decision, each container and each alternative. A pod whose review has used its time is refused with that
reason.
"""

import time
from collections.abc import Callable
from enum import Enum

from tessera.api.pods.size_limits import PodSize, find_size_excess
from tessera.limits.processes import REVIEW_TIME


class Rule(Enum):
    """The rules for which a pod is refused; the value is a label of ``tessera_refusals_total``."""

    #: The pod exceeds a limit of :mod:`tessera.limits.pods`.
    SIZE = "size"
    #: The review used its time.
    REVIEW_TIME = "review_time"
    #: An annotation with a requirement is wrong.
    REQUIREMENT = "requirement"
    #: Nothing in the cluster fulfils the requirements.
    NO_OFFER = "no_offer"
    #: A container asks for several shares where one is allowed.
    SHARE_COUNT = "share_count"
    #: A request for slices contradicts itself.
    SLICE_REQUEST = "slice_request"
    #: The size of the pod's gang is missing or no number.
    GANG = "gang"
    #: The annotation about updates has an unknown value.
    UPDATE = "update"
    #: No card has the profile.
    UNKNOWN_PROFILE = "unknown_profile"
    #: The profiles are of nodes of both kinds, on demand and fixed.
    MIXED_LAYOUTS = "mixed_layouts"
    #: No node could hold the slices or the cards together, even an empty one.
    IMPOSSIBLE = "impossible"
    #: The author bound the pod to a node.
    BOUND = "bound"
    #: The template of a claim that stands for a limit cannot be made.
    CLAIM_TEMPLATE = "claim_template"
    #: The resource is that of another slicer.
    FOREIGN_RESOURCE = "foreign_resource"
    #: The author wrote a wrong amount of the quota resource.
    QUOTA = "quota"


class PodRefused(Exception):  # noqa: N818 - a verdict, not a fault
    """The pod must not be created.

    Args:
        rule: the rule that it breaks.
        text: is shown to its author.
    """

    def __init__(self, rule: Rule, text: str) -> None:
        super().__init__(text)
        self.rule = rule


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
                Rule.REVIEW_TIME,
                f"the review of this pod took more than it may ({REVIEW_TIME}); give it fewer containers, resources, "
                "annotations or alternatives of node affinity",
            )


def refuse_oversized(size: PodSize) -> None:
    """Refuses a pod that exceeds a size limit of a review.

    Raises:
        PodRefused: the text names the part, the count and the limit.
    """
    if why := find_size_excess(size):
        raise PodRefused(Rule.SIZE, why)
