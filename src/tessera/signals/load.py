"""The load of a service: the sum of what the pages of its ready pods say. Pure.

A pod that is ready and whose page is not known makes the load of its service unknown: a sum without it is too small,
and a scaler would take pods away. A pod that is not ready serves nobody, and is no part of it.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

from tessera.api.nodes.usage import ServiceUsage
from tessera.signals.page import JOULES, KV_CACHE, LOAD, POWER, REQUESTS, RUNNING, TTFT_P50, TTFT_P90, WAITING


def sum_load(usages: Sequence[ServiceUsage | None], powers: Sequence[float | None] = ()) -> dict[str, float]:
    """What is known of a service, by name of the metric.

    Args:
        usages: of each ready pod, what its page says; None if that is not known.
        powers: watts of each of these pods; None if they are not known.
    """
    known = [each for each in usages if each is not None and not each.error]
    if not known or len(known) < len(usages):
        return {}
    values: dict[str, float | None] = {
        REQUESTS: _sum(known, lambda each: each.requests),
        RUNNING: _sum(known, lambda each: each.running),
        WAITING: _sum(known, lambda each: each.waiting),
    }
    waiting, running = values[WAITING], values[RUNNING]
    values[LOAD] = None if waiting is None else waiting + (running or 0.0)
    caches = _sum(known, lambda each: each.kv_cache)
    values[KV_CACHE] = None if caches is None else caches / len(known)
    for name, share in ((TTFT_P50, 0.5), (TTFT_P90, 0.9)):
        values[name] = quantile(_merge(known), share)
    power = values[POWER] = sum_power(powers)
    requests = values[REQUESTS]
    values[JOULES] = 1000 * power / requests if power is not None and requests else None
    # Pages are written by tenants and nodes: a rate of next to nothing makes the quotient infinite, which JSON has not.
    return {name: value for name, value in values.items() if value is not None and isfinite(value)}


def sum_power(powers: Sequence[float | None]) -> float | None:
    """Watts of pods together; None if those of one are not known, or less than nothing, or there is none."""
    known = [each for each in powers if each is not None and each >= 0]
    return sum(known) if known and len(known) == len(powers) else None


def _sum(usages: Sequence[ServiceUsage], value: Callable[[ServiceUsage], float | None]) -> float | None:
    """The sum over all; None if one does not say it, or says less than nothing."""
    found = [number for each in usages if (number := value(each)) is not None and number >= 0]
    return sum(found) if len(found) == len(usages) else None


def _merge(usages: Sequence[ServiceUsage]) -> Mapping[float, float]:
    buckets: dict[float, float] = {}
    for each in usages:
        for bucket in each.first_token:
            bound = float("inf") if bucket.bound is None else bucket.bound
            buckets[bound] = buckets.get(bound, 0.0) + max(0.0, bucket.count)
    return dict(sorted(buckets.items()))


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """A quantile of cumulative buckets, as ``histogram_quantile`` of Prometheus gives it; None without values."""
    total = buckets.get(float("inf"), 0.0)
    if total <= 0:
        return None
    lower = below = 0.0
    for bound, count in buckets.items():
        if count >= share * total:
            if bound == float("inf") or count <= below:
                return lower
            return lower + (bound - lower) * (share * total - below) / (count - below)
        lower, below = bound, count
    return lower
