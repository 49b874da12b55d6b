"""A slicer's cluster with a forecaster beside it, on a clock that the test sets."""

from typing import Any

import msgspec
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import resource_of
from tessera.clock import rfc3339
from tessera.controller.objects.pod_info import PodInfo
from tessera.forecast.calibration import Calibration
from tessera.forecast.history_text import History
from tessera.forecast.lives import LifeHistory
from tessera.forecast.past_times import StartTimes
from tessera.forecast.queue.forecaster import Forecaster, Round
from tessera.forecast.queue.held_back import HeldBack
from tessera.forecast.queue_page import QueuedPod, QueuePage
from tessera.kube.resources import Pod

#: When a story begins, seconds since 1970.
BEGIN = 1_700_000_000.0


class ForecastCluster(SlicerCluster):
    """Pods take their slices at once, start when the test says so, and are forgotten when it removes them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGIN
        self.history = History(LifeHistory(BEGIN), StartTimes(), Calibration())
        self.forecaster = Forecaster(self.history)
        #: By UID, what the API server's pods have besides the values that the slicer reads.
        self.facts: dict[str, dict[str, Any]] = {}

    def submit(
        self, name: str, *profiles: str, deadline: int | None = None, owner: str = "Job", **facts: Any
    ) -> PodInfo:
        """A pod behind our gate, and what the controller makes of it."""
        facts = {"created": rfc3339(self.now), **facts}
        pod = self.pod(name, *profiles, **facts)
        self.facts[pod.uid] = {"owner": owner, "deadline": deadline, "started": 0.0}
        self.settle()
        self._track(pod)
        if self.slicer.state.allocations.current_of(pod.uid) is not None:
            self.start(pod)
        return pod

    def start(self, pod: PodInfo) -> None:
        """Kubelet takes the pod, and its container runs."""
        self.facts[pod.uid]["started"] = self.now
        self._track(pod)

    def end(self, pod: PodInfo) -> None:
        """The pod is deleted; those that get its room start."""
        self.forecaster.tracker.drop(pod.uid, self.now)
        self.remove(pod)
        self.settle()
        for each in list(self.pods.values()):
            facts = self.facts.get(each.uid)
            if facts and not facts["started"] and self.slicer.state.allocations.current_of(each.uid) is not None:
                self.start(each)

    def live(self, *lives: float, profile: str = "7g.40gb", owner: str = "Job") -> None:
        """Lets pods of one profile come, live so many seconds and go, one after the other."""
        for number, seconds in enumerate(lives):
            pod = self.submit(f"past-{profile}-{number}-{self.now:.0f}", profile, owner=owner)
            self.now += seconds
            self.end(pod)

    def forecast(self, held_back: HeldBack | None = None) -> QueuePage:
        """The queue now."""
        begun = self.expect_ends()
        for _ in self.forecaster.forecast(begun, held_back or {}):
            pass
        return self.forecaster.page

    def expect_ends(self) -> Round:
        """A round that has read when leases are expected to end."""
        begun = self.forecaster.begin(self.slicer.state, self.now)
        for _ in self.forecaster.expect_ends(begun):
            pass
        return begun

    def row(self, pod: PodInfo) -> QueuedPod:
        """The row of a pod in the queue now."""
        return next(each for each in self.forecast().pods if each.uid == pod.uid)

    def _track(self, pod: PodInfo) -> None:
        self.forecaster.tracker.observe(self._object(pod), pod.profiles, self.now)

    def _object(self, pod: PodInfo) -> Pod:
        facts = self.facts[pod.uid]
        started = rfc3339(facts["started"]) if facts["started"] else None
        running = [{"name": "main", "state": {"running": {"startedAt": started}}}] if started else []
        scheduled = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": started}] if started else []
        version = "batch/v1" if facts["owner"] == "Job" else "v1"
        owners = [{"kind": facts["owner"], "uid": "o", "name": "o", "apiVersion": version, "controller": True}]
        limits = dict.fromkeys(map(resource_of, pod.profiles), "1")
        body = {
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "creationTimestamp": pod.created,
                "ownerReferences": owners,
            },
            "spec": {
                "containers": [{"name": "main", "image": "image", "resources": {"limits": limits}}],
                "activeDeadlineSeconds": facts["deadline"],
            },
            "status": {"startTime": started, "containerStatuses": running, "conditions": scheduled},
        }
        return msgspec.convert(body, Pod)
