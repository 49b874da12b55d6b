"""The rules by which nodes refuse a pod, as facts, and the steps that lift them.

The rules come from
:meth:`tessera.controller.slicing.planner.Planner.objections` for a pod that Tessera places, and from
``scheduler_objections`` there for all others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from tessera.controller.objects.resource_amounts import amount_text, describe_amount
from tessera.reasons.node_rules import NodeRule, RuleKind, remedy, rule_fact
from tessera.text import count_noun, list_names

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
