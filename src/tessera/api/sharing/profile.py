"""A sharing profile as values: the content of a file of NVIDIA's device plugin, ``version: v1``.

:mod:`tessera.api.sharing.profile_parser` makes these values from a file, and :mod:`tessera.api.sharing.advertisement`
computes a node's advertisement from them. Names, defaults and meanings are upstream's (k8s-device-plugin,
``api/config/v1``), with one difference: settings that upstream reads and discards (``resources``, ``rename``,
``devices``) count here.
"""

from enum import Enum

import msgspec

from tessera.api.problems import Notice
from tessera.api.sharing.kinds import SharingKind


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
