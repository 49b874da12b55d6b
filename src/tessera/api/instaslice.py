"""The Instaslice object, one per node, in which controller and agent agree on slices.

Keys and states are those of the dynamic accelerator slicer, ``inference.redhat.com/v1alpha1`` (v0.0.2), so that users'
scripts keep working. The extra keys are ours: ``slices`` for pods of several slices, ``foreign`` for positions that
others occupy, ``migPlacement`` for a card whose model differs from the node's first one, ``index`` for a card whose
place in the list is not the driver's index.

Writers:

===========================================  ==========
``spec.podAllocationRequests``               controller
``status.podAllocationResults``              agent; the controller writes one state, ``deleting``, to take the
                                             slices from a living pod
``status.nodeResources``, ``status.summary``  agent
===========================================  ==========

Both maps are keyed by pod UID. All writes are JSON merge patches of the writer's own keys, so that neither side can
undo the other's. These structs are partial: the server keeps a key that is not declared here, and we do not read it.

A node may be hostile, and an older schema allowed any number. So readers bound numbers, texts and counts
(:mod:`tessera.limits`): an object beyond the bounds does not decode, and its node gets no placements until it does. The
schema in ``deploy/crds`` has the same bounds; :func:`find_misfit` checks the rules that neither can express.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated
from uuid import NAMESPACE_URL, uuid5

import msgspec

from tessera.kube.resources import ObjectMeta, Resource, Wire
from tessera.kube.resources.meta import FORMAT_ANNOTATION, is_known_format
from tessera.limits import CARD_SLOTS, ECHOED, NAMES, NODE_CARDS
from tessera.mig.names import resource_spelling
from tessera.text import REINSTALL, count_noun

#: Most profiles of a card in an Instaslice object. NVML has 18; the cost of a decision grows with them.
CARD_PROFILES = 32
#: Most slices of a pod, or of others, in an Instaslice object. All slots of as many cards as a node may have.
NODE_SLICES = 512
#: Most entries: pods with slices in a node's Instaslice object. Twice as many as a node has slots, since slices that
#: are taken back are listed beside new ones.
NODE_PROMISES = 1024

#: Condition of a Node whose object is refused; the controller writes it.
OBJECT_CONDITION = "GpuInstasliceValid"

Name = Annotated[str, msgspec.Meta(max_length=int(NAMES))]
#: UUID of a card. The ids of devices (:mod:`tessera.placement.devices`) have a slash, so no card may have one.
CardUuid = Annotated[str, msgspec.Meta(max_length=int(NAMES), pattern="^[^/]*$")]
Start = Annotated[int, msgspec.Meta(ge=0, le=int(CARD_SLOTS) - 1)]
Size = Annotated[int, msgspec.Meta(ge=1, le=int(CARD_SLOTS))]
#: NVML's ids of profiles; they are passed on, never computed with.
ProfileId = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class Position(Wire, frozen=True, kw_only=True):
    """The place of a slice on its card, in memory slots."""

    size: Size
    start: Start


class Slice(Wire, frozen=True, kw_only=True):
    """One physical slice of a pod.

    Attributes:
        id: unique within the pod and constant for its life; names the slice, not the device that kubelet picks.
        profile: NVIDIA's name, e.g. ``3g.20gb`` or ``1g.5gb+me``.
        gpu_uuid: the card.
        start: first memory slot.
        size: memory slots.
    """

    id: Name
    profile: Name
    gpu_uuid: Name = msgspec.field(name="gpuUUID")
    start: Start
    size: Size


Slices = Annotated[tuple[Slice, ...], msgspec.Meta(max_length=int(NODE_SLICES))]


class PodRef(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The pod that a slice was promised to."""

    kind: Name = "Pod"
    namespace: Name
    name: Name
    uid: Name


class RequestedResources(Wire, frozen=True, kw_only=True):
    """The pod's CPU and memory requests at the time of the promise."""

    requests: dict[str, str | int] = msgspec.field(default_factory=dict)


class AllocationRequest(Wire, frozen=True, kw_only=True):
    """The promise to one pod; ``profile`` is that of its first slice, ``claims`` the ResourceClaims that it serves.

    ``claims`` is empty where the allocations of the claims name the slices: only kube-scheduler's name no share.
    """

    profile: Name
    resources: RequestedResources = RequestedResources()
    pod_ref: PodRef
    slices: Slices = ()
    claims: Annotated[tuple[Name, ...], msgspec.Meta(max_length=int(NODE_SLICES))] = ()


