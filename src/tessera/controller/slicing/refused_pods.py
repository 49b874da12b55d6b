"""Measures for how long pods cannot start where they were pinned.

An agent may die before a bound pod's containers start, and the scheduler may refuse a pinned pod. A pod that is refused
for too long loses its slices. The times live in memory only: a controller that starts anew counts from there.
"""

from collections.abc import Set as AbstractSet

from tessera.api.names import PodUid

#: Seconds after which a pod that is refused is taken back. A node's kubelet publishes what an agent
#: offers within 10 s, a restarted agent within half a minute.
REFUSAL_TIMEOUT = 60.0


class RefusedPods:
    """Since when pods are refused.

    Attributes:
        patience: seconds that a pod may be refused.
    """

    def __init__(self, patience: float = REFUSAL_TIMEOUT) -> None:
        self.timeout = patience
        self._since: dict[PodUid, float] = {}

    def update(self, refused: AbstractSet[PodUid], now: float) -> None:
        """Takes over whom the scheduler refuses now."""
        for uid in self._since.keys() - refused:
            del self._since[uid]
        for uid in refused:
            self._since.setdefault(uid, now)

    def next_expiry(self) -> float | None:
        """Time at which the first refused pod loses its slices; None if no pod is refused."""
        return min(self._since.values()) + self.timeout if self._since else None

    def pop_expired(self, now: float) -> list[PodUid]:
        """Those whose time is over; if they are refused still, they get as much again."""
        found = [uid for uid, since in self._since.items() if since + self.timeout <= now]
        for uid in found:
            self._since[uid] = now
        return found
