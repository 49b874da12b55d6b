"""A machine with a driver that brings a stand-in for NVIDIA's control binary; run as a module it is an agent.

``python -m tests.agent.mps.host FOLDER`` supervises a daemon and says when it is ready. With ``unnoted`` behind it, it
dies by SIGKILL after the daemon's process was made and before its mark was written down, and says the mark.
"""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.agent_runtime import make_parts

from tessera.agent.base.host import ProcessId
from tessera.agent.base.settings import AgentOptions, ServicePlan
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.mps.process_launcher import BINARY, ProcessLauncher
from tessera.agent.mps.spawning import Spawner
from tessera.agent.mps.state import DaemonId, DaemonSpec, MpsState
from tessera.api.sharing.profile import client_share
from tessera.clock import SystemClock
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

RESOURCE = "nvidia.com/gpu.shared"
STAND_IN = Path(__file__).parent / "stand_in.py"
#: Seconds within which anything that is waited for happens, on a busy machine too.
SOON = 30.0


class Host:
    """A machine with a driver that brings the control binary, and a folder for MPS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "mps"
        self.binary = folder / "bin" / BINARY
        self.binary.parent.mkdir(exist_ok=True)
        self.binary.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(str(STAND_IN))} "$@"\n')
        self.binary.chmod(0o755)
        self.machine = SimulatedMachine("A100-40GB", seed="mps", state=folder / "cards.json")
        self.card: str = self.machine.uuids()[0]
        self.state_file = folder / "mps.json"
        self.changes = ChangeNotifier()

    def launcher(
        self, *, control_timeout: float = SOON, end_timeout: float = SOON, spawner: Spawner | None = None
    ) -> ProcessLauncher:
        return ProcessLauncher(
            root=self.root,
            binary=self.binary,
            shm=self.root / "shm",
            spawner=spawner,
            control_timeout=control_timeout,
            end_timeout=end_timeout,
        )

    def plan(self, replicas: int = 4) -> dict[str, ServicePlan]:
        return {RESOURCE: ServicePlan({self.card: client_share(40960, replicas)}, replicas)}

    @asynccontextmanager
    async def agent(self, spawner: Spawner | None = None) -> AsyncIterator[MpsDaemons]:
        clock = SystemClock()
        daemons = MpsDaemons(
            make_parts(
                options=AgentOptions(node_name="node-1", state_dir=self.folder, mps_root=self.root),
                hardware=InlineNvml(self.machine, clock),
                changes=self.changes,
                clock=clock,
            ),
            self.launcher(spawner=spawner),
        )
        task = asyncio.create_task(daemons.run())
        try:
            yield daemons
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def until(self, holds: Callable[[], bool]) -> None:
        assert await self.changes.wait_until(holds, SOON), f"processes {self.running()}"

    def process(self) -> ProcessId:
        """The daemon on record."""
        _, pid, start = MpsState(self.state_file).daemons[RESOURCE].mark.split("/")
        return ProcessId(int(pid), int(start))

    def commands(self) -> list[str]:
        return (self.root / RESOURCE / "log/commands.log").read_text().splitlines()

    def running(self) -> list[int]:
        """Processes that have this host's pipe directory in their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue
            if f"CUDA_MPS_PIPE_DIRECTORY={self.root}".encode() in environment:
                found.append(int(entry.name))
        return found


async def supervise(host: Host) -> None:
    async with host.agent() as agent:
        agent.set_plans(host.plan())
        await host.until(lambda: agent.ready(RESOURCE))
        print("ready", flush=True)  # noqa: T201 - what the test waits for
        await asyncio.Event().wait()


def die_unnoted(mark: DaemonId) -> None:
    print(mark, flush=True)  # noqa: T201 - what the test waits for
    os.kill(os.getpid(), signal.SIGKILL)


async def start_unnoted(host: Host) -> None:
    await host.launcher().start(DaemonSpec(RESOURCE, (host.card,)), die_unnoted)


if __name__ == "__main__":
    here = Host(Path(sys.argv[1]))
    asyncio.run(start_unnoted(here) if sys.argv[2:] == ["unnoted"] else supervise(here))
