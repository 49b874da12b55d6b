"""Finds requests that no node could hold, even if it were empty.

All slices of a pod are on one node. The cards of the nodes are known from their Instaslice objects, so the exact
packing test answers with certainty; ``50 x mig-1g.5gb``, or a 7g and a 1g beside each other on nodes of one card, would
wait for ever. Rules:

- The nodes that the pod's author selects decide, and the groups that an autoscaler can make (ConfigMap
  ``tessera-node-groups``) whose declared labels do not contradict the selection. If none of them has the profiles, all
  nodes and groups decide.
- While the cards of a node that is to be cut on demand are not known yet, nothing is certain. Nor while a new node may
  turn out to have GPUs (:mod:`tessera.api.nodes.undecided_nodes`).
- Without any such node or group nothing is certain either: the cluster may grow from zero. Nor is it if the webhook's
  option says that nodes with other cards may come.

The slices of init containers, sidecars and app containers are those that kubelet keeps for the pod
(:mod:`tessera.api.pods.slice_requests`). Kubernetes allows no extended resource in a pod's own ``spec.resources``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from tessera.offers.selection import Nodes
from tessera.placement.empty_nodes import Shape, count_slots, largest_part, memory_slots, none_could_hold
from tessera.placement.step_budget import StepBudget
from tessera.reasons.reason import NeverFits
from tessera.reasons.words import sentence
from tessera.text import count_noun, one_line
from tessera.webhook.nodes.capabilities import Capabilities, GroupNode

#: Most steps: trials that divide a new pod's slices among the cards of empty nodes, to refuse what none could hold. A
#: pod that fits takes as many as it has slices; beyond them the pod is admitted.
ADMISSION_STEPS = 2_000


def find_impossible(held: Sequence[str], capabilities: Capabilities, nodes: Nodes, groups: Sequence[GroupNode]) -> str:
    """Returns the reason that no node could hold a pod's slices; empty if one may.

    Args:
        held: the profiles of all slices that the pod keeps.
        capabilities: the GPU resources of the cluster.
        nodes: the nodes that the pod's author selects.
        groups: the groups of new nodes that the author may select.
    """
    restricted = nodes != capabilities.every or len(groups) < len(capabilities.groups)
    every = _groups_by_shape(capabilities.groups) | dict.fromkeys(capabilities.shapes, "")
    if capabilities.more_may_come or capabilities.unread or not every:
        return ""
    for profile in held:
        nodes &= capabilities.on_demand.get(profile, 0)
    selected = _groups_by_shape([each for each in groups if each.profiles.issuperset(held)])
    selected |= {shape: "" for shape, having in capabilities.shapes.items() if having & nodes}
    chosen = selected or every
    work = StepBudget(int(ADMISSION_STEPS))
    if not none_could_hold(chosen, held, work):
        return ""
    by_size = sorted(chosen, key=count_slots, reverse=True)
    parts = [(shape, largest_part(shape, held, work)) for shape in by_size[:_COMPARED]]
    best, part = max(parts, key=lambda found: (memory_slots(*found), -count_slots(found[0])))
    node = f"a new node of group {chosen[best]}, with" if chosen[best] else "a node with"
    known = bool(part) or not work.is_spent
    reason = NeverFits(
        tuple(held),
        largest=f"{node} {_describe(best)}{',' if chosen[best] else ''}" if known else "",
        holds=tuple(part),
        selected=bool(selected) and restricted,
    )
    return f"spec.containers: {sentence(reason)}"


def _groups_by_shape(groups: Iterable[GroupNode]) -> dict[Shape, str]:
    """Returns the names of the groups whose nodes offer slices, by the shape of a node."""
    return {each.shape: each.group for each in groups if each.shape}


#: Kinds of nodes that the text of a refusal compares.
_COMPARED = 4


def _describe(shape: Shape) -> str:
    cards = Counter(table.geometry.family for table in shape)
    return " and ".join(f"{count_noun(count, 'card')} {one_line(family)}" for family, count in sorted(cards.items()))
