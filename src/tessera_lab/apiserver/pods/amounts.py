"""Amounts of resources of a pod, summed over its containers as ``k8s.io/component-helpers/resource`` does. Pure.

App containers run side by side with the restartable init containers (sidecars); an ordinary init container runs alone
beside the sidecars started before it. A pod needs the larger of the two.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any, TypeVar

from tessera.kube.quantity import parse_quantity

#: By resource.
Amounts = dict[str, Decimal]
N = TypeVar("N", int, Decimal)


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


def sum_containers(spec: Mapping[str, Any], of: Callable[[Mapping[str, Any]], dict[str, N]]) -> dict[str, N]:
    """Sums what ``of`` returns for each container of a pod, as the scheduler sums requests."""
    running = sum_amounts(of(each) for each in spec.get("containers") or ())
    sidecars: dict[str, N] = {}
    peak: dict[str, N] = {}
    for each in spec.get("initContainers") or ():
        own = of(each)
        if each.get("restartPolicy") == "Always":
            running, sidecars = sum_amounts([running, own]), sum_amounts([sidecars, own])
            peak = max_amounts(peak, sidecars)
        else:
            peak = max_amounts(peak, sum_amounts([own, sidecars]))
    return max_amounts(running, peak)


def sum_amounts(parts: Iterable[dict[str, N]]) -> dict[str, N]:
    """The sum of each resource."""
    total: dict[str, N] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


def max_amounts(one: dict[str, N], other: dict[str, N]) -> dict[str, N]:
    """The larger amount of each resource."""
    return {name: max(each[name] for each in (one, other) if name in each) for name in {**one, **other}}
