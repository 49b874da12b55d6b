"""Which pods were asked to leave, what the API server said, and when it is worth asking again. Pure."""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from tessera.agent.mig_config.events import EvictionAnswered, Tenant
from tessera.agent.mig_config.retry import delay
from tessera.api.names import PodUid

#: Seconds after which an evicted pod that is still there is evicted again; longer than most grace periods.
EVICT_AGAIN = 60.0
#: First and longest delay in seconds after a refused eviction.
REFUSED_FIRST, REFUSED_MOST = 2.0, 60.0


class _Asked(msgspec.Struct, frozen=True):
    """How often it was refused, when it may be asked for again, why it was refused last."""

    refusals: int
    until: float
    refusal: str | None


class Requests:
    """The evictions asked for on behalf of one card."""

    def __init__(self) -> None:
        self._asked: dict[PodUid, _Asked] = {}

    def answered(self, fact: EvictionAnswered) -> None:
        """Notes an answer."""
        before = self._asked.get(fact.pod)
        refusals = 0 if fact.refusal is None else (before.refusals if before else 0) + 1
        wait = EVICT_AGAIN if fact.refusal is None else delay(REFUSED_FIRST, REFUSED_MOST, refusals)
        self._asked[fact.pod] = _Asked(refusals, fact.now + wait, fact.refusal)

    def keep(self, pods: Collection[PodUid]) -> None:
        """Forgets the pods that are no longer there."""
        self._asked = {pod: asked for pod, asked in self._asked.items() if pod in pods}

    def clear(self) -> None:
        """Forgets all."""
        self._asked.clear()

    def due(self, tenants: Sequence[Tenant], now: float) -> tuple[Tenant, ...]:
        """Those of the tenants that are to be asked now; who is just being admitted cannot be asked yet."""
        known = self._asked
        return tuple(each for each in tenants if each.pod and (each.pod not in known or known[each.pod].until <= now))

    def untils(self) -> Iterator[float]:
        """When pods may be asked again."""
        return (each.until for each in self._asked.values())

    def said(self, tenant: Tenant) -> str:
        """What was answered for a tenant, to be put behind its name."""
        asked = self._asked.get(tenant.pod)
        if asked is None:
            return ""
        return " (evicted)" if asked.refusal is None else f" (not evicted yet: {asked.refusal})"
