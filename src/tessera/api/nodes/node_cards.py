"""What a node tells of its cards: labels of other software, counts of devices, links, and geometries.

Labels mark nodes that have NVIDIA GPUs, or will have them. All parts of Tessera that must recognise such nodes read
this list: those that give nodes drivers, record their way to usable cards, or tell an autoscaler in advance.
``deploy/agent.yaml`` repeats it for the scheduler. A node's own offers and ``nvidia.com/mig.config`` also show GPUs;
they are no labels of discovery and are defined elsewhere. The labels with product names are here too, so that writers
of labels and selectors spell a product alike.

Counts of the whole cards and shares that a node has when it is empty: its agent says how many devices a resource has,
in use or not, healthy or not; kubelet's capacity says it on nodes of other device plugins. The larger counts. A node
that is known to have cards but has told neither is *unread*, and so is one whose layout is being changed: it may turn
out to have any number.

Links: the annotation ``tessera.dev/card-links`` says how whole cards are joined, and which of them are free, since
kubelet's counts say neither. The controller reads it to choose the node of a pod with several whole cards in a managed
namespace. The points of two cards are those of :class:`tessera.placement.topology.Topology`. Where all pairs have the
same points, the text has them once and no free cards: any cards are as good. So only a node where it matters is written
when a pod comes or goes. The text is bounded. A value that cannot be read counts as none: the node is then one of
unjoined cards, and no other node suffers.

Geometries come only from the Instaslice object, which the agent fills from NVML: its readers need no table of models.
Cards with the same table share one :class:`Geometry` value, because fleets count cards by geometry.

Nodes that have just registered may turn out to have GPUs. A new node has no GPU labels at first: Node Feature Discovery
writes them some time after kubelet has started, and the agent, which says what cards there are, needs one of them.
Until then such a node looks like one without GPUs. Admission and Kueue's check refuse for good, so they must not take
that for an answer. A new node is *undecided* for :data:`DISCOVERY_SECONDS` from its registration, or until

- somebody has told what it offers; or
- feature discovery has written its labels, and none says that there is a device of NVIDIA. Discovery names the labels
  that it wrote in an annotation; a label of its form alone may come from the node pool's template.

Older nodes with GPU labels that offer nothing count as unread.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated

import msgspec

from tessera.api.instaslice import NodeResources, ProfilePlacements
from tessera.api.names import GPU_RESOURCES, MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind
from tessera.clock import parse_time_or_zero
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Node
from tessera.limits import CARD_MODELS
from tessera.mig.geometry import Geometry

#: Labels that mean GPUs with the value ``true``: NVIDIA's operator; Node Feature Discovery by NVIDIA's PCI vendor alone
#: (as that operator configures it), and with the class of 3D controllers or of VGA controllers (its default).
PRESENT_LABELS = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)
#: Labels by which cluster autoscalers recognise node groups with cards, with any value, from registration on (GPULabel
#: of the cluster autoscaler's providers): of Cluster API and OpenShift, and by the scheme of a node's providerID.
#: OVHcloud and Magnum share OpenStack's scheme, under which Cluster API makes nodes, too.
CAPI_ACCELERATOR = "cluster-api/accelerator"
PROVIDER_ACCELERATORS: Mapping[str, tuple[str, ...]] = {
    "aws": ("k8s.amazonaws.com/accelerator",),
    "gce": ("cloud.google.com/gke-accelerator",),
    "azure": ("kubernetes.azure.com/accelerator", "accelerator"),
    "bizflycloud": ("bke.bizflycloud.vn/gpu-node",),
    "brightbox": ("cloud.brightbox.com/gpu-node",),
    "cce": ("baidu/nvidia_name",),
    "cherryservers": ("cherryservers.com/gpu",),
    "civo": ("civo.com/gpu-node",),
    "digitalocean": ("cloud.digitalocean.com/gpu-node",),
    "hcloud": ("hcloud/gpu-node",),
    "openstack": ("node.kubernetes.ovhcloud.com/gpu", "magnum.openstack.org/gpu", CAPI_ACCELERATOR),
    "qcloud": ("cloud.tencent.com/tke-accelerator",),
    "scaleway": ("k8s.scw.cloud/gpu",),
}
#: All of them, each once; Alibaba Cloud's providerIDs have no scheme.
ACCELERATOR_LABELS = tuple(
    dict.fromkeys(
        (
            CAPI_ACCELERATOR,
            *(label for labels in PROVIDER_ACCELERATORS.values() for label in labels),
            "aliyun.accelerator/nvidia_name",
        )
    )
)


#: NVIDIA's label by which people keep operators from a node, with the value ``false``: no agent, and no driver.
DEPLOY_OPERANDS_LABEL = "nvidia.com/gpu.deploy.operands"
#: The same for the device plugin alone: no agent; a driver may come. ``tessera install --adopt`` sets it too, together
#: with that of feature discovery (:data:`tessera.cli.install.adoption.PARTS`), to end NVIDIA's parts beside
#: an agent; both together keep no agent off.
DEPLOY_PLUGIN_LABEL = "nvidia.com/gpu.deploy.device-plugin"
DEPLOY_DISCOVERY_LABEL = "nvidia.com/gpu.deploy.gpu-feature-discovery"
#: What a node's cards are for, and the values that give them to virtual machines (gpu-operator, ``state_manager.go``).
WORKLOAD_LABEL = "nvidia.com/gpu.workload.config"
VM_WORKLOADS = ("vm-passthrough", "vm-vgpu")
#: The labels that keep the agent off a node, with their values. ``deploy/agent.yaml`` repeats them for the scheduler.
KEEP_OFF_LABELS: Mapping[str, tuple[str, ...]] = {
    DEPLOY_OPERANDS_LABEL: ("false",),
    DEPLOY_PLUGIN_LABEL: ("false",),
    WORKLOAD_LABEL: VM_WORKLOADS,
}


def keep_off_label(labels: Mapping[str, str]) -> str:
    """``name=value`` of the label by which people keep the agent off a node; empty if no label does."""
    adopted = labels.get(DEPLOY_DISCOVERY_LABEL) == "false"
    for name, off in KEEP_OFF_LABELS.items():
        if labels.get(name) in off and not (adopted and name == DEPLOY_PLUGIN_LABEL):
            return f"{name}={labels[name]}"
    return ""


def brings_agent(labels: Mapping[str, str]) -> bool:
    """True if a node's labels bring an agent to it: one says that it has GPUs, and none keeps the agent off."""
    return is_gpu_node(labels) and not keep_off_label(labels)


