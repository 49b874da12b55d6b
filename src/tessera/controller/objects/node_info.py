"""The values of a Node that decide about its slices, and its whole cards and shares for pods which Tessera places.

The node's agent says what one device of a resource is (annotation ``tessera.dev/offers``). On a node of NVIDIA's device
plugin its labels say it. The amount is kubelet's allocatable, by which the scheduler counts too.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from tessera.api.instaslice import OBJECT_CONDITION
from tessera.api.names import (
    DEVICE_API_DRA,
    DEVICE_API_LABEL,
    GPU_RESOURCES,
    HOSTNAME_LABEL,
    MIG_CONFIG_FAILED,
    MIG_CONFIG_LABEL,
    MIG_CONFIG_STATE_LABEL,
    NodeName,
    gives_by_claims,
    is_on_demand,
    profile_of,
)
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, decode_cards
from tessera.api.nodes.node_cards import (
    LINKS_ANNOTATION,
    CardLinks,
    DeviceCounts,
    decode_links,
    is_changing,
    is_unread,
    keep_off_label,
    read_device_counts,
)
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, decode_offers
from tessera.controller.objects.resource_amounts import Amounts, offered_by_agent, parse_amounts
from tessera.kube.resources import Condition, Node, Taint
from tessera.limits import NODE_DEVICES, NODE_IMAGES
from tessera.mig.names import CARD_SLOTS
from tessera.placement.devices import SHARE_SLOTS
from tessera.reasons.node_rules import NodeRule, RuleKind

#: Labels of GPU feature discovery: the card's name, its memory in MiB, and the number of shares of one card.
PRODUCT_LABEL, MEMORY_LABEL, REPLICAS_LABEL = (
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.memory",
    "nvidia.com/gpu.replicas",
)
#: Model of cards whose node says nothing of them.
UNKNOWN_MODEL = "GPU"
#: Kubelet lists as many names of an image at most.
_NAMES_OF_AN_IMAGE = 5
#: Digits of a number in a label, beyond which it is not read.
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices of one resource on a node.

    Attributes:
        resource: ``nvidia.com/gpu`` or ``nvidia.com/gpu.shared``.
        model: the model of the cards.
        count: devices that pods may hold, in use or not.
        slots: memory slots that one device counts as.
        memory_gb: GiB of one device; 0 if unknown.
    """

    resource: str
    model: str
    count: int
    slots: int
    memory_gb: int


