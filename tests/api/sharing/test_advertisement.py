"""From cards, a MIG strategy and a sharing profile to the resources that a node advertises."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from tessera.api.sharing.advertisement import AdvertisementImpossible, make_advertisement
from tessera.api.sharing.devices import (
    Advertisement,
    GpuDescription,
    RequestRefused,
    SharingKind,
    check_request,
    device_of,
)
from tessera.api.sharing.profile import MigStrategy, SharingProfile
from tessera.api.sharing.profile_parser import parse_profile

MakeCards = Callable[..., list[GpuDescription]]
NONE, SINGLE, MIXED = MigStrategy.NONE, MigStrategy.SINGLE, MigStrategy.MIXED


def profile(*entries: dict[str, Any], mps: bool = False, rename: bool = False, **rest: Any) -> SharingProfile:
    block = {"renameByDefault": rename, "resources": [{"name": "gpu", "replicas": 4} | each for each in entries]}
    sharing = {"mps" if mps else "timeSlicing": block} if entries else {}
    return parse_profile(json.dumps({"sharing": sharing, **rest}))


def refusal(gpus: list[GpuDescription], given: SharingProfile, strategy: MigStrategy = NONE) -> list[str]:
    with pytest.raises(AdvertisementImpossible) as error:
        make_advertisement(gpus, given, strategy)
    return [str(each) for each in error.value.problems]


def test_four_cards_in_four_shares_each_renamed(cards: MakeCards) -> None:
    offer = make_advertisement(cards(4), profile({}, rename=True), MIXED)
    assert offer.counts == {"nvidia.com/gpu.shared": 16}


def test_four_cards_in_four_shares_each_under_the_old_name(cards: MakeCards) -> None:
    assert make_advertisement(cards(4), profile({}), NONE).counts == {"nvidia.com/gpu": 16}


def test_a_share_is_named_after_its_device(cards: MakeCards) -> None:
    (card,) = cards(1)
    (offered,) = make_advertisement([card], profile({"replicas": 2}), NONE).resources.values()
    assert [each.id for each in offered.devices] == [f"{card.uuid}::0", f"{card.uuid}::1"]
    assert {device_of(each.id) for each in offered.devices} == {each.uuid for each in offered.devices} == {card.uuid}
    assert all(each.replicas == 2 and each.kind is SharingKind.TIME_SLICING for each in offered.devices)


def test_more_entries_than_kubelet_takes_in_one_message_are_refused(cards: MakeCards) -> None:
    assert make_advertisement(cards(5), profile({"replicas": 10_000}), NONE).counts == {"nvidia.com/gpu": 50_000}
    (problem,) = refusal(cards(6), profile({"replicas": 10_000}))
    for fact in (
        "nvidia.com/gpu: has 60,000 devices",
        "kubelet takes at most 50,000 entries of a resource",
        "use fewer replicas",
    ):
        assert fact in problem


def test_without_a_profile_cards_are_whole(cards: MakeCards) -> None:
    (offered,) = make_advertisement(cards(2), parse_profile(""), NONE).resources.values()
    assert [(each.id, each.index, each.shared) for each in offered.devices] == [
        (card.uuid, str(card.index), False) for card in cards(2)
    ]


@pytest.mark.parametrize(
    ("strategy", "counts"),
    [
        (NONE, {"nvidia.com/gpu": 4}),
        (SINGLE, {"nvidia.com/gpu": 28}),
        (MIXED, {"nvidia.com/mig-1g.5gb": 28}),
    ],
)
def test_cards_cut_into_seven_by_strategy(cards: MakeCards, strategy: MigStrategy, counts: dict[str, int]) -> None:
    gpus = cards(4, mig={index: ["1g.5gb"] * 7 for index in range(4)})
    assert make_advertisement(gpus, parse_profile(""), strategy).counts == counts


def test_the_layout_of_the_article(cards: MakeCards) -> None:
    gpus = cards(4, mig={index: ["2g.10gb"] * 2 + ["1g.5gb"] * 3 for index in range(4)})
    assert make_advertisement(gpus, parse_profile(""), MIXED).counts == {
        "nvidia.com/mig-1g.5gb": 12,
        "nvidia.com/mig-2g.10gb": 8,
    }


def test_whole_and_cut_cards_side_by_side(cards: MakeCards) -> None:
    gpus = cards(3, mig={1: ["3g.20gb", "1g.5gb+me"], 2: []})
    assert make_advertisement(gpus, parse_profile(""), MIXED).counts == {
        "nvidia.com/gpu": 1,
        "nvidia.com/mig-1g.5gb.me": 1,
        "nvidia.com/mig-3g.20gb": 1,
    }


def test_without_mig_the_strategy_single_is_as_none(cards: MakeCards) -> None:
    assert make_advertisement(cards(2), parse_profile(""), SINGLE).counts == {"nvidia.com/gpu": 2}


@pytest.mark.parametrize(
    ("mig", "words"),
    [
        ({0: ["1g.5gb"], 1: []}, "GPU 1: MIG is on, but it has no MIG devices"),
        ({0: ["1g.5gb"], 1: ["2g.10gb"]}, "MIG devices: are of the profiles 1g.5gb, 2g.10gb"),
        ({0: ["1g.5gb"]}, "GPU 1: MIG is off, but on at GPU 0"),
    ],
)
def test_single_refuses_nodes_that_are_not_uniform(cards: MakeCards, mig: dict[int, list[str]], words: str) -> None:
    (problem,) = refusal(cards(2, mig=mig), parse_profile(""), SINGLE)
    assert problem.startswith(words)


def test_names_follow_the_first_pattern_that_matches(cards: MakeCards) -> None:
    t4 = [GpuDescription(uuid="GPU-t4", index=9, product="Tesla T4", compute_capability=(7, 5))]
    gpus = [{"pattern": "*A100*", "name": "gpu-a100"}, {"pattern": "*", "name": "gpu-other"}]
    offer = make_advertisement([*cards(2), *t4], profile(resources={"gpus": gpus}), NONE)
    assert offer.counts == {"nvidia.com/gpu-a100": 2, "nvidia.com/gpu-other": 1}


def test_replicas_by_model_follow_from_names(cards: MakeCards) -> None:
    t4 = [GpuDescription(uuid="GPU-t4", index=9, product="Tesla T4", compute_capability=(7, 5))]
    gpus = [{"pattern": "*T4*", "name": "gpu-t4"}, {"pattern": "*", "name": "gpu"}]
    given = profile({"replicas": 10}, {"name": "gpu-t4", "replicas": 2}, resources={"gpus": gpus})
    assert make_advertisement([*cards(2), *t4], given, NONE).counts == {"nvidia.com/gpu": 20, "nvidia.com/gpu-t4": 2}


def test_mig_devices_are_named_by_pattern_too(cards: MakeCards) -> None:
    mig = [{"pattern": "1g.*", "name": "small"}, {"pattern": "*", "name": "large"}]
    offer = make_advertisement(cards(1, mig={0: ["1g.5gb", "3g.20gb"]}), profile(resources={"mig": mig}), MIXED)
    assert offer.counts == {"nvidia.com/large": 1, "nvidia.com/small": 1}


def test_a_card_that_no_pattern_names_is_told(cards: MakeCards) -> None:
    (problem,) = refusal(cards(1), profile(resources={"gpus": [{"pattern": "*T4*", "name": "gpu"}]}))
    for fact in ("resources.gpus: ", "no pattern matches", "GPU 0 (NVIDIA A100-SXM4-40GB)"):
        assert fact in problem


def test_a_part_of_a_gpu_instance_needs_a_pattern(cards: MakeCards) -> None:
    gpus = cards(1, mig={0: ["1c.3g.20gb"]})
    (problem,) = refusal(gpus, parse_profile(""), MIXED)
    assert "MIG device 0:0 (1c.3g.20gb)" in problem
    named = profile(resources={"mig": [{"pattern": "1c.*", "name": "part"}]})
    assert make_advertisement(gpus, named, MIXED).counts == {"nvidia.com/part": 1}


GPU1 = "GPU-00000001-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("devices", "shared"),
    [("all", {"0", "1", "2"}), (2, {"0", "1"}), ([1], {"1"}), ([GPU1, 2], {"1", "2"}), ([GPU1.lower()[3:]], None)],
)
def test_only_the_devices_named_are_shared(cards: MakeCards, devices: Any, shared: set[str] | None) -> None:
    if shared is None:
        devices = ["GPU" + devices[0]]
        shared = {"1"}
    offer = make_advertisement(cards(3), profile({"devices": devices}, rename=True), NONE)
    assert {each.index for each in offer.resources["nvidia.com/gpu.shared"].devices} == shared
    assert offer.counts.get("nvidia.com/gpu", 0) == 3 - len(shared)


def test_four_shares_of_the_first_card_and_the_others_whole(cards: MakeCards) -> None:
    offer = make_advertisement(cards(4), profile({"devices": [0]}), NONE)
    assert offer.counts == {"nvidia.com/gpu": 4 + 3}
    assert sorted(each.shared for each in offer.resources["nvidia.com/gpu"].devices) == [False] * 3 + [True] * 4


def test_a_later_entry_is_an_exception_from_an_earlier_one(cards: MakeCards) -> None:
    given = profile({"replicas": 2}, {"devices": [1], "replicas": 8, "rename": "gpu.small"})
    assert make_advertisement(cards(3), given, NONE).counts == {"nvidia.com/gpu": 4, "nvidia.com/gpu.small": 8}


@pytest.mark.parametrize("ref", ["0:1", "MIG-00000000-0000-0000-0000-000000000001"])
def test_mig_devices_are_shared_by_index_and_by_uuid(cards: MakeCards, ref: str) -> None:
    gpus = cards(1, mig={0: ["1g.5gb"] * 3})
    offer = make_advertisement(gpus, profile({"name": "mig-1g.5gb", "devices": [ref]}, rename=True), MIXED)
    assert offer.counts == {"nvidia.com/mig-1g.5gb": 2, "nvidia.com/mig-1g.5gb.shared": 4}
    assert {each.index for each in offer.resources["nvidia.com/mig-1g.5gb.shared"].devices} == {"0:1"}


def test_mig_devices_are_shared_by_their_old_name(cards: MakeCards) -> None:
    gpus = cards(1, mig={0: ["1g.5gb"] * 3})
    ref = f"MIG-{gpus[0].uuid}/9/0"
    offer = make_advertisement(gpus, profile({"name": "mig-1g.5gb", "devices": [ref]}, rename=True), MIXED)
    assert {each.index for each in offer.resources["nvidia.com/mig-1g.5gb.shared"].devices} == {"0:2"}


@pytest.mark.parametrize(
    ("devices", "facts"),
    [
        (5, ("5 devices of nvidia.com/gpu are to be shared", "this node has 2")),
        ([7], ("7 is no device of nvidia.com/gpu", "have the indexes 0, 1")),
        (["0:0"], ("0:0 is no device",)),
    ],
)
def test_devices_that_are_not_there_are_told(cards: MakeCards, devices: Any, facts: tuple[str, ...]) -> None:
    (problem,) = refusal(cards(2), profile({"devices": devices}))
    assert problem.startswith("sharing.timeSlicing.resources[0].devices: ")
    for fact in facts:
        assert fact in problem


def test_an_entry_for_a_resource_that_a_node_lacks_is_passed_over_and_told(cards: MakeCards) -> None:
    offer = make_advertisement(cards(1), profile({"name": "mig-1g.5gb"}), MIXED)
    assert offer.counts == {"nvidia.com/gpu": 1}
    (notice,) = map(str, offer.notices)
    assert notice.startswith("sharing.timeSlicing.resources[0].name: ")
    for fact in ("nothing here is nvidia.com/mig-1g.5gb", "this node has nvidia.com/gpu"):
        assert fact in notice


@pytest.mark.parametrize(
    ("cc", "replicas", "fits"),
    [("9.0", 48, True), ("9.0", 49, False), ("7.0", 48, True), ("6.1", 16, True), ("6.1", 17, False)],
)
def test_mps_serves_as_many_clients_as_the_hardware_allows(
    cards: MakeCards, cc: str, replicas: int, fits: bool
) -> None:
    gpus, given = cards(1, cc=cc), profile({"replicas": replicas}, mps=True)
    if fits:
        assert make_advertisement(gpus, given, NONE).counts == {"nvidia.com/gpu": replicas}
    else:
        (problem,) = refusal(gpus, given)
        assert problem.startswith(f"sharing.mps.resources[0].replicas: {replicas} is more than the")


@pytest.mark.parametrize(("strategy", "what"), [(NONE, "GPU 0, where MIG is on"), (SINGLE, "MIG device 0:0")])
def test_mps_does_not_share_cards_that_are_cut(cards: MakeCards, strategy: MigStrategy, what: str) -> None:
    (problem,) = refusal(cards(1, mig={0: ["1g.5gb"]}), profile({}, mps=True), strategy)
    assert problem.startswith(f"sharing.mps.resources[0]: MPS would share {what}")


def test_a_rule_that_several_cards_break_is_told_once(cards: MakeCards) -> None:
    (problem,) = refusal(cards(3), profile({"replicas": 49}, mps=True))
    for fact in ("49 is more than the 48 MPS clients", "of GPU 0, GPU 1, GPU 2", "compute capability 8.0"):
        assert fact in problem


def test_mps_goes_before_time_slices_card_by_card(cards: MakeCards) -> None:
    mps = {"resources": [{"name": "gpu", "replicas": 2, "devices": [0], "rename": "gpu.mps"}]}
    slices = {"resources": [{"name": "gpu", "replicas": 3}]}
    offer = make_advertisement(
        cards(2), parse_profile(json.dumps({"sharing": {"mps": mps, "timeSlicing": slices}})), NONE
    )
    assert offer.counts == {"nvidia.com/gpu": 3, "nvidia.com/gpu.mps": 2}
    assert {each.kind for each in offer.resources["nvidia.com/gpu.mps"].devices} == {SharingKind.MPS}


def test_the_order_in_which_cards_are_listed_does_not_matter(cards: MakeCards) -> None:
    gpus = cards(8, mig={index: ["1g.5gb", "2g.10gb"] for index in (1, 4)})
    given = profile({"devices": 2}, {"name": "mig-1g.5gb", "replicas": 2})
    expected = make_advertisement(gpus, given, MIXED)
    for seed in range(20):
        random.Random(seed).shuffle(gpus)
        assert make_advertisement(gpus, given, MIXED) == expected


def request(kind: str | None, *ids: str, fail: bool | None = None) -> None:
    """Asks two cards, shared by two or not at all, for the devices."""
    gpus = [GpuDescription(uuid=f"device{n}", index=n, product="x", compute_capability=(8, 0)) for n in range(2)]
    block = {"resources": [{"name": "gpu", "replicas": 2}], "failRequestsGreaterThanOne": fail}
    given = parse_profile(json.dumps({"sharing": {kind: block}} if kind else {}))
    offer: Advertisement = make_advertisement(gpus, given, NONE)
    check_request(offer.resources["nvidia.com/gpu"], ids)


@pytest.mark.parametrize(
    ("kind", "fail", "ids"),
    [
        (None, None, ["device1"]),
        (None, None, ["device0", "device1"]),
        ("timeSlicing", None, ["device0::1"]),
        ("timeSlicing", None, ["device0::1", "device1::0"]),
        ("mps", None, ["device0::1"]),
        ("mps", False, ["device0::1", "device1::0"]),
    ],
)
def test_requests_that_pass(kind: str | None, fail: bool | None, ids: list[str]) -> None:
    request(kind, *ids, fail=fail)


@pytest.mark.parametrize(
    ("kind", "fail", "ids", "words"),
    [
        (None, None, ["device1", "device2"], "unknown device device2"),
        ("timeSlicing", None, ["device0"], "unknown device device0"),
        ("timeSlicing", True, ["device0::1", "device1::0"], "maximum request size for shared resources is 1; found 2"),
        ("mps", None, ["device0::1", "device1::0"], "maximum request size for shared resources is 1; found 2"),
        ("mps", True, ["device0::1", "device1::0"], "maximum request size for shared resources is 1; found 2"),
    ],
)
def test_requests_that_fail(kind: str | None, fail: bool | None, ids: list[str], words: str) -> None:
    with pytest.raises(RequestRefused, match=words):
        request(kind, *ids, fail=fail)
