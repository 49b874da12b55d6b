"""Resource amounts as integers: those that a pod holds, those of a node, and the sums by node.

CPU counts in thousandths, everything else in its own unit, rounded up. A pod's sum is the scheduler's
(``k8s.io/component-helpers/resource``): app containers run beside the sidecars, an ordinary init container runs beside
the sidecars started before it, and the larger of the two counts, plus overhead.

MIG resources and the memory quota are counted like all others. Placement decides where slices fit, but the scheduler
admits a pod only to a node with enough devices and enough of the quota that no other pod requests.
"""

from collections.abc import Mapping

from tessera.api.names import GPU_RESOURCES, MIG_RESOURCE_PREFIX, QUOTA_RESOURCE, NodeName, PodUid
from tessera.kube.quantity import integer_value, milli_value
from tessera.kube.resources import Container, PodSpec

Amounts = dict[str, int]


def parse_amounts(quantities: Mapping[str, str]) -> Amounts:
    """Returns a resource list in integer units.

    Raises:
        ValueError: a text is no quantity.
    """
    return {name: _amount(name, text) for name, text in quantities.items()}


def offered_by_agent(resource: str) -> bool:
    """True if a node gets this resource from its agent."""
    return resource == QUOTA_RESOURCE or resource.startswith(MIG_RESOURCE_PREFIX)


def freed_with_cards(resource: str) -> bool:
    """True if pods that end give back this resource together with slots of cards."""
    return resource in GPU_RESOURCES or offered_by_agent(resource)


def pod_amounts(spec: PodSpec) -> Amounts:
    """Returns the amounts that the pod holds on its node for its whole life, ``pods`` (1) included."""
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
        running.update(parse_amounts({**spec.resources.limits, **spec.resources.requests}))
    _add(running, parse_amounts(spec.overhead))
    running["pods"] = 1
    return {name: value for name, value in running.items() if value}


def add_amounts(total: Amounts, more: Mapping[str, int], sign: int = 1) -> None:
    """Adds in place (subtracts with ``sign`` -1); entries that become zero are removed."""
    for name, value in more.items():
        left = total.get(name, 0) + sign * value
        if left:
            total[name] = left
        else:
            total.pop(name, None)


def format_amount(resource: str, value: int) -> str:
    """Formats an amount as a quantity."""
    return f"{value}m" if resource == "cpu" else str(value)


def _amount(resource: str, written: str) -> int:
    return milli_value(str(written)) if resource == "cpu" else integer_value(str(written))


def _requests(container: Container) -> Amounts:
    resources = container.resources
    if not resources.limits and not resources.requests:
        return {}
    return parse_amounts({**resources.limits, **resources.requests})


def _add(total: Amounts, more: Amounts) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _raise_to(total: Amounts, floor: Amounts) -> None:
    for name, value in floor.items():
        total[name] = max(total.get(name, 0), value)


class NodeUsage:
    """The amounts that pods hold on each node, as sums.

    Attributes:
        used: the amounts that pods hold on each node; nodes with nothing held are left out.
    """

    def __init__(self) -> None:
        self.used: dict[NodeName, Amounts] = {}
        #: By pod, the node and the amounts that are counted for it in ``used``.
        self._of: dict[PodUid, tuple[NodeName, Amounts]] = {}

    def assign(self, uid: PodUid, node: NodeName | None, amounts: Amounts) -> NodeName | None:
        """Counts a pod on this node and no other; on none if None.

        Returns:
            The node whose sums may have become smaller; None if there is none.
        """
        new = (node, amounts) if node else None
        old = self._of.get(uid)
        if new == old:
            return None
        if old is not None:
            del self._of[uid]
            self._add(*old, sign=-1)
        if new is not None:
            self._of[uid] = new
            self._add(*new, sign=1)
        return old[0] if old is not None else None

    def _add(self, node: NodeName, amounts: Amounts, *, sign: int) -> None:
        total = self.used.setdefault(node, {})
        add_amounts(total, amounts, sign=sign)
        if not total:
            del self.used[node]
