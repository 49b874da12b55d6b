"""What pods request and nodes offer, as kube-scheduler counts it; and the rules by which nodes refuse a pod, as facts.

Positions of slices on demand are left out of the offers: their counts do not say how many slices are free, and only a
pod behind Tessera's gate gets one.

The rules come from :meth:`tessera.controller.slicing.planner.Planner.objections` for a pod that Tessera
places, and from ``scheduler_objections`` there for all others.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from tessera.api.names import MIG_RESOURCE_PREFIX, QUOTA_RESOURCE
from tessera.api.nodes.card_faults import read_withheld_holds, unblocking_steps
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, decode_offers
from tessera.api.resource_advice import DOMAIN, Offered
from tessera.controller.objects.resource_amounts import amount_text, describe_amount, pod_amounts
from tessera.explain.snapshot import ClusterView
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Node, Pod
from tessera.reasons.node_rules import NodeRule, RuleKind, remedy, rule_fact
from tessera.text import count_noun, list_names

#: Facts about devices that nobody gets.
_SHOWN = 4


def fixed_requests(pod: Pod) -> dict[str, int]:
    """NVIDIA's resources that a pod holds, init containers included; none if an amount is no number."""
    return {name: amount for name, amount in extended_requests(pod).items() if name.startswith(DOMAIN)}


def extended_requests(pod: Pod) -> dict[str, int]:
    """The resources of device plugins that a pod holds, of any vendor; none if an amount is no number."""
    try:
        held = pod_amounts(pod)
    except ValueError:
        return {}
    return {name: amount for name, amount in held.items() if "/" in name and name != QUOTA_RESOURCE}


def format_requests(asked: Mapping[str, int]) -> str:
    """A request as text: ``1 nvidia.com/gpu, 2 nvidia.com/mig-1g.5gb``."""
    return ", ".join(f"{count} {name}" for name, count in sorted(asked.items()))


def offers_on_demand(node: Node) -> Iterator[NodeOffer]:
    """The slices that a node makes on demand, by its agent's word."""
    try:
        offers = decode_offers(node.metadata.annotations.get(OFFERS_ANNOTATION, "[]"))
    except ValueError:
        return
    yield from (each for each in offers if each.kind is OfferKind.DYNAMIC_SLICE)


def dynamic_resources(node: Node) -> frozenset[str]:
    """Resources of a node that are positions of slices on demand."""
    return frozenset(each.resource for each in offers_on_demand(node))


def dynamic_by_node(view: ClusterView) -> Mapping[str, frozenset[str]]:
    """Resources that are positions of slices on demand, by node."""
    nodes = view.snapshot.nodes
    return view.once("dynamic", lambda: {each.metadata.name: dynamic_resources(each) for each in nodes})


def resources_on_demand(view: ClusterView) -> frozenset[str]:
    """Resources that some node makes on demand."""
    return view.once("on demand", lambda: frozenset().union(*dynamic_by_node(view).values()))


def offered_resources(view: ClusterView) -> Offered:
    """NVIDIA's resources that nodes offer or make on demand."""
    return Offered(frozenset(offered_totals(view)), resources_on_demand(view))


def resources_of(view: ClusterView, name: str) -> frozenset[str]:
    """NVIDIA's resources that a node offers or makes on demand."""
    node = view.node(name)
    if node is None:
        return frozenset()
    return dynamic_resources(node) | {
        each for each in node.status.allocatable if each.startswith(DOMAIN) and offered_count(node, each)
    }


def offered_count(node: Node, resource: str) -> int:
    """How many of a resource pods may hold on a node, slices on demand left aside."""
    return 0 if resource in dynamic_resources(node) else count_or_zero(node.status.allocatable.get(resource, "0"))


def offered_totals(view: ClusterView) -> Mapping[str, int]:
    """NVIDIA's resources that nodes offer, with the sums of their counts; slices on demand left aside."""

    def count() -> Counter[str]:
        totals: Counter[str] = Counter()
        for node in view.snapshot.nodes:
            dynamic = dynamic_by_node(view)[node.metadata.name]
            for name, amount in node.status.allocatable.items():
                if name.startswith(DOMAIN) and name not in dynamic and count_or_zero(amount):
                    totals[name] += count_or_zero(amount)
        return totals

    return view.once("offered totals", count)


def offer_facts(view: ClusterView) -> Iterator[str]:
    """What nodes offer, and what they make on demand, or that they offer nothing."""
    totals, demanded = offered_totals(view), resources_on_demand(view)
    if totals:
        yield f"nodes offer {list_names([f'{name} {n}' for name, n in sorted(totals.items())])}"
    if demanded:
        yield f"nodes make on demand {list_names(sorted(demanded))}"
    if not totals and not demanded:
        yield f"nodes offer nothing of {DOMAIN}*"


