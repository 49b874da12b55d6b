"""Everything that keeps a pod from a node besides room on the node's cards: what people have to change, all of it.

Planning asks for the first rule that refuses, which is enough to pass a node over. A person who removes that one and
meets the next was told too little. So every rule is asked here.
"""

from collections.abc import Iterator, Sequence

from tessera.controller.filters.node_filters import MISMATCH, closures, shortages
from tessera.controller.filters.resources import Judge
from tessera.controller.objects.node_constraints import selects
from tessera.controller.objects.node_info import NodeFacts
from tessera.controller.objects.pod_info import PodFacts
from tessera.controller.objects.resource_amounts import Amounts
from tessera.controller.slicing.allocation_table import Ledger
from tessera.controller.slicing.batch_placement import LEAVING


def objections(
    pod: PodFacts, node: NodeFacts, *, judges: Sequence[Judge], used: Amounts, ledger: Ledger
) -> tuple[str, ...]:
    """The rules by which a node refuses a pod, in the words of the scheduler's events.

    Args:
        pod: the pod.
        node: the node.
        judges: the rules about what stands on nodes.
        used: what is held on the node besides slices.
        ledger: existing promises.
    """
    return tuple(dict.fromkeys(_objections(pod, node, judges, used, ledger)))


def _objections(
    pod: PodFacts, node: NodeFacts, judges: Sequence[Judge], used: Amounts, ledger: Ledger
) -> Iterator[str]:
    yield from closures(pod.constraints, node)
    if not selects(pod.constraints, node.name, node.labels):
        yield MISMATCH
    yield from shortages(pod.amounts, used, node)  # a judge of amounts names the first only
    yield from filter(None, (judge.refusal(pod, node.name) for judge in judges if not judge.of_cards))
    if ledger.get(node.name, pod.uid) is not None:
        yield LEAVING.rule
