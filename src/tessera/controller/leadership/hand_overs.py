"""Times how fast free slots reach a pod that waited for them.

A hand-over begins with the decision that finds room for a pod that an earlier decision refused, and ends when the API
server has removed the pod's gate. A pod that finds room at once is no hand-over.
"""

from collections.abc import Callable

from tessera.api.names import PodUid
from tessera.controller.slicing.state.slicer_state import SlicerState


class HandOvers:
    """The hand-overs under way. They are only in memory: a new leader does not know those that it did not begin.

    Args:
        observe: receives the seconds of each hand-over that ended.

    Attributes:
        since: by pod whose hand-over is under way, when it began.
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self.since: dict[PodUid, float] = {}

    def update(self, state: SlicerState, now: float) -> None:
        """Notes hand-overs that began or ended in a decision; ``now`` is the time at which the decision began."""
        for uid in self.since.keys() - state.pods.handed_over:
            since, pod = self.since.pop(uid), state.cluster.pods.get(uid)
            if pod is not None and not pod.gated:
                self._observe(now - since)
        for uid in state.pods.handed_over:
            self.since.setdefault(uid, now)
