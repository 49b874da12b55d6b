"""ResourceClaims of a pod, as kube-scheduler's plugin DynamicResources judges them.

A claim that is allocated only restricts the nodes: the scheduler checks neither the devices nor their taints again. The
others get devices of the node (:mod:`device_allocator`). A pod whose claims do not exist yet does not enter the queue
(:func:`missing_claims`).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera_lab.apiserver.kinds.claim_rules import ALTERNATIVES, RESERVATIONS
from tessera_lab.scheduler.filters.device_allocator import DeviceAllocator
from tessera_lab.scheduler.filters.extended_devices import ExtendedClaim, extended_devices
from tessera_lab.scheduler.filters.node_placement import NodeRejection
from tessera_lab.scheduler.state.claim_cache import ClaimCache
from tessera_lab.scheduler.state.node_cache import CachedNode, CachedPod
from tessera_lab.scheduler.state.node_selectors import term_matches
from tessera_lab.scheduler.state.pod_claims import is_reserved_for, reservations, results_of

Json = Mapping[str, Any]

NOT_HERE = NodeRejection("resourceclaim not available on the node")
NO_DEVICES = NodeRejection("cannot allocate all claims")


class ClaimPlan(msgspec.Struct, frozen=True):
    """Writes to a pod's claims before it is bound.

    Attributes:
        reserve: claims that are allocated already.
        allocate: allocations of the others, by the claim's key.
        extended: a claim to be made for the pod's extended resources.
    """

    reserve: tuple[str, ...] = ()
    allocate: Mapping[str, Json] = {}
    extended: ExtendedClaim | None = None


class ClaimFilter:
    """The filter of nodes by a pod's claims.

    Attributes:
        hopeless: why no node can take the pod; empty if some may.
        elsewhere: claims whose allocation refused a node that passed every filter before.
    """

    def __init__(self, pod: CachedPod, cache: ClaimCache) -> None:
        claims = {key: cache.claims[key] for key in pod.claims}
        self._allocated = {key: found for key, each in claims.items() if (found := cache.allocation(each)) is not None}
        self.hopeless = next((text for each in claims.values() if (text := _unusable(each, pod))), "")
        self._waiting = {key: each for key, each in claims.items() if key not in self._allocated}
        self._cache = cache
        self._extended = extended_devices(pod, cache)
        #: By the extended resources that are allocated too: the allocator and the claim for them.
        self._allocators: dict[frozenset[str], tuple[DeviceAllocator, ExtendedClaim | None]] = {}
        if self._waiting:
            self.hopeless = self.hopeless or self._allocator(frozenset())[0].hopeless
        self._found: dict[str, ClaimPlan] = {}
        self.elsewhere: set[str] = set()

    def delegated(self, node: CachedNode) -> frozenset[str]:
        """Extended resources for which the node needs devices of a class, not allocatable ones."""
        return self._extended.delegated(node) if self._extended is not None else frozenset()

    def _allocator(self, names: frozenset[str]) -> tuple[DeviceAllocator, ExtendedClaim | None]:
        if names not in self._allocators:
            extended = self._extended.claim(names) if self._extended is not None and names else None
            claims = {**self._waiting, **({extended.uid: extended.claim} if extended is not None else {})}
            self._allocators[names] = DeviceAllocator(claims, self._cache), extended
        return self._allocators[names]

    def _allocate(self, node: CachedNode) -> ClaimPlan | None:
        reserve, names = tuple(self._allocated), self.delegated(node)
        if not self._waiting and not names:
            return ClaimPlan(reserve)
        allocator, extended = self._allocator(names)
        found = None if allocator.hopeless else allocator.allocate(node)
        if found is None:
            return None
        allocate = {key: found[key] for key in self._waiting}
        if extended is not None:
            extended = msgspec.structs.replace(extended, allocation=found[extended.uid])
        return ClaimPlan(reserve, allocate, extended)

    def judge(self, node: CachedNode) -> NodeRejection | None:
        """Returns why one node cannot take the pod.

        Raises:
            AllocatorError: kube-scheduler would stop for the whole pod.
        """
        found = self._allocate(node)
        if found is None:
            return NO_DEVICES  # before the other claims are judged, so that they stay allocated
        self._found[node.name] = found
        refusing = {key for key, found in self._allocated.items() if not _reaches(found, node)}
        self.elsewhere |= refusing
        return NOT_HERE if refusing else None

    def count_preference(self, node: CachedNode) -> int:
        """The sum over ``firstAvailable`` requests of 8 for the first alternative, 7 for the second and so on."""
        chosen = {
            (key, result["request"])
            for key, allocation in self._found[node.name].allocate.items()
            for result in results_of(allocation)
        }
        return sum(
            ALTERNATIVES - index
            for key, claim in self._waiting.items()
            for request in claim["spec"]["devices"].get("requests") or ()
            for index, each in enumerate(request.get("firstAvailable") or ())
            if (key, f"{request['name']}/{each['name']}") in chosen
        )

    def plan(self, node: CachedNode) -> ClaimPlan:
        """Returns the writes for a node that can take the pod."""
        return self._found[node.name]


def claim_filter(pod: CachedPod, cache: ClaimCache) -> ClaimFilter | None:
    """Returns the filter of nodes for a pod; None if it uses neither claims nor devices of classes."""
    return ClaimFilter(pod, cache) if concerns_claims(pod, cache) else None


def concerns_claims(pod: CachedPod, cache: ClaimCache) -> bool:
    """True if objects of ``resource.k8s.io`` decide about the pod."""
    return bool(pod.claims) or any(map(cache.class_of, pod.requests))


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
