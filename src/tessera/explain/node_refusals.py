"""The rules by which nodes refuse a pod, as facts, and the steps that lift them.

The rules have the words of the scheduler's events. They come from
:meth:`tessera.controller.slicing.planning.planner.Planner.objections` for a pod that Tessera places, and from
``scheduler_objections`` there for all others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from tessera.controller.filters.resources import is_shortage, too_small_resource
from tessera.controller.objects.resource_amounts import amount_text, describe_amount
from tessera.text import count_noun, list_names

#: Rules that are told one by one: every node may have a taint of its own.
_RULES = 8
#: Returns what of a resource a node has free, or has at all if the second argument is True.
FreeAmount = Callable[[str, str, bool], int]

#: The step that lifts a rule, and its command, by the beginning of the rule's text
#: (:mod:`tessera.controller.filters.resources`).
_REMEDIES = (
    ("node(s) were unschedulable", "open the node again", "kubectl uncordon NODE"),
    ("node(s) were not ready", "see why the node is not ready", "kubectl describe node NODE"),
    (
        "node(s) had no agent",
        "see what keeps the node's agent",
        "kubectl get pods -n tessera-system --field-selector spec.nodeName=NODE",
    ),
    (
        "node(s) didn't match Pod's node affinity",
        "change the pod's nodeSelector or node affinity, or the node's labels",
        "kubectl get node NODE --show-labels",
    ),
    ("node(s) didn't match", "change this rule of the pod, or end the pods that it is about", ""),
    ("node(s) were too small", "request less of it, or add a larger node", ""),
    ("Insufficient", "request less of it, or end other pods on the node", "kubectl describe node NODE"),
    ("Too many pods", "end other pods on the node", ""),
)
_TAINT = "node(s) had untolerated taint {"


def remedy_for_rules(rules: Sequence[str], node: str, *, alone: bool = True) -> str:
    """The steps that lift rules on a node, as one line; a rule itself where no step is known.

    Args:
        rules: the rules.
        node: the node.
        alone: False if other steps follow in the same line.
    """
    steps = [*_lift_taints(rules, node), *(_lift(rule, node) for rule in rules if not rule.startswith(_TAINT))]
    if len(steps) == 1 and alone:
        return ": ".join(filter(None, steps[0]))
    return "; and ".join(f"{text} ({command})" if command else text for text, command in steps)


def _lift_taints(rules: Sequence[str], node: str) -> Iterator[tuple[str, str]]:
    taints = [rule.removeprefix(_TAINT).removesuffix("}") for rule in rules if rule.startswith(_TAINT)]
    if taints:
        keys = [each.partition(":")[0] for each in taints]
        names, them = (f"taint {keys[0]}", "it") if len(keys) == 1 else (f"taints {' and '.join(keys)}", "them")
        removed = " ".join(f"{key}-" for key in keys)
        yield f"let the pod tolerate the {names}, or remove {them}", f"kubectl taint node {node} {removed}"


def _lift(rule: str, node: str) -> tuple[str, str]:
    for beginning, text, command in _REMEDIES:
        if rule.startswith(beginning):
            return text, command.replace("NODE", node)
    return f"on node {node}: {rule.removeprefix('node(s) ')}", ""


def remedies_by_node(objections: Mapping[str, Sequence[str]], most: int) -> Iterator[str]:
    """One line for each of the nodes with the fewest rules, with all of the steps; equal lines of rules appear once."""
    shown: set[tuple[str, ...]] = set()
    for name, rules in sorted(objections.items(), key=lambda item: (len(item[1]), item[0])):
        if tuple(rules) not in shown and len(shown) < most:
            shown.add(tuple(rules))
            yield remedy_for_rules(rules, name)


def nodes_by_rule(objections: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The nodes by the rules that refuse the pod there, the most frequent rule first."""
    found: dict[str, list[str]] = {}
    for name, rules in sorted(objections.items()):
        for rule in rules:
            found.setdefault(rule, []).append(name)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def refusal_facts(refused: Mapping[str, Sequence[str]], wanted: Mapping[str, int], amount: FreeAmount) -> Iterator[str]:
    """Yields a fact for each rule, with the amounts that the nodes have.

    Args:
        refused: the nodes by rule.
        wanted: the amounts that the pod requests.
        amount: returns what a node has free or at all.
    """
    for rule, names in islice(refused.items(), _RULES):
        nodes = count_noun(len(names), "node")
        small, resource = too_small_resource(rule), rule.removeprefix("Insufficient ")
        if small is not None:
            sizes = list_names([f"{name} has {amount_text(small, amount(name, small, True))}" for name in names])
            yield f"{nodes} too small, even when empty: it requests {describe_amount(small, wanted[small])}; {sizes}"
        elif is_shortage(rule) and resource != rule:
            free = list_names(
                [f"{name} has {amount_text(resource, amount(name, resource, False))} free" for name in names]
            )
            yield f"{nodes} with too little {resource}: it requests {amount_text(resource, wanted[resource])}; {free}"
        elif rule.startswith("node(s)"):
            text = rule.removeprefix("node(s)")
            yield f"{nodes}{text.replace(' were ', ' was ', 1) if len(names) == 1 else text}: {list_names(names)}"
        else:
            yield f"{nodes}: {rule}: {list_names(names)}"
    if len(refused) > _RULES:
        yield f"and {count_noun(len(refused) - _RULES, 'rarer rule')}"
