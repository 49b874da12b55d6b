"""Resource amounts as integers: what a pod holds on its node, what a node has.

CPU counts in thousandths, everything else in its own unit, rounded up. A pod's sum is the scheduler's
(``k8s.io/component-helpers/resource``): app containers run beside the sidecars, an ordinary init container runs beside
the sidecars started before it, and the larger of the two counts, plus overhead.

MIG resources and the memory quota are counted like all others: where slices fit is decided by placement, but the
scheduler admits a pod only where kubelet still offers as many devices, and as much of the quota, as nobody else asks.
"""

from collections.abc import Mapping

from tessera.api.names import MIG_RESOURCE_PREFIX, QUOTA_RESOURCE
from tessera.kube.quantity import milli, whole
from tessera.kube.resources import Container, PodSpec

Amounts = dict[str, int]


def amounts(quantities: Mapping[str, str]) -> Amounts:
    """A resource list in integer units.

    Raises:
        ValueError: a text is no quantity.
    """
    return {name: _amount(name, text) for name, text in quantities.items()}


def offered_by_agent(resource: str) -> bool:
    """Tells if the agent is the one that gives a node this resource."""
    return resource == QUOTA_RESOURCE or resource.startswith(MIG_RESOURCE_PREFIX)


def pod_amounts(spec: PodSpec) -> Amounts:
    """What the pod holds on its node for its whole life, ``pods`` (1) included."""
    running: Amounts = {}
    for container in spec.containers:
        _add(running, _requests(container))
    starting: Amounts = {}
    sidecars: Amounts = {}
    for container in spec.init_containers:
        own = _requests(container)
        if container.restart_policy == "Always":
            _add(sidecars, own)
            own = {}
        peak = dict(sidecars)
        _add(peak, own)
        _raise_to(starting, peak)
    _add(running, sidecars)
    _raise_to(running, starting)
    if spec.resources is not None:
        running.update(amounts({**spec.resources.limits, **spec.resources.requests}))
    _add(running, amounts(spec.overhead))
    running["pods"] = 1
    return {name: value for name, value in running.items() if value}


def add(total: Amounts, more: Mapping[str, int], sign: int = 1) -> None:
    """Adds (or with ``sign`` -1 takes away) in place; zero entries vanish."""
    for name, value in more.items():
        left = total.get(name, 0) + sign * value
        if left:
            total[name] = left
        else:
            total.pop(name, None)


def text(resource: str, value: int) -> str:
    """An amount as a quantity."""
    return f"{value}m" if resource == "cpu" else str(value)


def _amount(resource: str, written: str) -> int:
    return milli(str(written)) if resource == "cpu" else whole(str(written))


def _requests(container: Container) -> Amounts:
    resources = container.resources
    if not resources.limits and not resources.requests:
        return {}
    return amounts({**resources.limits, **resources.requests})


def _add(total: Amounts, more: Amounts) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _raise_to(total: Amounts, floor: Amounts) -> None:
    for name, value in floor.items():
        total[name] = max(total.get(name, 0), value)
