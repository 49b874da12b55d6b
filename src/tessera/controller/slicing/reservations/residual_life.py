"""Estimates how long an allocation still lasts. Reservations are made where the estimates are least.

An estimate may be wrong: it decides only where slots are kept, never whether a slot is free.
"""

from typing import Protocol

from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.allocation import Allocation, will_never_run
from tessera.controller.slicing.state.slicer_state import SlicerState

#: Seconds until the slices of a pod that has ended are free.
RELEASE_SECONDS = 30.0
#: Least estimate for a pod without a deadline, and the time that a pod takes to start.
LEAST_SECONDS = 60.0


class ResidualLives(Protocol):
    """An estimator. Its state, if any, is plain data: it is part of the slicer's state."""

    def seconds(self, allocation: Allocation, pod: PodInfo | None, now: float) -> float:
        """Returns the seconds that an allocation still lasts; infinite if it may never end.

        Args:
            allocation: the allocation.
            pod: its pod; None if it is gone.
            now: seconds since 1970.
        """
        ...


def ending_seconds(pod: PodInfo, now: float, least: float = RELEASE_SECONDS) -> float:
    """Returns the seconds until the slices of a pod that is being deleted are expected to be free.

    Its deadline counts where its deletion has a longer grace period: it is evicted then
    (:mod:`tessera.controller.slicing.evictions.overstays`).
    """
    end = pod.gone_by
    if pod.deadline is not None and pod.started:
        end = min(end, pod.started + pod.deadline)
    return max(least, abs(end - now) if end else 0.0)


class DeadlineOrAge:
    """A pod with a deadline lasts until then; any other lasts as long again as it has run.

    The second rule is Lindy's: of pods whose kind is unknown, those that have run for long are services, and run on.
    So no reservation waits for a service while jobs run elsewhere.

    A pod that is being deleted ends with its grace period, which its author chooses. If it is there still, a finalizer
    or a lost node holds it: it lasts as long again as it is late.
    """

    def seconds(self, allocation: Allocation, pod: PodInfo | None, now: float) -> float:
        """See :class:`ResidualLives`."""
        if pod is None or allocation.given_up or will_never_run(pod):
            return RELEASE_SECONDS
        if pod.terminating:
            return ending_seconds(pod, now)
        age = max(0.0, now - pod.started) if pod.started else 0.0
        if pod.deadline is None:
            return max(age, LEAST_SECONDS)
        starts_in = 0.0 if pod.started else LEAST_SECONDS
        return max(0.0, starts_in + pod.deadline - age) + RELEASE_SECONDS


class LearnedLives:
    """A pod lasts as long as half of the leases of its kind and age do, at most until its deadline.

    A pod of an unknown kind is estimated by :class:`DeadlineOrAge`.

    Args:
        state: has what is expected of pods; :class:`tessera.controller.slicing.state.events.EndsExpected` changes it.
    """

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self._otherwise = DeadlineOrAge()

    def seconds(self, allocation: Allocation, pod: PodInfo | None, now: float) -> float:
        """See :class:`ResidualLives`."""
        otherwise = self._otherwise.seconds(allocation, pod, now)
        end = None if pod is None else self._state.expected_ends.get(pod.uid)
        if pod is None or end is None or pod.terminating or otherwise <= RELEASE_SECONDS:
            return otherwise
        learned = max(LEAST_SECONDS, end - now)
        return learned if pod.deadline is None else min(learned, otherwise)
