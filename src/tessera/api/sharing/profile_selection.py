"""Chooses the named sharing profile of a node.

The rules are those of the device plugin's config manager: the node's label names a profile; without a label, the
cluster's default counts; without that, a profile called ``default``, then the only profile, then none. One difference:
an unknown name is an error to be shown, not a reason to stop, so the caller keeps its present profile.
"""

from collections.abc import Mapping
from difflib import get_close_matches

import msgspec

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
