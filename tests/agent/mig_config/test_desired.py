"""A layout is checked for the whole node: owner and goal of each card, or the reason for its rejection."""

from __future__ import annotations

import msgspec
import pytest

from tessera.agent.base.settings import DesiredLayout
from tessera.agent.inventory.gpu_inventory import CardOwner, CardShares, GpuState
from tessera.agent.mig_config.events import CardGoal
from tessera.agent.mig_config.reconciler import RejectedLayout, ResolvedLayout, resolve_layout
from tessera.api.mig_layouts import DeviceFilter, LayoutEntry, parse_layouts
from tessera.api.sharing.devices import SharingKind
from tessera.api.sharing.profile_parser import parse_profile
from tessera.mig.models import model_by_short_name
from tessera.nvml.interface import GpuInfo, GpuUuid

FILE = """
version: v1
mig-configs:
  mixed:
    - {devices: [0], mig-enabled: true, mig-devices: {7g.40gb: 1}}
    - {devices: [1], mig-enabled: false}
  impossible:
    - {devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 7}}
    - {devices: [1], mig-enabled: true, mig-devices: {3g.20gb: 2, 1g.5gb: 1}}
  no-mig:
    - {devices: [2], mig-enabled: true, mig-devices: {}}
  parts:
    - {devices: all, mig-enabled: true, mig-devices: {1c.3g.20gb: 2}}
  dynamic-most:
    - {devices: all, mig-enabled: true, mig-devices: {}}
    - {devices: [1], mig-enabled: true, mig-devices: {3g.20gb: 2}}
  enabled:
    - {devices: all, mig-enabled: true, mig-devices: {}}
"""
ENTRIES = parse_layouts(FILE).layouts


def card(index: int, model: str = "A100-40GB", *, known: bool = True) -> GpuState:
    row = model_by_short_name(model)
    info = GpuInfo(
        uuid=GpuUuid(f"GPU-{index}"),
        index=index,
        minor=index,
        name=row.product_name,
        memory_mib=row.memory_mib,
        pci_bus_id=f"00000000:0{index}:00.0",
        pci_device_id=f"0x{row.pci_device_ids[0]}10DE",
        compute_capability=row.compute_capability,
        mig_capable=True,
    )
    return GpuState(info=info, geometry=row.geometry if known else None)


def plain(index: int) -> GpuState:
    info = GpuInfo(
        uuid=GpuUuid(f"GPU-{index}"),
        index=index,
        minor=index,
        name="Tesla T4",
        memory_mib=15360,
        pci_bus_id=f"00000000:0{index}:00.0",
        pci_device_id="0x1EB810DE",
        compute_capability=(7, 5),
    )
    return GpuState(info=info)


CARDS = [card(0), card(1), plain(2)]
STATIC = {"GPU-0": CardOwner.STATIC, "GPU-1": CardOwner.STATIC, "GPU-2": CardOwner.STATIC}


def desire(name: str) -> DesiredLayout:
    return DesiredLayout(name=name, entries=ENTRIES.get(name), reason="the label")


def refused(name: str, cards: list[GpuState] = CARDS) -> RejectedLayout:
    found = resolve_layout(desire(name), cards)
    assert isinstance(found, RejectedLayout)
    return found


def wanted(name: str, cards: list[GpuState] = CARDS) -> ResolvedLayout:
    found = resolve_layout(desire(name), cards)
    assert isinstance(found, ResolvedLayout)
    return found


def test_no_desired_layout_leaves_every_card_as_it_is_and_static() -> None:
    assert resolve_layout(DesiredLayout(), CARDS) == ResolvedLayout(layout="", goals={}, owners=STATIC)


