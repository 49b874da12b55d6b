"""Replicas for one metric of a HorizontalPodAutoscaler. Pure.

Source: ``pkg/controller/podautoscaler/replica_calculator.go``. Values are in thousandths of a unit, as there. The rules
are kept with what is wrong with them:

* ``AverageValue`` of External and Object compares with ``status.replicas``, which counts the surge pods of a rollout;
  within the tolerance that number becomes the proposal (kubernetes/kubernetes#72775).
* ``Value`` multiplies with the *ready* pods, so a service shrinks while its pods load (#130130).
* Pods without a value count 0 on the way up and the whole target on the way down.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera_lab.workloads.base.pods import is_ready

Json = Mapping[str, Any]

#: ``--horizontal-pod-autoscaler-tolerance``.
TOLERANCE = 0.1


class MetricError(Exception):
    """A metric gives no number of replicas; the text is the condition's message."""


@dataclass(frozen=True)
class Tolerances:
    """How far the ratio of use and target may be from 1 without a change, down and up (KEP-4951)."""

    down: float = TOLERANCE
    up: float = TOLERANCE

    def hold(self, ratio: float) -> bool:
        """True if nothing changes at this ratio."""
        return 1.0 - self.down <= ratio <= 1.0 + self.up


@dataclass(frozen=True)
class Target:
    """The object that is scaled.

    Attributes:
        replicas: ``spec.replicas``.
        observed: ``status.replicas``.
        pods: the pods that its selector matches.
        selector: ``status.selector`` of its scale, which queries for values of pods have.
    """

    replicas: int
    observed: int
    pods: Sequence[Json]
    selector: str = ""

    @property
    def ready(self) -> int:
        """Pods that are ready."""
        return sum(is_ready(pod) for pod in self.pods)


def by_average(usage: int, per_pod: int, target: Target, tolerances: Tolerances) -> int:
    """Replicas by ``AverageValue`` of a sum: ``GetExternalPerPodMetricReplicas``, ``GetObjectPerPodMetricReplicas``."""
    known = per_pod * target.observed
    if known and tolerances.hold(usage / known):
        return target.observed
    return math.ceil(usage / per_pod)


def by_value(usage: int, wanted: int, target: Target, tolerances: Tolerances) -> int:
    """Replicas by ``Value``: ``GetExternalMetricReplicas``, ``GetObjectMetricReplicas``."""
    ratio = usage / wanted
    if target.replicas == 0:
        return math.ceil(ratio)
    if tolerances.hold(ratio):
        return target.replicas
    return math.ceil(ratio * target.ready)


def by_pods(values: Mapping[str, int], per_pod: int, target: Target, tolerances: Tolerances) -> int:
    """Replicas by values of single pods, by the pods' names: ``calcPlainMetricReplicas``.

    Raises:
        MetricError: there are no pods, or none with a value.
    """
    if not target.pods:
        raise MetricError("no pods returned by selector while calculating replica count")
    ready, unready, missing, ignored = _group(target.pods, values)
    known = {name: value for name, value in values.items() if name not in unready | ignored}
    if not known:
        raise MetricError("did not receive metrics for targeted pods (pods might be unready)")
    ratio = _ratio(known, per_pod)
    up_unready = bool(unready) and ratio > 1.0
    if not up_unready and not missing:
        return target.replicas if tolerances.hold(ratio) else math.ceil(ratio * ready)
    known |= dict.fromkeys(missing, per_pod if ratio < 1.0 else 0)
    if up_unready:
        known |= dict.fromkeys(unready, 0)
    again = _ratio(known, per_pod)
    if tolerances.hold(again) or (ratio < 1.0 < again) or (ratio > 1.0 > again):
        return target.replicas
    wanted = math.ceil(again * len(known))
    turned = (again < 1.0 and wanted > target.replicas) or (again > 1.0 and wanted < target.replicas)
    return target.replicas if turned else wanted


def _ratio(values: Mapping[str, int], per_pod: int) -> float:
    return sum(values.values()) // len(values) / per_pod


def _group(pods: Sequence[Json], values: Mapping[str, int]) -> tuple[int, set[str], set[str], set[str]]:
    """Pods that count as ready, and the names of pending ones, of those without a value, and of ignored ones."""
    unready, missing, ignored = set[str](), set[str](), set[str]()
    ready = 0
    for pod in pods:
        name, phase = pod["metadata"]["name"], (pod.get("status") or {}).get("phase")
        if pod["metadata"].get("deletionTimestamp") or phase == "Failed":
            ignored.add(name)
        elif phase == "Pending":
            unready.add(name)
        elif name not in values:
            missing.add(name)
        else:
            ready += 1
    return ready, unready, missing, ignored
