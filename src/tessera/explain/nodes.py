"""One node, one answer: whether its cards are as administrators asked, and the first thing that keeps them from it.

The order is the node's way to usable cards while it is on it, node, driver, agent, health of the cards, MIG layout,
sharing profile, MPS: whatever comes earlier explains what comes later. It rests on what the controller and the agent
say on the Node object (conditions, labels, annotations), on the node's events and on the agent's pod, not on the cards
themselves; what a silent agent said last is marked as that.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tessera.agent.base.node_conditions import HEALTH, LAYOUT, MPS, SHARING
from tessera.api.driver.status import ADVERTISED_CONDITION as ADVERTISED
from tessera.api.driver.status import DRIVER_ANNOTATION, WAITING_FOR_KUBELET, DriverStatus, Phase
from tessera.api.gpu_labels import ACCELERATOR_LABELS, PRESENT_LABELS
from tessera.api.instaslice import OBJECT_CONDITION
from tessera.api.names import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL, is_on_demand
from tessera.api.node_offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, decode_offers
from tessera.api.sharing.profiles import PROFILE_LABEL
from tessera.driver.nodes.node_status import read_status
from tessera.explain.explanation import Explanation
from tessera.explain.fixed_resources import dynamic_resources
from tessera.explain.node_reasons import relevant_warnings, remedies_for, remedies_for_empty_node, remedy_fields
from tessera.explain.node_startup import describe_startup, explain_startup
from tessera.explain.snapshot import AGENT_LABEL, ClusterView
from tessera.kube.resources import Condition, Node
from tessera.phrasing import list_names

#: Labels that bring an agent to a node (``deploy/agent.yaml``); a value of None is any.
AGENT_NODE_LABELS: Mapping[str, str | None] = {
    MIG_CONFIG_LABEL: None,
    **dict.fromkeys(PRESENT_LABELS, "true"),
    **dict.fromkeys(ACCELERATOR_LABELS),
}
_DOMAIN = "nvidia.com/"
#: Events shown at most.
_EVENTS = 3


class _Aspect(NamedTuple):
    """Something that a condition of the node is about.

    Attributes:
        type: of the condition.
        wrong: how the verdict reads then.
        title: of its line among the facts.
    """

    type: str
    wrong: str
    title: str


_ASPECTS = (
    _Aspect(OBJECT_CONDITION, "gets no slices, its Instaslice object cannot be followed", "Instaslice object"),
    _Aspect(HEALTH, "has cards that are not given out", "health"),
    _Aspect(LAYOUT, "does not have the MIG layout that is asked for", "MIG layout"),
    _Aspect(SHARING, "is not shared as asked", "sharing"),
    _Aspect(MPS, "shares cards by MPS, which does not serve", "MPS"),
)


def explain_node(view: ClusterView, node: Node) -> Explanation:
    """How the cards of a node stand.

    Args:
        view: what was read: the node's events and, of the pods, at least the agent's on it.
        node: which.
    """
    return (
        explain_startup(view, node)
        or _down(view, node)
        or _without_driver(view, node)
        or _changing_driver(view, node)
        or _without_agent(view, node)
        or _as_told(view, node)
    )


# Before anything is said of cards


def _down(view: ClusterView, node: Node) -> Explanation | None:
    ready = _condition(node, "Ready")
    if ready is not None and ready.status == "True":
        return None
    said = "it has no Ready condition" if ready is None else ready.message or ready.reason or "kubelet is not ready"
    return Explanation(
        case="node-down",
        verdict="is not ready, so nothing on it can be said to be as asked",
        facts=(said, *_facts(view, node, "when last heard of, ")),
        help=(f"kubectl describe node {node.metadata.name}",),
    )


def _without_driver(view: ClusterView, node: Node) -> Explanation | None:
    """An agent that waits is not ready, and not the one to look at."""
    told = _condition(node, ADVERTISED)
    if told is None or told.status != "False":
        return None
    verdict = "gives no card to kubelet"
    if told.reason == WAITING_FOR_KUBELET:
        verdict = "has given its cards to kubelet, which does not count them yet"
    return Explanation(
        case=_words(told.reason),
        verdict=f"{verdict} ({told.reason})",
        facts=(f"driver: {told.message or told.reason}", *_facts(view, node, "when there was a driver last, ")),
        help=remedies_for(ADVERTISED, told.reason, remedy_fields(node, view.agent(node.metadata.name))),
    )


def _changing_driver(view: ClusterView, node: Node) -> Explanation | None:
    """Pods may still use the cards, and what is awaited may be one of them."""
    told = _driver(node)
    if told is None or told.phase is not Phase.UPGRADING:
        return None
    return Explanation(
        case="changing-driver",
        verdict="is being given another driver, and takes no new pods until it has it",
        facts=(f"driver: {told.reason}", *_facts(view, node)),
        help=(f"how far it is: tessera driver status {node.metadata.name} -v",),
    )


def _driver(node: Node) -> DriverStatus | None:
    return read_status(node.metadata.annotations.get(DRIVER_ANNOTATION, ""))


def _without_agent(view: ClusterView, node: Node) -> Explanation | None:
    fault = view.agent_fault(node.metadata.name)
    if not fault:
        return None
    if not _agent_comes(node) and not _told(node):
        return Explanation(
            case="no-agent",
            verdict="has no agent, and no label that says it has a GPU",
            facts=(f"an agent comes to nodes with one of {', '.join(map(_label_text, AGENT_NODE_LABELS.items()))}",),
            help=(f"if it has cards: kubectl label node {node.metadata.name} nvidia.com/gpu.present=true",),
        )
    label = "=".join(AGENT_LABEL)
    return Explanation(
        case="agent-down",
        verdict="has no agent that runs: nothing about its cards changes until one does",
        facts=(fault, *_facts(view, node, "as its agent said last, ")),
        help=(
            f"see it: kubectl get pods -n tessera-system -l {label} -o wide",
            f"its log: kubectl logs -n tessera-system -l {label} --prefix",
        ),
    )


def _agent_comes(node: Node) -> bool:
    labels = node.metadata.labels
    return any(name in labels and value in (None, labels[name]) for name, value in AGENT_NODE_LABELS.items())


def _label_text(label: tuple[str, str | None]) -> str:
    name, value = label
    return name if value is None else f"{name}={value}"


# What the agent says


def _as_told(view: ClusterView, node: Node) -> Explanation:
    told = _told(node)
    facts = tuple(_facts(view, node))
    blanks = remedy_fields(node, view.agent(node.metadata.name))
    for aspect in _ASPECTS:
        found = told.get(aspect.type)
        if found is not None and found.status == "False":
            return Explanation(
                case=_words(found.reason),
                verdict=f"{aspect.wrong} ({found.reason})",
                facts=_first(facts, aspect.title),
                help=remedies_for(found.type, found.reason, blanks),
            )
    for aspect in _ASPECTS:
        found = told.get(aspect.type)
        if found is not None and found.status != "True":
            return Explanation(
                case="changing",
                verdict=f"is being changed ({found.reason})",
                facts=_first(facts, aspect.title),
                help=remedies_for(found.type, found.reason, blanks),
            )
    if not told:
        return Explanation(
            case="untold",
            verdict="has an agent that has said nothing of its cards yet",
            facts=facts,
            help=("ask again in a moment; if nothing comes, read the log of the agent's pod",),
        )
    given = _given(node)
    if not given:
        return Explanation(
            case="nothing",
            verdict="is as asked, and offers nothing",
            facts=facts,
            help=remedies_for_empty_node(node.metadata.name),
        )
    return Explanation(case="as-asked", verdict=f"is as asked: {list_names(given)}", facts=facts)


def _words(reason: str) -> str:
    """``CardsInUse`` as ``cards-in-use``."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in reason).lstrip("-") or "unknown"