def labels_say_gpu(labels: Mapping[str, str]) -> bool:
    """True if one of these labels says that the node has NVIDIA GPUs."""
    return any(labels.get(name) == "true" for name in PRESENT_LABELS) or any(
        name in labels for name in ACCELERATOR_LABELS
    )


def is_gpu_node(labels: Mapping[str, str]) -> bool:
    """True if anything indicates that the node has NVIDIA GPUs: these labels, or one of a MIG layout."""
    return MIG_CONFIG_LABEL in labels or labels_say_gpu(labels)


#: Most characters of a label's value, and of its name after the prefix (Kubernetes, label syntax).
LONGEST = 63
#: Prefix of the labels that count a node's cards of one model; the product follows.
COUNT_LABEL = "tessera.dev/count."
_NAME = COUNT_LABEL.partition("/")[2]


def sanitise(text: str) -> str:
    """Returns a text as a label's value: drops characters besides letters, digits, ``-_.``; a blank becomes one dash.

    Same rules as GPU feature discovery, so that selectors written for it match.
    """
    return "-".join(re.sub(r"[^A-Za-z0-9\-_. ]", "", text).split())


def product_label(product: str, *suffixes: str) -> str:
    """Returns a product's name with its suffixes as a label's value; shortens a too long name at its end."""
    tail = "".join("-" + sanitise(suffix) for suffix in suffixes)
    name = sanitise(product)
    if len(name) + len(tail) > LONGEST:
        name = name[: LONGEST - len(tail)].rstrip("-_.")
    return name + tail


def count_label(product: str) -> str:
    """Returns the label that counts a node's cards of a model; nodes without such a card lack it."""
    return COUNT_LABEL + sanitise(product)[: LONGEST - len(_NAME)].rstrip("-_.")


