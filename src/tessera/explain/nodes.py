"""Explains one node: its cards are as configured, or the first obstacle.

Obstacles are looked for in this order, since an earlier one causes the later ones: start-up of the node, readiness,
driver, agent, health of the cards, MIG layout, sharing profile, MPS. Sources are the Node's conditions, labels and
annotations, its events, and the agent's pod. The cards themselves are not read; statements of an agent that no longer
runs are marked as old.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tessera.api.instaslice import OBJECT_CONDITION
from tessera.api.names import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL, gives_by_claims, is_on_demand
from tessera.api.nodes.card_faults import read_node_faults
from tessera.api.nodes.health import BOOT_STEP, Evidence, describe_fault
from tessera.api.nodes.node_cards import ACCELERATOR_LABELS, PRESENT_LABELS, brings_agent, keep_off_label
from tessera.api.nodes.node_marks import ADVERTISED_CONDITION as ADVERTISED
from tessera.api.nodes.node_marks import (
    AGENT_LABEL,
    DRIVER_ANNOTATION,
    HEALTH,
    LAYOUT,
    MPS,
    REMOVAL_ANNOTATION,
    SHARING,
    WAITING_FOR_KUBELET,
    DriverPhase,
    DriverStatus,
    is_marked_silent,
)
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, decode_offers
from tessera.api.nodes.preflights import decode_tests, describe_test
from tessera.api.nodes.silence import Silence
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.driver.node_facts import REQUESTED_ANNOTATION
from tessera.driver.node_status import read_status
from tessera.driver.rollout.node_view import live_pods
from tessera.explain.explanation import Explanation
from tessera.explain.node_reasons import (
    RemedyFields,
    misplaced_on_node,
    relevant_warnings,
    remedies_for,
    remedies_for_empty_node,
    remedy_fields,
)
from tessera.explain.node_startup import describe_startup, explain_startup
from tessera.explain.offered_resources import describe_blocked_devices, dynamic_resources
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Condition, Node
from tessera.limits import FACT_SHOWN
from tessera.text import count_noun, list_names, one_line

#: Labels that bring an agent to a node (``deploy/agent.yaml``); None stands for any value.
AGENT_NODE_LABELS: Mapping[str, str | None] = {
    MIG_CONFIG_LABEL: None,
    **dict.fromkeys(PRESENT_LABELS, "true"),
    **dict.fromkeys(ACCELERATOR_LABELS),
}
_DOMAIN = "nvidia.com/"
#: What a node offers whose cards pods get by claims, whole or in shares: kubelet counts none of them.
_CLAIMED_CARDS = "whole cards, or shares of them, by ResourceClaims"
#: Events, and errors of cards, that are shown at most.
_EVENTS, _FAULTS = 3, 16
#: What an error asks for, the worst last.
_NEEDS = ("attention", "replace", "uncordon", "preflight", "withhold", "reset", "reboot")


class _Aspect(NamedTuple):
    """A condition of the node and its texts.

    Attributes:
        type: the condition's type.
        wrong: the verdict if the condition is not ``True``.
        title: how its line among the facts begins.
    """

    type: str
    wrong: str
    title: str


_ASPECTS = (
    _Aspect(OBJECT_CONDITION, "gets no slices: its Instaslice object breaks a rule", "Instaslice object"),
    _Aspect(HEALTH, "has cards that are not offered", "health"),
    _Aspect(LAYOUT, "does not have the MIG layout that it should have", "MIG layout"),
    _Aspect(SHARING, "is not shared as configured", "sharing"),
    _Aspect(MPS, "shares cards by MPS, which is not ready", "MPS"),
)


def explain_node(view: ClusterView, node: Node) -> Explanation:
    """Explains the state of a node's cards.

    Args:
        view: the cluster as it was read: at least the node's events and the pod of its agent.
        node: the node.
    """
    return (
        _explain_kept_off(view, node)
        or explain_startup(view, node)
        or _explain_down(view, node)
        or _explain_missing_driver(view, node)
        or _explain_driver_change(view, node)
        or _explain_missing_agent(view, node)
        or _explain_by_conditions(view, node)
    )


# Obstacles before the cards


def _explain_kept_off(view: ClusterView, node: Node) -> Explanation | None:
    """People keep the agent off: nothing of it is missing."""
    label = keep_off_label(node.metadata.labels)
    if not label or REMOVAL_ANNOTATION in node.metadata.annotations:
        return None
    agent = view.agent(node.metadata.name)
    running = ("its agent still runs, and ends now",) if agent is not None else ()
    return Explanation(
        case="kept-off",
        verdict=f"has the label {label}, which keeps Tessera off its cards",
        facts=(*running, "no agent runs on such a node, and its cards are offered to no pod"),
        help=(f"to give its cards to pods: kubectl label node {node.metadata.name} {label.partition('=')[0]}-",),
    )


def _explain_down(view: ClusterView, node: Node) -> Explanation | None:
    if node.status.is_ready:
        return None
    return Explanation(
        case="node-down",
        verdict="is not ready, so the state of its cards is unknown",
        facts=(node.status.not_ready_reason, *_facts(view, node, "last reported: ")),
        help=(f"kubectl describe node {node.metadata.name}",),
    )


def _explain_missing_driver(view: ClusterView, node: Node) -> Explanation | None:
    """An agent that waits for the driver is not ready; the driver is the obstacle, not the agent."""
    condition = node.status.condition(ADVERTISED)
    if condition is None or condition.status != "False":
        return None
    verdict = "offers no card to kubelet"
    if condition.reason == WAITING_FOR_KUBELET:
        verdict = "has offered its cards to kubelet, which does not count them yet"
    return Explanation(
        case=_case_of(condition.reason),
        verdict=f"{verdict} ({condition.reason})",
        facts=(f"driver: {condition.message or condition.reason}", *_facts(view, node, "with its last driver: ")),
        help=remedies_for(ADVERTISED, condition.reason, remedy_fields(node, view.agent(node.metadata.name))),
    )


def _explain_driver_change(view: ClusterView, node: Node) -> Explanation | None:
    """The driver is being replaced; pods may still use the cards."""
    status = _driver(node)
    if status is None or status.phase is not DriverPhase.UPGRADING:
        return None
    return Explanation(
        case="changing-driver",
        verdict="gets another driver now, and takes no new pods until then",
        facts=(f"driver: {status.reason}", *_facts(view, node)),
        help=(f"see its progress: tessera driver status {node.metadata.name} -v",),
    )


def _driver(node: Node) -> DriverStatus | None:
    return read_status(node.metadata.annotations.get(DRIVER_ANNOTATION, ""))


#: Kinds of silence of nodes on which no agent's pod is, so that there is no log.
_WITHOUT_POD = (Silence.NO_AGENT, Silence.NEVER_RAN, Silence.NODE_GONE)


def _explain_missing_agent(view: ClusterView, node: Node) -> Explanation | None:
    silence = view.silent.get(node.metadata.name)
    if silence is None:
        return _explain_no_agent_meant(view, node)
    if silence.kind is Silence.LEAVING:
        return Explanation(
            case="leaving",
            verdict="is being left by Tessera, as tessera uninstall asked",
            facts=(silence.reason, *_facts(view, node, "last reported: ")),
            help=(silence.next,),
        )
    gone = "has no running agent: its cards stay as they are until it runs"
    unknown = "has an agent that does not answer, so the state of its cards is unknown"
    log = f"its log: kubectl logs -n tessera-system -l {'='.join(AGENT_LABEL)} --prefix"
    return Explanation(
        case="agent-down",
        verdict=unknown if silence.kind is Silence.UNREACHABLE else gone,
        facts=(silence.text(view.snapshot.now), *_facts(view, node, "last reported: ")),
        help=tuple(filter(None, (silence.next, "" if silence.kind in _WITHOUT_POD else log))),
    )


def _explain_no_agent_meant(view: ClusterView, node: Node) -> Explanation | None:
    if view.agent(node.metadata.name) is not None or _agent_conditions(node) or brings_agent(node.metadata.labels):
        return None
    labels = ", ".join(map(_label_text, AGENT_NODE_LABELS.items()))
    return Explanation(
        case="no-agent",
        verdict="has no agent, and no label of a GPU node",
        facts=(f"agents run on nodes with one of the labels {labels}",),
        help=(f"if it has cards: kubectl label node {node.metadata.name} nvidia.com/gpu.present=true",),
    )


def _label_text(label: tuple[str, str | None]) -> str:
    name, value = label
    return name if value is None else f"{name}={value}"


# The agent's conditions


def _explain_by_conditions(view: ClusterView, node: Node) -> Explanation:
    conditions = _agent_conditions(node)
    facts = tuple(_facts(view, node))
    fields = remedy_fields(node, view.agent(node.metadata.name))
    for aspect in _ASPECTS:
        found = conditions.get(aspect.type)
        if found is not None and found.status == "False":
            boot = found.type == HEALTH and any(error.asks == "reboot" for _, error in read_node_faults(node))
            steps = (BOOT_STEP, f"see who holds the card: tessera health {node.metadata.name}") if boot else ()
            return Explanation(
                case=_case_of(found.reason),
                verdict=f"{aspect.wrong} ({found.reason})",
                facts=_put_first(facts, aspect.title),
                help=steps or remedies_for(found.type, found.reason, fields),
            )
    if any(map(is_marked_silent, conditions.values())):
        return Explanation(
            case="not-reported",
            verdict="has an agent again, which has not reported its cards yet",
            facts=facts,
            help=("check again in a moment; if nothing comes, read the log of the agent's pod",),
        )
    for aspect in _ASPECTS:
        found = conditions.get(aspect.type)
        if found is not None and found.status != "True":
            return Explanation(
                case="changing",
                verdict=f"is being changed ({found.reason})",
                facts=_put_first(facts, aspect.title),
                help=remedies_for(found.type, found.reason, fields),
            )
    if not conditions:
        seen = view.agent(node.metadata.name) is not None
        verdict = "has labels of GPUs, and no agent has reported its cards yet"
        return Explanation(
            case="not-reported",
            verdict="has an agent that has not reported its cards yet" if seen else verdict,
            facts=facts,
            help=("check again in a moment; if nothing comes, read the log of the agent's pod",),
        )
    return _explain_configured(view, node, facts, fields)


def _explain_configured(view: ClusterView, node: Node, facts: tuple[str, ...], fields: RemedyFields) -> Explanation:
    """The agent has done what it should: what the node offers, and if another driver is still to come."""
    given, driver, name = _offered_resources(node), _driver(node), node.metadata.name
    if driver is not None and driver.outdated:
        held = list_names(_unreplaced_pods(view))
        evict = ("end these pods, or let the rollout evict them: upgradePolicy.podDeletion.force",) if held else ()
        return Explanation(
            case="outdated-driver",
            verdict=f"works, with another driver than its policy names: {list_names(given) or 'it offers nothing'}",
            facts=(*facts, *([f"pods with cards that no controller would replace: {held}"] if held else [])),
            help=(
                *evict,
                f"see what it waits for: tessera driver status {name} -v",
                f"change this node now: kubectl annotate node {name} {REQUESTED_ANNOTATION}=true",
            ),
        )
    if not given:
        return Explanation(
            case="offers-nothing",
            verdict="is as configured, and offers nothing",
            facts=facts,
            help=remedies_for_empty_node(fields),
        )
    return Explanation(case="as-configured", verdict=f"is as configured: {list_names(given)}", facts=facts)


def _unreplaced_pods(view: ClusterView) -> list[str]:
    """The pods that hold another driver back. The driver's status names none: they may come and go each second."""
    pods = live_pods(view.snapshot.pods)
    return [pod.text for pod in pods if pod.gpu and not (pod.stays or pod.controlled or pod.terminating)]


