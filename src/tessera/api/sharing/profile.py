"""A sharing profile as values, its choice for a node, and the choice of its shares for a container.

The values are the content of a file of NVIDIA's device plugin, ``version: v1``.
:mod:`tessera.api.sharing.profile_parser` makes them from a file, and :mod:`tessera.api.sharing.advertisement` computes
a node's advertisement from them. Names, defaults and meanings are upstream's (k8s-device-plugin, ``api/config/v1``),
with one difference: settings that upstream reads and discards (``resources``, ``rename``, ``devices``) count here.

A node's profile, by the rules of the device plugin's config manager: the node's label names a profile; without a label,
the cluster's default counts; without that, a profile called ``default``, then the only profile, then none. One
difference: an unknown name is an error to be shown, not a reason to stop, so the caller keeps its present profile.

A container's shares: kubelet asks for preferred entries among the free ones. The function takes one entry after
another: ``distributed`` from the device with the fewest shares in use, ``packed`` from the one with the most. Ties are
broken by the use of the card, so MIG devices, which have one share each, are also spread over or packed onto cards;
then by the entries that this request has already taken; then by order. Unshared whole cards are chosen by their links,
elsewhere. Source of an MPS client's limits: the device plugin's MPS daemon, which divides the card's memory and threads
by the replicas.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum

import msgspec

from tessera.api.problems import Notice
from tessera.api.sharing.devices import AdvertisedDevice, SharingKind


class MigStrategy(Enum):
    """Cards in MIG mode are advertised as whole cards, as one card for each MIG device, or by profile."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class AllocationPolicy(Enum):
    """The card that a further share comes from: the least used one, or the most used one."""

    DISTRIBUTED = "distributed"
    PACKED = "packed"


#: The ways in which a container learns of its devices, in the order of upstream's documentation.
DEVICE_LIST_STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")

#: Extras that NVIDIA's runtime gives to a container with the variable ``NVIDIA_<name>``: GDRCopy, GPUDirect Storage,
#: Mellanox's network cards.
EXTRAS = ("gdrcopy", "gds", "mofed")


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the file that Tessera follows; ``None`` if the file leaves them to the installation.

    Attributes:
        mig_strategy: how cards in MIG mode are advertised.
        driver_root: host folder of the driver's files.
        dev_root: host folder of the device nodes; the driver root if unset.
        pass_device_specs: name device nodes in the answer to kubelet too.
        device_list_strategies: of :data:`DEVICE_LIST_STRATEGIES`, at least one.
        device_ids_are_uuids: True if containers learn UUIDs; otherwise indexes.
        cdi_annotation_prefix: of the strategy ``cdi-annotations``.
        allocation_policy: for shares and MIG devices.
        extras: of :data:`EXTRAS`, the extras that NVIDIA's runtime gives to every container besides its cards.
        imex_channels: numbers of the IMEX channels that every container learns of (``imex.channelIDs``).
        timestamp: True if a label shows when labels were first made.
    """

    mig_strategy: MigStrategy | None = None
    driver_root: str | None = None
    dev_root: str | None = None
    pass_device_specs: bool | None = None
    device_list_strategies: tuple[str, ...] | None = None
    device_ids_are_uuids: bool | None = None
    cdi_annotation_prefix: str | None = None
    allocation_policy: AllocationPolicy | None = None
    extras: tuple[str, ...] = ()
    imex_channels: tuple[int, ...] = ()
    timestamp: bool = True


class ResourcePattern(msgspec.Struct, frozen=True):
    """Assigns a resource name to devices by pattern.

    Attributes:
        pattern: of a card's product name or a MIG device's profile; ``*`` matches anything, other characters
            themselves.
        name: the resource, with its prefix.
    """

    pattern: str
    name: str

    def matches(self, text: str) -> bool:
        """True if the whole text fits the pattern."""
        first, *rest = self.pattern.split("*")
        if not rest:
            return text == first
        last = rest.pop()
        if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
            return False
        at, end = len(first), len(text) - len(last)
        for literal in rest:
            found = text.find(literal, at, end)
            if found < 0:
                return False
            at = found + len(literal)
        return True


class Selection(msgspec.Struct, frozen=True):
    """The devices of a resource that are shared: all of them if both fields are empty.

    Attributes:
        count: the first devices in the order of their indexes, as many as this number.
        refs: these, each as index ``0``, MIG index ``0:1``, ``GPU-<uuid>``, ``MIG-<uuid>`` or the old
            ``MIG-GPU-<uuid>/<gi>/<ci>``.
    """

    count: int | None = None
    refs: tuple[str, ...] = ()

    @property
    def all(self) -> bool:
        """Every device of the resource."""
        return self.count is None and not self.refs


class SharedResource(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``resources`` under ``timeSlicing`` or ``mps``.

    Attributes:
        name: the resource whose devices are shared.
        advertised: the name under which the shares are offered; ``name`` itself if they are not renamed.
        replicas: shares of each device, 2 or more.
        devices: the selected devices.
        path: the entry's place in the file, for messages.
    """

    name: str
    advertised: str
    replicas: int
    devices: Selection = Selection()
    path: str = ""


class SharedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The block of one kind of sharing, such as ``timeSlicing``.

    Attributes:
        kind: the kind.
        one_per_request: True if a container may ask for only one share (``failRequestsGreaterThanOne``).
        resources: in the order of the file; of two for the same device, the later one counts.
    """

    kind: SharingKind
    one_per_request: bool
    resources: tuple[SharedResource, ...]


class SharingProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file.

    Attributes:
        flags: settings.
        gpus: names of cards by product name, first match counts; empty for the default.
        mig: names of MIG devices by profile, first match counts; empty for the default of the MIG strategy.
        blocks: the kinds of sharing of the file; if two blocks name a device, the first counts.
        notices: settings of the file without effect here, and why.
    """

    flags: Flags = Flags()
    gpus: tuple[ResourcePattern, ...] = ()
    mig: tuple[ResourcePattern, ...] = ()
    blocks: tuple[SharedBlock, ...] = ()
    notices: tuple[Notice, ...] = ()


#: The node label that names a profile.
PROFILE_LABEL = "nvidia.com/device-plugin.config"
DEFAULT_PROFILE = "default"


class ChosenProfile(msgspec.Struct, frozen=True):
    """The profile of a node.

    Attributes:
        name: its key; empty if the node follows no profile.
        text: the file; empty likewise, which is a profile that shares nothing.
        reason: the reason of this choice, for people.
    """

    name: str
    text: str
    reason: str


class UnknownSharingProfile(LookupError):  # noqa: N818 - says what is wrong
    """A label or a default names a profile that does not exist.

    Attributes:
        closest: the profile whose name is closest; empty if none is close.
    """

    def __init__(self, text: str, closest: str) -> None:
        super().__init__(text)
        self.closest = closest


def choose_profile(profiles: Mapping[str, str], label: str, default: str) -> ChosenProfile:
    """Returns the profile that a node follows.

    Args:
        profiles: name to file, the data of the ConfigMap.
        label: value of the node's label; empty if it has none.
        default: the cluster's default; empty if it has none.

    Raises:
        UnknownSharingProfile: the name is not among the profiles; the text lists those.
    """
    for name, reason in ((label, f"the node's label {PROFILE_LABEL}"), (default, "the cluster's default")):
        if name:
            if name not in profiles:
                known = ", ".join(sorted(profiles)) or "none"
                raise UnknownSharingProfile(
                    f'{reason} names the profile "{name}", which does not exist; there are: {known}',
                    next(iter(get_close_matches(name[:63], profiles, n=1, cutoff=0.6)), ""),
                )
            return ChosenProfile(name, profiles[name], reason)
    if DEFAULT_PROFILE in profiles:
        return ChosenProfile(DEFAULT_PROFILE, profiles[DEFAULT_PROFILE], f'the profile called "{DEFAULT_PROFILE}"')
    if len(profiles) == 1:
        ((name, text),) = profiles.items()
        return ChosenProfile(name, text, "the only profile there is")
    none = (
        f"neither a label nor a default names one of the {len(profiles)} profiles"
        if profiles
        else "there are no profiles"
    )
    return ChosenProfile("", "", none)


class NotEnoughShares(ValueError):  # noqa: N818 - says what is wrong
    """Fewer entries are free than asked for."""


def prefer_shares(
    devices: Sequence[AdvertisedDevice],
    available: Collection[str],
    must_include: Sequence[str],
    size: int,
    policy: AllocationPolicy,
) -> tuple[str, ...]:
    """Returns the entries that a container should get.

    Args:
        devices: all entries of the resource, in the order of index and share.
        available: ids of the free entries; unknown ones are ignored.
        must_include: ids that the answer must contain.
        size: the number of entries that the container gets.
        policy: spread or pack.

    Returns:
        ``must_include``, and then the preferred ones in the order in which they were chosen.

    Raises:
        NotEnoughShares: fewer entries are free than needed.
    """
    candidates = set(available).difference(must_include)
    free = [device for device in devices if device.id in candidates]
    needed = size - len(must_include)
    if len(free) < needed:
        names = f"{len(free)} are free beside the {len(must_include)} that must be part of it"
        raise NotEnoughShares(f"not enough available devices: {size} are asked for, {names}")
    in_use = Counter(device.uuid for device in devices) - Counter(device.uuid for device in free)
    on_card = Counter(device.gpu for device in devices) - Counter(device.gpu for device in free)
    taken: Counter[str] = Counter()
    sign = 1 if policy is AllocationPolicy.DISTRIBUTED else -1

    def rank(one: AdvertisedDevice) -> tuple[int, int, int, int]:
        return (sign * in_use[one.uuid], sign * on_card[one.gpu], taken[one.uuid], taken[one.gpu])

    chosen = []
    for _ in range(max(0, needed)):
        best = min(free, key=rank)
        free.remove(best)
        chosen.append(best.id)
        in_use[best.uuid] += 1
        on_card[best.gpu] += 1
        taken.update({best.uuid, best.gpu})
    return (*must_include, *chosen)


class ClientShare(msgspec.Struct, frozen=True):
    """The memory and compute of one client of a shared card.

    Attributes:
        memory_mib: device memory in MiB, the pinned memory limit of the daemon.
        thread_percent: of the card's threads, 1 to 100.
    """

    memory_mib: int
    thread_percent: int


def client_share(memory_mib: int, replicas: int) -> ClientShare:
    """An equal share of a card, rounded down as the daemon takes whole numbers.

    Args:
        memory_mib: of the whole card.
        replicas: number of shares, 1 or more.
    """
    return ClientShare(memory_mib // replicas, max(1, 100 // replicas))