def test_a_layout_of_the_file_is_a_goal_for_each_card_that_it_names() -> None:
    found = wanted("mixed")
    assert found.owners == STATIC
    assert found.goals == {
        "GPU-0": CardGoal(mig_enabled=True, counts={"7g.40gb": 1}, path="mig-configs.mixed[0]"),
        "GPU-1": CardGoal(mig_enabled=False, path="mig-configs.mixed[1]"),
    }
    assert found.notices == ("GPU 2: no entry of the layout names it; it is left as it is",)


def test_dynamic_gives_every_card_that_has_mig_to_the_slicer() -> None:
    found = wanted("dynamic")
    assert found.owners == {"GPU-0": CardOwner.ON_DEMAND, "GPU-1": CardOwner.ON_DEMAND, "GPU-2": CardOwner.STATIC}
    assert found.goals.keys() == {"GPU-0", "GPU-1"}


def test_a_dynamic_layout_gives_the_slicer_the_cards_that_it_leaves_without_instances() -> None:
    found = wanted("dynamic-most")
    assert found.owners == {"GPU-0": CardOwner.ON_DEMAND, "GPU-1": CardOwner.STATIC, "GPU-2": CardOwner.STATIC}
    assert found.goals["GPU-1"].counts == {"3g.20gb": 2}


def test_the_same_without_the_word_dynamic_is_mig_mode_without_instances() -> None:
    assert wanted("enabled").owners == STATIC


@pytest.mark.parametrize(
    ("name", "counts"), [("all-1g.5gb", {"1g.5gb": 7}), ("all-3g.20gb", {"3g.20gb": 2}), ("all-enabled", {})]
)
def test_generated_layouts_need_no_file(name: str, counts: dict[str, int]) -> None:
    assert wanted(name).goals["GPU-0"] == CardGoal(mig_enabled=True, counts=counts)


def test_generated_layouts_of_several_models_mean_the_cards_that_have_the_profile() -> None:
    found = wanted("all-1g.6gb", [card(0), card(1, "A30")])
    assert found.goals == {"GPU-1": CardGoal(mig_enabled=True, counts={"1g.6gb": 4})}


def test_a_file_wins_over_a_generated_layout_of_the_same_name() -> None:
    entries = ENTRIES["mixed"]
    found = resolve_layout(DesiredLayout(name="all-1g.5gb", entries=entries), CARDS)
    assert isinstance(found, ResolvedLayout)
    assert found.goals["GPU-0"].counts == {"7g.40gb": 1}


def test_an_unknown_layout_lists_the_known_ones() -> None:
    found = refused("all-1g.5bg")
    assert found.reason == "LayoutUnknown"
    assert '"all-1g.5bg"' in found.text
    assert "dynamic, all-disabled, all-enabled, all-1g.5gb" in found.text


@pytest.mark.parametrize(
    ("name", "closest", "hint"),
    [
        ("all-1g.5bg", "", "all-1g.5gb"),
        ("dinamic", "", "dynamic"),
        ("all-disabeld", "", "all-disabled"),
        ("trainnig", "training", "training"),
        ("all-1g.5bgs", "all-1g.5bg", "all-1g.5bg"),
    ],
)
def test_an_unknown_layout_is_rejected_with_the_most_similar_name(name: str, closest: str, hint: str) -> None:
    found = resolve_layout(DesiredLayout(name=name, closest=closest), CARDS)
    assert isinstance(found, RejectedLayout)
    for fact in (f'did you mean "{hint}"?', "the label nvidia.com/mig.config", "or add"):
        assert fact in found.text


def test_a_name_that_is_like_none_is_answered_with_no_guess() -> None:
    assert "did you mean" not in refused("zzzzzz").text


def test_an_unknown_layout_of_a_broken_file_is_reported_as_the_files_mistake() -> None:
    found = resolve_layout(
        DesiredLayout(name="mine", problem="mig-configs: is empty", problem_reason="LayoutsRefused"), CARDS
    )
    assert found == RejectedLayout(layout="mine", reason="LayoutsRefused", text="mig-configs: is empty")