def _case_of(reason: str) -> str:
    """``CardsInUse`` as ``cards-in-use``."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in reason).lstrip("-") or "unknown"


def _put_first(facts: Sequence[str], title: str) -> tuple[str, ...]:
    """The facts, the one that supports the verdict first."""
    return tuple(sorted(facts, key=lambda fact: not fact.startswith(f"{title}: ")))


def _agent_conditions(node: Node) -> dict[str, Condition]:
    types = {aspect.type for aspect in _ASPECTS}
    return {each.type: each for each in node.status.conditions if each.type in types}


def _offered_resources(node: Node) -> list[str]:
    """The resources that kubelet counts, ``slices on demand`` if the node makes some, and cards that claims get."""
    given = [f"{name} {count}" for name, count in _static_allocatable(node).items()]
    on_demand = is_on_demand(node.metadata.labels.get(MIG_CONFIG_LABEL, ""))
    return [*given, *(["slices on demand"] if on_demand else [_CLAIMED_CARDS] if _gives_cards_by_claims(node) else [])]


def _gives_cards_by_claims(node: Node) -> bool:
    """True if the agent has reported that it gives nothing by limits, and the labels leave whole cards to claims."""
    labels, reported = node.metadata.labels, OFFERS_ANNOTATION in node.metadata.annotations
    if not gives_by_claims(labels) or not reported or _offers(node) != ((), ""):
        return False
    from tessera.api.mig_layouts import DISABLED  # few nodes need all layouts

    return labels.get(MIG_CONFIG_LABEL, DISABLED) == DISABLED


def _static_allocatable(node: Node) -> dict[str, str]:
    """Kubelet's counts of NVIDIA's resources without the positions of slices on demand."""
    dynamic = dynamic_resources(node)
    found = node.status.allocatable.items()
    return {name: n for name, n in sorted(found) if name.startswith(_DOMAIN) and name not in dynamic and n != "0"}


# Facts


def _facts(view: ClusterView, node: Node, origin: str = "") -> Iterator[str]:
    conditions, driver = _agent_conditions(node), _driver(node)
    if driver is not None and (driver.leaving or driver.outdated):
        yield f"driver: {driver.text}"
    cards = list(_card_lines(node))
    for aspect in _ASPECTS:
        if aspect.type in conditions and not is_marked_silent(conditions[aspect.type]):
            told = conditions[aspect.type].message or conditions[aspect.type].reason
            for line in cards if aspect.type == HEALTH and cards else [told]:
                yield f"{aspect.title}: {origin}{line}"
    for test in decode_tests(node.metadata.annotations):
        yield f"GPU {test.index}: {one_line(describe_test(test), FACT_SHOWN)}"
    yield from _labels(node)
    yield from _offer_lines(view, node)
    yield from describe_startup(node)
    if "pods" in view.snapshot.forbidden:
        yield "you may not list pods, so it is unknown if an agent runs"
    events = view.events_on("Node", node.metadata.name, warnings=True)
    yield from map(view.describe_event, list(relevant_warnings(events, conditions, view.snapshot.now))[-_EVENTS:])


def _card_lines(node: Node) -> Iterator[str]:
    """Each fault of each card in a line, the worst first; the condition's message has no room for many cards."""
    faults = sorted(read_node_faults(node), key=lambda each: (each[1].spared, -_need(each[1]), each[0].index, each[0]))
    for fault, error in faults[:_FAULTS]:
        yield f"{fault.name}: {describe_fault(error)}"
    if len(faults) > _FAULTS:
        yield f"and {count_noun(len(faults) - _FAULTS, 'more error')}: tessera health {node.metadata.name}"