def explain_blocked_devices(view: ClusterView, asked: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Facts about free devices that kube-scheduler gives to no pod, and the steps that help.

    Steps are only for the nodes that would have enough for the request (:mod:`tessera.api.nodes.card_faults`).

    Args:
        view: the cluster as it was read, nodes and pods included.
        asked: the number of devices that a pod asks for, by resource.
    """
    facts: list[str] = []
    steps: list[str] = []
    for node in view.snapshot.nodes:
        for resource, hold in read_withheld_holds(node).items():
            free = hold.count_free(_used_by_node(view, resource)[hold.node]) if resource in asked else 0
            if hold.count_blocked(free) and len(facts) < _SHOWN:
                facts.append(hold.describe(free))
                steps += unblocking_steps(node) if free >= asked[resource] and not steps else ()
    return facts, steps


def describe_blocked_devices(view: ClusterView, node: Node) -> Iterator[str]:
    """Facts about a node's free devices that kube-scheduler gives to no pod."""
    for resource, hold in read_withheld_holds(node).items():
        if "pods" in view.snapshot.forbidden:
            yield hold.describe()
            continue
        free = hold.count_free(_used_by_node(view, resource)[hold.node])
        if hold.count_blocked(free):
            yield hold.describe(free)


def _used_by_node(view: ClusterView, resource: str) -> Counter[str]:
    """The number of devices that pods use, by node; pods that have ended use none."""
    return view.once(("used", resource), lambda: _count_used(view.snapshot.pods, resource))


def _count_used(pods: Iterable[Pod], resource: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for pod in pods:
        if pod.spec.node_name and pod.status.phase not in {"Succeeded", "Failed"}:
            found[pod.spec.node_name] += fixed_requests(pod).get(resource, 0)
    return found


def is_mig(resource: str) -> bool:
    """True for the name of a MIG device."""
    return resource.startswith(MIG_RESOURCE_PREFIX)


#: Rules that are told one by one: every node may have a taint of its own.
_RULES = 8
#: Returns what of a resource a node has free, or has at all if the second argument is True.
FreeAmount = Callable[[str, str, bool], int]


def remedy_for_rules(rules: Sequence[NodeRule], node: str, *, alone: bool = True) -> str:
    """The steps that lift rules on a node, as one line; a rule itself where no step is known.

    Args:
        rules: the rules.
        node: the node.
        alone: False if other steps follow in the same line.
    """
    taints = [rule.about for rule in rules if rule.kind is RuleKind.TAINT]
    steps = [*_lift_taints(taints, node), *(remedy(rule, node) for rule in rules if rule.kind is not RuleKind.TAINT)]
    if len(steps) == 1 and alone:
        return ": ".join(filter(None, steps[0]))
    return "; and ".join(f"{text} ({command})" if command else text for text, command in steps)


def _lift_taints(taints: Sequence[str], node: str) -> Iterator[tuple[str, str]]:
    if taints:
        keys = [each.partition(":")[0] for each in taints]
        names, them = (f"taint {keys[0]}", "it") if len(keys) == 1 else (f"taints {' and '.join(keys)}", "them")
        removed = " ".join(f"{key}-" for key in keys)
        yield f"let the pod tolerate the {names}, or remove {them}", f"kubectl taint node {node} {removed}"


def remedies_by_node(objections: Mapping[str, Sequence[NodeRule]], most: int) -> Iterator[str]:
    """One line for each of the nodes with the fewest rules, with all of the steps; equal lines of rules appear once."""
    shown: set[tuple[NodeRule, ...]] = set()
    for name, rules in sorted(objections.items(), key=lambda item: (len(item[1]), item[0])):
        if tuple(rules) not in shown and len(shown) < most:
            shown.add(tuple(rules))
            yield remedy_for_rules(rules, name)


def nodes_by_rule(objections: Mapping[str, Sequence[NodeRule]]) -> dict[NodeRule, list[str]]:
    """The nodes by the rules that refuse the pod there, the most frequent rule first."""
    found: dict[NodeRule, list[str]] = {}
    for name, rules in sorted(objections.items()):
        for rule in rules:
            found.setdefault(rule, []).append(name)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def refusal_facts(
    refused: Mapping[NodeRule, Sequence[str]], wanted: Mapping[str, int], amount: FreeAmount
) -> Iterator[str]:
    """Yields a fact for each rule, with the amounts that the nodes have.

    Args:
        refused: the nodes by rule.
        wanted: the amounts that the pod requests.
        amount: returns what a node has free or at all.
    """
    for rule, names in islice(refused.items(), _RULES):
        nodes, resource = count_noun(len(names), "node"), rule.about
        if rule.kind is RuleKind.TOO_SMALL:
            sizes = list_names([f"{name} has {amount_text(resource, amount(name, resource, True))}" for name in names])
            asks = describe_amount(resource, wanted[resource])
            yield f"{nodes} too small, even when empty: it requests {asks}; {sizes}"
        elif rule.kind is RuleKind.INSUFFICIENT:
            free = [f"{name} has {amount_text(resource, amount(name, resource, False))} free" for name in names]
            asks = amount_text(resource, wanted[resource])
            yield f"{nodes} with too little {resource}: it requests {asks}; {list_names(free)}"
        else:
            yield rule_fact(rule, names)
    if len(refused) > _RULES:
        yield f"and {count_noun(len(refused) - _RULES, 'rarer rule')}"
