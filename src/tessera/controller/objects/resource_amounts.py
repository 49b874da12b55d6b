"""Resource amounts as integers: those that a pod holds, those of a node, and the sums by node.

CPU counts in thousandths, everything else in its own unit, rounded up. A pod's sum is the scheduler's
(``k8s.io/component-helpers/resource``): app containers run beside the sidecars, an ordinary init container runs beside
the sidecars started before it, and the larger of the two counts, plus overhead.

CPU and memory can be resized in place. Kubelet reports what it has allocated and what is in force. The largest of these
and of what the pod asks for counts, unless the node can never do the resize: then what the pod asks for does not.

MIG resources and the memory quota are counted like all others. Placement decides where slices fit, but the scheduler
admits a pod only to a node with enough devices and enough of the quota that no other pod requests.
"""

from collections.abc import Callable, Mapping

from tessera.api.names import GPU_RESOURCES, MIG_RESOURCE_PREFIX, QUOTA_RESOURCE, NodeName, PodUid
from tessera.kube.quantity import integer_value, milli_value
from tessera.kube.resources import Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements

Amounts = dict[str, int]

#: Resources that kubelet can resize in place (KEP-1287).
RESIZABLE = frozenset({"cpu", "memory"})


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


def pod_amounts(pod: Pod) -> Amounts:
    """Returns the amounts that the scheduler counts for a pod, ``pods`` (1) included.

    They are the same for its whole life, unless it is resized.
    """
    return _total(pod, resized=not _is_infeasible(pod.status))


def allocated_amounts(pod: Pod) -> Amounts:
    """Returns the amounts that a pod has on its node: those of the scheduler without a resize that waits or failed."""
    return _total(pod, resized=False)


def pod_limits(pod: Pod) -> Amounts:
    """Returns a pod's limits as a ResourceQuota counts them: overhead belongs to those that it has."""
    spec = pod.spec
    total = _sum(spec, lambda container: parse_amounts(container.resources.limits))
    if spec.resources is not None:
        total.update(parse_amounts(spec.resources.limits))
    for name, value in parse_amounts(spec.overhead).items():
        if total.get(name):
            total[name] += value
    return total


def _is_infeasible(status: PodStatus) -> bool:
    return any((each.type, each.reason) == ("PodResizePending", "Infeasible") for each in status.conditions)


def _total(pod: Pod, *, resized: bool) -> Amounts:
    """Returns the sum of what the pod has and, if it is to be resized, asks for."""
    spec, states = pod.spec, {each.name: each for each in pod.status.containers}

    def requests(container: Container) -> Amounts:
        asked = _requests(container.resources)
        state = states.get(container.name)
        return asked if state is None else _held(asked, state, resized=resized)

    total = _sum(spec, requests)
    if spec.resources is not None:
        total.update(_held(_requests(spec.resources), pod.status, resized=resized, less=spec.overhead))
    _add(total, parse_amounts(spec.overhead))
    total["pods"] = 1
    return {name: value for name, value in total.items() if value}


def _held(
    asked: Amounts, state: ContainerStatus | PodStatus, *, resized: bool, less: Mapping[str, str] | None = None
) -> Amounts:
    """Returns the requests of a container or a pod, with CPU and memory as kubelet reports them.

    Args:
        asked: what its spec requests.
        state: its state.
        resized: what is requested counts too.
        less: quantities that the reported ones include.
    """
    reported = [state.allocated_resources, state.resources.requests if state.resources is not None else None]
    present = [each for each in reported if each is not None]
    if not present:
        return asked
    found = dict(asked)
    for name in RESIZABLE & asked.keys():
        texts = [text for each in present if (text := getattr(each, name))]
        without = _amount(name, less[name]) if less and name in less else 0
        found[name] = max(0, *(_amount(name, text) - without for text in texts), asked[name] if resized else 0)
    return found


def _sum(spec: PodSpec, requests: Callable[[Container], Amounts]) -> Amounts:
    running: Amounts = {}
    for container in spec.containers:
        _add(running, requests(container))
    starting: Amounts = {}
    sidecars: Amounts = {}
    for container in spec.init_containers:
        own = requests(container)
        if container.restart_policy == "Always":
            _add(sidecars, own)
            own = {}
        peak = dict(sidecars)
        _add(peak, own)
        _raise_to(starting, peak)
    _add(running, sidecars)
    _raise_to(running, starting)
    return running


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


def amount_text(resource: str, value: int) -> str:
    """Formats an amount for people in the usual unit: cores for CPU, Gi for memory and huge pages, else a number."""
    if resource == "cpu":
        return f"{value / 1000:g}"
    in_bytes = resource in {"memory", "ephemeral-storage"} or resource.startswith("hugepages-")
    return f"{value / 2**30:.4g}Gi" if in_bytes else str(value)


def describe_amount(resource: str, value: int) -> str:
    """Formats an amount with its resource: ``400 CPUs``, ``64Gi of memory``, ``2 example.com/nic``."""
    unit = {"cpu": "CPU" if value == 1000 else "CPUs", "memory": "of memory"}.get(resource, resource)
    return f"{amount_text(resource, value)} {unit}"


def _amount(resource: str, written: str) -> int:
    return milli_value(str(written)) if resource == "cpu" else integer_value(str(written))


def _requests(resources: ResourceRequirements) -> Amounts:
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