def _first(facts: Sequence[str], title: str) -> tuple[str, ...]:
    """The facts with the one in front that the verdict rests on."""
    return tuple(sorted(facts, key=lambda fact: not fact.startswith(f"{title}: ")))


def _told(node: Node) -> dict[str, Condition]:
    types = {aspect.type for aspect in _ASPECTS}
    return {each.type: each for each in node.status.conditions if each.type in types}


def _condition(node: Node, kind: str) -> Condition | None:
    return next((each for each in node.status.conditions if each.type == kind), None)


def _given(node: Node) -> list[str]:
    """What kubelet gives."""
    given = [f"{name} {count}" for name, count in _allocatable(node).items()]
    on_demand = is_on_demand(node.metadata.labels.get(MIG_CONFIG_LABEL, ""))
    return [*given, *(["slices on demand"] if on_demand else [])]


def _allocatable(node: Node) -> dict[str, str]:
    """What kubelet gives of our resources, without the positions that slices on demand may take."""
    dynamic = dynamic_resources(node)
    found = node.status.allocatable.items()
    return {name: n for name, n in sorted(found) if name.startswith(_DOMAIN) and name not in dynamic and n != "0"}


# Facts


def _facts(view: ClusterView, node: Node, since: str = "") -> Iterator[str]:
    told, driver = _told(node), _driver(node)
    if driver is not None and driver.leaving:
        yield f"driver: {driver.reason}"
    for aspect in _ASPECTS:
        if aspect.type in told:
            yield f"{aspect.title}: {since}{told[aspect.type].message or told[aspect.type].reason}"
    yield from _labels(node)
    yield from _offered(node)
    yield from describe_startup(node)
    if "pods" in view.snapshot.forbidden:
        yield "you may not list pods: whether an agent runs is not known"
    events = view.events_on("Node", node.metadata.name, warnings=True)
    yield from map(view.describe_event, list(relevant_warnings(events, told, view.snapshot.now))[-_EVENTS:])


