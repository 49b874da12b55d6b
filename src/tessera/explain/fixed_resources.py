"""Explains pods that ask for whole cards, shares of cards, or MIG slices of a fixed layout.

Tessera does not hold such a pod, or has pinned it already: kube-scheduler compares its request with the counts that
nodes publish. The explanation makes the same comparison, resource by resource, and names nodes that would offer more if
they were as configured.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tessera.api.names import SLICE_CONDITION
from tessera.api.nodes.conditions import CARD_CONDITIONS
from tessera.api.nodes.offers import OFFERS_ANNOTATION, OfferKind, decode_offers
from tessera.api.nodes.scheduler_sums import read_withheld_holds, unblocking_steps
from tessera.controller.objects.resource_amounts import pod_amounts
from tessera.explain.explanation import Explanation
from tessera.explain.snapshot import ClusterView
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources import Node, Pod
from tessera.text import count_noun, list_names

_DOMAIN = "nvidia.com/"
#: Kinds of objects that the comparison needs.
_NEEDED = frozenset({"nodes", "pods"})
#: Waiting reasons of a container that starts normally.
_NORMAL = frozenset({"", "ContainerCreating", "PodInitializing"})
_LABEL = (
    "let a node offer it: label the node with a layout (nvidia.com/mig.config) or a sharing profile "
    "(nvidia.com/device-plugin.config)"
)
#: Nodes that are listed one by one.
_NODES = 4


def fixed_requests(pod: Pod) -> dict[str, int]:
    """NVIDIA's resources that a pod holds, init containers included; none if an amount is no number."""
    try:
        held = pod_amounts(pod)
    except ValueError:
        return {}
    return {name: amount for name, amount in held.items() if name.startswith(_DOMAIN)}


def format_requests(asked: Mapping[str, int]) -> str:
    """A request as text: ``1 nvidia.com/gpu, 2 nvidia.com/mig-1g.5gb``."""
    return ", ".join(f"{count} {name}" for name, count in sorted(asked.items()))


def dynamic_resources(node: Node) -> frozenset[str]:
    """Resources of a node that are positions of slices on demand: their counts do not tell how many are free."""
    try:
        offers = decode_offers(node.metadata.annotations.get(OFFERS_ANNOTATION, "[]"))
    except ValueError:
        return frozenset()
    kinds = {each.resource: each.kind for each in offers}
    return frozenset(name for name, kind in kinds.items() if kind is OfferKind.DYNAMIC_SLICE)


def any_node_offers(view: ClusterView, asked: Mapping[str, int]) -> bool:
    """Returns True if a node offers one of these resources without making it on demand."""
    return any(_offered_count(node, resource) for node in view.snapshot.nodes for resource in asked)


def explain_fixed_request(view: ClusterView, pod: Pod, asked: Mapping[str, int]) -> Explanation:
    """Explains a pod that asks for no slices on demand.

    Args:
        view: the cluster as it was read.
        pod: the pod.
        asked: its :func:`fixed_requests`, not empty.
    """
    wants = f"it requests {format_requests(asked)}"
    if pod.status.phase == "Running":
        return Explanation(case="runs", verdict=f"runs on node {pod.spec.node_name}", facts=(wants,))
    if pod.spec.node_name:
        return _explain_starting(view, pod, wants)
    taken_back = pod.status.condition(SLICE_CONDITION)
    if taken_back is not None and taken_back.status == "False":
        return Explanation(
            case="taken-back",
            verdict="waits for a node that does not take it; Tessera gave its cards to the next pod",
            facts=(wants, taken_back.message, *scheduler_messages(pod)),
            help=(f"delete the pod and create it again: kubectl delete pod -n {_key(pod)}",),
        )
    for resource, count in sorted(asked.items()):
        short = _explain_shortage(view, pod, resource, count, wants)
        if short is not None:
            return short
    forbidden = sorted(view.snapshot.forbidden & _NEEDED)
    known = () if forbidden else tuple(_free_lines(view, asked))
    return Explanation(
        case="unscheduled",
        verdict=f"waits for kube-scheduler{'' if forbidden else ', though a node has enough free'}",
        facts=(
            wants,
            *scheduler_messages(pod),
            *known,
            *([f"you may not list {', '.join(forbidden)}"] if forbidden else []),
        ),
        help=("check what else prevents it: selectors, taints, CPU, memory", _DESCRIBE.format(pod=_key(pod))),
    )


_DESCRIBE = "kubectl describe pod -n {pod}"


def _key(pod: Pod) -> str:
    return f"{pod.metadata.namespace} {pod.metadata.name}"


def _explain_starting(view: ClusterView, pod: Pod, wants: str) -> Explanation:
    stuck = [each for each in waiting_containers(pod) if each]
    trouble = view.events_of(pod.metadata.uid, warnings=True)[-_NODES:]
    where = f"on node {pod.spec.node_name}"
    return Explanation(
        case="container-waits" if stuck else "starting",
        verdict=f"does not start {where}: {stuck[0]}" if stuck else f"is starting {where}",
        facts=(wants, *stuck[1:], *map(view.describe_event, trouble)),
        help=(_DESCRIBE.format(pod=_key(pod)),) if stuck or trouble else (),
    )


def waiting_containers(pod: Pod) -> Iterator[str]:
    """Yields the containers whose waiting reason does not pass by itself."""
    for each in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = each.state.waiting if each.state is not None else None
        if waiting is not None and waiting.reason not in _NORMAL:
            message = f": {waiting.message}" if waiting.message else ""
            yield f"container {each.name} waits with {waiting.reason}{message}"


# The counts of nodes


