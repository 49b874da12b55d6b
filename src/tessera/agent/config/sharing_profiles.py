"""Which sharing profile a node shall follow, from its label, the cluster's default and the files there are. Pure.

The rules of the choice are those of :mod:`tessera.api.sharing.profiles`. What is added here: a choice that cannot be
followed, because the name is unknown, the file has mistakes or the ConfigMap cannot be read, leaves the node with what
was in force before, and says why.
"""

from collections.abc import Callable, Mapping

import msgspec

from tessera.agent.base.desired_config import SharingWish, TakenProfile
from tessera.api.documents import FileRefused
from tessera.api.sharing.config import SharingProfile
from tessera.api.sharing.grammar import parse_profile
from tessera.api.sharing.profiles import NoSuchProfile, choose_profile

MISSING, REFUSED, UNREADABLE = "ProfileMissing", "ProfileRefused", "ProfilesUnreadable"


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a ConfigMap.

    Attributes:
        source: how messages call it, ``ConfigMap kube-system/profiles``; empty if none is configured.
        texts: by key; empty if the ConfigMap is not there.
        trouble: why the ConfigMap cannot be read; ``None`` if it can, or if none is configured.
    """

    source: str = ""
    texts: Mapping[str, str] = {}
    trouble: str | None = None


#: A profile, or why the file is none.
ReadProfile = Callable[[str], SharingProfile | FileRefused]


def read_profile(text: str) -> SharingProfile | FileRefused:
    """The profile in a file, or its mistakes."""
    try:
        return parse_profile(text)
    except FileRefused as refusal:
        return refusal


def sharing_wish(
    files: Files, label: str, default: str, last: TakenProfile | None, read: ReadProfile = read_profile
) -> SharingWish:
    """The profile that a node shall follow.

    Args:
        files: the profiles.
        label: value of the node's label; empty if it has none.
        default: the cluster's default; empty if it has none.
        last: what was in force before.
        read: reads a file; may remember what it has read.
    """
    if files.trouble is not None:
        return _kept(last, f"{files.source}: {files.trouble}", UNREADABLE)
    try:
        chosen = choose_profile(files.texts, label, default)
    except NoSuchProfile as error:
        where = f" in {files.source}" if files.source else "; no ConfigMap of profiles is configured (--sharing-config)"
        meant = f'; did you mean "{error.closest}"?' if error.closest else ""
        return _kept(last, f"{error}{where}{meant}", MISSING)
    if not chosen.name:
        return SharingWish(reason=chosen.reason, last=last)
    profile = read(chosen.text)
    if isinstance(profile, FileRefused):
        return _kept(last, f'profile "{chosen.name}" of {files.source}: {profile}', REFUSED)
    return SharingWish(name=chosen.name, text=chosen.text, profile=profile, reason=chosen.reason, last=last)


def _kept(last: TakenProfile | None, problem: str, reason: str) -> SharingWish:
    kept = last or TakenProfile()
    return SharingWish(
        name=kept.name,
        text=kept.text,
        profile=kept.profile,
        reason="nothing was in force before" if last is None else "it was in force before",
        problem=problem,
        problem_reason=reason,
        last=last,
    )