#: Resources with the number of their devices, sorted; no number is 0.
DeviceCounts = tuple[tuple[str, int], ...]

#: States of a layout in which the agent changes nothing.
_AT_REST = frozenset({"", "success", "failed"})


def read_device_counts(node: Node | None, offers: Iterable[NodeOffer]) -> DeviceCounts:
    """Returns the devices of a node."""
    offered: Counter[str] = Counter()
    for each in offers:
        if each.kind is not OfferKind.DYNAMIC_SLICE:
            offered[each.resource] += each.count
    status = [] if node is None else [node.status.capacity, node.status.allocatable]
    counts = {
        name: max([offered[name], *(count_or_zero(amounts.get(name, "0")) for amounts in status)])
        for name in GPU_RESOURCES
    }
    return tuple(sorted((name, count) for name, count in counts.items() if count > 0))


def is_changing(labels: Mapping[str, str]) -> bool:
    """True if the layout of a node's cards is being changed."""
    return MIG_CONFIG_LABEL in labels and labels.get(MIG_CONFIG_STATE_LABEL, "") not in _AT_REST


def is_unread(node: Node | None, offers: Iterable[NodeOffer], counts: DeviceCounts) -> bool:
    """True if a node may have more devices than it says now."""
    if node is None:
        return False
    labels = node.metadata.labels
    silent = not counts and not any(True for _ in offers)
    served = any(name.startswith("nvidia.com/") and amount != "0" for name, amount in node.status.capacity.items())
    return is_changing(labels) or (silent and not served and brings_agent(labels))


#: Most cards in a node's annotation tessera.dev/card-links. No machine has more in one host; the controller searches
#: the best of their sets.
LINKED_CARDS = 16
#: Most points of two cards in that annotation. 50 times those of 18 NVLinks, the most that a card has.
LINK_POINTS = 100_000
#: Most characters: a node's annotation tessera.dev/card-links. 16 cards with the largest points have 900.
CARD_LINKS_TEXT = 2 * 1024


LINKS_ANNOTATION = "tessera.dev/card-links"

_Number = Annotated[int, msgspec.Meta(ge=0, lt=int(LINKED_CARDS))]
_Points = Annotated[int, msgspec.Meta(ge=0, le=int(LINK_POINTS))]
_PAIRS = LINKED_CARDS * (LINKED_CARDS - 1) // 2


class CardLinks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole cards of a node, by number.

    Attributes:
        cards: their number.
        points: of each pair: 0 with 1, 0 with 2, ..., 1 with 2, ...; one value if all pairs have it.
        free: the cards that no container has, ascending; None if that is not known, or does not matter.
    """

    cards: Annotated[int, msgspec.Meta(ge=2, le=int(LINKED_CARDS))]
    points: Annotated[tuple[_Points, ...], msgspec.Meta(min_length=1, max_length=_PAIRS)]
    free: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=int(LINKED_CARDS))] | None = None

    @property
    def alike(self) -> bool:
        """True if all pairs have the same points."""
        return len(self.points) == 1


_DECODER = msgspec.json.Decoder(CardLinks)


def make_links(cards: int, points: tuple[int, ...], free: Collection[int] | None) -> CardLinks | None:
    """Returns the links of a node in the shortest form; None for a number of cards that has none or is not listed.

    Args:
        cards: the number of whole cards.
        points: of each pair, in the order of :attr:`CardLinks.points`.
        free: the cards that no container has; None if not known.
    """
    if not 2 <= cards <= LINKED_CARDS:
        return None
    bounded = tuple(min(each, int(LINK_POINTS)) for each in points)
    if len(set(bounded)) == 1:
        return CardLinks(cards, bounded[:1])
    return CardLinks(cards, bounded, None if free is None else tuple(sorted(free)))


def encode_links(links: CardLinks) -> str:
    """Returns the annotation's value."""
    return msgspec.json.encode(links).decode()


