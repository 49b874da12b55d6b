"""The queue of pods to schedule: the highest priority first, among equals the oldest.

The queue sets aside a pod that no node can take, and retries it after an event that may help: a node appears or
changes, a pod leaves, the pod itself changes. Time alone retries nothing. No I/O.
"""

import heapq
from collections.abc import Callable

from tessera_lab.scheduler.state.node_cache import CachedPod


class SchedulingQueue:
    """Pods to decide and pods set aside, by UID. A pod is in at most one of the two sets."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, str, str]] = []
        self._active: dict[str, CachedPod] = {}
        self._aside: dict[str, CachedPod] = {}

    def __len__(self) -> int:
        """Number of pods that wait for a decision."""
        return len(self._active)

    @property
    def set_aside(self) -> int:
        """Number of pods that wait for a change of the cluster."""
        return len(self._aside)

    def add(self, pod: CachedPod) -> None:
        """Queues the pod, in its present form, for a decision."""
        self._aside.pop(pod.uid, None)
        self._active[pod.uid] = pod
        heapq.heappush(self._heap, (-pod.priority, pod.created, pod.key, pod.uid))

    def put_back(self, pod: CachedPod) -> None:
        """Sets aside a pod that no node can take now."""
        self._aside[pod.uid] = pod

    def remove(self, uid: str) -> None:
        """Removes a pod that is gone or placed."""
        self._active.pop(uid, None)
        self._aside.pop(uid, None)

    def retry_all(self, chosen: Callable[[CachedPod], bool] = lambda _: True) -> None:
        """Queues the pods set aside again, after a change that may help those that are chosen."""
        for pod in [each for each in self._aside.values() if chosen(each)]:
            self.add(pod)

    def pop(self) -> CachedPod | None:
        """Removes and returns the next pod to decide, or None."""
        while self._heap:
            uid = heapq.heappop(self._heap)[3]
            pod = self._active.pop(uid, None)
            if pod is not None:
                return pod
        return None
