"""Claims of a pod, and the extended resources that become one, as kube-scheduler's plugin DynamicResources judges them.

A claim that is allocated only restricts the nodes: the scheduler checks neither the devices nor their taints again. The
others get devices of the node (:class:`DeviceAllocator`). A pod whose claims do not exist yet does not enter the queue
(:func:`missing_claims`).

**Allocation.** The rules are those of :func:`tessera.dra.matching.match_claims`: the first device in the order of
pools, slices and lists that fits. Where a selector has an error, or a claim asks for more devices than a claim can
have, kube-scheduler stops for the whole pod (:class:`AllocatorError`). It does so too where it searches for longer than
its time (:class:`AllocatorTimeoutError`), which the lab counts in tries. Binding conditions are not waited for; the
result has them, and a driver can read them.

**Extended resources.** Since Kubernetes 1.36 the scheduler turns one that a DeviceClass stands for into a claim. A node
whose device plugin offers the resource serves it as ever. On another node the scheduler allocates devices of the class,
and makes the claim itself before it binds the pod: one request for each container and resource. A class stands for its
``extendedResourceName`` and for ``deviceclass.resource.kubernetes.io/NAME``; of several the newest counts. Left out:
init containers cannot use devices of other containers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.cel.evaluator import Meter
from tessera.dra.allocation import select_node, write_allocation
from tessera.dra.claims import ClaimSpec, DeviceClass
from tessera.dra.devices import Device
from tessera.dra.matching import ChosenDevice, NoMatch, match_claims
from tessera.dra.requests import GUARD, ClaimDemand, ClaimRefused, read_demand
from tessera.dra.selectors import DeviceSelectors, SelectorResult
from tessera.kube.quantity import parse_quantity
from tessera_lab.apiserver.kinds.claim_rules import ALTERNATIVES, RESERVATIONS, RESULTS
from tessera_lab.scheduler.filters.node_placement import NodeRejection
from tessera_lab.scheduler.state.claim_cache import ClaimCache, Reach, is_reserved_for, reservations, results_of
from tessera_lab.scheduler.state.node_cache import CachedNode, CachedPod
from tessera_lab.scheduler.state.pod_requests import term_matches

Json = Mapping[str, Any]
NOT_HERE = NodeRejection("resourceclaim not available on the node")
NO_DEVICES = NodeRejection("cannot allocate all claims")


class AllocatorError(Exception):
    """The allocator gives up for the pod; the text is that of the pod's condition."""

    def __init__(self, text: str) -> None:
        super().__init__(f'running "DynamicResources" filter plugin: {text}')


class AllocatorTimeoutError(AllocatorError):
    """The search took longer than the plugin's ``filterTimeout``, in which no other pod was decided."""


class _StrictSelectors:
    """Evaluates selectors as kube-scheduler does: an error ends the decision."""

    def __init__(self, selectors: DeviceSelectors) -> None:
        self._selectors = selectors

    def matches(self, expression: str, device: Device, budget: Meter | None = None) -> SelectorResult:
        """See :meth:`DeviceSelectors.matches`.

        Raises:
            AllocatorError: the expression has no value for the device.
        """
        found = self._selectors.matches(expression, device, budget)
        if found.problem:
            text = f"device {device.id}: selector {expression!r}: CEL runtime error: {found.problem}"
            raise AllocatorError(text)
        return found


class DeviceAllocator:
    """Allocates devices to claims.

    Attributes:
        hopeless: why no node can have devices for them; empty if some may.
    """

    def __init__(self, claims: Mapping[str, Json], cache: ClaimCache) -> None:
        self._claims = claims
        self._cache = cache
        self.hopeless = next((text for claim in claims.values() if (text := _missing_class(claim, cache))), "")
        self._excess = next((text for key, claim in claims.items() if (text := _excess(key, claim))), "")
        self._classes: dict[str, DeviceClass] = {}
        self._specs: list[ClaimSpec] = []
        self._demands: list[ClaimDemand] = []
        try:
            if not self.hopeless and not self._excess:
                self._read()
        except (ClaimRefused, msgspec.ValidationError) as error:
            self.hopeless = str(error)

    def _read(self) -> None:
        self._classes = {
            name: _guarded(msgspec.convert(each, DeviceClass)) for name, each in self._cache.classes.items()
        }
        self._specs = [msgspec.convert(claim["spec"], ClaimSpec) for claim in self._claims.values()]
        self._demands = [
            read_demand(f"claim {key}", spec, self._classes)
            for key, spec in zip(self._claims, self._specs, strict=True)
        ]

    def allocate(self, node: CachedNode) -> Mapping[str, Json] | None:
        """Returns an allocation for each claim on a node, by the claim's key; None if there is none.

        Raises:
            AllocatorError: a selector has an error, a claim asks for too many devices, or the search takes too long.
        """
        if self._excess:
            raise AllocatorError(self._excess)
        pools = self._cache.pools(node.name, node.labels)
        selectors: Any = _StrictSelectors(self._cache.selectors)
        found = match_claims(self._demands, pools, self._cache.holdings(pools), selectors)
        if isinstance(found, NoMatch) and found.unfinished:
            raise AllocatorTimeoutError(f"node {node.name}: timed out trying to allocate devices")
        if isinstance(found, NoMatch):
            return None
        return {
            key: self._allocation(index, key, node.name, [each for each in found if each.claim == index])
            for index, key in enumerate(self._claims)
        }

    def _allocation(self, index: int, key: str, node: str, chosen: Sequence[ChosenDevice]) -> Json:
        selector = _node_selector([self._cache.reach(each.device.id, node) for each in chosen])
        uid = self._claims[key]["metadata"]["uid"]
        return write_allocation(uid, self._specs[index], self._classes, chosen, node_selector=selector)