def decode_links(text: str) -> CardLinks | None:
    """Returns the content of an annotation's value; None if it cannot be read."""
    if not text or len(text) > CARD_LINKS_TEXT:
        return None
    try:
        found = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
    free = found.free or ()
    if len(found.points) not in {1, found.cards * (found.cards - 1) // 2}:
        return None
    if list(free) != sorted(set(free)) or any(each >= found.cards for each in free):
        return None
    return found


_Table = tuple[tuple[str, int, tuple[tuple[int, int], ...]], ...]


class CardGeometries:
    """Geometries of cards; one shared value per table."""

    def __init__(self) -> None:
        #: The geometry of each table that was read; emptied at the limit.
        self._shared: dict[tuple[str, _Table], Geometry] = {}

    def of(self, resources: NodeResources) -> dict[str, Geometry]:
        """Returns each card's geometry by GPU UUID.

        Raises:
            ValueError: a card's table is invalid; the text names field and rule.
        """
        found: dict[str, Geometry] = {}
        #: The cards of a node mostly share one table, which is then read once.
        read: dict[tuple[str, int], Geometry] = {}
        for gpu in resources.node_gpus:
            rows = resources.placements_of(gpu)
            key = (gpu.gpu_name, id(rows))
            if key not in read:
                read[key] = self._geometry(gpu.gpu_name, rows)
            found[gpu.gpu_uuid] = read[key]
        return found

    def fault(self, resources: NodeResources) -> str:
        """Returns the error in a card's table; empty if all tables are valid."""
        try:
            self.of(resources)
        except ValueError as error:
            return f"status.nodeResources.migPlacement: {error}"
        return ""

    def _geometry(self, family: str, rows: Mapping[str, ProfilePlacements]) -> Geometry:
        table = tuple(
            (name, row.gi_profile_id, tuple((at.start, at.size) for at in row.placements))
            for name, row in rows.items()
            if row.placements
        )
        known = self._shared.get((family, table))
        if known is not None:
            return known
        geometry = Geometry.from_placements(
            family, {name: places for name, _, places in table}, {name: number for name, number, _ in table}
        )
        if len(self._shared) >= CARD_MODELS:
            self._shared.clear()
        self._shared[family, table] = geometry
        return geometry


#: Seconds after a node's registration in which its GPUs may be found: the default startup deadline of new nodes, and
#: Cluster Autoscaler's ``--max-node-provision-time``.
DISCOVERY_SECONDS = 900.0
#: The annotation with the names of the labels that Node Feature Discovery wrote; ``-instance`` puts a prefix before it.
_DISCOVERED = "nfd.node.kubernetes.io/feature-labels"
#: Begin of its labels of PCI devices.
_PCI = "feature.node.kubernetes.io/pci-"
#: NVIDIA's number among PCI vendors. Discovery can be set to name class and device beside it, in any order.
_VENDOR = "10de"


def undecided_until(node: Node) -> float:
    """Returns the time until which a node may turn out to have GPUs, seconds since 1970; 0 for a node that was read."""
    labels, annotations = node.metadata.labels, node.metadata.annotations
    told = OFFERS_ANNOTATION in annotations or bool(keep_off_label(labels))
    offers = any(name.startswith("nvidia.com/") and amount != "0" for name, amount in node.status.capacity.items())
    discovered = any(name == _DISCOVERED or name.endswith("." + _DISCOVERED) for name in annotations)
    nvidia = labels_say_gpu(labels) or any(name.startswith(_PCI) and _VENDOR in name for name in labels)
    if told or offers or (discovered and not nvidia):
        return 0.0
    return parse_time_or_zero(node.metadata.creation_timestamp or "") + DISCOVERY_SECONDS


class UndecidedNodes:
    """The nodes that are undecided.

    Args:
        now: returns the time, seconds since 1970.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        #: By name, :func:`undecided_until`; a node whose time is over goes with the next question.
        self._until: dict[str, float] = {}

    def node_changed(self, event: WatchEvent[Node]) -> None:
        """Takes in a change of a node."""
        until = 0.0 if event.kind is EventKind.DELETED else undecided_until(event.object)
        if until > self._now():
            self._until[event.object.metadata.name] = until
        else:
            self._until.pop(event.object.metadata.name, None)

    def any_undecided(self) -> bool:
        """True while a node may turn out to have GPUs."""
        now = self._now()
        while self._until:
            name, until = next(iter(self._until.items()))
            if until > now:
                return True
            del self._until[name]
        return False
