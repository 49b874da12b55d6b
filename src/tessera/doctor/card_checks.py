"""Checks of what the agents say of their nodes' cards: configuration, preflights, withheld cards that pods hold."""

from collections.abc import Iterable, Iterator, Sequence

from tessera.api.nodes.card_faults import read_withheld_holds, unblocking_steps
from tessera.api.nodes.node_marks import AGENT_CONDITIONS, DRIVER_CONDITION, is_marked_silent
from tessera.api.nodes.preflights import decode_tests, describe_test
from tessera.doctor.facts import Finding, Refusal, not_examined, ok, warning
from tessera.kube.resources import Node
from tessera.text import count_noun, one_line

#: Nodes, or cards, that a finding tells of one by one.
_NAMED = 5
_CHECKS = ("node-conditions", "preflight", "withheld-cards")


def check_cards(nodes: Sequence[Node] | Refusal) -> Iterator[Finding]:
    """Yields the findings of all checks of this module."""
    if isinstance(nodes, Refusal):
        yield from (not_examined(check, nodes, needs="list nodes") for check in _CHECKS)
        return
    yield _conditions(nodes)
    yield _preflights(nodes)
    yield _withheld(nodes)


def _conditions(nodes: Sequence[Node]) -> Finding:
    """What is said of the nodes: another driver than the wanted one, a layout that does not fit, a missing profile."""
    wrong: dict[str, str] = {}
    for each in nodes:
        said = [one for one in each.status.conditions if one.status == "False" or is_marked_silent(one)]
        bad = [
            f"{one.type}: {one.reason}"
            for one in said
            if one.type in AGENT_CONDITIONS or (one.type == DRIVER_CONDITION and _wants_driver(each))
        ]
        if bad:
            wrong[each.metadata.name] = f"{each.metadata.name} {', '.join(bad)}"
    if wrong:
        advice = f"tessera why node/{next(iter(wrong))}"
        return warning("node-conditions", f"not as wanted: {_list(list(wrong.values()))}", advice, _objects(wrong))
    return ok("node-conditions", "drivers, layouts and profiles of all nodes are as wanted")


def _wants_driver(node: Node) -> bool:
    from tessera.driver.node_facts import opt_out_reason  # few nodes have a driver that is not as wanted

    return not opt_out_reason(node.metadata.labels)


def _preflights(nodes: Sequence[Node]) -> Finding:
    """The last preflight of each card: what failed, or tested nothing, and that the others passed."""
    tests = [(node.metadata.name, test) for node in nodes for test in decode_tests(node.metadata.annotations)]
    bad = {f"{name}/{test.index}": test for name, test in tests if test.finding or test.skipped}
    if bad:
        text = _list([f"card {card}: {describe_test(test)}" for card, test in bad.items()])
        named = dict.fromkeys(card.rpartition("/")[0] for card in bad)
        return warning("preflight", text, f"tessera health {next(iter(named))}", _objects(named))
    if not tests:
        return ok("preflight", "no card had a preflight")
    return ok("preflight", f"{count_noun(len(tests), 'card')} passed the last preflight")


def _withheld(nodes: Sequence[Node]) -> Finding:
    """Withheld cards that pods hold: each keeps a good one empty."""
    found = {node.metadata.name: (node, holds) for node in nodes if (holds := read_withheld_holds(node))}
    if not found:
        return ok("withheld-cards", "no pod on a withheld card keeps a good one empty")
    text = _list([hold.describe() for _, holds in found.values() for hold in holds.values()])
    first = next(iter(found.values()))[0]
    return warning("withheld-cards", text, "; ".join(unblocking_steps(first)), _objects(found))


def _list(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return f"{one_line('; '.join(texts[:_NAMED]), 500)}{more}"


def _objects(nodes: Iterable[str]) -> list[str]:
    return [f"node/{each}" for each in nodes]
