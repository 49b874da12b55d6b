"""The scheduler's cache of ResourceClaims, DeviceClasses and ResourceSlices, and of its own allocations in flight."""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera_lab.scheduler.state.pod_claims import allocation_of, results_of

Json = Mapping[str, Any]

#: Driver, pool and name of a device.
DeviceId = tuple[str, str, str]


class ClaimCache:
    """Cached objects of ``resource.k8s.io``.

    Attributes:
        claims: ResourceClaims by ``namespace/name``.
        classes: DeviceClasses by name.
        slices: ResourceSlices by name.
        pending: allocations that the scheduler has decided and not yet written, by the claim's UID.
    """

    def __init__(self) -> None:
        self.claims: dict[str, Json] = {}
        self.classes: dict[str, Json] = {}
        self.slices: dict[str, Json] = {}
        self.pending: dict[str, Json] = {}

    def allocation(self, claim: Json) -> Json | None:
        """The claim's allocation, written or decided."""
        return allocation_of(claim) or self.pending.get(claim["metadata"]["uid"])

    def results(self) -> Iterator[Json]:
        """Every device that a claim holds, by what is written and what is decided."""
        seen: set[str] = set()
        for claim in self.claims.values():
            seen.add(claim["metadata"]["uid"])
            yield from results_of(self.allocation(claim))
        for uid, allocation in self.pending.items():
            if uid not in seen:
                yield from results_of(allocation)
