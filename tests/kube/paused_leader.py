"""A process that takes part in an election and writes as fast as it can while it leads; run by test_paused_leader.py.

Arguments: the server's URL, and who it is. Times are a tenth of the product's, so that a pause costs the test little.
"""

import asyncio
import itertools
import random
import sys
import time

from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera.kube.cluster_config import ClusterConfig
from tessera.kube.credentials import Credential, StaticCredentials
from tessera.kube.http import HttpTransport
from tessera.kube.leader_election import LeaderElector, LeaseTiming
from tessera.kube.resources import CONFIGMAPS

TOKEN, WORKERS = "secret", 8
TIMING = LeaseTiming(duration=1, deadline=0.6, retry=0.1, renew=0.2)


async def main(server: str, identity: str) -> None:
    """Takes part until it is killed."""
    transport = HttpTransport(
        ClusterConfig(server=server, credentials=StaticCredentials(Credential(authorization=f"Bearer {TOKEN}")))
    )
    client = Client(transport, field_manager=identity, clock=SystemClock())
    elector = LeaderElector(
        client,
        namespace="default",
        name="l",
        identity=identity,
        clock=SystemClock(),
        rng=random.Random(identity),
        timing=TIMING,
    )
    fenced = client.fence_writes(lambda: elector.is_leader)

    async def write(worker: int) -> None:
        for number in itertools.count():
            try:
                body = {"data": {"by": identity, "number": str(number), "begun": str(time.monotonic())}}
                await fenced.merge_patch(CONFIGMAPS, f"c{worker}", body, "default")
            except ConnectionError:
                await asyncio.sleep(0.001)

    async def lead() -> None:
        async with asyncio.TaskGroup() as group:
            for worker in range(WORKERS):
                group.create_task(write(worker))

    await elector.run(lead)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