def _explain_shortage(view: ClusterView, pod: Pod, resource: str, count: int, wants: str) -> Explanation | None:
    """Explains the lack of a node with that many free; None if there is one, or if the user may not read enough."""
    if view.snapshot.forbidden & _NEEDED:
        return None
    given = {
        node.metadata.name: _offered_count(node, resource)
        for node in view.snapshot.nodes
        if _offered_count(node, resource)
    }
    if not given:
        return Explanation(
            case="not-offered",
            verdict=f"waits for {resource}, which no node offers",
            facts=(wants, *_offered_lines(view), *scheduler_messages(pod), *_faulty_nodes(view)),
            help=(
                *(("request a resource that nodes offer or make on demand",) if _offers_anything(view) else ()),
                _LABEL,
            ),
        )
    if max(given.values()) < count:
        return Explanation(
            case="too-many",
            verdict=f"waits for {count} {resource}, more than any node offers",
            facts=(
                wants,
                f"the most on one node is {max(given.values())}",
                *scheduler_messages(pod),
                *_faulty_nodes(view),
            ),
            help=(f"request at most {max(given.values())}",),
        )
    taken = _used_by_node(view, resource)
    if any(total - taken[name] >= count for name, total in given.items()):
        return None
    blocked, steps = explain_blocked_devices(view, {resource: count})
    return Explanation(
        case="in-use",
        verdict=f"waits for {resource}: {count_noun(len(given), 'node')} {'offers' if len(given) == 1 else 'offer'} it,"
        f" and {'free ones are counted for pods on withheld cards' if steps else 'too few are free'}",
        facts=(wants, *blocked, *_lines(given, taken, resource), *scheduler_messages(pod), *_faulty_nodes(view)),
        help=(
            *steps,
            "delete pods that use it",
            f"see them: kubectl get pods -A -o wide, those with a limit {resource}",
        ),
    )


def explain_blocked_devices(view: ClusterView, asked: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Facts about free devices that kube-scheduler gives to no pod, and the steps that help.

    Steps are only for the nodes that would have enough for the request (:mod:`tessera.api.nodes.scheduler_sums`).

    Args:
        view: the cluster as it was read, nodes and pods included.
        asked: the number of devices that a pod asks for, by resource.
    """
    facts: list[str] = []
    steps: list[str] = []
    for node in view.snapshot.nodes:
        for resource, hold in read_withheld_holds(node).items():
            free = hold.count_free(_used_by_node(view, resource)[hold.node]) if resource in asked else 0
            if hold.count_blocked(free) and len(facts) < _NODES:
                facts.append(hold.describe(free))
                steps += unblocking_steps(node) if free >= asked[resource] and not steps else ()
    return facts, steps


def _free_lines(view: ClusterView, asked: Mapping[str, int]) -> Iterator[str]:
    for resource in sorted(asked):
        given = {
            node.metadata.name: _offered_count(node, resource)
            for node in view.snapshot.nodes
            if _offered_count(node, resource)
        }
        yield from _lines(given, _used_by_node(view, resource), resource)


def _lines(given: Mapping[str, int], taken: Mapping[str, int], resource: str) -> Iterator[str]:
    for name, total in sorted(given.items())[:_NODES]:
        yield f"node {name}: {min(total, taken.get(name, 0))} of {total} {resource} in use"
    if len(given) > _NODES:
        yield f"and {count_noun(len(given) - _NODES, 'more node')}"


def _offered_count(node: Node, resource: str) -> int:
    return 0 if resource in dynamic_resources(node) else _count(node.status.allocatable.get(resource, "0"))


def _used_by_node(view: ClusterView, resource: str) -> Counter[str]:
    """The number of devices that pods use, by node; pods that have ended use none."""
    return view.once(("used", resource), lambda: _count_used(view.snapshot.pods, resource))


def _count_used(pods: Iterable[Pod], resource: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for pod in pods:
        if pod.spec.node_name and pod.status.phase not in {"Succeeded", "Failed"}:
            found[pod.spec.node_name] += fixed_requests(pod).get(resource, 0)
    return found


def _offered_lines(view: ClusterView) -> Iterator[str]:
    totals: Counter[str] = Counter()
    for node in view.snapshot.nodes:
        for name in node.status.allocatable:
            if name.startswith(_DOMAIN) and _offered_count(node, name):
                totals[name] += _offered_count(node, name)
    if totals:
        yield f"nodes offer {list_names([f'{name} {n}' for name, n in sorted(totals.items())])}"
    demanded = _on_demand(view)
    if demanded:
        yield f"nodes make on demand {list_names(sorted(demanded))}"
    if not totals and not demanded:
        yield f"nodes offer nothing of {_DOMAIN}*"


def _on_demand(view: ClusterView) -> frozenset[str]:
    return frozenset().union(*(dynamic_resources(node) for node in view.snapshot.nodes))


def _offers_anything(view: ClusterView) -> bool:
    given = (
        _offered_count(node, name)
        for node in view.snapshot.nodes
        for name in node.status.allocatable
        if name.startswith(_DOMAIN)
    )
    return any(given) or bool(_on_demand(view))


def _faulty_nodes(view: ClusterView) -> Iterator[str]:
    """Nodes whose cards are not as configured; they may offer more later."""
    for node in view.snapshot.nodes:
        wrong = [
            each.reason for each in node.status.conditions if each.type in CARD_CONDITIONS and each.status == "False"
        ]
        if wrong:
            name = node.metadata.name
            yield f"node {name} is not as configured ({', '.join(wrong)}): tessera why node/{name}"
    yield from view.cordoned_cards()


def scheduler_messages(pod: Pod) -> Iterator[str]:
    """Yields the scheduler's reason that a pod has no node."""
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == "False" and each.message:
            yield f"kube-scheduler says: {each.message}"


def _count(text: str) -> int:
    try:
        return int(parse_quantity(text))
    except ValueError:
        return 0
