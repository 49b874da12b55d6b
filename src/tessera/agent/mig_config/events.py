"""The words of a card's way to its layout: facts that go into the machine, instructions that come out. Values only."""

from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.agent.inventory.card_ownership import CardOwner
from tessera.api.names import PodUid
from tessera.mig.geometry import Geometry
from tessera.nvml.interface import Instance, MigUuid


class CardGoal(msgspec.Struct, frozen=True, kw_only=True):
    """What a layout wants of one card.

    Attributes:
        role: who shall have the card; the rest counts for static cards only.
        mig_enabled: MIG mode shall be on.
        counts: instances by profile for the whole card.
        path: the entry of the layout that says so; empty for what no entry says.
    """

    role: CardOwner = CardOwner.STATIC
    mig_enabled: bool = False
    counts: Mapping[str, int] = {}
    path: str = ""


class InstancePlace(msgspec.Struct, frozen=True, order=True):
    """Where an instance is on its card: profile as NVML names it, first memory slot."""

    profile: str
    start: int


class DeviceUser(msgspec.Struct, frozen=True, order=True):
    """A pod that holds a card or a MIG device; all empty for one that is just being admitted."""

    namespace: str = ""
    name: str = ""
    pod: PodUid = PodUid("")

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}" if self.pod else "a pod that is being admitted"


# Facts --------------------------------------------------------------------------------------------------------------


class CardRead(msgspec.Struct, frozen=True, kw_only=True):
    """The card was read.

    Attributes:
        mig_enabled: MIG mode now.
        mig_pending: MIG mode after the next reset.
        geometry: the card's table; ``None`` while MIG mode is off.
        instances: its GPU instances.
        users: PIDs that NVML lists, by GPU instance; under ``None`` those on the whole card.
    """

    mig_enabled: bool
    mig_pending: bool
    geometry: Geometry | None
    instances: tuple[Instance, ...]
    processes: Mapping[int | None, tuple[int, ...]] = {}


class CardReadFailed(msgspec.Struct, frozen=True):
    """The card did not answer; to be asked again at ``retry``."""

    text: str
    retry: float


class FenceSet(msgspec.Struct, frozen=True):
    """From now on nobody is given these UUIDs, of the card and of its MIG devices."""

    uuids: frozenset[str]


class UsersListed(msgspec.Struct, frozen=True):
    """Who holds what, asked behind the fence: nothing fenced can have got a holder since."""

    users: Mapping[str, tuple[DeviceUser, ...]]


class UsersUnknown(msgspec.Struct, frozen=True):
    """Nobody said who holds what; to be asked again at ``retry``."""

    text: str
    retry: float


class OwnerRead(msgspec.Struct, frozen=True):
    """Who has the card now."""

    role: CardOwner


class CallFailure(Enum):
    """Why a call failed, as far as it matters for what comes next."""

    #: Something still uses it.
    BUSY = "busy"
    #: Anything else.
    REFUSED = "refused"
    #: The card must be reset before it works again.
    NEEDS_RESET = "needs-reset"


class CallSucceeded(msgspec.Struct, frozen=True):
    """A call succeeded; what it led to is seen when the card is read."""

    call: "Call"


class CallFailed(msgspec.Struct, frozen=True):
    """A call failed at ``now`` (monotonic seconds); ``text`` is for people."""

    call: "Call"
    failure: CallFailure
    text: str
    now: float


class EvictionAnswered(msgspec.Struct, frozen=True):
    """The API server answered at ``now``; ``refusal`` is why the pod may not be evicted now, ``None`` if it will go."""

    pod: PodUid
    refusal: str | None
    now: float


CardEvent = (
    CardRead
    | CardReadFailed
    | FenceSet
    | UsersListed
    | UsersUnknown
    | OwnerRead
    | CallSucceeded
    | CallFailed
    | EvictionAnswered
)

# Instructions -------------------------------------------------------------------------------------------------------


class SetMigMode(msgspec.Struct, frozen=True):
    """Turn MIG mode on or off. The card has no instance and nobody holds it."""

    enabled: bool


class Reset(msgspec.Struct, frozen=True):
    """Reset this card, and no other. Nobody holds it or a part of it, and no process is listed on it."""


class CreateGi(msgspec.Struct, frozen=True):
    """Create a GPU instance."""

    place: InstancePlace


class CreateCi(msgspec.Struct, frozen=True):
    """Create the compute instance that spans a GPU instance; ``profile_index`` is NVML's."""

    place: InstancePlace
    gi_id: int
    profile_index: int


class DestroyCi(msgspec.Struct, frozen=True):
    """Destroy a compute instance that is fenced and that nobody holds."""

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
    """Let exactly these UUIDs, of the card and of its MIG devices, be given to nobody."""

    uuids: frozenset[str]


class ListUsers(msgspec.Struct, frozen=True):
    """Find out who holds what, from kubelet and the API server themselves."""


class EvictUsers(msgspec.Struct, frozen=True):
    """Ask the API server to evict these pods: each holds something that must go."""

    users: tuple[DeviceUser, ...]


class ReleaseCard(msgspec.Struct, frozen=True):
    """The static side needs the card no longer."""


class RequestReboot(msgspec.Struct, frozen=True):
    """Only a reboot of the node can help the card; ``text`` says why. Else it is looked at again at ``until``."""

    text: str
    until: float


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do before ``until`` (monotonic seconds; ``None``: before the next fact), for this reason.

    Attributes:
        until: when the card is to be looked at again in any case.
        reason: CamelCase, for machines: ``CardsInUse``, ``LayoutRetrying``.
        text: for people: who or what is waited for.
        failed: what was tried has failed often enough to be called a failure; it is tried again all the same.
    """

    until: float | None
    reason: str
    text: str
    failed: bool = False


class InSync(msgspec.Struct, frozen=True):
    """The card is as it shall be."""


CardInstruction = Call | SetFence | ListUsers | EvictUsers | ReleaseCard | RequestReboot | Wait | InSync
