"""What an administrator wishes of a node's cards, as values: a sharing profile and a MIG layout.

A wish is what shall be, not what is. Whoever acts on it says afterwards what came of it.
"""

import msgspec

from tessera.api.mig_layouts.layouts_file import LayoutEntry
from tessera.api.sharing.profile import SharingProfile


class AppliedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A sharing profile that was in force on this node.

    Attributes:
        name: its key in the ConfigMap; empty where there was nothing to follow.
        text: the file.
        profile: what the file says.
    """

    name: str = ""
    text: str = ""
    profile: SharingProfile = SharingProfile()


class DesiredSharing(msgspec.Struct, frozen=True, kw_only=True):
    """The sharing profile that the node shall follow.

    Attributes:
        name: its key in the ConfigMap; empty where there is nothing to follow, and then nothing is shared.
        text: the file, to be handed back when the profile is in force.
        profile: what the file says.
        reason: why this one, for people: ``the node's label nvidia.com/device-plugin.config``.
        problem: why the one that label and file ask for is not followed; ``None`` if this is that one.
        problem_reason: the same as a word for machines: ``ProfileMissing``, ``ProfileRefused``, ``ProfilesUnreadable``.
        last: what was in force before, on this run of the agent or an earlier one. To be offered instead if the cards
            do not allow this profile and nothing is offered yet; ``None`` if nothing ever was.
    """

    name: str = ""
    text: str = ""
    profile: SharingProfile = SharingProfile()
    reason: str = ""
    problem: str | None = None
    problem_reason: str | None = None
    last: AppliedProfile | None = None


class DesiredLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The MIG layout that the node shall have.

    Attributes:
        name: as the label or the cluster's default has it; empty to leave the cards as they are. ``dynamic`` is no
            layout of a file.
        entries: the layout; ``None`` where no file has one of that name, which is no mistake yet, since many layouts
            exist without a file.
        reason: why this one, for people.
        default: it is the cluster's; the node itself asks for none.
        problem: why the files cannot be gone by, for people, with the path of each mistake; ``None`` if they can.
        problem_reason: the same as a word for machines: ``LayoutsRefused``, ``LayoutAmbiguous``, ``LayoutsUnreadable``.
        closest: the layout of a file whose name comes closest, where no file has the one that is asked for; may be
            empty.
    """

    name: str = ""
    entries: tuple[LayoutEntry, ...] | None = None
    reason: str = ""
    is_default: bool = False
    problem: str | None = None
    problem_reason: str | None = None
    closest: str = ""
