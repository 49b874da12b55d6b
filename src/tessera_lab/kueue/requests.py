"""What Kueue charges for a pod set: requests of its pods, without excluded prefixes, after the transformations.

By Kueue's documentation ("Resource transformations", "Configuration", "Dynamic Resource Allocation"): prefixes are
dropped first. Claims of templates count their devices under the names to which the Configuration maps their classes.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from tessera.kube.quantity import format_quantity, parse_quantity

Json = dict[str, Any]
Amounts = dict[str, Decimal]


def pod_set_requests(
    pod_set: Json, resources: Mapping[str, Any], templates: Mapping[str, Json] = MappingProxyType({})
) -> Amounts:
    """Returns what all pods of a set are charged.

    Args:
        pod_set: the pods.
        resources: that part of the Configuration.
        templates: the ResourceClaimTemplates of their namespace, by name.
    """
    spec = pod_set["template"]["spec"]
    one = _transform(_pod_requests(spec), resources)
    _add(one, _devices(spec, resources.get("deviceClassMappings") or (), templates))
    return {name: amount * pod_set["count"] for name, amount in one.items()}


def _devices(spec: Json, mappings: Iterable[Json], templates: Mapping[str, Json]) -> Amounts:
    """Devices of the claims of a pod by mapped name."""
    names = {each: mapping["name"] for mapping in mappings for each in mapping["deviceClassNames"]}
    found: Amounts = {}
    for claim in spec.get("resourceClaims") or ():
        template = templates.get(claim.get("resourceClaimTemplateName") or "", {})
        for request in template.get("spec", {}).get("spec", {}).get("devices", {}).get("requests") or ():
            exactly = request.get("exactly") or {}
            if name := names.get(exactly.get("deviceClassName", "")):
                _add(found, {name: Decimal(exactly.get("count") or 1)})
    return found


def _pod_requests(spec: Json) -> Amounts:
    """Requests of a pod: the sum of its containers, or the largest init container where that is more."""
    beside: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        requests = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(beside, requests)
        else:
            for name, amount in requests.items():
                peak[name] = max(peak.get(name, Decimal(0)), beside.get(name, Decimal(0)) + amount)
    for container in spec["containers"]:
        _add(beside, _container_requests(container))
    return {name: max(beside.get(name, Decimal(0)), peak.get(name, Decimal(0))) for name in {*beside, *peak}}


def _container_requests(container: Json) -> Amounts:
    """Requests, and limits where there is no request, as the API server fills them in for pods."""
    resources = container.get("resources") or {}
    both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(str(amount)) for name, amount in both.items()}


def _transform(requests: Amounts, resources: Mapping[str, Any]) -> Amounts:
    excluded = tuple(resources.get("excludeResourcePrefixes") or ())
    rules = {rule["input"]: rule for rule in resources.get("transformations") or ()}
    found: Amounts = {}
    for name, amount in requests.items():
        if excluded and name.startswith(excluded):
            continue
        rule = rules.get(name)
        if rule is None or rule.get("strategy", "Retain") == "Retain":
            _add(found, {name: amount})
        if rule is not None:
            outputs = (rule.get("outputs") or {}).items()
            _add(found, {output: parse_quantity(str(each)) * amount for output, each in outputs})
    return found


def _add(to: Amounts, more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, Decimal(0)) + amount


def total(each: Sequence[Amounts]) -> Amounts:
    """Adds amounts up."""
    found: Amounts = {}
    for amounts in each:
        _add(found, amounts)
    return found


def as_quantity(amount: Decimal) -> str:
    """An amount as it is written."""
    return format_quantity(amount, binary=True)


def as_quantities(amounts: Mapping[str, Decimal]) -> dict[str, str]:
    """Amounts as they are written."""
    return {name: as_quantity(amount) for name, amount in sorted(amounts.items())}
