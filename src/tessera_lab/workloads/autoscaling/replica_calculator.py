"""How many replicas a HorizontalPodAutoscaler wants, and how fast it may follow its metrics. Pure.

**Replicas for one metric.** Source: ``pkg/controller/podautoscaler/replica_calculator.go``. Values are in thousandths
of a unit, as there. The rules are kept with what is wrong with them:

* ``AverageValue`` of External and Object compares with ``status.replicas``, which counts the surge pods of a rollout;
  within the tolerance that number becomes the proposal (kubernetes/kubernetes#72775).
* ``Value`` multiplies with the *ready* pods, so a service shrinks while its pods load (#130130).
* Pods without a value count 0 on the way up and the whole target on the way down.

**How fast**, by windows and rates; the time is passed in. Source: ``normalizeDesiredReplicasWithBehaviors`` and, for an
object without ``behavior``, ``normalizeDesiredReplicas`` in ``pkg/controller/podautoscaler/horizontal.go``.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera_lab.workloads.base.pods import is_ready

Json = Mapping[str, Any]

#: ``--horizontal-pod-autoscaler-tolerance``.
TOLERANCE = 0.1
#: ``--horizontal-pod-autoscaler-downscale-stabilization``, seconds.
DOWN_WINDOW = 300
#: Without ``behavior`` at most twice the replicas, or this number if larger (``scaleUpLimitFactor``, ``…Minimum``).
_FACTOR, _LEAST = 2, 4


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


@dataclass(frozen=True)
class Limits:
    """The bounds of one decision.

    Attributes:
        least, most: ``minReplicas`` and ``maxReplicas``.
        behavior: ``spec.behavior`` with its defaults; None without one.
    """

    least: int
    most: int
    behavior: Json | None = None


@dataclass(frozen=True)
class Followed:
    """What comes of the replicas that metrics ask for.

    Attributes:
        replicas: the number to set.
        stabilized: the number after the windows, before the rates and bounds.
        limit: what held it back, as the reason of the condition ``ScalingLimited``; empty for nothing.
    """

    replicas: int
    stabilized: int
    limit: str = ""


@dataclass
class ScaleHistory:
    """What one HorizontalPodAutoscaler remembers, as long as the process runs.

    Attributes:
        recommendations: time and replicas that metrics asked for, within the longest window.
        ups, downs: time and size of each change, within the longest period of a policy (an hour).
    """

    recommendations: list[tuple[float, int]] = field(default_factory=list)
    ups: list[tuple[float, int]] = field(default_factory=list)
    downs: list[tuple[float, int]] = field(default_factory=list)

    def follow(self, current: int, desired: int, limits: Limits, now: float) -> Followed:
        """Replicas to set for those that metrics ask for."""
        if not self.recommendations:
            self.recommendations.append((now, current))
        if limits.behavior is None:
            return _bound(current, self._largest(desired, now), limits, max(_FACTOR * current, _LEAST), 0)
        stabilized = self._stabilize(current, desired, limits.behavior, now)
        up = max(current, self._limit(current, limits.behavior["scaleUp"], now, 1))
        down = min(current, self._limit(current, limits.behavior["scaleDown"], now, -1))
        return _bound(current, stabilized, limits, up, down)

    def note_scaled(self, before: int, after: int, now: float) -> None:
        """Remembers a change."""
        self.ups = [each for each in self.ups if each[0] > now - 3600]
        self.downs = [each for each in self.downs if each[0] > now - 3600]
        if after != before:
            (self.ups if after > before else self.downs).append((now, abs(after - before)))

    def _largest(self, desired: int, now: float) -> int:
        """The largest recommendation of the window: ``stabilizeRecommendation``."""
        self.recommendations = [each for each in self.recommendations if each[0] > now - DOWN_WINDOW]
        self.recommendations.append((now, desired))
        return max(replicas for _, replicas in self.recommendations)

    def _stabilize(self, current: int, desired: int, behavior: Json, now: float) -> int:
        up_since = now - behavior["scaleUp"]["stabilizationWindowSeconds"]
        down_since = now - behavior["scaleDown"].get("stabilizationWindowSeconds", DOWN_WINDOW)
        lowest = min([desired, *(each for at, each in self.recommendations if at > up_since)])
        highest = max([desired, *(each for at, each in self.recommendations if at > down_since)])
        self.recommendations = [each for each in self.recommendations if each[0] > min(up_since, down_since)]
        self.recommendations.append((now, desired))
        return min(max(current, lowest), highest)

    def _limit(self, current: int, rules: Json, now: float, sign: int) -> int:
        """The replicas that the policies of one direction allow; ``sign`` is 1 for up."""
        if rules["selectPolicy"] == "Disabled":
            return current
        proposals = []
        for policy in rules["policies"]:
            start = current - _changed(self.ups, policy, now) + _changed(self.downs, policy, now)
            proposals.append(_proposal(start, policy, sign))
        widest, narrowest = (max, min) if sign > 0 else (min, max)
        return narrowest(proposals) if rules["selectPolicy"] == "Min" else widest(proposals)


def _proposal(start: int, policy: Json, sign: int) -> int:
    value = sign * policy["value"]
    if policy["type"] == "Pods":
        return int(start + value)
    share = start * (1 + value / 100)
    return math.ceil(share) if sign > 0 else int(share)


def _bound(current: int, desired: int, limits: Limits, up: int, down: int) -> Followed:
    """Bounds a proposal by the rates' limits and by ``minReplicas`` and ``maxReplicas``."""
    highest, lowest = min(up, limits.most), max(down, limits.least)
    rates = limits.behavior is None
    if (rates or desired > current) and desired > highest:
        return Followed(highest, desired, "TooManyReplicas" if limits.most <= up else "ScaleUpLimit")
    if (rates or desired < current) and desired < lowest:
        return Followed(lowest, desired, "TooFewReplicas" if limits.least >= down else "ScaleDownLimit")
    return Followed(desired, desired)


def _changed(events: Iterable[tuple[float, int]], policy: Json, now: float) -> int:
    return sum(size for at, size in events if at > now - policy["periodSeconds"])
