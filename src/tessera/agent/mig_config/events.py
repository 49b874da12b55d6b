"""Events that go into the state machine of one card, instructions that come out of it, and the status. Values only.

:mod:`tessera.agent.mig_config.state_machine` decides, :mod:`tessera.agent.mig_config.card_reconciler` acts.

The status of the node's layout, for people and for the node's label, sums up that of its cards.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from tessera.agent.base.wake_ups import CallFailure
from tessera.agent.inventory.gpu_inventory import CardOwner
from tessera.api.names import PodUid
from tessera.mig.geometry import Geometry
from tessera.nvml.interface import GpuInstance, MigUuid


class CardGoal(msgspec.Struct, frozen=True, kw_only=True):
    """The goal that a layout sets for one card.

    Attributes:
        owner: the side that gets the card; the other attributes count for static cards only.
        mig_enabled: true if MIG mode must be on.
        counts: number of instances by profile, for the whole card.
        path: the entry of the layout that sets the goal; empty if no entry does.
    """

    owner: CardOwner = CardOwner.STATIC
    mig_enabled: bool = False
    counts: Mapping[str, int] = {}
    path: str = ""


class InstancePlace(msgspec.Struct, frozen=True, order=True):
    """Place of an instance on its card: profile as NVML names it, first memory slot."""

    profile: str
    start: int


class UserPod(msgspec.Struct, frozen=True, order=True):
    """A pod that holds a card or a MIG device. All attributes are empty for a pod that is just being admitted."""

    namespace: str = ""
    name: str = ""
    pod: PodUid = PodUid("")

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}" if self.pod else "a pod that is being admitted"


# Events -------------------------------------------------------------------------------------------------------------


class GoalSet(msgspec.Struct, frozen=True):
    """The layout sets this goal for the card; ``None`` leaves the card as it is."""

    goal: CardGoal | None


class CardRead(msgspec.Struct, frozen=True, kw_only=True):
    """NVML described the card.

    Attributes:
        mig_enabled: MIG mode now.
        mig_pending: MIG mode after the next reset.
        geometry: the card's table of profiles; ``None`` while MIG mode is off.
        instances: its GPU instances.
        processes: PIDs that NVML lists, by GPU instance; under ``None`` those on the whole card.
    """

    mig_enabled: bool
    mig_pending: bool
    geometry: Geometry | None
    instances: tuple[GpuInstance, ...]
    processes: Mapping[int | None, tuple[int, ...]] = {}


class CardReadFailed(msgspec.Struct, frozen=True):
    """NVML could not describe the card; the next attempt is due at ``retry`` (monotonic seconds)."""

    text: str
    retry: float


class FenceSet(msgspec.Struct, frozen=True):
    """From now on no pod is given these UUIDs, of the card and of its MIG devices."""

    uuids: frozenset[str]


class UsersListed(msgspec.Struct, frozen=True):
    """The users of each device, listed after the fence was set: no fenced device can have a new user since."""

    users: Mapping[str, tuple[UserPod, ...]]


class UsersUnknown(msgspec.Struct, frozen=True):
    """API server or kubelet did not list the users; the next attempt is due at ``retry`` (monotonic seconds)."""

    text: str
    retry: float


class OwnerRead(msgspec.Struct, frozen=True):
    """The present owner of the card."""

    owner: CardOwner


class CallSucceeded(msgspec.Struct, frozen=True):
    """A call succeeded; the next reading of the card shows its result."""

    call: "Call"


class CallFailed(msgspec.Struct, frozen=True):
    """A call failed at ``now`` (monotonic seconds); ``text`` is for people."""

    call: "Call"
    failure: CallFailure
    text: str
    now: float


class EvictionAnswered(msgspec.Struct, frozen=True):
    """The API server answered at ``now`` (monotonic seconds).

    Attributes:
        pod: the pod to be evicted.
        refusal: why the pod cannot be evicted now; ``None`` if it will end.
        now: time of the answer.
    """

    pod: PodUid
    refusal: str | None
    now: float


CardEvent = (
    GoalSet
    | OwnerRead
    | CardRead
    | CardReadFailed
    | FenceSet
    | UsersListed
    | UsersUnknown
    | CallSucceeded
    | CallFailed
    | EvictionAnswered
)

# Instructions -------------------------------------------------------------------------------------------------------


class SetMigMode(msgspec.Struct, frozen=True):
    """Turn MIG mode on or off. The card has no instance and no user."""

    enabled: bool


class Reset(msgspec.Struct, frozen=True):
    """Reset this card, and no other. No pod holds it or a part of it, and no process is listed on it."""


class CreateGi(msgspec.Struct, frozen=True):
    """Create a GPU instance."""

    place: InstancePlace


class CreateCi(msgspec.Struct, frozen=True):
    """Create the compute instance that spans a GPU instance; ``profile_index`` is NVML's."""

    place: InstancePlace
    gi_id: int
    profile_index: int