def test_one_impossible_card_refuses_the_whole_layout_with_entry_card_and_conflict() -> None:
    found = refused("impossible")
    assert found.reason == "LayoutImpossible"
    assert "mig-configs.impossible[1].mig-devices: GPU 1 (NVIDIA A100-SXM4-40GB): " in found.text
    assert "2 x 3g.20gb + 1g.5gb" in found.text or "1g.5gb + 2 x 3g.20gb" in found.text
    assert "GPU 0" not in found.text


def test_a_conflict_of_several_cards_is_reported_once() -> None:
    entry = LayoutEntry(devices=None, mig_enabled=True, counts={"1g.5gb": 1, "3g.20gb": 2}, path="x[0]")
    found = resolve_layout(DesiredLayout(name="x", entries=(entry,)), [card(1), card(0)])
    assert isinstance(found, RejectedLayout)
    assert found.text.count("memory slots") == 1
    for fact in (
        "x[0].mig-devices",
        "GPU 0, 1 (NVIDIA A100-SXM4-40GB)",
        "1g.5gb + 2 x 3g.20gb",
        "9 memory slots",
        "1 for 1g.5gb + 8 for 3g.20gb",
        "the card has 8",
    ):
        assert fact in found.text


def test_a_profile_of_another_model_is_refused_with_those_that_the_card_has() -> None:
    found = refused("mixed", [card(0, "A30"), card(1, "A30")])
    assert 'has no profile "7g.40gb"' in found.text


@pytest.mark.parametrize(("name", "words"), [("no-mig", "has no MIG"), ("parts", "are not made")])
def test_an_impossible_entry_is_rejected_with_its_path(name: str, words: str) -> None:
    found = refused(name)
    assert found.reason == "LayoutImpossible"
    assert words in found.text
    assert f"mig-configs.{name}[0]" in found.text


@pytest.mark.parametrize(
    "name", ["dynamic", "dynamic-most", "all-1g.5gb", "all-balanced", "all-enabled", "7x1g.5gb", "enabled", "no-mig"]
)
def test_on_a_node_without_mig_a_layout_that_needs_it_is_refused_with_the_product(name: str) -> None:
    found = refused(name, [plain(0), plain(1)])
    assert found.reason == "LayoutImpossible"
    assert "Tesla T4 has no MIG; remove the label nvidia.com/mig.config" in found.text


def test_on_a_node_without_mig_a_layout_that_leaves_it_off_is_in_force() -> None:
    assert wanted("all-disabled", [plain(0)]) == ResolvedLayout(
        layout="all-disabled", goals={}, owners={"GPU-0": CardOwner.STATIC}
    )
    assert "misspelled" in refused("misspelled", [plain(0)]).text


def test_the_clusters_default_is_not_for_nodes_without_mig() -> None:
    found = resolve_layout(DesiredLayout(name="dynamic", is_default=True), [plain(0)])
    assert found == ResolvedLayout(layout="", goals={}, owners={"GPU-0": CardOwner.STATIC})


def test_a_card_of_an_unknown_model_is_checked_once_mig_mode_is_on() -> None:
    assert wanted("impossible", [card(0), card(1, known=False)]).goals["GPU-1"].counts == {"1g.5gb": 1, "3g.20gb": 2}