class AllocationStatus(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The two halves of an allocation's state.

    Attributes:
        allocation_status_controller: ``creating``: promised; ``ungated``: left to the scheduler; ``deleting``: to be
            destroyed.
        allocation_status_daemonset: empty: nothing was done; ``created``: the slices exist; ``deleted``: they are gone.
    """

    allocation_status_controller: Name = ""
    allocation_status_daemonset: Name = ""


class AllocationResult(Wire, frozen=True, kw_only=True):
    """The result of an allocation request.

    The five required keys describe the first slice; ``slices`` lists all if there are several.
    """

    allocation_status: AllocationStatus
    config_map_resource_identifier: Name
    gpu_uuid: Name = msgspec.field(name="gpuUUID")
    mig_placement: Position
    nodename: Name
    slices: Slices = ()


def make_result(pod: str, node: str, slices: Sequence[Slice], status: AllocationStatus) -> AllocationResult:
    """A new entry of ``status.podAllocationResults``; a pod has at least one slice."""
    first = slices[0]
    return AllocationResult(
        allocation_status=status,
        config_map_resource_identifier=str(uuid5(NAMESPACE_URL, f"pod:{pod}")),
        gpu_uuid=first.gpu_uuid,
        mig_placement=Position(size=first.size, start=first.start),
        nodename=node,
        slices=tuple(slices) if len(slices) > 1 else (),
    )


class ProfilePlacements(Wire, frozen=True, kw_only=True):
    """The legal places of one profile on a card, and NVML's ids for it."""

    placements: Annotated[tuple[Position, ...], msgspec.Meta(max_length=int(CARD_SLOTS))]
    gi_profile_id: ProfileId
    ci_profile_id: ProfileId
    max_count: ProfileId | None = None


Table = Annotated[dict[Name, ProfilePlacements], msgspec.Meta(max_length=int(CARD_PROFILES))]


class NodeGpu(Wire, frozen=True, kw_only=True):
    """One card of the node that on-demand slicing may cut.

    Attributes:
        gpu_uuid: the card.
        gpu_name: the product's name.
        gpu_memory: its memory, as text.
        mig_placement: its table; ``None`` if it is the node's.
        index: the driver's index; ``None`` if it is the card's place in the list.
    """

    gpu_uuid: CardUuid
    gpu_name: Name
    gpu_memory: Name
    mig_placement: Table | None = None
    index: Annotated[int, msgspec.Meta(ge=0, le=int(NODE_CARDS) - 1)] | None = None


class ForeignSlice(Wire, frozen=True, kw_only=True):
    """A position taken by an instance without an allocation of ours.

    Attributes:
        gpu_uuid: the card.
        start: first memory slot.
        size: memory slots.
        profile: NVIDIA's name; empty if it is not known.
        pod_uid: the running pod for which the agent made it, and whose allocation is gone; empty if the agent did not
            make it. The controller makes an allocation of a slice with a pod. A slice without one is never destroyed,
            and its position never promised.
    """

    gpu_uuid: Name = msgspec.field(name="gpuUUID")
    start: Start
    size: Size
    profile: Name = ""
    pod_uid: Name = msgspec.field(name="podUID", default="")


class NodeResources(Wire, frozen=True, kw_only=True):
    """The node's cards as the agent reads them from NVML."""

    node_gpus: Annotated[tuple[NodeGpu, ...], msgspec.Meta(max_length=int(NODE_CARDS))] = ()
    mig_placement: Table = msgspec.field(default_factory=dict)
    boot_id: Name = ""
    foreign: Annotated[tuple[ForeignSlice, ...], msgspec.Meta(max_length=int(NODE_SLICES))] = ()

    def indexes(self) -> dict[str, int]:
        """The driver's indexes of the listed cards, by UUID."""
        return {gpu.gpu_uuid: place if gpu.index is None else gpu.index for place, gpu in enumerate(self.node_gpus)}

    def placements_of(self, gpu: NodeGpu) -> dict[str, ProfilePlacements]:
        """Returns the placements of a card: its own table, or the node's if it has none."""
        return self.mig_placement if gpu.mig_placement is None else gpu.mig_placement

    @property
    def profiles(self) -> frozenset[str]:
        """Returns the profiles of the node's cards, in the resource's spelling; of its model if no card answers."""
        tables = [*(gpu.mig_placement for gpu in self.node_gpus if gpu.mig_placement is not None), self.mig_placement]
        return frozenset(resource_spelling(profile) for table in tables for profile in table)


class InstasliceSpec(Wire, frozen=True, kw_only=True):
    """The controller's requests to the node's agent, by pod UID."""

    pod_allocation_requests: Annotated[dict[Name, AllocationRequest], msgspec.Meta(max_length=int(NODE_PROMISES))] = (
        msgspec.field(default_factory=dict)
    )


class NodeSummary(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The columns of ``kubectl get instaslice``; the agent writes them with the rest of the status.

    Attributes:
        cards: that are sliced on demand, withheld ones included.
        model: the product's name of the first card, and how many others are of another.
        used_slots: memory slots that slices have, those of others included.
        free_slots: memory slots without a slice, of the cards that are not withheld.
        pods: with slices.
        health: ``healthy``, or how many cards are withheld.
    """

    cards: Annotated[int, msgspec.Meta(ge=0, le=int(NODE_CARDS))]
    model: Name
    used_slots: Annotated[int, msgspec.Meta(ge=0, le=int(NODE_CARDS * CARD_SLOTS))]
    free_slots: Annotated[int, msgspec.Meta(ge=0, le=int(NODE_CARDS * CARD_SLOTS))]
    pods: Annotated[int, msgspec.Meta(ge=0, le=int(NODE_PROMISES))]
    health: Name


def summarize(results: Mapping[str, Sequence[str]], resources: NodeResources, cards: int) -> NodeSummary:
    """Makes the columns of a node.

    Args:
        results: by UID of each pod with slices, for each of its memory slots the UUID of the card.
        resources: the node's part of the status.
        cards: the number of its cards that are sliced on demand, withheld ones included.
    """
    taken = Counter(card for each in results.values() for card in each)
    for other in resources.foreign:
        taken[other.gpu_uuid] += other.size
    free = (slots_of(resources.placements_of(gpu)) - taken[gpu.gpu_uuid] for gpu in resources.node_gpus)
    models = [gpu.gpu_name for gpu in resources.node_gpus]
    others = sum(model != models[0] for model in models)
    more = f" and {count_noun(others, 'other')}" if others else ""
    withheld = max(0, cards - len(models))
    most = int(NODE_CARDS * CARD_SLOTS)
    return NodeSummary(
        cards=min(max(cards, len(models)), int(NODE_CARDS)),
        model=f"{models[0] if models else ''}{more}"[: int(NAMES)],
        used_slots=min(taken.total(), most),
        free_slots=sum(max(0, each) for each in free),
        pods=min(len(results), int(NODE_PROMISES)),
        health=f"{withheld} of {cards} withheld" if withheld else "healthy",
    )


def slots_of(placements: Mapping[str, ProfilePlacements]) -> int:
    """The memory slots of a card with this table."""
    ends = (position.start + position.size for each in placements.values() for position in each.placements)
    return min(max(ends, default=0), int(CARD_SLOTS))


class InstasliceStatus(Wire, frozen=True, kw_only=True):
    """The node's resources, and the result of each request, by pod UID."""

    pod_allocation_results: Annotated[dict[Name, AllocationResult], msgspec.Meta(max_length=int(NODE_PROMISES))] = (
        msgspec.field(default_factory=dict)
    )
    node_resources: NodeResources = NodeResources()
    summary: NodeSummary | None = None


#: The version that this code reads and writes. It changes if code of the version before would misread an object; a key
#: that such code may ignore changes nothing. An object without the annotation has version 1.
INSTASLICE_FORMAT = 1


class Instaslice(Wire, frozen=True, kw_only=True):
    """One node's object; its name is the node's. One of a newer format does not decode."""

    metadata: ObjectMeta = ObjectMeta()
    spec: InstasliceSpec = InstasliceSpec()
    status: InstasliceStatus = InstasliceStatus()

    def __post_init__(self) -> None:
        if not is_known_format(self.metadata, INSTASLICE_FORMAT):
            text = self.metadata.annotations[FORMAT_ANNOTATION]
            raise ValueError(
                f"annotation {FORMAT_ANNOTATION}: {text[:ECHOED]!r}, and this version of Tessera knows formats up to"
                f" {INSTASLICE_FORMAT}: a newer version wrote the object. Install the newer version again; or drain the"
                " node and delete the object, and the agent makes it anew"
            )


def recorded_slices(
    request: AllocationRequest | None, result: AllocationResult | None, profile: str = ""
) -> Sequence[Slice]:
    """Returns the positions of a record, also of an older slicer's without ``slices``; empty if it names none.

    Args:
        request: the pod's entry in the spec.
        result: the pod's entry in the status.
        profile: of the pod's slice, for a result without a request: the five keys do not name it.
    """
    if request is not None and request.slices:
        return request.slices
    if result is None:
        return ()
    if result.slices:
        return result.slices
    return (
        Slice(
            id="0",
            profile=request.profile if request is not None else profile,
            gpu_uuid=result.gpu_uuid,
            start=result.mig_placement.start,
            size=result.mig_placement.size,
        ),
    )


def find_misfit(item: Instaslice) -> str:
    """Returns the first position of an object that leaves its card, with field, value and rule; empty if none does."""
    for field, at in _positions(item):
        if at.start + at.size > CARD_SLOTS:
            end = at.start + at.size - 1
            return f"{field} covers the memory slots {at.start} to {end}: a card's slots are 0 to {CARD_SLOTS - 1}"
    return ""


def _positions(item: Instaslice) -> Iterator[tuple[str, Position | Slice | ForeignSlice]]:
    for uid, request in item.spec.pod_allocation_requests.items():
        yield from ((f"spec.podAllocationRequests.{uid}.slices", each) for each in request.slices)
    for uid, result in item.status.pod_allocation_results.items():
        yield f"status.podAllocationResults.{uid}.migPlacement", result.mig_placement
        yield from ((f"status.podAllocationResults.{uid}.slices", each) for each in result.slices)
    yield from (("status.nodeResources.foreign", each) for each in item.status.node_resources.foreign)


INSTASLICES = Resource("inference.redhat.com", "v1alpha1", "instaslices", "Instaslice", True, Instaslice)
#: What is said where a cluster with Tessera lacks the kind.
KIND_LACKS = f"the cluster lacks the kind {INSTASLICES.label}"
KIND_MISSING = f"{KIND_LACKS}; {REINSTALL}"
