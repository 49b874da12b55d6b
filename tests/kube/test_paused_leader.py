"""A leader's process stands still, as one that is swapped out or whose machine is paused, and wakes when another leads.

It is a real process, stopped by a signal at random moments while it writes as fast as it can. Nothing that it begins
to write once another has taken the Lease may reach the API server. What it had sent before may arrive late: the server
of a busy machine is slow, and the times of this election are short.
"""

import asyncio
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.kube import paused_leader
from tests.support.searching import SEARCHING

from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera.kube.resources import CONFIGMAPS
from tessera_lab.apiserver.interfaces import GroupResource, UserInfo
from tessera_lab.apiserver.main.http_server import HttpServer
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.apiserver.storage.store import Change

PAUSES = 4 if SEARCHING else 2
ADMIN = UserInfo(name="admin", groups=("system:masters",))
CONFIG_MAPS, LEASES = GroupResource("", "configmaps"), GroupResource("coordination.k8s.io", "leases")


class Watching:
    """Records each writer, the holder of the Lease, and writes by processes that do not hold it."""

    def __init__(self, server: ApiServer) -> None:
        self.holder, self.since = "", 0.0
        self.writes: dict[str, int] = {}
        self.late: list[str] = []
        self._changed = asyncio.Event()
        server.core.store.listen(CONFIG_MAPS, self._written)
        server.core.store.listen(LEASES, self._held)

    def _held(self, change: Change) -> None:
        holder = change.new.obj["spec"]["holderIdentity"]
        if holder != self.holder:
            self.holder, self.since = holder, time.monotonic()
        self._changed.set()

    def _written(self, change: Change) -> None:
        data = change.new.obj.get("data") or {}
        who = data.get("by", "")
        if not who:
            return
        self.writes[who] = self.writes.get(who, 0) + 1
        self._changed.set()
        if who != self.holder and float(data["begun"]) > self.since:
            self.late.append(who)

    async def writes_of(self, who: str) -> None:
        """Returns once this one has written more than so far."""
        before = self.writes.get(who, 0)
        async with asyncio.timeout(60):
            while self.writes.get(who, 0) <= before:
                self._changed.clear()
                await self._changed.wait()

    async def other_than(self, who: str) -> str:
        """The next holder that is not this one and writes."""
        async with asyncio.timeout(60):
            while self.holder in {"", who}:
                self._changed.clear()
                await self._changed.wait()
        await self.writes_of(self.holder)
        return self.holder


@asynccontextmanager
async def participant(url: str, identity: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, paused_leader.__file__, url, identity)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def test_a_process_that_wakes_after_its_lease_was_taken_writes_nothing() -> None:
    chance = random.Random(1)
    server = ApiServer(SystemClock(), tokens={paused_leader.TOKEN: ADMIN})
    front = HttpServer(server, None)
    await front.start()
    admin = Client(InProcessTransport(server, ADMIN), field_manager="admin", clock=SystemClock())
    for worker in range(paused_leader.WORKERS):
        await admin.create(CONFIGMAPS, {"metadata": {"name": f"c{worker}"}}, "default")
    watching = Watching(server)
    try:
        async with participant(front.url, "one") as one, participant(front.url, "two") as two:
            processes, leader = {"one": one, "two": two}, await watching.other_than("")
            for _ in range(PAUSES):
                await watching.writes_of(leader)
                await asyncio.sleep(chance.random() * 0.05)  # the moment is the test's input
                paused = processes[leader]
                paused.send_signal(signal.SIGSTOP)
                leader = await watching.other_than(leader)
                paused.send_signal(signal.SIGCONT)
                await watching.writes_of(leader)
                await asyncio.sleep(0.2)  # what it would write, it writes now
                assert watching.late == []
                assert paused.returncode is None
    finally:
        await front.close()
