"""The offer of a profile that the cards can follow, and of one that they cannot."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tessera.agent.base.settings import AppliedProfile, DesiredSharing
from tessera.agent.inventory.gpu_inventory import GpuState, read_gpu_inventory
from tessera.agent.sharing.offer import AppliedSharing, choose_offer
from tessera.api.sharing.profile import MigStrategy
from tessera.api.sharing.profile_parser import parse_profile
from tessera.clock import SystemClock
from tessera.mig.models import model_by_short_name
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

SHARED = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4%s}]}}"
GOOD, BAD = SHARED % "", SHARED % ", devices: [9]"
MPS = "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}"


def desired(text: str, name: str = "p", last: str | None = None) -> DesiredSharing:
    taken = None if last is None else AppliedProfile(name="last", text=last, profile=parse_profile(last))
    return DesiredSharing(name=name, text=text, profile=parse_profile(text), last=taken)


@pytest.fixture
def machine() -> SimulatedMachine:
    return SimulatedMachine("4xA100-40GB", seed="node-1", mig=False)


@pytest.fixture
def cards(machine: SimulatedMachine) -> Callable[[], Sequence[GpuState]]:
    return lambda: asyncio.run(read_gpu_inventory(InlineNvml(machine, SystemClock()))).gpus


Cards = Callable[[], Sequence[GpuState]]


def decided(
    cards: Sequence[GpuState], desired: DesiredSharing, before: AppliedSharing | None = None, *taken: str
) -> tuple[AppliedSharing, str]:
    found, objection = choose_offer(cards, desired, MigStrategy.MIXED, before=before, on_demand=taken)
    return found, "" if objection is None else f"{objection.reason}: {objection.text}"


def test_the_desired_profile_is_followed(cards: Cards) -> None:
    found, objection = decided(cards(), desired(GOOD))
    assert (found.name, found.offer.counts, objection) == ("p", {"nvidia.com/gpu.shared": 16}, "")


def test_a_profile_that_the_cards_do_not_allow_leaves_the_one_in_force(cards: Cards) -> None:
    before, _ = decided(cards(), desired(GOOD, "good"))
    found, objection = decided(cards(), desired(BAD, "bad"), before)
    assert found == before
    for fact in ("ProfileRefused", 'profile "bad"', "cannot be followed", "sharing.timeSlicing"):
        assert fact in objection
    assert objection.endswith("Still offered: nvidia.com/gpu.shared")


def test_after_a_start_it_leaves_the_one_that_was_in_force_last(cards: Cards) -> None:
    found, objection = decided(cards(), desired(BAD, "bad", last=GOOD))
    assert (found.name, found.offer.counts) == ("last", {"nvidia.com/gpu.shared": 16})
    assert objection.startswith("ProfileRefused")


def test_without_any_profile_to_go_back_to_nothing_is_offered(cards: Cards) -> None:
    found, objection = decided(cards(), desired(BAD, "bad"))
    assert found.offer.counts == {}
    assert objection.endswith("Still offered: nothing")


def test_the_profile_in_force_is_followed_on_the_cards_as_they_are_now(cards: Cards) -> None:
    before, _ = decided(cards(), desired(GOOD))
    assert decided(cards()[:2], desired(BAD), before)[0].offer.counts == {"nvidia.com/gpu.shared": 8}


def test_if_that_cannot_be_followed_either_what_still_exists_stays(cards: Cards) -> None:
    chosen = SHARED % ", devices: [0, 3]"
    before, _ = decided(cards(), desired(chosen))
    assert before.offer.counts == {"nvidia.com/gpu": 2, "nvidia.com/gpu.shared": 8}
    found, objection = decided(cards()[:2], desired(chosen), before)
    assert found.offer.counts == {"nvidia.com/gpu": 1, "nvidia.com/gpu.shared": 4}
    assert "3 is no device of nvidia.com/gpu here" in objection


def test_a_card_that_was_cut_since_is_not_offered_whole_any_more(machine: SimulatedMachine, cards: Cards) -> None:
    chosen = SHARED % ", devices: [0, 3]"
    before, _ = decided(cards(), desired(chosen))
    for number in (1, 3):
        cut(machine, machine.uuids()[number], 0)
    found, objection = decided(cards(), desired(chosen), before)
    assert found.offer.counts == {"nvidia.com/gpu": 1, "nvidia.com/gpu.shared": 4}
    assert "3 is no device of nvidia.com/gpu here" in objection


def test_a_daemon_serves_no_card_that_was_cut_since(machine: SimulatedMachine, cards: Cards) -> None:
    chosen = "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4, devices: [0, 3]}]}}"
    before, _ = decided(cards(), desired(chosen))
    cut(machine, machine.uuids()[3], 0)
    found, _ = decided(cards(), desired(chosen), before)
    assert found.plans["nvidia.com/gpu"].cards == (machine.uuids()[0],)


def test_mps_brings_its_plans_and_too_many_clients_are_refused(cards: Cards) -> None:
    found, objection = decided(cards(), desired(MPS % 48))
    assert not objection
    assert len(found.plans["nvidia.com/gpu"].cards) == 4
    _, objection = decided(cards(), desired(MPS % 49))
    assert "49 is more than the 48 MPS clients of GPU 0" in objection


def test_the_profiles_mig_strategy_goes_before_the_installations(machine: SimulatedMachine, cards: Cards) -> None:
    for gpu in machine.uuids():
        cut(machine, gpu, *range(7))
    assert decided(cards(), desired(""))[0].offer.counts == {"nvidia.com/mig-1g.5gb": 28}
    assert decided(cards(), desired("flags: {migStrategy: single}"))[0].offer.counts == {"nvidia.com/gpu": 28}
    assert decided(cards(), desired("flags: {migStrategy: none}"))[0].offer.counts == {"nvidia.com/gpu": 4}


def test_single_on_a_node_with_one_card_left_whole_is_refused(machine: SimulatedMachine, cards: Cards) -> None:
    for gpu in machine.uuids()[:3]:
        cut(machine, gpu, 0)
    _, objection = decided(cards(), desired("flags: {migStrategy: single}"))
    for fact in ("GPU 3: MIG is off", "on at GPU 0", "MIG strategy single needs one mode"):
        assert fact in objection


def test_a_name_of_the_slicers_is_left_to_it_and_the_rest_is_offered(machine: SimulatedMachine, cards: Cards) -> None:
    cut(machine, machine.uuids()[0], 0, 1)
    found, objection = decided(cards(), desired(GOOD), None, "nvidia.com/mig-1g.5gb")
    assert found.offer.counts == {"nvidia.com/gpu.shared": 12}
    for fact in (
        "ResourceNameConflict",
        "nvidia.com/mig-1g.5gb is allocated on demand",
        "2 fixed devices are not offered",
        "resources.mig of the sharing profile",
        "{pattern: '1g.5gb', name: mig-1g.5gb.fixed}",
    ):
        assert fact in objection
    renamed = f"resources: {{mig: [{{pattern: '1g.5gb', name: mig-1g.5gb.fixed}}]}}\n{GOOD}"
    assert not decided(cards(), desired(renamed), None, "nvidia.com/mig-1g.5gb")[1]


def cut(machine: SimulatedMachine, gpu: str, *starts: int) -> None:
    uuid = next(each for each in machine.uuids() if each == gpu)
    machine.set_mig_mode(uuid, True)
    row = model_by_short_name("A100-40GB").geometry.profile("1g.5gb")
    for start in starts:
        machine.create_compute_instance(uuid, machine.create_gpu_instance(uuid, "1g.5gb", start), row.ci_profile_index)
