"""What a pod asks of a node: resources, host ports, and terms of node selectors.

Its requests are the sum of its containers and its overhead, as ``k8s.io/component-helpers/resource`` sums them. Amounts
are integers: CPU in thousandths, everything else in its own unit, rounded up. Terms of node selectors are of a pod's
affinity, a volume, or an allocation of devices.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.kube.quantity import integer_value, milli_value
from tessera_lab.apiserver.pods.amounts import sum_amounts, sum_containers

Json = Mapping[str, Any]
Amounts = dict[str, int]
#: Protocol, host address and port.
HostPort = tuple[str, str, int]
#: The address that stands for all of a host.
ANY_ADDRESS = "0.0.0.0"
#: What a container without a request counts for when nodes are compared (``pkg/scheduler/util/pod_resources.go``).
COMPARED: Mapping[str, str] = {"cpu": "100m", "memory": "200Mi"}


def parse_amount(resource: str, text: str | float) -> int:
    """A quantity in the scheduler's integer unit of that resource."""
    return milli_value(str(text)) if resource == "cpu" else integer_value(str(text))


def parse_amounts(quantities: Mapping[str, str | int] | None) -> Amounts:
    """A resource list in integer units."""
    return {name: parse_amount(name, text) for name, text in (quantities or {}).items()}


def container_requests(container: Json, missing: Mapping[str, str] | None = None) -> Amounts:
    """A container's requests; a resource with only a limit is requested at its limit, ``missing`` stands for none."""
    resources = container.get("resources") or {}
    return parse_amounts({**(missing or {}), **(resources.get("limits") or {}), **(resources.get("requests") or {})})


def pod_requests(spec: Json, missing: Mapping[str, str] | None = None) -> Amounts:
    """Everything the pod holds on its node for its whole life, ``pods`` (1) included.

    Args:
        spec: the pod's spec.
        missing: what a container counts for that requests none.
    """
    total = sum_containers(spec, lambda each: container_requests(each, missing))
    total.update(parse_amounts((spec.get("resources") or {}).get("requests")))
    total = {**sum_amounts([total, parse_amounts(spec.get("overhead"))]), "pods": 1}
    return {name: value for name, value in total.items() if value}


def host_ports(spec: Json) -> frozenset[HostPort]:
    """The host ports that the pod takes on its node, those of sidecars too."""
    on_host = bool(spec.get("hostNetwork"))
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    ports: set[HostPort] = set()
    for container in (*(spec.get("containers") or ()), *sidecars):
        for port in container.get("ports") or ():
            number = port.get("hostPort") or (port.get("containerPort") if on_host else None)
            if number:
                ports.add((port.get("protocol") or "TCP", port.get("hostIP") or ANY_ADDRESS, int(number)))
    return frozenset(ports)


def ports_conflict(ports: frozenset[HostPort], others: frozenset[HostPort]) -> bool:
    """True if two pods cannot have their host ports on one node."""
    return any(
        (protocol, number) == (theirs, taken) and (address == at or ANY_ADDRESS in {address, at})
        for protocol, address, number in ports
        for theirs, at, taken in others
    )


def term_matches(term: Json, labels: Mapping[str, str], name: str) -> bool:
    """True if one node selector term admits the node: all its requirements hold. A term without any matches nothing."""
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_is_met(item, labels) for item in expressions) and all(
        _is_met(item, {"metadata.name": name}) for item in fields
    )


def _is_met(requirement: Json, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.get("key", ""))
    values = requirement.get("values") or ()
    match requirement.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _compares(value, values, 1)
        case "Lt":
            return _compares(value, values, -1)
        case _:
            return False


def _compares(value: str | None, values: Sequence[str], sign: int) -> bool:
    """Compares for Gt and Lt; a value that is no integer never matches."""
    if value is None or len(values) != 1:
        return False
    try:
        return sign * (int(value) - int(values[0])) > 0
    except ValueError:
        return False