def _need(error: Evidence) -> int:
    return _NEEDS.index(error.asks) if error.asks in _NEEDS else 0


def _labels(node: Node) -> Iterator[str]:
    labels = node.metadata.labels
    asked = [f"{name}={labels[name]}" for name in (PROFILE_LABEL, MIG_CONFIG_LABEL) if name in labels]
    state = labels.get(MIG_CONFIG_STATE_LABEL)
    yield f"configuration labels: {', '.join(asked) or 'none'}{f' (state {state})' if state else ''}"
    yield from misplaced_on_node(node)


def _offer_lines(view: ClusterView, node: Node) -> Iterator[str]:
    offers, fault = _offers(node)
    if fault:
        yield fault
    for each in offers:
        by_claims = each.kind is OfferKind.DYNAMIC_SLICE and gives_by_claims(node.metadata.labels)
        name = f"{each.profile} by ResourceClaims" if by_claims else each.resource
        given = "" if by_claims else node.status.allocatable.get(each.resource, "")
        fewer = f"; kubelet gives {given} of them now" if _is_fewer(given, each) else ""
        yield f"offers {name}: {_offer_text(each)}{fewer}"
    for resource in sorted({each.resource for each in offers if each.kind is not OfferKind.DYNAMIC_SLICE}):
        count = sum(each.count for each in offers if each.resource == resource)
        given = node.status.allocatable.get(resource, "0")
        if given != str(count):
            yield f"kubelet gives {given} of the {count} {resource}; the others are unhealthy, cordoned or not free yet"
    yield from describe_blocked_devices(view, node)
    if _gives_cards_by_claims(node):
        yield f"offers {_CLAIMED_CARDS}; see them: tessera map"
    elif not offers:
        counts = [f"{name} {count}" for name, count in _static_allocatable(node).items()]
        yield f"kubelet gives {', '.join(counts) or f'nothing of {_DOMAIN}*'}"


