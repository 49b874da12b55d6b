"""The MPS host as a process: daemons that it starts belong to it, and not to an agent."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.agent.mps.host import RESOURCE, SOON, Host

from tessera.agent.base.host import ProcessTable
from tessera.agent.mps.process_launcher import is_alive, wait_end
from tessera.agent.mps.spawning import MESSAGE_SIZE, SPAWN_VERSION, HostSpawner, SpawnAnswer, SpawnRequest
from tessera.agent.mps.state import DaemonSpec, LaunchFailed, MpsState


class HostProcess:
    """An MPS host as its container runs it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "host.sock"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        command = (sys.executable, "-m", "tessera", "mps-host", f"--socket={self.path}")
        self._process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        assert self._process.stderr is not None
        assert b"serving" in await self._process.stderr.readline()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        await self._process.communicate()

    def ask(self, request: object, files: int = 2) -> SpawnAnswer:
        """Sends anything, with so many files."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, Path("/dev/null").open("r+b") as null:
            connection.settimeout(SOON)
            connection.connect(str(self.path))
            socket.send_fds(connection, [msgspec.json.encode(request)], [null.fileno()] * files)
            return msgspec.json.decode(connection.recv(MESSAGE_SIZE), type=SpawnAnswer)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[HostProcess]:
    running = HostProcess(tmp_path)
    await running.start()
    yield running
    await running.end()


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path)
    yield host
    for pid in host.running():
        os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


async def test_a_daemon_is_the_hosts_child_and_the_next_agent_takes_it_over(host: Host, process: HostProcess) -> None:
    spawner = HostSpawner(process.path)
    async with host.agent(spawner) as daemons:
        daemons.set_plans(host.plan())
        assert await host.changes.wait_until(lambda: daemons.ready(RESOURCE), SOON), daemons.summary()
        before = MpsState(host.state_file).daemons[RESOURCE]
    daemon = host.launcher(spawner=spawner).find(RESOURCE, before.mark)
    assert daemon is not None
    assert _parent(daemon.pid) == process.pid
    async with host.agent(spawner) as daemons:
        daemons.set_plans(host.plan())
        assert await host.changes.wait_until(lambda: daemons.ready(RESOURCE), SOON), daemons.summary()
        assert MpsState(host.state_file).daemons[RESOURCE] == before


async def test_an_agent_notices_the_end_of_the_host_and_starts_anew_in_the_next(
    host: Host, process: HostProcess
) -> None:
    async with host.agent(HostSpawner(process.path)) as daemons:
        daemons.set_plans(host.plan())
        assert await host.changes.wait_until(lambda: daemons.ready(RESOURCE), SOON), daemons.summary()
        before = MpsState(host.state_file).daemons[RESOURCE]
        await process.end()
        assert await host.changes.wait_until(lambda: not daemons.ready(RESOURCE), SOON)
        assert await host.changes.wait_until(lambda: "MPS host does not run yet" in daemons.problem(RESOURCE), SOON)
        await process.start()
        assert await host.changes.wait_until(lambda: daemons.ready(RESOURCE), SOON), daemons.summary()
        assert MpsState(host.state_file).daemons[RESOURCE] != before


async def test_an_agent_that_dies_before_it_has_noted_a_daemon_leaves_none(host: Host, process: HostProcess) -> None:
    launcher = host.launcher(spawner=HostSpawner(process.path))

    def refuse(_: object) -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        await launcher.start(DaemonSpec(RESOURCE, (host.card,)), refuse)
    assert host.running() == []


async def test_ended_children_are_collected(process: HostProcess) -> None:
    answer = process.ask(SpawnRequest(argv=("/bin/true",), env={}))
    assert answer.error == ""
    found = ProcessTable().identify(answer.pid)
    if found is not None:
        await wait_end(found)
        assert process.ask(SpawnRequest(argv=(), env={})).error
        assert not is_alive(found)


async def test_the_socket_is_for_root_only(process: HostProcess) -> None:
    assert process.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("request_", "files", "text"),
    [
        (
            SpawnRequest(version=SPAWN_VERSION + 1, argv=("/bin/true",), env={}),
            2,
            "delete the pod tessera-mps of this node",
        ),
        (SpawnRequest(argv=("/nowhere",), env={}), 2, "/nowhere: .*No such file"),
        (SpawnRequest(argv=(), env={}), 2, "no command"),
        (SpawnRequest(argv=("/bin/true",), env={}), 1, "not the two files"),
        ({"argv": 5}, 2, "cannot be read"),
        ([[]] * 3, 0, "cannot be read"),
    ],
)
async def test_a_request_that_cannot_be_met_is_refused_with_its_reason(
    process: HostProcess, request_: object, files: int, text: str
) -> None:
    answer = process.ask(request_, files)
    assert answer.pid == 0
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(answer.error)
    assert process.ask(SpawnRequest(argv=("/bin/true",), env={})).pid > 0


async def test_without_a_host_the_agent_says_where_to_look(host: Host, tmp_path: Path) -> None:
    spawner = HostSpawner(tmp_path / "host.sock")
    launcher = host.launcher(spawner=spawner)
    assert "the node's MPS host does not run yet" in launcher.find_obstacle()
    (tmp_path / "host.sock").touch()
    with pytest.raises(LaunchFailed, match=r"does not answer at .*; see: kubectl -n tessera-system get pods"):
        await launcher.start(DaemonSpec(RESOURCE, (host.card,)), lambda _: None)


async def test_a_message_that_is_too_long_is_not_sent(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match=r"needs a message of .* bytes; it may have"):
        await HostSpawner(tmp_path).spawn(("/bin/true", "x" * MESSAGE_SIZE), {}, stdin=0, output=1)