def read_devices(node: Node, allocatable: Mapping[str, int], offers: Iterable[NodeOffer]) -> tuple[NodeDevices, ...]:
    """Returns the devices of a node; at most as many of each resource as the limit allows.

    Args:
        node: the node.
        allocatable: the amounts that pods may hold on it.
        offers: the content of its agent's annotation.
    """
    counts = {name: min(allocatable.get(name, 0), int(NODE_DEVICES)) for name in GPU_RESOURCES}
    if not any(count > 0 for count in counts.values()):
        return ()
    described = {each.resource: each for each in offers}
    labels = node.metadata.labels
    found = []
    for resource, count in counts.items():
        if count <= 0:
            continue
        offer = described.get(resource)
        if offer is not None:
            whole, model, mib = offer.kind is OfferKind.WHOLE, offer.product, offer.memory_mib
        else:
            replicas = max(1, _number(labels.get(REPLICAS_LABEL, "1")))
            model = labels.get(PRODUCT_LABEL, UNKNOWN_MODEL)
            whole = replicas == 1 and "-MIG-" not in model and not model.endswith("-SHARED")
            mib = _number(labels.get(MEMORY_LABEL, "0")) // replicas
        slots = CARD_SLOTS if whole else SHARE_SLOTS
        found.append(NodeDevices(resource, model or UNKNOWN_MODEL, count, slots, -(-mib // 1024)))
    return tuple(found)


def _number(text: str) -> int:
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdecimal() else 0


#: The words of a refusal for a pod with claims on a node that serves limits, and for a pod with limits on one that
#: serves claims.
CLAIMS_OFFER = f"slices for ResourceClaims (label {DEVICE_API_LABEL}={DEVICE_API_DRA})"
LIMITS_OFFER = f"slices for limits, only for ResourceClaims (label {DEVICE_API_LABEL}={DEVICE_API_DRA})"


class AgentState(Enum):
    """State of a node's agent, read from the agent's pod."""

    UNKNOWN = "the node has no pod of an agent"
    READY = "the agent's pod is ready"
    DOWN = "the agent's pod is not ready"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node.

    Attributes:
        name: its name.
        hostname: its hostname label, by which a pod is pinned to it.
        labels: its labels.
        taints: its taints.
        cordoned: marked unschedulable.
        ready: its kubelet reports Ready.
        allocatable: the amounts that pods may hold on it.
        fixed_profiles: profiles of the slices that a fixed layout gives it, in the resource's spelling.
        object_fault: the fault of its Instaslice object that the node's condition names; empty if there is none.
        agent: state of its agent.
        devices: its whole cards and shares.
        offered: further resources that it has for pods, as their kind of request says.
        device_counts: how many of them it has at most, also those that pods may not hold now.
        unread_devices: it may have more of them than it says now.
        object_expected: it says that its cards are cut on demand, so an Instaslice object will list them.
        sliced_cards: the number of its cards by its agent's word, also of those that do not answer now, if all are cut
            on demand; else 0.
        images: sizes of the images that are there, in bytes by name. Not compared, for the same reason.
        offers_on_demand: by its labels it may have cards for on-demand slicing; its Instaslice object says which. A
            layout that failed, for instance a name that no file has, leaves each card with its previous owner.
        links: how its whole cards are joined, and which are free; None if not known. Not compared: it says where a pod
            is better, never if it fits.
    """

    name: NodeName
    hostname: str
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ready: bool = True
    allocatable: Amounts = field(default_factory=dict)
    fixed_profiles: frozenset[str] = frozenset()
    object_fault: str = ""
    agent: AgentState = AgentState.UNKNOWN
    devices: tuple[NodeDevices, ...] = ()
    offered: frozenset[str] = frozenset()
    device_counts: DeviceCounts = ()
    unread_devices: bool = False
    object_expected: bool = False
    sliced_cards: int = 0
    links: CardLinks | None = field(default=None, compare=False)
    images: Mapping[str, int] = field(default_factory=dict, compare=False)
    offers_on_demand: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        failed = self.labels.get(MIG_CONFIG_STATE_LABEL) == MIG_CONFIG_FAILED
        cut = is_on_demand(self.labels.get(MIG_CONFIG_LABEL, ""))
        offers = failed or cut or gives_by_claims(self.labels)
        object.__setattr__(self, "offers_on_demand", offers)

    def closed_reasons(self, devices: Collection[str] = ()) -> Iterator[NodeRule]:
        """Yields the rules by which no pod may get slices of this node; nothing if the node is open.

        Args:
            devices: resources that the pod requests instead of slices, of whole cards and shares or of a further kind.
        """
        missing = sorted(set(devices) - self.resources)
        if missing:
            yield NodeRule(
                RuleKind.NO_DEVICE, CLAIMS_OFFER if CLAIMS_OFFER in missing else missing[0].partition(" (")[0]
            )
        elif not devices and not self.offers_on_demand:
            yield NodeRule(RuleKind.NOT_ON_DEMAND)
        elif not devices and gives_by_claims(self.labels):
            yield NodeRule(RuleKind.NO_DEVICE, LIMITS_OFFER)
        kept_off = keep_off_label(self.labels)
        if kept_off:
            yield NodeRule(RuleKind.KEPT_OFF, kept_off)
        if HOSTNAME_LABEL not in self.labels:
            yield NodeRule(RuleKind.NO_HOSTNAME, HOSTNAME_LABEL)
        if not self.ready:
            yield NodeRule(RuleKind.NOT_READY)
        if self.agent is AgentState.DOWN:
            yield NodeRule(RuleKind.NO_AGENT)

    def allocatable_amount(self, resource: str) -> int | None:
        """Returns the amount of a resource that pods may hold on this node; None until kubelet has published it.

        Kubelet publishes a resource of a device plugin with its next status, up to 10 s after the plugin registered. It
        publishes 0 as soon as the plugin is gone. So 0 is the amount, but a missing resource of a ready agent will be
        published soon.
        """
        if resource in self.allocatable:
            return self.allocatable[resource]
        return None if self.agent is AgentState.READY and offered_by_agent(resource) else 0

    @property
    def resources(self) -> frozenset[str]:
        """The resources that it has for pods besides slices."""
        return self.offered.union(each.resource for each in self.devices)


def read_node(node: Node) -> NodeInfo:
    """Reads a node."""
    try:
        allocatable = parse_amounts(node.status.allocatable)
    except ValueError:
        allocatable = {}
    layout = node.metadata.labels.get(MIG_CONFIG_LABEL, "")
    offers = _read_offers(node)
    devices = read_devices(node, allocatable, offers or ())
    counts = read_device_counts(node, offers or ())
    return NodeInfo(
        name=NodeName(node.metadata.name),
        hostname=node.metadata.labels.get(HOSTNAME_LABEL, node.metadata.name),
        labels=dict(node.metadata.labels),
        taints=node.spec.taints,
        cordoned=node.spec.unschedulable,
        ready=node.status.is_ready,
        allocatable=allocatable,
        fixed_profiles=frozenset() if is_on_demand(layout) else _fixed_profiles(node, offers),
        object_fault=next((c.message for c in node.status.conditions if _reports_object_fault(c)), ""),
        devices=devices,
        device_counts=counts,
        unread_devices=is_unread(node, offers or (), counts),
        object_expected=_expects_object(node, offers or ()),
        sliced_cards=_count_sliced_cards(node, offers or ()),
        links=decode_links(node.metadata.annotations.get(LINKS_ANNOTATION, "")) if devices else None,
        images=_read_images(node),
    )


def _read_images(node: Node) -> Mapping[str, int]:
    listed = islice(node.status.images or (), int(NODE_IMAGES))
    return {name: max(0, each.size_bytes) for each in listed for name in islice(each.names or (), _NAMES_OF_AN_IMAGE)}


def _reports_object_fault(condition: Condition) -> bool:
    return condition.type == OBJECT_CONDITION and condition.status == "False"


def _read_offers(node: Node) -> Sequence[NodeOffer] | None:
    """Returns what a node's agent says that the node offers; None if it has not said it, or nobody can read it."""
    text = node.metadata.annotations.get(OFFERS_ANNOTATION)
    try:
        return decode_offers(text) if text is not None else None
    except ValueError:  # the agent will correct it
        return None


def _expects_object(node: Node, offers: Sequence[NodeOffer]) -> bool:
    """True if slices are made on demand, by the agent's word; or by the layout, while the agent is silent or at it."""
    labels = node.metadata.labels
    if any(each.kind is OfferKind.DYNAMIC_SLICE for each in offers):
        return True
    return is_on_demand(labels.get(MIG_CONFIG_LABEL, "")) and (not offers or is_changing(labels))


def _count_sliced_cards(node: Node, offers: Sequence[NodeOffer]) -> int:
    if not offers or any(each.kind is not OfferKind.DYNAMIC_SLICE for each in offers):
        return 0
    return decode_cards(node.metadata.annotations.get(CARDS_ANNOTATION, "")).count


def _fixed_profiles(node: Node, offers: Sequence[NodeOffer] | None) -> frozenset[str]:
    """Returns the profiles that a fixed layout gives a node.

    A node that has just left on-demand slicing still counts those resources for a moment. So on a node whose Tessera
    agent describes the resources, only the ones that are not made on demand count; other vendors' device plugins
    describe nothing.
    """
    published = {
        name: profile
        for name, count in node.status.allocatable.items()
        if count != "0" and (profile := profile_of(name))
    }
    if offers is None:
        return frozenset(published.values())
    fixed = {offer.resource for offer in offers if offer.kind is not OfferKind.DYNAMIC_SLICE}
    return frozenset(profile for name, profile in published.items() if name in fixed)
