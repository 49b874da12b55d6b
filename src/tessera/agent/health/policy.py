"""The reaction to each hardware error, as data.

An XID is the driver's number for an error. :data:`CATALOGUE` maps the remedies of NVIDIA's catalogue
(:mod:`tessera.nvml.errors`) to five steps. Five XIDs are never counted, as in NVIDIA's device plugin, since they are
errors of the program and not of the card. The two environment variables of that plugin (``DP_DISABLE_HEALTHCHECKS``,
``DP_ENABLE_HEALTHCHECKS``) change the choice. An XID in no list withholds the card, where NVIDIA's plugin marks it
unhealthy; here the card recovers after clean probes.

One difference is intended: with all XIDs disabled, those that are enabled one by one still count. NVIDIA's
documentation says so, but its code does not do so.
"""

import re
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

import msgspec

from tessera.agent.inventory.device_state import Reaction
from tessera.nvml.errors import XIDS, Remedy
from tessera.nvml.interface import GpuEventKind


class RecoveryAction(IntEnum):
    """The recovery action that the driver asks for (``NVML_FI_DEV_GET_GPU_RECOVERY_ACTION``)."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


#: The reaction to each recovery action.
DRIVER_REACTIONS: Mapping[RecoveryAction, Reaction] = {
    RecoveryAction.NONE: Reaction.IGNORE,
    RecoveryAction.GPU_RESET: Reaction.RESET,
    RecoveryAction.NODE_REBOOT: Reaction.REBOOT,
    RecoveryAction.DRAIN_P2P: Reaction.WITHHOLD,
    RecoveryAction.DRAIN_AND_RESET: Reaction.RESET,
    RecoveryAction.RECOVER_IMEX_DOMAIN: Reaction.DEGRADE,
    RecoveryAction.BUS_RESET: Reaction.RESET,
    RecoveryAction.SYSTEM_REBOOT: Reaction.REBOOT,
}

#: The reaction to each remedy of NVIDIA's catalogue. A card whose program must be restarted is well as soon as its
#: probes succeed; the same holds for errors without a stated remedy, as for those that the catalogue does not list.
REMEDY_REACTIONS: Mapping[Remedy, Reaction] = {
    Remedy.IGNORE: Reaction.DEGRADE,
    Remedy.DRIVER_DECIDES: Reaction.DEGRADE,
    Remedy.RESTART_APP: Reaction.WITHHOLD,
    Remedy.CHECK_CABLES: Reaction.WITHHOLD,
    Remedy.UPDATE_SOFTWARE: Reaction.WITHHOLD,
    Remedy.WORKFLOW_45: Reaction.WITHHOLD,
    Remedy.WORKFLOW_NVLINK: Reaction.WITHHOLD,
    Remedy.CONTACT_SUPPORT: Reaction.WITHHOLD,
    Remedy.UNSTATED: Reaction.WITHHOLD,
    Remedy.RESET_GPU: Reaction.RESET,
    Remedy.WORKFLOW_48: Reaction.RESET,
    Remedy.RESTART_NODE: Reaction.REBOOT,
    Remedy.RESTART_VM: Reaction.REBOOT,
}

#: The reaction to each XID of NVIDIA's catalogue, before :data:`APPLICATION_XIDS`.
CATALOGUE: Mapping[int, Reaction] = MappingProxyType(
    {number: REMEDY_REACTIONS[xid.remedy] for number, xid in XIDS.items()}
)

#: Errors of the program that runs, not of the card: never counted unless enabled (k8s-device-plugin, ``health.go``).
#: That plugin ignores 109 too. The catalogue asks for a reset after it, so it counts here (docs/decisions).
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68})

#: The reaction to ECC events. The XID that follows gives the consequence for the card (48, 63, 94, 95).
ECC_REACTIONS: Mapping[GpuEventKind, Reaction] = {
    GpuEventKind.DOUBLE_BIT_ECC: Reaction.DEGRADE,
    GpuEventKind.SINGLE_BIT_ECC: Reaction.IGNORE,
}


_EVERY = frozenset({"all", "xids"})
#: An XID fits into 64 bits (nvml.h, ``nvmlEventData_t.eventData``).
_NUMBER = re.compile(r"[0-9]{1,20}")


class XidList(msgspec.Struct, frozen=True):
    """The value of one of the two variables."""

    every: bool = False
    xids: frozenset[int] = frozenset()

    def __contains__(self, xid: int) -> bool:
        return self.every or xid in self.xids


def parse_xids(text: str) -> XidList:
    """Reads ``all``, ``xids`` (the same), or a comma-separated list; ignores words that are not an XID."""
    words = _words(text)
    return XidList(
        every=not _EVERY.isdisjoint(words), xids=frozenset(int(word) for word in words if _NUMBER.fullmatch(word))
    )


def unknown_words(text: str) -> tuple[str, ...]:
    """The words in a value that :func:`parse_xids` ignores, in their order."""
    return tuple(word for word in _words(text) if word and word not in _EVERY and not _NUMBER.fullmatch(word))


def _words(text: str) -> list[str]:
    return [word.strip().lower() for word in text.split(",")]


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The reaction to each error.

    Attributes:
        reactions: the reaction by XID.
        unlisted: the reaction to an XID that ``reactions`` lacks.
        disabled: XIDs that are ignored, beside :data:`APPLICATION_XIDS`.
        enabled: XIDs that always count; they withhold the card at least.
    """

    reactions: Mapping[int, Reaction] = CATALOGUE
    unlisted: Reaction = Reaction.WITHHOLD
    disabled: XidList = XidList()
    enabled: XidList = XidList()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "HealthPolicy":
        """The policy with the changes of the two environment variables."""
        return cls(
            disabled=parse_xids(environment.get("DP_DISABLE_HEALTHCHECKS", "")),
            enabled=parse_xids(environment.get("DP_ENABLE_HEALTHCHECKS", "")),
        )

    def reaction(self, xid: int) -> Reaction:
        """The reaction to an XID."""
        listed = self.reactions.get(xid, self.unlisted)
        if xid in self.enabled:
            return max(listed, Reaction.WITHHOLD)
        if xid in self.disabled or xid in APPLICATION_XIDS:
            return Reaction.IGNORE
        return listed
