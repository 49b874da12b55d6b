"""How fast a HorizontalPodAutoscaler may follow its metrics: windows and rates. No I/O; the time is passed in.

Source: ``normalizeDesiredReplicasWithBehaviors`` and, for an object without ``behavior``, ``normalizeDesiredReplicas``
in ``pkg/controller/podautoscaler/horizontal.go``.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]

#: ``--horizontal-pod-autoscaler-downscale-stabilization``, seconds.
DOWN_WINDOW = 300
#: Without ``behavior`` at most twice the replicas, or this number if larger (``scaleUpLimitFactor``, ``…Minimum``).
_FACTOR, _LEAST = 2, 4


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