def _labels(node: Node) -> Iterator[str]:
    labels = node.metadata.labels
    asked = [f"{name}={labels[name]}" for name in (PROFILE_LABEL, MIG_CONFIG_LABEL) if name in labels]
    state = labels.get(MIG_CONFIG_STATE_LABEL)
    yield f"labels that ask: {', '.join(asked) or 'none'}{f' (state {state})' if state else ''}"


def _offered(node: Node) -> Iterator[str]:
    offers, fault = _offers(node)
    if fault:
        yield fault
    for each in offers:
        yield f"offers {each.resource}: {_offer_text(each)}"
    for resource in sorted({each.resource for each in offers if each.kind is not OfferKind.DYNAMIC_SLICE}):
        count = sum(each.count for each in offers if each.resource == resource)
        given = node.status.allocatable.get(resource, "0")
        if given != str(count):
            yield f"kubelet gives {given} of the {count} {resource}; the others are unhealthy or not yet free"
    if not offers:
        counts = [f"{name} {count}" for name, count in _allocatable(node).items()]
        yield f"kubelet gives {', '.join(counts) or f'nothing of {_DOMAIN}*'}"


def _offers(node: Node) -> tuple[Sequence[NodeOffer], str]:
    text = node.metadata.annotations.get(OFFERS_ANNOTATION)
    try:
        return (decode_offers(text), "") if text else ((), "")
    except ValueError as error:
        return (), str(error)


def _offer_text(offer: NodeOffer) -> str:
    what = {
        OfferKind.WHOLE: offer.product,
        OfferKind.SHARE: f"shares of {offer.profile + ' of ' if offer.profile else ''}{offer.product}",
        OfferKind.SLICE: f"{offer.profile} of {offer.product}",
        OfferKind.DYNAMIC_SLICE: f"{offer.profile} of {offer.product}, made on demand",
    }[offer.kind]
    most = "at most " if offer.kind is OfferKind.DYNAMIC_SLICE else ""
    divided = f", {offer.replicas} to a device" if offer.replicas > 1 else ""
    single = ", one to a container" if offer.one_per_request else ""
    return f"{most}{offer.count}, each {offer.memory_mib} MiB, {what}{divided}{single}"
