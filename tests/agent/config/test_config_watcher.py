"""Desired profiles and layouts follow labels and ConfigMaps, and outlive mistakes, restarts and missing rights."""

from pathlib import Path
from typing import Any

from tessera.kube.resources import NODES

PROFILES, LAYOUTS = "sharing-profiles", "mig-layouts"


def sliced(replicas: int) -> str:
    resources = f"resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]"
    return f"version: v1\nsharing: {{timeSlicing: {{{resources}}}}}\n"


BROKEN = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replica: 4}]}}\n"
LAYOUT = "version: v1\nmig-configs:\n  whole:\n  - {devices: all, mig-enabled: true, mig-devices: {7g.40gb: 1}}\n"


def replicas(admin: Any) -> int | None:
    blocks = admin.agent.sharing.profile.blocks
    return blocks[0].resources[0].replicas if blocks else None


def take(admin: Any) -> None:
    """Applies the desired profile, as the device plugins do."""
    admin.agent.note_applied_profile(admin.agent.sharing.name, admin.agent.sharing.text)


async def test_a_label_and_its_change_are_followed(admin: Any) -> None:
    await admin.begin(profile="slice-4")
    await admin.files(PROFILES, {"slice-4": sliced(4), "slice-10": sliced(10)})
    await admin.start()
    assert (admin.agent.sharing.name, replicas(admin)) == ("slice-4", 4)
    await admin.label(profile="slice-10")
    assert (admin.agent.sharing.name, replicas(admin)) == ("slice-10", 10)
    await admin.label(profile=None)
    assert replicas(admin) is None


async def test_an_edit_of_the_configmap_is_followed_without_a_change_of_label(admin: Any) -> None:
    await admin.begin(profile="slice", layout="whole")
    await admin.start()
    await admin.files(PROFILES, {"slice": sliced(4)})
    assert replicas(admin) == 4
    seen = admin.changes.count
    await admin.files(PROFILES, {"slice": sliced(8)})
    assert admin.changes.count > seen
    assert replicas(admin) == 8
    assert admin.agent.layout().entries is None
    await admin.files(LAYOUTS, {"config.yaml": LAYOUT})
    assert admin.agent.layout().entries is not None


async def test_defaults_count_for_nodes_without_labels(admin: Any) -> None:
    await admin.begin()
    await admin.files(PROFILES, {"slice-4": sliced(4), "slice-10": sliced(10)})
    await admin.files(LAYOUTS, {"config.yaml": LAYOUT})
    await admin.start(profile_default="slice-10", layout_default="whole")
    assert (replicas(admin), admin.agent.layout().name) == (10, "whole")


async def test_nothing_is_worked_out_twice(admin: Any) -> None:
    await admin.begin(profile="slice", layout="whole")
    await admin.files(PROFILES, {"slice": sliced(4), "other": sliced(2)})
    await admin.start()
    sharing, layout = admin.agent.sharing, admin.agent.layout()
    await admin.client.merge_patch(NODES, "node-1", {"metadata": {"annotations": {"anything": "else"}}})
    await admin.settle()
    assert admin.agent.sharing is sharing
    assert admin.agent.layout() is layout
    profile = sharing.profile
    await admin.files(PROFILES, {"slice": sliced(4), "other": sliced(3)})
    assert admin.agent.sharing.profile is profile


async def test_a_missing_profile_keeps_the_old_one_and_says_so(admin: Any) -> None:
    await admin.begin(profile="slice-4")
    await admin.files(PROFILES, {"slice-4": sliced(4)})
    await admin.start()
    take(admin)
    await admin.label(profile="slice-40")
    assert (admin.agent.sharing.name, replicas(admin)) == ("slice-4", 4)
    assert admin.agent.sharing.problem_reason == "ProfileMissing"
    assert '"slice-40", which does not exist; there are: slice-4' in admin.agent.sharing.problem
    await admin.label(profile="slice-4")
    assert admin.agent.sharing.problem is None


async def test_a_profile_that_was_desired_but_never_in_force_is_not_what_is_kept(admin: Any) -> None:
    await admin.begin(profile="slice-4")
    await admin.files(PROFILES, {"slice-4": sliced(4), "slice-9": sliced(9), "broken": BROKEN})
    await admin.start()
    take(admin)
    await admin.label(profile="slice-9")  # the cards do not allow it: nobody says that it is in force
    assert admin.agent.sharing.last.name == "slice-4"
    await admin.label(profile="broken")
    assert (admin.agent.sharing.name, replicas(admin)) == ("slice-4", 4)
    assert admin.agent.applied_profile.name == "slice-4"


async def test_a_restart_with_a_bad_profile_keeps_the_last_good_one(admin: Any) -> None:
    await admin.begin(profile="slice")
    await admin.files(PROFILES, {"slice": sliced(4)})
    await admin.start()
    take(admin)
    await admin.stop()
    await admin.files(PROFILES, {"slice": BROKEN})
    await admin.start()
    assert (admin.agent.sharing.name, replicas(admin)) == ("slice", 4)
    assert admin.agent.sharing.problem_reason == "ProfileRefused"
    assert "sharing.timeSlicing.resources[0].replica" in admin.agent.sharing.problem
    await admin.files(PROFILES, {"slice": sliced(6)})
    assert (admin.agent.sharing.problem, replicas(admin)) == (None, 6)


async def test_a_lost_right_keeps_the_last_good_profile_and_a_right_that_comes_is_enough(admin: Any) -> None:
    await admin.begin(profile="slice")
    await admin.files(PROFILES, {"slice": sliced(4)})
    await admin.start()
    take(admin)
    await admin.start(groups=())
    assert replicas(admin) == 4
    assert admin.agent.sharing.problem_reason == "ProfilesUnreadable"
    assert "cannot list resource" in admin.agent.sharing.problem
    assert "grant the agent list and watch on it" in admin.agent.sharing.problem
    await admin.grant("agent")
    await admin.settle(60)
    assert admin.agent.sharing.problem is None


async def test_configmaps_that_are_not_there_or_go_are_empty(admin: Any) -> None:
    await admin.begin()
    await admin.start()
    assert (admin.agent.sharing.name, admin.agent.sharing.problem) == ("", None)
    await admin.files(PROFILES, {"default": sliced(4)})
    assert admin.agent.sharing.reason == 'the profile called "default"'
    await admin.files(PROFILES, None)
    assert (admin.agent.sharing.name, admin.agent.sharing.problem) == ("", None)


async def test_a_node_that_is_gone_for_a_moment_keeps_its_profile_and_layout(admin: Any) -> None:
    await admin.begin(profile="slice", layout="whole")
    await admin.files(PROFILES, {"slice": sliced(4), "other": sliced(2)})
    await admin.start()
    assert replicas(admin) == 4
    await admin.client.delete(NODES, "node-1")
    await admin.settle()
    assert (replicas(admin), admin.agent.layout().name) == (4, "whole")


async def test_a_profile_that_cannot_be_kept_is_in_force_all_the_same(admin: Any, tmp_path: Path) -> None:
    admin.folder = tmp_path / "file"
    admin.folder.write_text("in the way")
    await admin.begin(profile="slice")
    await admin.files(PROFILES, {"slice": sliced(4)})
    await admin.start()
    take(admin)
    assert admin.agent.applied_profile.name == "slice"
