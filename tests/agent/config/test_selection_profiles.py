"""Selection of a node's sharing profile: the requested one, or the one in force, with the reason."""

from typing import Any

import msgspec
import pytest

from tessera.agent.base.settings import AppliedProfile, DesiredSharing
from tessera.agent.config import ConfigMapFiles, select_profile
from tessera.api.sharing.profile_parser import parse_profile


def profile(replicas: int, key: str = "replicas") -> str:
    entry = f"resources: [{{name: nvidia.com/gpu, {key}: {replicas}}}]"
    return f"version: v1\nsharing:\n  timeSlicing:\n    {entry}\n"


FILES = ConfigMapFiles(
    source="ConfigMap kube-system/profiles",
    texts={"slice-4": profile(4), "slice-10": profile(10), "broken": profile(4, "replica")},
)
LAST = AppliedProfile(name="slice-2", text=profile(2), profile=parse_profile(profile(2)))


def desire(
    label: str = "", default: str = "", files: ConfigMapFiles = FILES, last: AppliedProfile | None = LAST
) -> DesiredSharing:
    return select_profile(files, label, default, last)


@pytest.mark.parametrize(
    ("label", "default", "name", "reason"),
    [
        ("slice-4", "", "slice-4", "the node's label nvidia.com/device-plugin.config"),
        ("slice-4", "slice-10", "slice-4", "the node's label nvidia.com/device-plugin.config"),
        ("", "slice-10", "slice-10", "the cluster's default"),
        ("", "", "", "neither a label nor a default names one of the 3 profiles"),
    ],
)
def test_label_then_default_then_nothing(label: str, default: str, name: str, reason: str) -> None:
    found = desire(label, default)
    assert (found.name, found.reason, found.problem) == (name, reason, None)
    assert found.text == FILES.texts.get(name, "")
    assert found.profile == parse_profile(found.text)
    assert found.last == LAST


@pytest.mark.parametrize(
    ("asked", "reason", "facts"),
    [
        (
            {"label": "slice-3"},
            "ProfileMissing",
            ("there are: broken, slice-10, slice-4", "ConfigMap kube-system/profiles", 'did you mean "slice-4"?'),
        ),
        (
            {"label": "slice-4", "files": ConfigMapFiles()},
            "ProfileMissing",
            ("there are: none", "no ConfigMap of profiles is configured", "--sharing-config"),
        ),
        (
            {"default": "broken"},
            "ProfileRefused",
            ('profile "broken"', "ConfigMap kube-system/profiles", "sharing.timeSlicing.resources[0].replica: "),
        ),
        (
            {"label": "slice-4", "files": msgspec.structs.replace(FILES, texts={}, error="cannot be read: no")},
            "ProfilesUnreadable",
            ("ConfigMap kube-system/profiles: cannot be read: no",),
        ),
    ],
)
def test_what_cannot_be_followed_leaves_what_was_in_force(
    asked: dict[str, Any], reason: str, facts: tuple[str, ...]
) -> None:
    found = desire(**asked)
    assert (found.name, found.text, found.profile) == (LAST.name, LAST.text, LAST.profile)
    assert found.problem_reason == reason
    assert found.problem is not None
    for fact in facts:
        assert fact in found.problem


def test_where_nothing_was_in_force_a_mistake_shares_nothing() -> None:
    found = desire("broken", last=None)
    assert (found.name, found.profile.blocks, found.last) == ("", (), None)
    assert found.problem_reason == "ProfileRefused"


def test_a_node_that_asks_for_nothing_does_not_keep_what_it_had() -> None:
    found = desire()
    assert (found.name, found.profile.blocks, found.problem) == ("", (), None)
