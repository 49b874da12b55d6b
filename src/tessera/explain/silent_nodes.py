"""Names the silent nodes to a waiting pod without room, before all else: nobody knows if it would have room there.

A node counts if it offered what the pod asks for, by its agent's last word, and if the pod's selector, affinity and
tolerations admit it. A node of which no agent ever said anything counts too.
"""

from collections.abc import Iterator, Mapping

from tessera.api.names import NodeName
from tessera.api.nodes.offers import OFFERS_ANNOTATION, OfferKind, decode_offers
from tessera.api.nodes.silence import Silence, SilentNode
from tessera.controller.objects.pod_constraints import constraints_of
from tessera.controller.objects.pod_info import PodInfo
from tessera.explain.explanation import Explanation
from tessera.explain.offered_resources import fixed_requests
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Node, Pod
from tessera.text import list_names

#: Cases of a pod that lacks room, or a node, among those that answer.
NO_ROOM = frozenset(
    {
        "full",
        "fragmented",
        "never-fits",
        "no-node",
        "node-full",
        "node-not-ready",
        "volume",
        "card-held-back",
        "no-card-reported",
        "no-such-profile",
        "not-offered",
        "too-many",
        "in-use",
        "gang-no-room",
        "own-rollout",
        "hand-over",
    }
)
#: The kinds of silence that only the agent ends; that a node is not ready, placement says itself.
_OF_AGENTS = (Silence.NO_AGENT, Silence.NEVER_RAN, Silence.AGENT_NOT_READY)
#: Nodes that are told one by one.
_NODES = 5


def put_silent_nodes_first(view: ClusterView, found: Explanation, pod: Pod, facts: PodInfo) -> Explanation:
    """The explanation of a pod without room, with the silent nodes that might have some before everything else.

    The steps that follow from a lack of room are left out: a pod need not request less while cards are silent.
    """
    if found.case not in NO_ROOM:
        return found
    silent = view.for_kind(facts, "silent nodes", lambda: list(_candidates(view, pod)))
    if not silent:
        return found
    now = view.snapshot.now
    names = list_names([each.node for each in silent])
    who = f"the agent of {names} does not" if len(silent) == 1 else f"the agents of {names} do not"
    return Explanation(
        case="agent-silent",
        verdict=f"waits; {who} answer, so nobody knows the cards there, and nothing can be placed there",
        facts=(
            *(f"{each.node}: {each.text(now)}" for each in silent[:_NODES]),
            f"on the other nodes it {found.verdict}",
            *found.facts,
        ),
        help=tuple(
            step
            for each in silent[:_NODES]
            for step in (f"see it: tessera why node/{each.node}", *([each.next] if each.next else []))
        ),
    )


def _candidates(view: ClusterView, pod: Pod) -> Iterator[SilentNode]:
    asked = fixed_requests(pod)
    if not any(each.kind in _OF_AGENTS for each in view.silent.values()):
        return
    nodes = {each.metadata.name: each for each in view.snapshot.nodes}
    for each in view.silent.values():
        node = nodes.get(each.node)
        if node is not None and each.kind in _OF_AGENTS and _has_offered(node, asked) and _is_admitted(view, node, pod):
            yield each


def _has_offered(node: Node, asked: Mapping[str, int]) -> bool:
    text = node.metadata.annotations.get(OFFERS_ANNOTATION)
    if text is None:
        return True
    try:
        offers = decode_offers(text)
    except ValueError:
        return True
    most: dict[str, float] = {}
    for each in offers:
        count = float("inf") if each.kind is OfferKind.DYNAMIC_SLICE else each.count
        most[each.resource] = most.get(each.resource, 0) + count
    return all(most.get(name, 0) >= count for name, count in asked.items())


def _is_admitted(view: ClusterView, node: Node, pod: Pod) -> bool:
    if view.slicer is None:
        return True
    index, constraints = view.slicer.state.cluster.index, constraints_of(pod)
    admitted = index.selected_nodes(constraints) & index.tolerated_nodes(constraints)
    return bool(admitted & index.mask_of(NodeName(node.metadata.name)))
