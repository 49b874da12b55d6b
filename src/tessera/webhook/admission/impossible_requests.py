"""Finds requests that no node could hold, even if it were empty.

All slices of a pod are on one node. The cards of the nodes are known from their Instaslice objects, so the exact
packing test answers with certainty; ``50 x mig-1g.5gb``, or a 7g and a 1g beside each other on nodes of one card, would
wait for ever. Rules:

- The nodes that the pod's author selects decide; if none of them has the profiles, all nodes do.
- While the cards of a node that is to be cut on demand are not known yet, nothing is certain. Nor while a new node may
  turn out to have GPUs (:mod:`tessera.webhook.nodes.new_nodes`).
- Nodes of the groups that an autoscaler can make (ConfigMap ``tessera-node-groups``) count like present ones.
- Without any such node nothing is certain either: the cluster may grow from zero. Nor is it if the webhook's option
  says that nodes with other cards may come.

The slices of init containers, sidecars and app containers are those that kubelet keeps for the pod
(:mod:`tessera.api.pods.slice_requests`). Kubernetes allows no extended resource in a pod's own ``spec.resources``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from tessera.api.names import MIG_RESOURCE_PREFIX
from tessera.limits.planning import ADMISSION_STEPS
from tessera.offers.selection import Nodes
from tessera.placement.empty_nodes import Shape, count_slots, largest_part, memory_slots, none_could_hold
from tessera.placement.step_budget import StepBudget
from tessera.text import count_noun, one_line
from tessera.webhook.nodes.capabilities import Capabilities


def find_impossible(held: Sequence[str], capabilities: Capabilities, nodes: Nodes) -> str:
    """Returns the reason that no node could hold a pod's slices; empty if one may.

    Args:
        held: the profiles of all slices that the pod keeps.
        capabilities: the GPU resources of the cluster.
        nodes: the nodes that the pod's author selects.
    """
    known = {*capabilities.shapes, *capabilities.group_shapes}
    if capabilities.more_may_come or capabilities.unread or not known:
        return ""
    every = nodes == capabilities.every
    for profile in held:
        nodes &= capabilities.on_demand.get(profile, 0)
    selected = [shape for shape, having in capabilities.shapes.items() if having & nodes]
    shapes = [*selected, *capabilities.group_shapes] if selected else list(known)
    work = StepBudget(int(ADMISSION_STEPS))
    if not none_could_hold(shapes, held, work):
        return ""
    parts = [
        (shape, largest_part(shape, held, work)) for shape in sorted(shapes, key=count_slots, reverse=True)[:_COMPARED]
    ]
    best, part = max(parts, key=lambda found: (memory_slots(*found), -count_slots(found[0])))
    where = "no node that the pod selects" if selected and not every else "no node of the cluster"
    holds, step = f"holds {_join(part)}", "Ask for no more than that, or divide the work among pods"
    if not part:
        holds, step = "holds none of them", "Ask for profiles of the cards that nodes have"
    return (
        f"spec.containers ask for {_join(held)}; all slices of a pod are on one node, and {where} could hold them even "
        f"if it were empty: a node with {_describe(best)} {holds}. {step}"
    )


#: Kinds of nodes that the text of a refusal compares.
_COMPARED = 4


def _describe(shape: Shape) -> str:
    cards = Counter(table.geometry.family for table in shape)
    return " and ".join(f"{count_noun(count, 'card')} {one_line(family)}" for family, count in sorted(cards.items()))


def _join(profiles: Iterable[str]) -> str:
    counts = Counter(profiles)
    return " and ".join(f"{count} x {MIG_RESOURCE_PREFIX}{profile}" for profile, count in sorted(counts.items()))
