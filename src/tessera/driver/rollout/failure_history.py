"""Which driver sets failed where, kept longer than the nodes live: a set that failed too often is not tried again.

Kept in a ConfigMap, one entry a set. People can edit it, so what cannot be read is as good as not there, and what is
read is bounded.
"""

from collections.abc import Mapping

import msgspec

from tessera.limits import FAILED_NODES, FAILED_SETS, FAILURE_CAUSE, FAILURES_TEXT

#: ConfigMap in Tessera's namespace.
FAILURES_CONFIG_MAP = "driver-rollouts"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One node on which a set failed: why, and when in seconds since 1970."""

    cause: str
    at: float


class SetFailures(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one set.

    Attributes:
        policy: the object that asked for it.
        nodes: where it failed.
    """

    policy: str
    nodes: Mapping[str, Failure] = {}

    @property
    def latest(self) -> float:
        """When it failed last."""
        return max((each.at for each in self.nodes.values()), default=0.0)


#: By the set's id.
Failures = Mapping[str, SetFailures]


def read_failures(data: Mapping[str, str]) -> dict[str, SetFailures]:
    """The entries of the ConfigMap that can be read."""
    found: dict[str, SetFailures] = {}
    for key, text in list(data.items())[:FAILED_SETS]:
        if len(text) > FAILURES_TEXT:
            continue
        try:
            found[key] = msgspec.json.decode(text, type=SetFailures)
        except (msgspec.DecodeError, RecursionError):
            continue
    return found


def with_failure(
    known: Failures,
    *,
    driver_set: str,
    policy: str,
    node: str,
    cause: str,
    at: float,
) -> dict[str, SetFailures]:
    """The failures with one more; the oldest make room."""
    before = known.get(driver_set, SetFailures(policy=policy)).nodes
    nodes = {**before, node: Failure(cause=cause[:FAILURE_CAUSE], at=at)}
    kept = dict(sorted(nodes.items(), key=lambda each: -each[1].at)[:FAILED_NODES])
    every = {**known, driver_set: SetFailures(policy=policy, nodes=kept)}
    return dict(sorted(every.items(), key=lambda each: -each[1].latest)[:FAILED_SETS])


def written(known: Failures) -> dict[str, str]:
    """The ConfigMap's data."""
    return {key: msgspec.json.encode(each).decode() for key, each in known.items()}
