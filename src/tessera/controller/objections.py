"""Everything that keeps a pod from a node besides room on the node's cards: what people have to change, all of it.

Planning asks for the first rule that refuses (:mod:`tessera.controller.placing`), which is enough to pass a node over.
Somebody who removes that one and finds the next was told the wrong thing. So every rule is asked here.
"""

from collections.abc import Iterator, Sequence

from tessera.controller.amounts import Amounts
from tessera.controller.constraints import selects
from tessera.controller.eligibility import MISMATCH, closures, shortages
from tessera.controller.facts import NodeFacts, PodFacts
from tessera.controller.judges import Judge
from tessera.controller.ledger import Ledger
from tessera.controller.placing import LEAVING


def objections(
    pod: PodFacts, node: NodeFacts, *, judges: Sequence[Judge], used: Amounts, ledger: Ledger
) -> tuple[str, ...]:
    """The rules by which a node refuses a pod, in the words of :mod:`tessera.controller.eligibility` and the judges.

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
