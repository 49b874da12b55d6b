"""One card is reset: a pending MIG mode takes hold, and nothing else on the machine notices."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.nvml_library import NvmlLibrary

from tessera.nvml.errors import GpuLost, InUse, NoPermission, NotSupported, NvmlError, ResetRequired, UnknownNvmlError
from tessera.nvml.interface import GpuEvent, GpuEventKind, MigModeResult
from tessera.nvml.real.library import make_reset_error, reset_card
from tessera.nvml.real.real_nvml import RealNvml
from tessera.nvml.simulated.machine_state import SimEvent
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


def modes(machine: SimulatedMachine) -> list[tuple[bool, bool]]:
    return [(gpu.mig_enabled, gpu.mig_pending) for gpu in machine.devices()]


@pytest.fixture
def whole() -> SimulatedMachine:
    """Two A100, MIG mode off."""
    return SimulatedMachine("2xA100-40GB", seed="n")


@pytest.mark.parametrize(
    ("refused", "result"), [(ResetRequired, MigModeResult.RESET_REQUIRED), (InUse, MigModeResult.IN_USE)]
)
def test_a_mode_that_is_held_up_is_pending_until_the_reset(
    whole: SimulatedMachine, refused: type[NvmlError], result: MigModeResult
) -> None:
    gpu, other = whole.uuids()
    whole.fail("set_mig_mode", refused, gpu=gpu)
    assert whole.set_mig_mode(gpu, True) is result
    assert whole.set_mig_mode(other, True) is MigModeResult.APPLIED
    assert modes(whole) == [(False, True), (True, True)]
    whole.reset(gpu)
    assert modes(whole) == [(True, True), (True, True)]


def test_a_reset_clears_the_instances_of_its_card_only(machine: SimulatedMachine) -> None:
    gpu, other = machine.uuids()
    for one in (gpu, other):
        machine.create_gpu_instance(one, "1g.5gb", 0)
    machine.reset(gpu)
    assert (len(machine.instances(gpu)), len(machine.instances(other))) == (0, 1)
    assert modes(machine) == [(True, True)] * 2


def test_a_card_in_use_is_not_reset(whole: SimulatedMachine) -> None:
    gpu, _ = whole.uuids()
    pid = whole.start_process(gpu)
    with pytest.raises(InUse, match=f"process {pid} computes on it"):
        whole.reset(gpu)
    whole.end_process(pid)
    whole.fail("reset", InUse)  # a client that does not compute
    with pytest.raises(InUse):
        whole.reset(gpu)
    whole.reset(gpu)


def test_a_lost_card_cannot_be_reset(whole: SimulatedMachine) -> None:
    gpu, _ = whole.uuids()
    whole.lose(gpu)
    with pytest.raises(GpuLost):
        whole.reset(gpu)


def test_after_a_reset_and_after_a_reboot_the_driver_asks_for_nothing(whole: SimulatedMachine) -> None:
    gpu, other = whole.uuids()
    for one in (gpu, other):
        whole.set_attributes(one, msgspec.structs.replace(whole.attributes(one), ecc=False, recovery_action=1))
    whole.reset(gpu)
    found = [whole.attributes(one) for one in (gpu, other)]
    assert [(one.ecc, one.recovery_action) for one in found] == [(False, 0), (False, 1)]
    whole.reboot()
    assert whole.attributes(other).recovery_action == 0


def test_a_reboot_keeps_minor_numbers(machine: SimulatedMachine) -> None:
    before = [gpu.minor for gpu in machine.devices()]
    machine.reboot()
    assert [gpu.minor for gpu in machine.devices()] == before


class Tool:
    """An ``nvidia-smi`` that writes down how it was called, and answers as told."""

    def __init__(self, folder: Path) -> None:
        self.path, self._called = folder / "nvidia-smi", folder / "called"
        self.answer("All done.")

    def answer(self, text: str, status: int = 0, before: str = "") -> None:
        self.path.write_text(f"#!/bin/sh\necho \"$*\" >> {self._called}\n{before}\necho '{text}'\nexit {status}\n")
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self._called.read_text().splitlines()


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path)


@pytest.fixture
def resettable(library: NvmlLibrary, tool: Tool) -> RealNvml:
    return RealNvml(reset_tool=[str(tool.path)])


def test_a_real_card_is_reset_by_its_pci_address(resettable: RealNvml, machine: SimulatedMachine, tool: Tool) -> None:
    resettable.reset(machine.uuids()[1])
    assert tool.calls == ["--gpu-reset -i 00000000:11:00.0"]


def test_the_session_is_closed_while_a_card_is_reset(
    resettable: RealNvml, machine: SimulatedMachine, library: NvmlLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = []
    monkeypatch.setattr("tessera.nvml.real.real_nvml.reset_card", lambda *_, **__: sessions.append(library.opened))
    assert resettable.wait_event(0) is None
    resettable.reset(machine.uuids()[0])
    assert (sessions, library.opened) == ([0], 1)
    machine.report(SimEvent(GpuEventKind.XID, machine.uuids()[0], 94))
    assert resettable.wait_event(0) == GpuEvent(kind=GpuEventKind.XID, gpu=machine.uuids()[0], xid=94)
    resettable.close()
    assert library.opened == 0


def test_a_refused_reset_leaves_the_session_open(
    resettable: RealNvml, machine: SimulatedMachine, library: NvmlLibrary, tool: Tool
) -> None:
    gpu = machine.uuids()[0]
    tool.answer("The following GPUs could not be reset:\n  GPU 00000000:10:00.0: In use by another client", 255)
    with pytest.raises(
        InUse, match=r"reset of the card at 00000000:10:00.0: The following .* In use by another client"
    ):
        resettable.reset(gpu)
    assert library.opened == 1
    assert len(resettable.devices()) == 2


def test_a_session_that_did_not_come_back_is_tried_again(
    resettable: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    gpu = machine.uuids()[0]
    machine.fail("driver_version", UnknownNvmlError)  # what the library asks for when it is opened
    with pytest.raises(UnknownNvmlError, match="nvmlInit"):
        resettable.reset(gpu)
    assert library.opened == 0
    assert len(resettable.devices()) == 2
    assert library.opened == 1


def test_a_wait_for_events_makes_room_for_a_reset(
    resettable: RealNvml, machine: SimulatedMachine, library: NvmlLibrary, tool: Tool
) -> None:
    waiting, go_on = threading.Event(), threading.Event()
    wait = type(library).c_nvmlEventSetWait_v2

    def slow(self: Any, events: Any, data: Any, milliseconds: Any) -> None:
        assert milliseconds.value <= 1000
        waiting.set()
        go_on.wait(60)
        wait(self, events, data, milliseconds)

    library.instead["nvmlEventSetWait_v2"] = slow
    answers: list[GpuEvent | None] = []
    waiter = threading.Thread(target=lambda: answers.append(resettable.wait_event(3)))
    resetter = threading.Thread(target=lambda: resettable.reset(machine.uuids()[0]))
    waiter.start()
    waiting.wait(60)
    resetter.start()
    go_on.set()
    for thread in (resetter, waiter):
        thread.join(60)
    assert answers == [None]
    assert len(tool.calls) == 1
    resettable.close()


def test_without_the_tool_the_remedy_is_told() -> None:
    with pytest.raises(NotSupported, match=r"no /no/nvidia-smi.*mount the driver's.*reboot the node"):
        reset_card("00000000:10:00.0", tool=["/no/nvidia-smi"])


def test_a_tool_that_hangs_is_told(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.nvml.real.library.RESET_SECONDS", 0.05)
    tool.answer("", before="exec sleep 30")
    with pytest.raises(UnknownNvmlError, match="has not answered for 0 s; reboot the node"):
        reset_card("00000000:10:00.0", tool=[str(tool.path)])


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("GPU 00000000:10:00.0: In use by another client\n1 device is currently being used by one or more", InUse),
        ("GPU Reset could not be run because of Insufficient Permissions", NoPermission),
        ("Resetting GPU 00000000:10:00.0 is not supported.", NotSupported),
        ("Unable to determine the device handle for GPU 0000:10:00.0: GPU is lost.", GpuLost),
        ("Unable to reset this GPU because it is the primary GPU", UnknownNvmlError),
        ("", UnknownNvmlError),
    ],
)
def test_refusals_are_of_the_kind_that_a_caller_acts_on(said: str, kind: type[NvmlError]) -> None:
    error = make_reset_error("reset", 1, said)
    assert type(error) is kind
    assert " ".join(said.split()) in str(error)
