"""The pods of controllers by owner, and the places that an owner's next pod may take over.

The ReplicaSets of one Deployment have names that differ in a hash, so pods whose owners' names agree up to it may be of
one Deployment: a *family*. Other owners are a family with those of their own name, such as the group of a
LeaderWorkerSet that is made anew. Owner references are written by tenants, so only the API server's answer says which
of a family belong together.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tessera.api.instaslice import Slice
from tessera.api.names import NodeName, PodUid, device_id
from tessera.controller.objects.pod_info import Owner, PodInfo
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.node_records import INHERITED, Reservation
from tessera.controller.slicing.state.reservation_rules import make_holds, queue_key
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.mig.names import plain_profile, resource_spelling
from tessera.placement.demand import keeps
from tessera.placement.fleet import UnknownCard

#: Most owners of a family that are asked about together; a Deployment keeps 10 old ones by default.
ASKED_SIBLINGS = 32

#: Most kinds of gangs' pods of one namespace that are tried in kept slots. A group has two: the leader and the workers.
GANG_KINDS = 16
#: What the owners of one Deployment's pods have in common: the namespace, and the name without a ReplicaSet's hash.
Family = tuple[str, str]
#: By pod, the slots that are kept for pods of its topmost owner.
KeptFor = Callable[[PodInfo], Sequence[Reservation]]


@dataclass(frozen=True, slots=True)
class OwnedPod:
    """A pod that a controller made, and the slots that it has or had.

    Attributes:
        pod: the pod as it lived.
        allocation: its slots; None without any.
        was_asked: it was seen while it was being deleted, and not only found gone.
    """

    pod: PodInfo
    allocation: Allocation | None
    was_asked: bool = False


class OwnerPods:
    """Living pods with slices, or that wait for some, by owner.

    Attributes:
        updating: families of which more than one owner has pods, as in an update; in the order in which they came.
        changed: those of them of which pods have come or gone, until somebody takes them out.
    """

    def __init__(self) -> None:
        self._pods: dict[PodUid, OwnedPod] = {}
        #: The same by owner, and the owners by family; nothing in them is empty.
        self._by_owner: dict[Owner, dict[PodUid, None]] = {}
        self._owners: dict[Family, dict[Owner, None]] = {}
        self.updating: dict[Family, None] = {}
        self.changed: set[Family] = set()

    def get(self, uid: PodUid) -> OwnedPod | None:
        """Returns a pod; None if it is gone, or has no owner that makes others in its place."""
        return self._pods.get(uid)

    def put(self, found: OwnedPod) -> None:
        """Takes in a pod that came, or changed."""
        owner = owner_of(found.pod)
        family = family_of(owner)
        is_new = found.pod.uid not in self._pods
        self._pods[found.pod.uid] = found
        self._by_owner.setdefault(owner, {})[found.pod.uid] = None
        owners = self._owners.setdefault(family, {})
        owners[owner] = None
        if len(owners) > 1:
            self.updating[family] = None
            if is_new:
                self.changed.add(family)

    def drop(self, pod: PodInfo) -> None:
        """Forgets a pod that is known."""
        owner = owner_of(pod)
        family = family_of(owner)
        del self._pods[pod.uid], self._by_owner[owner][pod.uid]
        if not self._by_owner[owner]:
            del self._by_owner[owner], self._owners[family][owner]
        if family in self.updating:
            self.changed.add(family)
        if len(self._owners[family]) < 2:
            self.updating.pop(family, None)
            self.changed.discard(family)
        if not self._owners[family]:
            del self._owners[family]

    def siblings(self, owner: Owner) -> Iterator[Owner]:
        """Yields an owner, and others of its family."""
        yield owner
        yield from islice((each for each in self.owners(family_of(owner)) if each != owner), ASKED_SIBLINGS)

    def owners(self, family: Family) -> Iterable[Owner]:
        """Returns the owners of a family that have pods."""
        return self._owners.get(family, ())

    def have_owner(self, uid: str) -> bool:
        """True if the owner with this UID has pods."""
        return any(each.uid == uid for each in self._by_owner)

    def of(self, owner: Owner) -> Iterator[PodInfo]:
        """Yields the living pods of an owner."""
        return (self._pods[uid].pod for uid in self._by_owner.get(owner, ()))


def owner_of(pod: PodInfo) -> Owner:
    """Returns the owner that a pod names."""
    return Owner(pod.namespace, pod.maker, pod.owner)


def family_of(owner: Owner) -> Family:
    """Returns the family of an owner."""
    name = owner.maker.rpartition("-")[0] if owner.maker.startswith("ReplicaSet/") else ""
    return owner.namespace, name or owner.maker


# Places


def place_within(state: SlicerState, one: Reservation | Allocation, pod: PodInfo) -> tuple[Slice, ...] | None:
    """Returns the slices of a pod within these slots; None if it asks for more, or may not run on the node."""
    index = state.cluster.index
    if not index.open_to(pod.constraints) & index.mask_of(one.node):
        return None
    holds = make_holds(state, one.node, one.slices, pod.key)
    if holds is None:
        return None
    found = list(one.slices)
    if pod.profiles != tuple(resource_spelling(each.profile) for each in found):
        found = _places_in(state, one.node, {each.gpu: each.bits for each in holds}, pod.profiles)
    values = state.inventory.values.get(one.node, {})
    kept = len(found) == len(pod.profiles) and keeps(pod.spread, [each.gpu_uuid for each in found], values)
    return tuple(found) if kept else None


def _places_in(state: SlicerState, node: NodeName, left: dict[str, int], profiles: Sequence[str]) -> list[Slice]:
    """Takes places of profiles within these bits of cards, as long as there are any."""
    found: list[Slice] = []
    for profile in profiles:
        place = _place_in(state, node, left, profile)
        if place is None:
            break
        found.append(place)
    return found


def _place_in(state: SlicerState, node: NodeName, left: dict[str, int], profile: str) -> Slice | None:
    """Takes the first place of a profile within these bits of cards; None if there is none."""
    for gpu, bits in left.items():
        try:
            card = state.inventory.fleet.card(node, gpu)
        except UnknownCard:
            continue
        row = card.geometry.find(profile)
        if row is None:
            continue
        for start in row.starts:
            claim = card.geometry.claim(row, start)
            if claim & bits == claim:
                left[gpu] = bits & ~claim
                name = plain_profile(row.name)
                return Slice(id=device_id(gpu, name, start), profile=name, gpu_uuid=gpu, start=start, size=row.size)
    return None


class KeptSlotTrials:
    """Finds kept slots for pods of gangs, of which only some get any in the end.

    A tenant may have many gangs that fit nowhere, so slots are tried once for each kind of pod, and for
    :data:`GANG_KINDS` kinds of a namespace.

    Args:
        state: the slicer's state.
        kept_for: the slots.
    """

    def __init__(self, state: SlicerState, kept_for: KeptFor) -> None:
        self._state = state
        self._kept_for = kept_for
        #: By namespace and kind of pod, the kept slots that are too small or on a node that is closed to it.
        self._misses: dict[str, dict[Hashable, set[str]]] = defaultdict(dict)

    def find(self, pod: PodInfo, taken: Container[str]) -> tuple[Reservation, tuple[Slice, ...]] | None:
        """Returns the first slots that a pod fits in, but those that are taken."""
        kinds, kind = self._misses[pod.namespace], (pod.profiles, pod.spread, pod.constraints)
        if kind not in kinds and len(kinds) >= GANG_KINDS:
            return None
        misses = kinds.setdefault(kind, set())
        for one in self._kept_for(pod):
            if one.uid not in misses and one.uid not in taken:
                slices = place_within(self._state, one, pod)
                if slices is not None:
                    return one, slices
                misses.add(one.uid)
        return None


def reserve_inherited(
    state: SlicerState, pod: PodInfo, node: NodeName, slices: tuple[Slice, ...]
) -> Reservation | None:
    """Makes the reservation of slots that a pod of the same owner has or had; None if they are not legal any more."""
    holds = make_holds(state, node, slices, pod.key)
    if not holds:
        return None
    return Reservation(
        uid=pod.uid,
        key=pod.key,
        queue=queue_key(state, pod),
        priority=INHERITED,
        number=0,
        node=node,
        slices=slices,
        holds=holds,
        made=state.now,
        until=state.now,
    )
