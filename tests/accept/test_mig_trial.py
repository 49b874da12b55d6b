"""A trial of MIG makes and destroys every instance, and the card has its mode again however the trial ends."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.accept.checks import Status
from tessera.accept.mig_trial import FILE, MigTrial, MigTrialError, MigTrier, compare_geometry, judge_trial
from tessera.mig.models import MODELS
from tessera.nvml.errors import InsufficientResources, NvmlError, ResetRequired, UnknownNvmlError
from tessera.nvml.interface import Nvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

#: Calls that a trial makes on the card.
CALLS = (
    "set_mig_mode",
    "gi_profiles",
    "create_gpu_instance",
    "create_compute_instance",
    "device_files",
    "destroy_compute_instance",
    "destroy_gpu_instance",
)


def trier(nvml: Nvml, folder: Path) -> MigTrier:
    ticks = itertools.count()
    return MigTrier(nvml, lambda: next(ticks) / 1000, folder, lambda _: None)


def trial(machine: SimulatedMachine, folder: Path) -> MigTrial:
    return trier(machine, folder).run(machine.devices()[0])


@pytest.mark.parametrize("model", [model.short_name for model in MODELS if model.table is not None])
@pytest.mark.parametrize("mig", [False, True])
def test_every_profile_is_tried_at_every_start(tmp_path: Path, model: str, mig: bool) -> None:
    machine = SimulatedMachine(model, seed="n", mig=mig)
    gpu = machine.uuids()[0]
    found = trial(machine, tmp_path)
    machine.set_mig_mode(gpu, True)
    places = [(row.name, start) for row in machine.gi_profiles(gpu) for start in row.starts]
    assert [(each.profile, each.start) for each in found.slices] == places
    assert all(each.create > 0 and each.destroy > 0 and not each.error for each in found.slices)
    assert found.geometry == ()
    assert judge_trial(found).status is Status.OK
    assert (found.enable > 0) is not mig
    assert list(tmp_path.iterdir()) == []


def test_the_card_is_as_it_was(tmp_path: Path) -> None:
    for mig in (False, True):
        machine = SimulatedMachine("A100-40GB", seed="n", mig=mig)
        trial(machine, tmp_path)
        (card,) = machine.devices()
        assert (card.mig_enabled, card.mig_pending) == (mig, mig)
        assert machine.instances(card.uuid) == []


def test_a_card_behind_a_virtual_machine_is_reset_for_its_mode(tmp_path: Path) -> None:
    machine = SimulatedMachine("A100-40GB", seed="n", passthrough=True)
    assert judge_trial(trial(machine, tmp_path)).status is Status.OK
    assert not machine.devices()[0].mig_enabled


@pytest.mark.parametrize("call", CALLS[2:])
def test_an_instance_that_fails_is_named_and_the_others_are_tried(tmp_path: Path, call: str) -> None:
    machine = SimulatedMachine("A30", seed="n")
    machine.fail(call, InsufficientResources, skip=1)
    found = trial(machine, tmp_path)
    assert [bool(each.error) for each in found.slices].count(True) == 1
    finding = judge_trial(found)
    assert finding.status is Status.FAILED
    assert finding.evidence[0].startswith(f"1g.6gb at 1: {call}")
    assert not machine.devices()[0].mig_enabled


@given(call=st.sampled_from(CALLS), skip=st.integers(0, 20), mig=st.booleans())
def test_an_error_of_any_call_leaves_the_card_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, call: str, skip: int, mig: bool
) -> None:
    folder = tmp_path_factory.mktemp("state")
    machine = SimulatedMachine("A30", seed="n", mig=mig)
    machine.fail(call, UnknownNvmlError, skip=skip)
    try:
        trial(machine, folder)
    except (MigTrialError, NvmlError):
        machine.heal()
        trier(machine, folder).restore()
    (card,) = machine.devices()
    assert (card.mig_enabled, card.mig_pending) == (mig, mig)
    assert machine.instances(card.uuid) == []
    assert list(folder.iterdir()) == []


class Killed(BaseException):
    """Stands for a signal, or for a process that is killed."""


class MortalMachine(SimulatedMachine):
    """Kills the process before or after its n-th change."""

    left = 10**9
    after = False

    def _die(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed

    def set_mig_mode(self, gpu: Any, enabled: bool) -> Any:
        return self._do(lambda: SimulatedMachine.set_mig_mode(self, gpu, enabled))

    def create_gpu_instance(self, gpu: Any, profile: str, start: int) -> int:
        return int(self._do(lambda: SimulatedMachine.create_gpu_instance(self, gpu, profile, start)))

    def create_compute_instance(self, gpu: Any, gi_id: int, profile_index: int) -> Any:
        return self._do(lambda: SimulatedMachine.create_compute_instance(self, gpu, gi_id, profile_index))

    def destroy_gpu_instance(self, gpu: Any, gi_id: int) -> None:
        self._do(lambda: SimulatedMachine.destroy_gpu_instance(self, gpu, gi_id))

    def _do(self, work: Any) -> Any:
        if self.left < 0:
            raise Killed  # a killed process does nothing more
        if not self.after:
            self._die()
        found = work()
        if self.after:
            self._die()
        return found


@given(at=st.integers(1, 30), after=st.booleans(), mig=st.booleans(), gone=st.booleans())
def test_a_run_that_ends_at_any_change_is_restored_by_itself_or_by_the_next(
    tmp_path_factory: pytest.TempPathFactory, at: int, after: bool, mig: bool, gone: bool
) -> None:
    folder = tmp_path_factory.mktemp("state")
    state = folder / "cards.json"
    machine = MortalMachine("A30", seed="n", mig=mig, state=state)
    machine.left, machine.after = at, after
    killed = False
    try:
        if gone:  # killed: not even its finally runs; the machine refuses everything after it
            machine._do = _dead_after(machine)  # type: ignore[method-assign]
        trial(machine, folder)
    except (Killed, MigTrialError):
        killed = True
    survivor = SimulatedMachine("A30", seed="n", mig=mig, state=state)
    if killed:
        trier(survivor, folder).restore()
    (card,) = survivor.devices()
    assert (card.mig_enabled, card.mig_pending) == (mig, mig)
    assert survivor.instances(card.uuid) == []
    assert not (folder / FILE).exists()


def _dead_after(machine: MortalMachine) -> Any:
    """After the first death every change dies too, so that a ``finally`` restores nothing."""
    dead = False

    def do(work: Any) -> Any:
        nonlocal dead
        if dead:
            raise Killed
        machine.left -= 1
        dead = machine.left <= 0
        if dead and not machine.after:
            raise Killed
        found = work()
        if dead:
            raise Killed
        return found

    return do


def test_the_next_run_leaves_instances_that_others_made_since(tmp_path: Path) -> None:
    machine = SimulatedMachine("A30", seed="n")
    gpu = machine.uuids()[0]
    text = f'{{"gpu": "{gpu}", "mig_enabled": false, "profile": "1g.6gb", "start": 0}}'
    (tmp_path / FILE).write_text(text)
    machine.set_mig_mode(gpu, True)
    machine.create_gpu_instance(gpu, "2g.12gb", 2)
    with pytest.raises(MigTrialError, match="others have made 1 instance since"):
        trier(machine, tmp_path).restore()
    assert [each.profile for each in machine.instances(gpu)] == ["2g.12gb"]
    assert (tmp_path / FILE).exists()


def test_a_file_that_cannot_be_read_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(MigTrialError, match="set the card's MIG mode by hand and delete the file"):
        trier(SimulatedMachine("A30", seed="n"), tmp_path).restore()


def used(machine: SimulatedMachine) -> None:
    machine.start_process(machine.uuids()[0], pid=77)


def cut(machine: SimulatedMachine) -> None:
    machine.set_mig_mode(machine.uuids()[0], True)
    machine.create_gpu_instance(machine.uuids()[0], "1g.6gb", 0)


def lost(machine: SimulatedMachine) -> None:
    machine.lose(machine.uuids()[0])


def pending(machine: SimulatedMachine) -> None:
    machine.fail("set_mig_mode", ResetRequired)
    machine.set_mig_mode(machine.uuids()[0], True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (used, r"processes \[77\] use it; drain the node first"),
        (cut, "it has MIG instances"),
        (lost, "card 0: "),
        (pending, "a change of its MIG mode is pending"),
    ],
)
def test_a_card_that_somebody_holds_is_not_touched(tmp_path: Path, change: Any, said: str) -> None:
    machine = SimulatedMachine("A30", seed="n")
    change(machine)
    with machine.change() as state:
        before = repr(state)
    with pytest.raises(MigTrialError, match=said):
        trial(machine, tmp_path)
    with machine.change() as state:
        assert repr(state) == before
    assert list(tmp_path.iterdir()) == []


def test_a_card_without_mig_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MigTrialError, match="it has no MIG mode"):
        trial(SimulatedMachine("T4", seed="n"), tmp_path)


def test_differences_from_the_table_are_named() -> None:
    machine = SimulatedMachine("A30", seed="n", mig=True)
    profiles = machine.gi_profiles(machine.uuids()[0])
    assert list(compare_geometry("NVIDIA A30", profiles)) == []
    found = list(compare_geometry("NVIDIA A100-SXM4-40GB", profiles))
    assert "1g.5gb: in the table, not on the card" in found
    assert "1g.6gb: on the card, not in the table" in found
    assert list(compare_geometry("NVIDIA Unknown", profiles)) == []


def test_a_folder_that_is_not_there_is_made_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    machine = SimulatedMachine("A100-40GB", seed="n")
    assert judge_trial(trial(machine, tmp_path / "a" / "b")).status is Status.OK
    (tmp_path / "file").write_text("")
    with pytest.raises(MigTrialError, match="--state-dir"):
        trial(machine, tmp_path / "file" / "b")
