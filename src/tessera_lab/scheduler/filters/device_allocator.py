"""kube-scheduler's structured allocator: devices for the claims of a pod that have none, by the driver's order.

The rules are those of :func:`tessera.dra.matching.match_claims`: the first device in the order of pools,
slices and lists that fits. Where a selector has an error, or a claim asks for more devices than a claim can have,
kube-scheduler stops for the whole pod (:class:`AllocatorError`). It does so too where it searches for longer than its
time (:class:`AllocatorTimeoutError`), which the lab counts in tries. Binding conditions are not waited for; the result
has them, and a driver can read them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.cel.evaluator import Meter
from tessera.dra.allocation import select_node, write_allocation
from tessera.dra.claims import ClaimSpec, DeviceClass
from tessera.dra.devices import Device
from tessera.dra.matching import ChosenDevice, NoMatch, match_claims
from tessera.dra.requests import GUARD, ClaimDemand, ClaimRefused, read_demand
from tessera.dra.selectors import DeviceSelectors, SelectorResult
from tessera_lab.apiserver.kinds.claim_rules import RESULTS
from tessera_lab.scheduler.state.claim_cache import ClaimCache, Reach
from tessera_lab.scheduler.state.node_cache import CachedNode

Json = Mapping[str, Any]


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
