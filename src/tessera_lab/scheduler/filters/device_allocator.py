"""kube-scheduler's structured allocator: devices for the claims of a pod that have none, by the driver's order.

The rules are those of :func:`tessera.dra.matching.match_claims` without costs: the first device in the order of pools,
slices and lists that fits. Where a selector has an error, kube-scheduler stops for the whole pod
(:class:`SelectorError`). Binding conditions are not waited for; the result has them, and a driver can read them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from tessera.api.dra.claims import ClaimSpec, DeviceClass
from tessera.dra.devices import Device
from tessera.dra.matching import ChosenDevice, NoMatch, match_claims
from tessera.dra.requests import ClaimDemand, ClaimRefused, read_demand
from tessera.dra.selectors import DeviceSelectors, SelectorResult
from tessera.kube.quantity import format_quantity
from tessera_lab.scheduler.state.claim_cache import ClaimCache, Reach
from tessera_lab.scheduler.state.node_cache import CachedNode

Json = Mapping[str, Any]
Object = dict[str, Any]


class SelectorError(Exception):
    """A selector cannot be evaluated for a device; the text is that of the pod's condition."""


class _StrictSelectors:
    """Evaluates selectors as kube-scheduler does: an error ends the decision."""

    def __init__(self, selectors: DeviceSelectors) -> None:
        self._selectors = selectors

    def matches(self, expression: str, device: Device) -> SelectorResult:
        """See :meth:`DeviceSelectors.matches`.

        Raises:
            SelectorError: the expression has no value for the device.
        """
        found = self._selectors.matches(expression, device)
        if found.problem:
            text = f"device {device.id}: selector {expression!r}: CEL runtime error: {found.problem}"
            raise SelectorError(f'running "DynamicResources" filter plugin: {text}')
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
        self._demands: list[ClaimDemand] = []
        try:
            self._demands = [] if self.hopeless else [self._demand(key, claim) for key, claim in claims.items()]
        except (ClaimRefused, msgspec.ValidationError) as error:
            self.hopeless = str(error)

    def _demand(self, key: str, claim: Json) -> ClaimDemand:
        classes = {name: msgspec.convert(each, DeviceClass) for name, each in self._cache.classes.items()}
        return read_demand(f"claim {key}", msgspec.convert(claim["spec"], ClaimSpec), classes)

    def allocate(self, node: CachedNode) -> Mapping[str, Json] | None:
        """Returns an allocation for each claim on a node, by the claim's key; None if there is none.

        Raises:
            SelectorError: a selector has an error.
        """
        pools = self._cache.pools(node.name, node.labels)
        selectors: Any = _StrictSelectors(self._cache.selectors)
        found = match_claims(self._demands, pools, self._cache.holdings(pools), selectors)
        if isinstance(found, NoMatch):
            return None
        return {
            key: self._allocation(claim, node.name, [each for each in found if each.claim == index])
            for index, (key, claim) in enumerate(self._claims.items())
        }

    def _allocation(self, claim: Json, node: str, chosen: Sequence[ChosenDevice]) -> Json:
        results = [_result(claim, index, each) for index, each in enumerate(chosen)]
        devices: Object = {"results": results}
        config = list(self._config(claim, chosen))
        if config:
            devices["config"] = config
        selector = _node_selector([self._cache.reach(each.device.id, node) for each in chosen])
        return {"devices": devices, **({"nodeSelector": selector} if selector else {})}

    def _config(self, claim: Json, chosen: Sequence[ChosenDevice]) -> Iterator[Json]:
        """Configuration of the chosen classes and of the claim, as drivers read it from the allocation."""
        for name, request in dict.fromkeys((each.demand.class_name, each.demand.name) for each in chosen):
            for entry in self._cache.classes[name]["spec"].get("config") or ():
                yield {"source": "FromClass", "requests": [request], **entry}
        used = {name for each in chosen for name in (each.demand.name, each.demand.request)}
        for entry in claim["spec"]["devices"].get("config") or ():
            requests = entry.get("requests") or ()
            if not requests or used & set(requests):
                yield {"source": "FromClaim", **entry}


def _missing_class(claim: Json, cache: ClaimCache) -> str:
    for request in claim["spec"]["devices"].get("requests") or ():
        for each in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if each and each["deviceClassName"] not in cache.classes:
                name = request["name"] + (f"/{each['name']}" if each.get("name") else "")
                return f"request {name}: device class {each['deviceClassName']} does not exist"
    return ""


def _result(claim: Json, index: int, chosen: ChosenDevice) -> Json:
    device, demand = chosen.device, chosen.demand
    found: Object = {
        "request": demand.name,
        "driver": device.id.driver,
        "pool": device.id.pool,
        "device": device.id.device,
    }
    if demand.admin:
        found["adminAccess"] = True
    if demand.tolerations:
        found["tolerations"] = [_toleration(each) for each in demand.tolerations]
    if device.shared and not demand.admin:
        found["shareID"] = str(uuid5(NAMESPACE_OID, f"{claim['metadata']['uid']}/{index}/{device.id}"))
        found["consumedCapacity"] = {
            name.removeprefix(f"{device.id.driver}/"): format_quantity(amount, binary=True)
            for name, amount in chosen.amounts.items()
        }
    return found


def _toleration(toleration: Any) -> Object:
    made: Object = msgspec.to_builtins(toleration)
    return {key: value for key, value in made.items() if value not in {"", None}}


def _node_selector(reaches: Sequence[Reach]) -> Json | None:
    """The nodes on which all devices can be used; None for all nodes."""
    node = next((each.node for each in reaches if each.node), "")
    if node:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        return {"nodeSelectorTerms": [{"matchFields": [field]}]}
    terms = [each.selector["nodeSelectorTerms"][0] for each in reaches if each.selector]
    merged = {
        key: found
        for key in ("matchExpressions", "matchFields")
        if (found := [rule for term in terms for rule in term.get(key) or ()])
    }
    return {"nodeSelectorTerms": [merged]} if merged else None