def _offers(node: Node) -> tuple[Sequence[NodeOffer], str]:
    text = node.metadata.annotations.get(OFFERS_ANNOTATION)
    try:
        return (decode_offers(text), "") if text else ((), "")
    except ValueError as error:
        return (), str(error)


def _is_fewer(given: str, offer: NodeOffer) -> bool:
    """True if kubelet gives fewer slices on demand than the cards could have, since some take none now."""
    on_demand = offer.kind is OfferKind.DYNAMIC_SLICE
    return on_demand and given.isascii() and given.isdecimal() and int(given[:9]) < offer.count


def _offer_text(offer: NodeOffer) -> str:
    kind = {
        OfferKind.WHOLE: offer.product,
        OfferKind.SHARE: f"shares of {offer.profile + ' of ' if offer.profile else ''}{offer.product}",
        OfferKind.SLICE: f"{offer.profile} of {offer.product}",
        OfferKind.DYNAMIC_SLICE: f"{offer.profile} of {offer.product}, made on demand",
    }[offer.kind]
    most = "at most " if offer.kind is OfferKind.DYNAMIC_SLICE else ""
    divided = f", {offer.replicas} to a device" if offer.replicas > 1 else ""
    single = ", one to a container" if offer.one_per_request else ""
    return f"{most}{offer.count}, each {offer.memory_mib} MiB, {kind}{divided}{single}"