class DestroyCi(msgspec.Struct, frozen=True):
    """Destroy a compute instance that is fenced and has no user."""

    place: InstancePlace
    gi_id: int
    ci_id: int
    mig_uuid: MigUuid


class DestroyGi(msgspec.Struct, frozen=True):
    """Destroy an empty GPU instance."""

    place: InstancePlace
    gi_id: int


Call = SetMigMode | Reset | CreateGi | CreateCi | DestroyCi | DestroyGi


class SetFence(msgspec.Struct, frozen=True):
    """Fence exactly these UUIDs, of the card and of its MIG devices: no pod may get them."""

    uuids: frozenset[str]


class ListUsers(msgspec.Struct, frozen=True):
    """Ask API server and kubelet for the users of each device."""


class EvictUsers(msgspec.Struct, frozen=True):
    """Ask the API server to evict these pods: each holds a device that the layout removes."""

    users: tuple[UserPod, ...]


class ReleaseCard(msgspec.Struct, frozen=True):
    """Hand the card over: the static side no longer needs it."""


class RequestReboot(msgspec.Struct, frozen=True):
    """Ask for a reboot of the node: only that helps the card.

    Attributes:
        text: why, for people.
        until: time of the next decision if the node still runs (monotonic seconds).
    """

    text: str
    until: float


class Wait(msgspec.Struct, frozen=True):
    """Do nothing before ``until``.

    Attributes:
        until: time of the next decision, monotonic seconds; ``None``: at the next event.
        reason: CamelCase, for machines: ``CardsInUse``, ``LayoutRetrying``.
        text: for people: the pods or processes that hold the card, or the error.
        failed: true if a call failed often enough to be reported as a failure; it is tried again all the same.
    """

    until: float | None
    reason: str
    text: str
    failed: bool = False


class InSync(msgspec.Struct, frozen=True):
    """Do nothing: the card has reached its goal."""


CardInstruction = Call | SetFence | ListUsers | EvictUsers | ReleaseCard | RequestReboot | Wait | InSync


#: Reasons of a layout that is in force, and of one that is being applied.
APPLIED, APPLYING = "LayoutApplied", "LayoutApplying"
#: Reason of a card that had the layout when it could be read last.
UNREADABLE = "CardUnreadable"


class LayoutState(StrEnum):
    """The values of the label ``nvidia.com/mig.config.state``, as NVIDIA's MIG manager writes them."""

    PENDING = "pending"
    REBOOTING = "rebooting"
    SUCCESS = "success"
    FAILED = "failed"


class CardStatus(msgspec.Struct, frozen=True):
    """The status of one card: state, reason in CamelCase, text for people."""

    state: LayoutState
    reason: str
    text: str = ""


class LayoutStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of the node's layout.

    Attributes:
        layout: its name; empty if none is desired, and then nothing is reported.
        state: the state of the node as a whole.
        reason: CamelCase: ``LayoutApplied``, ``LayoutApplying``, ``CardsInUse``, ``LayoutRetrying``, ``LayoutUnknown``,
            ``LayoutImpossible``, ``ResetRequired``, ``Rebooting``, ``NvmlFailed``, ...
        message: for people; names the cards, and the pods that block them.
    """

    layout: str = ""
    state: LayoutState = LayoutState.PENDING
    reason: str = APPLYING
    message: str = ""


#: The states by urgency: the most urgent state of any card is the node's.
_ORDER = (LayoutState.REBOOTING, LayoutState.FAILED, LayoutState.PENDING, LayoutState.SUCCESS)


def summarize_cards(layout: str, cards: Mapping[str, CardStatus], notices: Iterable[str] = ()) -> LayoutStatus:
    """Returns the node's status.

    Args:
        layout: name of the layout.
        cards: the status of every card with a goal, by card.
        notices: parts of the layout that do not apply to this node.
    """
    state = next((each for each in _ORDER if any(card.state is each for card in cards.values())), LayoutState.SUCCESS)
    if state is LayoutState.SUCCESS:
        unread = [each.text for each in cards.values() if each.reason == UNREADABLE]
        text = "; ".join([f'layout "{layout}" is in force', *unread, *notices])
        return LayoutStatus(layout=layout, state=state, reason=APPLIED, message=text)
    unfinished = sorted(
        (each for each in cards.values() if each.state is not LayoutState.SUCCESS),
        key=lambda each: (_ORDER.index(each.state), each.reason == APPLYING),
    )
    texts = [each.text for each in unfinished if each.text] or [f'layout "{layout}" is being applied']
    return LayoutStatus(
        layout=layout, state=state, reason=unfinished[0].reason, message="; ".join(dict.fromkeys(texts))
    )
