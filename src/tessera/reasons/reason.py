"""Why a pod waits, as data. The type of each text says who may read it (:mod:`tessera.visibility`).

The controller decides the reason and publishes it. Whoever shows it renders it with :mod:`tessera.reasons.words`; what
programs decide by a reason are properties here. A new reason is a class and its place in :data:`Reason` in this module,
and its words in that one.
"""

from enum import Enum

import msgspec

from tessera.mig.names import is_device_profile
from tessera.reasons.node_rules import NodeRule
from tessera.visibility import NodeName, PodKey, PodNamespace, PodText, Public


class Blocker(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What stands before a waiting pod: the holder of a slice, or a pod with a reservation.

    Attributes:
        pod: ``namespace/name``, or a text for a slice that no pod has.
        node: its node; empty for a reservation.
        profile: its slice there; empty for a reservation.
        gpu: UUID of the card.
        start: first memory slot of the slice.
        size: memory slots of the slice.
    """

    pod: PodKey
    node: NodeName = ""
    profile: Public = ""
    gpu: NodeName = ""
    start: int = 0
    size: int = 0


def _tag(name: str) -> str:
    return "".join(f"-{each.lower()}" if each.isupper() else each for each in name).lstrip("-")


class _Reason(msgspec.Struct, frozen=True, tag=_tag, rename="camel", omit_defaults=True):
    @classmethod
    def metric(cls) -> str:
        """The class in one word, as a label of metrics."""
        return str(cls.__struct_config__.tag).replace("-", "_")

    @property
    def case(self) -> str:
        """The reason in one word, for scripts."""
        return str(self.__struct_config__.tag)

    @property
    def never(self) -> bool:
        """True if the pod cannot run in the cluster as it is."""
        return False

    @property
    def waits_for_room(self) -> bool:
        """True if the end of other pods could make room: on the cards, or of CPU and memory on a node."""
        return False

    @property
    def competes(self) -> bool:
        """True if the pod takes room that becomes free, so that others wait behind it.

        A pod that never fits, that the rules of all nodes refuse, or whose gang is incomplete, takes none.
        """
        return self.waits_for_room

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """What must end or start first, as far as that is known."""
        return ()


class UnknownProfile(_Reason, frozen=True):
    """No card of the fleet has a profile that the demand names.

    Attributes:
        profile: the requested name.
        known: the profiles that the fleet's cards have.
        closest: the known profile whose spelling is closest, if any is close.
        missing_kind: the kind of object that the cluster lacks, so that no card can be known; empty if it has it.
    """

    profile: Public
    known: tuple[Public, ...] = ()
    closest: Public | None = None
    missing_kind: Public = ""

    @property
    def case(self) -> str:
        """``not-offered`` of a device, else ``no-such-profile``; ``no-card-reported`` while no cards are known.

        ``kind-missing`` if they cannot be known.
        """
        if is_device_profile(self.profile):
            return "not-offered"
        if self.missing_kind:
            return "kind-missing"
        return "no-such-profile" if self.known else "no-card-reported"

    @property
    def never(self) -> bool:
        """True while cards are known, and none has it."""
        return bool(self.known) and not self.missing_kind and not is_device_profile(self.profile)


class NeverFits(_Reason, frozen=True):
    """No node could hold the demand even if all of its cards were empty.

    Attributes:
        profiles: the requested profiles, or resources of whole cards and shares.
        largest: the node that could hold most of them, in words: its cards, ``1 card A100-40GB``; empty if not known.
        holds: what of the profiles that node could hold.
        selected: True if only the nodes that the pod selects were asked.
    """

    profiles: tuple[Public, ...]
    largest: Public = ""
    holds: tuple[Public, ...] = ()
    selected: bool = False

    never = True


class RuleCount(msgspec.Struct, frozen=True):
    """A rule, and the number of nodes that refuse a pod by it."""

    rule: NodeRule
    nodes: int


class NoNode(_Reason, frozen=True):
    """Nodes refuse the demand by their rules.

    Attributes:
        counts: the rules, most frequent first.
        no_room: further nodes, not asked because none of their cards has the profiles.
        too_small: the requested amounts and those of the largest node, in words, if all nodes that refuse are too
            small for the demand even when empty; else empty.
    """

    counts: tuple[RuleCount, ...]
    no_room: int = 0
    too_small: Public = ""

    @property
    def case(self) -> str:
        """By the rules: a volume, a node that is away, a node that other pods fill, or another rule."""
        rules = [each.rule for each in self.counts]
        if self.too_small:
            return "never-fits"
        if self.waits_for_room:
            return "node-full"
        if rules and all(each.is_about_volumes for each in rules):
            return "volume"
        return "node-not-ready" if any(each.is_absence for each in rules) else "no-node"

    @property
    def never(self) -> bool:
        """True if all nodes are too small."""
        return bool(self.too_small)

    @property
    def waits_for_room(self) -> bool:
        """True if some node lacks only what other pods hold."""
        return any(each.rule.ends_with_pods for each in self.counts)


class _NoRoom(_Reason, frozen=True):
    waits_for_room = True


class Full(_NoRoom, frozen=True):
    """The cards that may take the demand have fewer usable memory slots free, all together, than it needs.

    Attributes:
        profiles: the requested profiles.
        frees: the smallest set of slices, all on one node, whose end makes room; empty when more than a few would
            have to end.
        total: usable free slots of all cards that may take the demand.
        needed: the fewest slots that it takes on a node; 0 if that was not counted.
    """

    profiles: tuple[Public, ...]
    frees: tuple[Blocker, ...] = ()
    total: int = 0
    needed: int = 0

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """The slices that must end."""
        return self.frees


class Fragmented(_NoRoom, frozen=True):
    """Enough memory slots are free, but spread over cards or not where the profiles may start.

    Attributes:
        profiles: the requested profiles.
        free_slots: the most usable free slots on one card, or on one node for a demand of several slices.
        frees: as in ``Full``.
        total: usable free slots of all cards that may take the demand.
        needed: the fewest slots that it takes on a node; 0 if that was not counted.
    """

    profiles: tuple[Public, ...]
    free_slots: int
    frees: tuple[Blocker, ...] = ()
    total: int = 0
    needed: int = 0

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """The slices that must end."""
        return self.frees


class Reserved(_NoRoom, frozen=True):
    """The free slots that would do are kept for demands that go first.

    Attributes:
        profiles: the requested profiles.
        keys: the demands for which they are kept.
        free_slots: the most usable free slots on one card, or on one node for a demand of several slices.
        spare: queues that keep some of them spare for pods of their services.
    """

    profiles: tuple[Public, ...]
    keys: tuple[PodKey, ...]
    free_slots: int = 0
    spare: tuple[Public, ...] = ()

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """The pods that must start."""
        return tuple(map(Blocker, self.keys))


class QueueFull(_Reason, frozen=True):
    """The demand's queue holds as much as it may.

    Attributes:
        profiles: the requested profiles.
        queue: the queue.
        maximum: the most that it may hold, in words.
        held: what it holds, in the same unit.
        never: True if the demand alone is more than the maximum.
    """

    profiles: tuple[Public, ...]
    queue: Public
    maximum: Public
    held: Public
    never: bool = False

    @property
    def case(self) -> str:
        """``queue-full``, or ``never-fits``."""
        return "never-fits" if self.never else "queue-full"

    @property
    def competes(self) -> bool:
        """True unless the demand alone is too much."""
        return not self.never


class GangIncomplete(_Reason, frozen=True):
    """The demand's gang has fewer pods than start together.

    Attributes:
        gang: the gang's name.
        size: the number of pods that start together; 0 if no PodGroup says it.
        exist: pods of the gang that exist.
        held: those of them that cannot be placed yet, since gates of others hold them or their request is refused.
    """

    gang: Public
    size: int
    exist: int
    held: int = 0


class GangTooLarge(_Reason, frozen=True):
    """The cluster's cards could not hold the demand's gang even if all of them were empty.

    Attributes:
        gang: the gang's name.
        size: the number of pods that start together.
        wanted: what they request together, in words.
        most: the most of it that the empty cards could hold, in words.
    """

    gang: Public
    size: int
    wanted: Public
    most: Public

    case, never = "never-fits", True


class GangNoRoom(_Reason, frozen=True):
    """There is no room for all pods of the demand's gang at once.

    Attributes:
        gang: the gang's name.
        size: the number of pods that start together.
        fit: those for which there is a place now.
        member: the pod of the gang that finds no place first, as ``namespace/name``.
        reason: its reason; None if the bound on one decision's work was reached.
    """

    gang: Public
    size: int
    fit: int
    member: PodKey
    reason: "Reason | None"

    @property
    def case(self) -> str:
        """``gang-no-room``, unless the pod without a place never gets one."""
        return self.reason.case if self.reason is not None and self.reason.never else "gang-no-room"

    @property
    def never(self) -> bool:
        """True if a pod of the gang cannot run in the cluster."""
        return self.reason is not None and self.reason.never

    @property
    def competes(self) -> bool:
        """True if the pod without a place takes room that becomes free."""
        return self.reason is None or self.reason.competes

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """What stands before the pod without a place."""
        return self.reason.blockers if self.reason is not None else ()


class CardsAway(_Reason, frozen=True):
    """Cards that might serve the demand are not allocated for a fault.

    Attributes:
        cards: their number.
        reason: why no other card serves it.
        faults: the sources of their errors (:class:`tessera.api.nodes.health.Evidence`), ``XID 79``.
    """

    cards: int
    reason: "Reason"
    faults: tuple[Public, ...] = ()

    case = "card-held-back"

    @property
    def waits_for_room(self) -> bool:
        """True if the end of other pods could make room as well."""
        return self.reason.waits_for_room

    @property
    def competes(self) -> bool:
        """True if the demand takes room that becomes free."""
        return self.reason.competes

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """What stands before the demand on the other cards."""
        return self.reason.blockers


class UpdateStep(Enum):
    """What happens to the old pods of a Deployment whose slots a new one needs."""

    #: They stay until the new one is ready, which is a deadlock.
    STAY = "stay"
    #: One ends once the new pods that have slots are ready.
    FOLLOW = "follow"
    #: One ends once as many pods are ready as the Deployment wants, or at the new pod's deadline.
    SHORT = "short"
    #: One ends once the new pod's images are on its node.
    PULL = "pull"
    #: They stay, since the node does not get one of the new pod's images.
    IMAGE = "image"
    #: One was asked to end.
    END = "end"
    #: The server refused that.
    REFUSED = "refused"
    #: They stay, since a pod of the new revision has failed.
    FAILED = "failed"
    #: The demand is an old pod's: a new one has its slots, and gives them back if it fails.
    BACK = "back"


class OldPods(_Reason, frozen=True):
    """Pods of an older revision of the demand's own Deployment hold the slots that it needs.

    Attributes:
        namespace: the Deployment's namespace.
        deployment: its name.
        old: the pods, as ``namespace/name``; the new pods that start if the demand is an old one's (``BACK``).
        step: what happens to them.
        said: what the server says of a refused eviction, or kubelet of a refused image.
        since: when the step began, seconds since 1970, as far as this controller knows; 0 if it does not.
        reason: why nothing else serves the demand; None if that was not asked.
    """

    namespace: PodNamespace
    deployment: PodText
    old: tuple[PodKey, ...]
    step: UpdateStep = UpdateStep.STAY
    said: PodText = ""
    since: float = 0.0
    reason: "Reason | None" = None

    waits_for_room = True

    @property
    def case(self) -> str:
        """``own-rollout`` for a deadlock, or ``hand-over``."""
        return "own-rollout" if self.step is UpdateStep.STAY else "hand-over"


class OtherGate(_Reason, frozen=True):
    """Gates of others hold the pod.

    Attributes:
        gates: their names.
    """

    gates: tuple[Public, ...]


class SharedClaim(_Reason, frozen=True):
    """Another pod asks for a ResourceClaim that both use; once it is allocated, both start.

    Attributes:
        first: that pod, as ``namespace/name``.
    """

    first: PodKey

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """The other pod."""
        return (Blocker(self.first),)


class Planning(_Reason, frozen=True):
    """The controller has not planned the pod yet."""

    competes = True


#: Why planning finds no place for a pod.
Refusal = (
    UnknownProfile
    | NeverFits
    | NoNode
    | Full
    | Fragmented
    | Reserved
    | QueueFull
    | GangIncomplete
    | GangTooLarge
    | GangNoRoom
)
#: All reasons.
Reason = Refusal | CardsAway | OldPods | OtherGate | SharedClaim | Planning
