"""Processes of containers on simulated cards, as the agent of their node sees them."""

import os
import signal
import time

import pytest

from tessera.agent.base.host import ContainerId, ProcessPod
from tessera.api.names import PodUid
from tessera.nvml.errors import GpuLost
from tessera.nvml.interface import GpuUuid
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.containers.gpu_processes import ContainerOwner, DeviceUuid, GpuProcesses

GIB = 2**30
OWNER = ContainerOwner(namespace="team", pod="train", uid="u-1", container="main", container_id="containerd://abc")


@pytest.fixture
def machine() -> SimulatedMachine:
    return SimulatedMachine("2xT4", seed="n")


async def test_a_container_has_a_process_on_a_card_once_it_does_something_there(machine: SimulatedMachine) -> None:
    card, other = machine.uuids()
    with GpuProcesses(machine, time.monotonic).running(OWNER, [card, other], GIB) as container:
        assert machine.processes(card) == []
        container.use(DeviceUuid(card), memory_bytes=2 * GIB, activity=0.5)
        container.use(DeviceUuid(card), activity=0.7)
        (process,) = machine.processes(card)
        assert process.memory_bytes == 2 * GIB
        assert [each.sm for each in machine.process_activity(card)] == [0.7]
        assert machine.processes(other) == []
        with pytest.raises(MemoryError):
            container.use(DeviceUuid(card), memory_bytes=99 * GIB)
    assert machine.processes(card) == []


async def test_the_agent_finds_pod_and_container_of_a_process(machine: SimulatedMachine) -> None:
    table, (card, _) = GpuProcesses(machine, time.monotonic), machine.uuids()
    with table.running(OWNER, [card], GIB) as container:
        container.use(DeviceUuid(card), memory_bytes=GIB)
        process = table.identify(container.pids[DeviceUuid(card)])
        assert process is not None
        assert table.pod_of(process) == ProcessPod(PodUid("u-1"), ContainerId("abc"))
        assert table.name_of(process.pid) == "main"
    assert table.identify(process.pid) is None
    assert table.pod_of(process) is None
    own = table.identify(os.getpid())
    assert own is not None, "other processes are those of the kernel"
    assert own.pid == os.getpid()


async def test_a_signal_ends_the_container_once(machine: SimulatedMachine) -> None:
    table, (card, _) = GpuProcesses(machine, time.monotonic), machine.uuids()
    with table.running(OWNER, [card], GIB) as container:
        container.use(DeviceUuid(card), memory_bytes=GIB)
        process = table.identify(container.pids[DeviceUuid(card)])
        assert process is not None
        with table.open(process) as held:
            assert held is not None
            assert held.send(signal.SIGTERM)
            assert not held.send(signal.SIGKILL)
        assert container.ended.result() == 128 + 15
        assert machine.memory(card).used == 0


async def test_a_process_dies_with_its_card_and_a_new_one_starts_after_the_reboot(machine: SimulatedMachine) -> None:
    card, _ = machine.uuids()
    with GpuProcesses(machine, time.monotonic).running(OWNER, [card], GIB) as container:
        container.use(DeviceUuid(card), memory_bytes=GIB)
        machine.lose(GpuUuid(card))
        with pytest.raises(GpuLost):
            container.use(DeviceUuid(card), activity=1.0)
        machine.reboot()
        container.use(DeviceUuid(card), memory_bytes=GIB)
        assert machine.memory(card).used == GIB
