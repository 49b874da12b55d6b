"""Amounts of resources of a pod, summed over its containers as ``k8s.io/component-helpers/resource`` does. Pure."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any

from tessera.kube.quantity import parse_quantity

#: By resource.
Amounts = dict[str, Decimal]


def sum_of_containers(spec: Mapping[str, Any], kind: str) -> Amounts:
    """The sum of the ``limits`` or ``requests`` of a pod's containers; what is no quantity is left out."""
    return sum_containers(spec, lambda each: parse_amounts((each.get("resources") or {}).get(kind)))


def parse_amounts(amounts: Any) -> Amounts:
    """Quantities by resource as numbers; what is no quantity is left out, since validation names its path."""
    found = {}
    for name, amount in (amounts if isinstance(amounts, dict) else {}).items():
        with suppress(ValueError):
            found[name] = parse_quantity(str(amount))
    return found


def of_pods(name: str) -> bool:
    """True if ``spec.resources`` of a pod can have the resource."""
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def sum_containers(spec: Mapping[str, Any], of: Callable[[Mapping[str, Any]], Amounts]) -> Amounts:
    """Sums what ``of`` returns for each container of a pod, as the scheduler sums requests."""
    running = sum_amounts(of(each) for each in spec.get("containers") or ())
    sidecars: Amounts = {}
    peak: Amounts = {}
    for each in spec.get("initContainers") or ():
        own = of(each)
        if each.get("restartPolicy") == "Always":
            running, sidecars = sum_amounts([running, own]), sum_amounts([sidecars, own])
            peak = max_amounts(peak, sidecars)
        else:
            peak = max_amounts(peak, sum_amounts([own, sidecars]))
    return max_amounts(running, peak)


def sum_amounts(parts: Iterable[Amounts]) -> Amounts:
    """The sum of each resource."""
    total: Amounts = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, Decimal(0)) + value
    return total


def max_amounts(one: Amounts, other: Amounts) -> Amounts:
    """The larger amount of each resource."""
    return {name: max(one.get(name, Decimal(0)), other.get(name, Decimal(0))) for name in {**one, **other}}
