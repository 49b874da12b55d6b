"""Measures for how long pods cannot start on the node that they were pinned to.

An agent may die before a bound pod's containers start, and the scheduler may refuse a pinned pod. A pod that is refused
for too long loses its slices. The times live only in memory: a restarted controller counts from its start.
"""

from collections.abc import Set as AbstractSet

from tessera.api.names import PodUid

#: Seconds after which a refused pod loses its slices. A node's kubelet publishes an agent's resources within 10 s, and
#: those of a restarted agent within half a minute.
REFUSAL_TIMEOUT = 60.0


class RefusedPods:
    """Refused pods, and the time since when each is refused.

    Attributes:
        patience: seconds for which a pod may be refused.
    """

    def __init__(self, patience: float = REFUSAL_TIMEOUT) -> None:
        self.timeout = patience
        self._since: dict[PodUid, float] = {}

    def update(self, refused: AbstractSet[PodUid], now: float) -> None:
        """Replaces the set of refused pods."""
        for uid in self._since.keys() - refused:
            del self._since[uid]
        for uid in refused:
            self._since.setdefault(uid, now)

    def next_expiry(self) -> float | None:
        """Time at which the first refused pod loses its slices; None if no pod is refused."""
        return min(self._since.values()) + self.timeout if self._since else None

    def pop_expired(self, now: float) -> list[PodUid]:
        """Returns the pods whose time is over. A pod that is still refused gets the same time again."""
        found = [uid for uid, since in self._since.items() if since + self.timeout <= now]
        for uid in found:
            self._since[uid] = now
        return found
