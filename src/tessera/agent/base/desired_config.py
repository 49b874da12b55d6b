"""The desired configuration of a node's cards, as values: a sharing profile, a MIG layout, the plans of MPS daemons.

The values give the desired state, not the present one. Conditions of the Node report whether it is in force.
"""

from collections.abc import Collection, Mapping

import msgspec

from tessera.api.mig_layouts import LayoutEntry
from tessera.api.sharing.profile import ClientShare, SharingProfile
from tessera.kubelet.interfaces import Mount


class AppliedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A sharing profile that was in force on this node.

    Attributes:
        name: its key in the ConfigMap; empty if no profile was selected.
        text: the file.
        profile: the parsed file.
    """

    name: str = ""
    text: str = ""
    profile: SharingProfile = SharingProfile()


class DesiredSharing(msgspec.Struct, frozen=True, kw_only=True):
    """The sharing profile that the node must follow.

    Attributes:
        name: its key in the ConfigMap; empty if none is selected, and then no card is shared.
        text: the file; passed back when the profile is in force.
        profile: the parsed file.
        reason: why this profile was selected, for people: ``the node's label nvidia.com/device-plugin.config``.
        problem: why the profile that the label asks for is not followed; ``None`` if this profile is the one.
        problem_reason: the same for machines: ``ProfileMissing``, ``ProfileRefused``, ``ProfilesUnreadable``.
        last: the profile that was in force before, in this process or an earlier one; ``None`` if none ever was. It is
            offered instead if the cards do not allow this profile and nothing is offered yet.
    """

    name: str = ""
    text: str = ""
    profile: SharingProfile = SharingProfile()
    reason: str = ""
    problem: str | None = None
    problem_reason: str | None = None
    last: AppliedProfile | None = None


class DesiredLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The MIG layout that the node must have.

    Attributes:
        name: its name in the label or the cluster's default; empty to leave the cards as they are. ``dynamic`` is no
            layout of a file.
        entries: the layout; ``None`` if no file has a layout of that name. That alone is no mistake, since many
            layouts exist without a file.
        reason: why this layout was selected, for people.
        is_default: true if it is the cluster's default, because the node itself asks for none.
        problem: why the files cannot be used, for people, with the path of each mistake; ``None`` if they can.
        problem_reason: the same for machines: ``LayoutsRefused``, ``LayoutAmbiguous``, ``LayoutsUnreadable``.
        closest: if no file has the layout, the most similar name in the files; may be empty.
        whole_by_claims: ResourceClaims get the cards that the layout leaves whole.
        sharing: the profile that divides these cards into shares; ``None`` if none does.
    """

    name: str = ""
    entries: tuple[LayoutEntry, ...] | None = None
    reason: str = ""
    is_default: bool = False
    problem: str | None = None
    problem_reason: str | None = None
    closest: str = ""
    whole_by_claims: bool = False
    sharing: SharingProfile | None = None


class ServicePlan(msgspec.Struct, frozen=True):
    """The process that must serve the shares of one resource, such as an MPS daemon.

    Attributes:
        devices: the share of one client on each card, by the card's UUID; in the order of the cards' indexes.
        replicas: number of clients of the card with most shares.
    """

    devices: Mapping[str, ClientShare]
    replicas: int

    @property
    def cards(self) -> tuple[str, ...]:
        """UUIDs of the cards that the process serves."""
        return tuple(self.devices)

    @property
    def thread_percent(self) -> int:
        """Percentage of a card's threads that one client may use."""
        return min(share.thread_percent for share in self.devices.values())


class ContainerEdits(msgspec.Struct, frozen=True):
    """Edits that a container of a resource gets in Allocate, besides its devices: variables, and host folders."""

    envs: Mapping[str, str]
    mounts: tuple[Mount, ...]


def drop_cards(plans: Mapping[str, ServicePlan], cards: Collection[str]) -> dict[str, ServicePlan]:
    """Returns the plans without these cards; drops a plan that has no card left."""
    left = {
        resource: {card: share for card, share in plan.devices.items() if card not in cards}
        for resource, plan in plans.items()
    }
    return {resource: ServicePlan(shares, plans[resource].replicas) for resource, shares in left.items() if shares}