def _guarded(item: DeviceClass) -> DeviceClass:
    """The class so that Tessera's reader keeps its guard: to kube-scheduler that is a selector like any other."""
    selectors = [
        msgspec.structs.replace(each, cel=msgspec.structs.replace(each.cel, expression=f"{GUARD} "))
        if each.cel is not None and each.cel.expression == GUARD
        else each
        for each in item.spec.selectors
    ]
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, selectors=tuple(selectors)))


def _excess(key: str, claim: Json) -> str:
    """Says that a claim asks for more devices than a claim can have; empty if it does not."""
    least = 0
    for request in claim["spec"]["devices"].get("requests") or ():
        alternatives = [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or [{}]
        least += min(each.get("count") or 1 for each in alternatives)
    text = f"claim {key}: number of requested devices {least} exceeds the claim limit of {RESULTS}"
    return text if least > RESULTS else ""


def _missing_class(claim: Json, cache: ClaimCache) -> str:
    for request in claim["spec"]["devices"].get("requests") or ():
        for each in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if each and each["deviceClassName"] not in cache.classes:
                name = request["name"] + (f"/{each['name']}" if each.get("name") else "")
                return f"request {name}: device class {each['deviceClassName']} does not exist"
    return ""


def _node_selector(reaches: Sequence[Reach]) -> Json | None:
    """The nodes on which all devices can be used; None for all nodes."""
    node = next((each.node for each in reaches if each.node), "")
    if node:
        return select_node(node)
    terms = [each.selector["nodeSelectorTerms"][0] for each in reaches if each.selector]
    merged = {
        key: found
        for key in ("matchExpressions", "matchFields")
        if (found := [rule for term in terms for rule in term.get(key) or ()])
    }
    return {"nodeSelectorTerms": [merged]} if merged else None


class ExtendedClaim(msgspec.Struct, frozen=True):
    """A claim that the scheduler makes for a pod.

    Attributes:
        uid: stands for the UID of the claim, which is not made yet.
        requests: ``spec.devices.requests``.
        mappings: ``requestMappings`` of the pod's status.
        allocation: its devices; None before they are chosen.
    """

    uid: str
    requests: Sequence[Json]
    mappings: Sequence[Json]
    allocation: Json | None = None

    @property
    def claim(self) -> Json:
        """The claim as far as it is known."""
        return {"metadata": {"uid": self.uid}, "spec": {"devices": {"requests": self.requests}}}


class ExtendedDevices:
    """The extended resources of one pod that classes stand for."""

    def __init__(self, pod: CachedPod, cache: ClaimCache) -> None:
        self._pod = pod
        self._classes = {name: found for name in pod.requests if (found := cache.class_of(name))}

    def delegated(self, node: CachedNode) -> frozenset[str]:
        """Resources that the node's device plugins do not offer, and a class does."""
        return frozenset(name for name in self._classes if not node.allocatable.get(name))

    def claim(self, names: frozenset[str]) -> ExtendedClaim:
        """The claim for these resources."""
        made = list(self._requests(names))
        uid = f"extended-resources/{self._pod.uid}"
        return ExtendedClaim(uid, [request for request, _ in made], [mapping for _, mapping in made])

    def _requests(self, names: frozenset[str]) -> Iterator[tuple[Json, Json]]:
        """Yields each request with its mapping."""
        spec = self._pod.spec
        for index, container in enumerate((*(spec.get("initContainers") or ()), *spec.get("containers", ()))):
            resources = container.get("resources") or {}
            amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
            for number, resource in enumerate(sorted(names & amounts.keys())):
                count = int(parse_quantity(str(amounts[resource])))
                name = f"container-{index}-request-{number}"
                exactly = {"deviceClassName": self._classes[resource], "allocationMode": "ExactCount", "count": count}
                mapping = {"containerName": container["name"], "resourceName": resource, "requestName": name}
                if count:
                    yield {"name": name, "exactly": exactly}, mapping


def extended_devices(pod: CachedPod, cache: ClaimCache) -> ExtendedDevices | None:
    """The pod's extended resources that classes stand for; None if there are none."""
    return ExtendedDevices(pod, cache) if any(map(cache.class_of, pod.requests)) else None


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
