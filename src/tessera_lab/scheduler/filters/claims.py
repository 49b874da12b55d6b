"""ResourceClaims of a pod, as kube-scheduler's plugin DynamicResources judges them.

A claim that is allocated only restricts the nodes: the scheduler checks neither the devices nor their taints again. A
pod whose claims do not exist yet does not enter the queue (:func:`missing_claims`).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera_lab.apiserver.kinds.claim_rules import RESERVATIONS
from tessera_lab.scheduler.filters.node_placement import NodeRejection, term_matches
from tessera_lab.scheduler.state.claim_cache import ClaimCache
from tessera_lab.scheduler.state.node_cache import CachedNode, CachedPod
from tessera_lab.scheduler.state.pod_claims import is_reserved_for, reservations

Json = Mapping[str, Any]

NOT_HERE = NodeRejection("resourceclaim not available on the node")
NO_DEVICES = NodeRejection("cannot allocate all claims")


class ClaimPlan(msgspec.Struct, frozen=True):
    """Writes to a pod's claims before it is bound.

    Attributes:
        reserve: claims that are allocated already.
        allocate: allocations of the others, by the claim's key.
    """

    reserve: tuple[str, ...] = ()
    allocate: Mapping[str, Json] = {}


class ClaimFilter:
    """The filter of nodes by a pod's claims.

    Attributes:
        hopeless: why no node can take the pod; empty if some may.
        elsewhere: claims whose allocation refused a node that passed every filter before.
    """

    def __init__(self, pod: CachedPod, cache: ClaimCache) -> None:
        self._claims = {key: cache.claims[key] for key in pod.claims}
        self._cache = cache
        self.hopeless = next((text for each in self._claims.values() if (text := _unusable(each, pod))), "")
        self.elsewhere: set[str] = set()

    def judge(self, node: CachedNode) -> NodeRejection | None:
        """Returns why one node cannot take the pod."""
        allocated = {key: self._cache.allocation(claim) for key, claim in self._claims.items()}
        refusing = {key for key, found in allocated.items() if found is not None and not _reaches(found, node)}
        if None in allocated.values():
            return NO_DEVICES  # before the others are judged, so that they stay allocated
        self.elsewhere |= refusing
        return NOT_HERE if refusing else None

    def plan(self, node: CachedNode) -> ClaimPlan:
        """Returns the writes for a node that can take the pod."""
        del node
        return ClaimPlan(reserve=tuple(self._claims))


def claim_filter(pod: CachedPod, cache: ClaimCache) -> ClaimFilter | None:
    """Returns the filter of nodes for a pod; None if it uses no claims."""
    return ClaimFilter(pod, cache) if pod.claims else None


def missing_claims(pod: CachedPod, cache: ClaimCache) -> bool:
    """True if a claim of the pod does not exist yet: the pod then waits without a decision."""
    return any(key not in cache.claims for key in pod.claims)


def _unusable(claim: Json, pod: CachedPod) -> str:
    name = claim["metadata"]["name"]
    if claim["metadata"].get("deletionTimestamp"):
        return f'resourceclaim "{name}" is being deleted'
    full = len(reservations(claim)) >= RESERVATIONS and not is_reserved_for(claim, pod.uid)
    return "resourceclaim in use" if full else ""


def _reaches(allocation: Json, node: CachedNode) -> bool:
    selector = allocation.get("nodeSelector")
    terms = (selector or {}).get("nodeSelectorTerms") or ()
    return selector is None or any(term_matches(term, node.labels, node.name) for term in terms)
