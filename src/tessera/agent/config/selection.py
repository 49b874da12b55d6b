"""Selects the sharing profile and the MIG layout of a node from its label, the cluster's default and the files. Pure.

Profiles: :mod:`tessera.api.sharing.profile_selection` has the rules. If the choice cannot be followed, because the name
is unknown, the file has mistakes or the ConfigMap cannot be read, the node keeps the profile that was in force before,
with the reason.

Layouts: a ConfigMap may hold several files of layouts; NVIDIA's holds one under ``config.yaml``. The names of all files
count together. A file with mistakes matters to a node only if it may hold the node's layout. A name in two files is
refused. This module knows neither layouts without a file nor the goals that a layout sets for each card.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache

import msgspec

from tessera.agent.base.desired_config import AppliedProfile, DesiredLayout, DesiredSharing
from tessera.api.mig_layouts.layouts_file import LayoutEntry, MigLayouts, parse_layouts
from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL
from tessera.api.problems import FileRefused
from tessera.api.sharing.profile import SharingProfile
from tessera.api.sharing.profile_parser import parse_profile
from tessera.api.sharing.profile_selection import UnknownSharingProfile, choose_profile

PROFILE_MISSING, PROFILE_REFUSED, PROFILES_UNREADABLE = "ProfileMissing", "ProfileRefused", "ProfilesUnreadable"
LAYOUTS_REFUSED, LAYOUT_AMBIGUOUS, LAYOUTS_UNREADABLE = "LayoutsRefused", "LayoutAmbiguous", "LayoutsUnreadable"

#: Largest number of characters in the value of a label (Kubernetes, labels and selectors).
LABEL_LENGTH = 63


class ConfigMapFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a ConfigMap.

    Attributes:
        source: its name in messages, ``ConfigMap kube-system/profiles``; empty if none is configured.
        texts: the files by key; empty if the ConfigMap does not exist.
        error: why the ConfigMap cannot be read; ``None`` if it can, or if none is configured.
    """

    source: str = ""
    texts: Mapping[str, str] = {}
    error: str | None = None


@lru_cache(maxsize=32)
def read_profile(text: str) -> SharingProfile | FileRefused:
    """Parses a profile; returns its mistakes instead if it has any."""
    try:
        return parse_profile(text)
    except FileRefused as refusal:
        return refusal


def select_profile(files: ConfigMapFiles, label: str, default: str, last: AppliedProfile | None) -> DesiredSharing:
    """Returns the profile that a node must follow.

    Args:
        files: the profiles.
        label: value of the node's label; empty if it has none.
        default: the cluster's default; empty if it has none.
        last: the profile that was in force before.
    """
    if files.error is not None:
        return _keep_last(last, f"{files.source}: {files.error}", PROFILES_UNREADABLE)
    try:
        chosen = choose_profile(files.texts, label, default)
    except UnknownSharingProfile as error:
        where = f" in {files.source}" if files.source else "; no ConfigMap of profiles is configured (--sharing-config)"
        meant = f'; did you mean "{error.closest}"?' if error.closest else ""
        return _keep_last(last, f"{error}{where}{meant}", PROFILE_MISSING)
    if not chosen.name:
        return DesiredSharing(reason=chosen.reason, last=last)
    profile = read_profile(chosen.text)
    if isinstance(profile, FileRefused):
        return _keep_last(last, f'profile "{chosen.name}" of {files.source}: {profile}', PROFILE_REFUSED)
    return DesiredSharing(name=chosen.name, text=chosen.text, profile=profile, reason=chosen.reason, last=last)


def _keep_last(last: AppliedProfile | None, problem: str, reason: str) -> DesiredSharing:
    kept = last or AppliedProfile()
    return DesiredSharing(
        name=kept.name,
        text=kept.text,
        profile=kept.profile,
        reason="nothing was in force before" if last is None else "it was in force before",
        problem=problem,
        problem_reason=reason,
        last=last,
    )


@lru_cache(maxsize=32)
def read_layouts(text: str) -> MigLayouts | FileRefused:
    """Parses a file of layouts; returns its mistakes instead if it has any."""
    try:
        return parse_layouts(text)
    except FileRefused as refusal:
        return refusal


def select_layout(files: ConfigMapFiles, label: str, default: str) -> DesiredLayout:
    """Returns the layout that a node must have.

    Args:
        files: the files of layouts.
        label: value of the node's label; empty if it has none.
        default: the cluster's default; empty if it has none.
    """
    name = label or default
    if not name:
        return DesiredLayout(reason="no label and no default")
    reason = f"the node's label {MIG_CONFIG_LABEL}" if label else "the cluster's default"
    if name == MIG_CONFIG_DYNAMIC:
        return DesiredLayout(name=name, reason=reason, is_default=not label)
    entries, problem, problem_reason = _find_layout(files, name)
    absent = entries is None and problem is None
    return DesiredLayout(
        name=name,
        entries=entries,
        reason=reason,
        is_default=not label,
        problem=problem,
        problem_reason=problem_reason,
        closest=_closest_name(files, name) if absent else "",
    )


def _closest_name(files: ConfigMapFiles, name: str) -> str:
    """The name of the layout in the files that is most like this one; empty if none is."""
    every = [read_layouts(text) for text in files.texts.values()]
    names = [each for layouts in every if isinstance(layouts, MigLayouts) for each in layouts.layouts]
    close = get_close_matches(name[:LABEL_LENGTH], [each for each in names if len(each) <= LABEL_LENGTH], n=1)
    return close[0] if close else ""


def _find_layout(files: ConfigMapFiles, name: str) -> tuple[tuple[LayoutEntry, ...] | None, str | None, str | None]:
    """The layout of that name, or message and reason of the problem; all ``None`` if no file has it."""
    if files.error is not None:
        return None, f"{files.source}: {files.error}", LAYOUTS_UNREADABLE
    found: dict[str, tuple[LayoutEntry, ...]] = {}
    refused: list[str] = []
    for key, text in sorted(files.texts.items()):
        layouts = read_layouts(text)
        if isinstance(layouts, FileRefused):
            refused.append(f"{files.source}, file {key}: {layouts}")
        elif name in layouts.layouts:
            found[key] = layouts.layouts[name]
    if len(found) > 1:
        text = f'{files.source}: the layout "{name}" is in the files {", ".join(found)}; keep it in one of them'
        return None, text, LAYOUT_AMBIGUOUS
    if found:
        return next(iter(found.values())), None, None
    return (None, "; ".join(refused), LAYOUTS_REFUSED) if refused else (None, None, None)