def test_a_layout_of_a_file_for_other_models_gives_way_to_the_generated_one() -> None:
    other = LayoutEntry(
        devices=None, mig_enabled=True, counts={"1g.6gb": 4}, filters=(DeviceFilter("A30", None),), path="file"
    )
    desired = DesiredLayout(name="all-balanced", entries=(other,), reason="the label")
    found = resolve_layout(desired, [card(0)])
    assert isinstance(found, ResolvedLayout)
    assert found.goals["GPU-0"].counts == {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
    assert found.goals["GPU-0"].path == ""


def test_a_layout_of_another_name_for_other_models_leaves_the_cards_as_they_are() -> None:
    other = LayoutEntry(
        devices=None, mig_enabled=True, counts={"1g.6gb": 4}, filters=(DeviceFilter("A30", None),), path="file"
    )
    found = resolve_layout(DesiredLayout(name="ours", entries=(other,), reason="the label"), [card(0)])
    assert isinstance(found, ResolvedLayout)
    assert found.goals == {}


def test_a_node_with_one_card_that_the_file_names_leaves_the_others() -> None:
    entry = LayoutEntry(
        devices=(0,), mig_enabled=True, counts={"7g.40gb": 1}, filters=(DeviceFilter("A100-40GB", None),), path="file"
    )
    found = resolve_layout(DesiredLayout(name="all-balanced", entries=(entry,), reason="x"), [card(0), card(1)])
    assert isinstance(found, ResolvedLayout)
    assert {uuid: goal.counts for uuid, goal in found.goals.items()} == {"GPU-0": {"7g.40gb": 1}}


@pytest.mark.parametrize(
    ("name", "whole"),
    [("", {"GPU-0", "GPU-1", "GPU-2"}), ("dynamic", {"GPU-2"}), ("mixed", {"GPU-1", "GPU-2"}), ("enabled", {"GPU-2"})],
)
def test_where_claims_get_whole_cards_they_get_those_that_the_layout_does_not_cut(name: str, whole: set[str]) -> None:
    found = resolve_layout(msgspec.structs.replace(desire(name), whole_by_claims=True), CARDS)
    assert isinstance(found, ResolvedLayout)
    assert {uuid for uuid, owner in found.owners.items() if owner is CardOwner.CLAIMS} == whole
    assert {uuid for uuid, goal in found.goals.items() if goal.owner is CardOwner.CLAIMS} == whole


@pytest.mark.parametrize(
    ("kind", "replicas", "devices", "shares"),
    [
        ("timeSlicing", 2, "all", dict.fromkeys(("GPU-0", "GPU-1", "GPU-2"), CardShares(SharingKind.TIME_SLICING, 2))),
        ("mps", 3, "[1]", {"GPU-1": CardShares(SharingKind.MPS, 3)}),
        ("timeSlicing", 50, "[0]", {"GPU-0": CardShares(SharingKind.TIME_SLICING, 32)}),  # as many as an object lists
        ("mps", 49, "all", {}),  # the static side says what is wrong
        ("timeSlicing", 2, "[7]", {}),
    ],
)
def test_cards_that_a_profile_divides_go_to_claims_in_shares(
    kind: str, replicas: int, devices: str, shares: dict[str, CardShares]
) -> None:
    entry = f"{{name: nvidia.com/gpu, devices: {devices}, replicas: {replicas}}}"
    profile = parse_profile(f"version: v1\nsharing: {{{kind}: {{resources: [{entry}]}}}}")
    found = resolve_layout(DesiredLayout(whole_by_claims=True, sharing=profile), CARDS)
    assert isinstance(found, ResolvedLayout)
    assert found.shares == shares
    owners = {uuid: CardOwner.SHARES if uuid in shares else CardOwner.CLAIMS for uuid in STATIC} if shares else STATIC
    assert found.owners == owners


def test_a_node_without_mig_may_be_dynamic_where_claims_get_whole_cards() -> None:
    found = resolve_layout(msgspec.structs.replace(desire("dynamic"), whole_by_claims=True), [plain(0)])
    assert isinstance(found, ResolvedLayout)
    assert found.owners == {"GPU-0": CardOwner.CLAIMS}


def test_a_card_in_mig_mode_is_given_whole_once_the_mode_is_off() -> None:
    on = card(0)
    on = msgspec.structs.replace(on, info=msgspec.structs.replace(on.info, mig_enabled=True, mig_pending=True))
    found = resolve_layout(msgspec.structs.replace(desire("mixed"), whole_by_claims=True), [card(1), on, plain(2)])
    assert isinstance(found, ResolvedLayout)
    assert found.owners["GPU-0"] is CardOwner.STATIC
