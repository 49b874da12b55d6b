"""Daemons as real processes; a script plays NVIDIA's binary."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.mps.host import RESOURCE, SOON, Host

from tessera.agent.base.host import ProcessId, ProcessTable
from tessera.agent.mps.process_launcher import BINARY, DaemonProcess, ProcessLauncher, find_binary, is_alive, wait_end
from tessera.agent.mps.state import ControlFailed, DaemonId, DaemonSpec, LaunchFailed, MpsState
from tessera.nvml.interface import ComputeMode, GpuUuid

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    for pid in host.running():
        os.kill(pid, signal.SIGKILL)


def identified(pid: int) -> ProcessId:
    process = ProcessTable().identify(pid)
    assert process is not None
    return process


async def started(host: Host, launcher: ProcessLauncher) -> DaemonProcess:
    """A daemon that answers."""
    daemon = await launcher.start(DaemonSpec(RESOURCE, (host.card,)), lambda _: None)
    await answering(daemon)
    return daemon


async def answering(daemon: DaemonProcess) -> None:
    async with asyncio.timeout(SOON):
        while True:
            try:
                await daemon.control("get_server_list")
            except ControlFailed:
                continue
            return


async def ask(host: Host, command: str) -> str:
    daemon = host.launcher().find(RESOURCE, MpsState(host.state_file).daemons[RESOURCE].mark)
    assert daemon is not None
    return await daemon.control(command)


async def test_a_daemon_gets_its_cards_and_its_limits(host: Host) -> None:
    async with host.agent() as agent:
        agent.set_plans(host.plan())
        await host.until(lambda: agent.ready(RESOURCE))

    assert (host.root / RESOURCE / "log/environment.log").read_text() == host.card
    assert [command for command in host.commands() if command.startswith("set")] == [
        f"set_default_device_pinned_mem_limit {host.card} 10240M",
        "set_default_active_thread_percentage 25",
    ]


async def test_folders_are_open_as_far_as_clients_need_it(host: Host) -> None:
    async with host.agent() as agent:
        agent.set_plans(host.plan())
        await host.until(lambda: agent.ready(RESOURCE))

    modes = {
        name: (host.root / name).stat().st_mode & 0o7777 for name in (f"{RESOURCE}/pipe", f"{RESOURCE}/log", "shm")
    }
    assert modes == {f"{RESOURCE}/pipe": 0o755, f"{RESOURCE}/log": 0o755, "shm": 0o1777}


async def test_a_killed_daemon_is_replaced_and_its_servers_go_with_it(host: Host) -> None:
    async with host.agent() as agent:
        agent.set_plans(host.plan())
        await host.until(lambda: agent.ready(RESOURCE))
        first = host.process()
        server = identified(int(await ask(host, "start_server")))
        os.kill(first.pid, signal.SIGKILL)
        await host.until(lambda: not agent.ready(RESOURCE))
        why = agent.problem(RESOURCE)
        await host.until(lambda: agent.ready(RESOURCE))

        assert "the MPS daemon ended: signal SIGKILL" in why
        assert not is_alive(server)
        assert host.process() != first


async def test_a_daemon_goes_on_when_its_agent_stops_and_the_next_one_takes_it_over(host: Host) -> None:
    async with host.agent() as agent:
        agent.set_plans(host.plan())
        await host.until(lambda: agent.ready(RESOURCE))
        first = host.process()
    assert is_alive(first)
    async with host.agent() as agent:
        agent.set_plans(host.plan(replicas=2))
        await host.until(lambda: agent.ready(RESOURCE))

        assert host.process() == first
        assert host.commands()[-2:] == ["set_default_active_thread_percentage 50", "get_server_list"]


async def test_a_killed_agent_leaves_a_daemon_that_the_next_one_takes_over(host: Host) -> None:
    killed = await agent_process(host)
    assert await said(killed) == "ready"
    first = host.process()
    killed.kill()
    await killed.wait()
    async with host.agent() as agent:
        agent.set_plans(host.plan())
        await host.until(lambda: agent.ready(RESOURCE))

        assert host.process() == first
        assert host.machine.compute_mode(GpuUuid(host.card)) is ComputeMode.EXCLUSIVE_PROCESS


async def test_what_a_killed_agent_left_is_ended_when_it_is_not_wanted_any_more(host: Host) -> None:
    killed = await agent_process(host)
    await said(killed)
    killed.kill()
    await killed.wait()
    async with host.agent() as agent:
        agent.set_plans({})
        await host.until(lambda: host.machine.compute_mode(GpuUuid(host.card)) is ComputeMode.DEFAULT)

    assert host.running() == []
    assert MpsState(host.state_file).daemons == {}


async def test_no_daemon_comes_of_an_agent_that_is_killed_before_it_has_noted_it(host: Host) -> None:
    killed = await agent_process(host, "unnoted")
    _, pid, start = (await said(killed)).split("/")
    await killed.wait()
    await wait_end(ProcessId(int(pid), int(start)))

    assert host.running() == []
    assert not (host.root / RESOURCE / "pipe/control").exists()


async def agent_process(host: Host, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.agent.mps.host", str(host.folder), *arguments),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
    )


async def said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(SOON):
        return (await process.stdout.readline()).decode().strip()


async def test_a_daemon_that_nobody_noted_is_told_to_quit_before_another_one_starts(host: Host) -> None:
    unknown = await started(host, host.launcher())
    async with host.agent() as agent:
        agent.set_plans(host.plan())
        await host.until(lambda: agent.ready(RESOURCE))

        assert not is_alive(identity(unknown))
        assert is_alive(host.process())


async def test_nothing_is_started_when_it_cannot_be_noted(host: Host) -> None:
    def refuse(_: DaemonId) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        await host.launcher().start(DaemonSpec(RESOURCE, (host.card,)), refuse)

    assert host.running() == []


async def test_a_daemon_that_does_not_quit_is_ended_by_signals(host: Host) -> None:
    launcher = host.launcher(control_timeout=0.05, end_timeout=0.05)
    daemon = await started(host, host.launcher())
    stopped = launcher.find(RESOURCE, daemon.id)
    assert stopped is not None
    os.kill(daemon.pid, signal.SIGSTOP)

    with pytest.raises(ControlFailed, match=r"does not answer `get_server_list` within 0\.05 s"):
        await stopped.control("get_server_list")
    await stopped.end()
    assert not is_alive(identity(daemon))


async def test_the_last_words_of_a_daemon_are_told(host: Host) -> None:
    first = await started(host, host.launcher())
    host.binary.write_text("#!/bin/sh\necho no such device >&2\nexit 3\n")
    other = await host.launcher().start(DaemonSpec("nvidia.com/other", (host.card,)), lambda _: None)

    assert await other.wait_ended() == "exit status 3, its last output: no such device"
    assert is_alive(identity(first))


def test_a_mark_of_another_boot_or_of_no_process_finds_nothing(host: Host) -> None:
    mine = identified(os.getpid())
    for mark in ("", f"another-boot/{mine.pid}/{mine.start}", "nonsense"):
        assert host.launcher().find(RESOURCE, DaemonId(mark)) is None


async def test_without_the_binary_it_says_where_it_comes_from(host: Host, tmp_path: Path) -> None:
    launcher = ProcessLauncher(root=host.root, driver_root=tmp_path / "driver", environment={"PATH": ""})

    for fact in ("nvidia-cuda-mps-control is neither in PATH", "the driver's root"):
        assert fact in launcher.find_obstacle()
    with pytest.raises(LaunchFailed, match="it comes with the driver"):
        await launcher.start(DaemonSpec(RESOURCE, (host.card,)), lambda _: None)


def test_the_binary_is_found_in_the_path_or_in_the_drivers_root(host: Host, tmp_path: Path) -> None:
    installed = tmp_path / "driver/usr/bin" / BINARY
    installed.parent.mkdir(parents=True)
    installed.touch(0o755)

    assert find_binary(tmp_path / "driver", str(host.binary.parent)) == host.binary
    assert find_binary(tmp_path / "driver", "/nowhere") == installed
    assert find_binary(tmp_path / "elsewhere", "/nowhere") is None


def test_daemon_and_clients_have_to_share_their_memory(host: Host, tmp_path: Path) -> None:
    other = tmp_path / "other-shm"
    other.mkdir()
    launcher = ProcessLauncher(root=host.root, binary=host.binary, shm=other)

    assert f"mount {host.root}/shm at {other} in the agent's container" in launcher.find_obstacle()
    assert host.launcher().find_obstacle() == ""


def identity(daemon: DaemonProcess) -> ProcessId:
    _, pid, start = daemon.id.split("/")
    return ProcessId(int(pid), int(start))


async def test_a_daemon_whose_binary_was_spoilt_meanwhile_is_ended_all_the_same(host: Host) -> None:
    launcher = host.launcher(end_timeout=0.2)
    daemon = await started(host, launcher)
    host.binary.write_bytes(b"half of an update")
    with pytest.raises(ControlFailed, match="does not run"):
        await daemon.control("get_server_list")
    process = identified(daemon.pid)
    await daemon.end()
    assert not is_alive(process)
