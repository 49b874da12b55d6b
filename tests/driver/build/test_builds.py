"""Builds against a whole API server with its Job controller, on virtual time: one Job, whoever asks and whoever dies.

There are no nodes: what the pods of a build do is said by the test, as kubelet would say it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.support.build_cluster import play_in_build_cluster
from tests.support.mortal_transport import TransportUntilWrite

from tessera.clock import LoopClock, rfc3339
from tessera.driver.build.builds import BuildJobs
from tessera.driver.build.orders import BuildOrder
from tessera.driver.build.states import BuildPhase, BuildRetries
from tessera.driver.driver_sets import NAMESPACE, PoolKey
from tessera.kube.client import Client
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, JOBS, PODS, RESOURCE_QUOTAS, Pod
from tessera_lab.cluster.cluster import SimulatedCluster

Ordered = Callable[..., BuildOrder]
DIGEST = "sha256:" + "a" * 64
RETRIES = BuildRetries(pause=600.0, attempts=2)


class ClusterWithoutNodes:
    """A cluster without nodes, and what a test does with it."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_800_000_000.0)
        self.cluster = SimulatedCluster([], clock=self.clock)
        self.client = self.cluster.client("test")
        self.told: list[tuple[str, BuildPhase]] = []

    @asynccontextmanager
    async def builds(self, client: Client | None = None) -> AsyncIterator[BuildJobs]:
        """A controller's builds, for as long as it lives."""
        made = BuildJobs(
            KubeRuntime(
                client=client or self.cluster.client("tessera-controller"), clock=self.clock, rng=random.Random(0)
            ),
            retries=RETRIES,
        )
        made.listen(lambda target, phase: self.told.append((target, phase)))
        running = asyncio.ensure_future(made.run())
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def until(self, found: Callable[[], Awaitable[bool]], seconds: float = 300.0) -> None:
        """Asks again every simulated second."""
        async with asyncio.timeout(seconds):
            while not await found():
                await self.clock.sleep(1.0)

    async def jobs(self) -> list[str]:
        return sorted(job.metadata.name for job in (await self.client.list(JOBS, NAMESPACE)).items)

    async def pods(self) -> list[Pod]:
        return list((await self.client.list(PODS, NAMESPACE)).items)

    async def pod_is_there(self) -> bool:
        return any(pod.status.phase == "Pending" for pod in await self.pods())

    async def end(self, code: int, message: str) -> None:
        """The pod of the build that runs ends, as kubelet tells it."""
        await self.until(self.pod_is_there)
        (pod,) = [pod for pod in await self.pods() if pod.status.phase == "Pending"]
        now = rfc3339(self.clock.now())
        terminated = {"exitCode": code, "message": message, "startedAt": now, "finishedAt": now}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [
                {
                    "name": "build",
                    "image": "quay.io/buildah/stable",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": terminated},
                }
            ],
        }
        name, patch = pod.metadata.name, {"status": status}
        await self.client.merge_patch(PODS, name, patch, NAMESPACE, subresource="status")

    def posts(self, resource: str) -> list[int]:
        """Codes that creates of Tessera's were answered."""
        audit = self.cluster.server.audit
        return [each.code for each in audit if each.verb == "create" and each.resource == resource]


Play = Callable[[Callable[[ClusterWithoutNodes], Awaitable[None]]], None]


@pytest.fixture
def play() -> Play:
    """Plays a story in a new cluster, on virtual time."""
    return partial(play_in_build_cluster, ClusterWithoutNodes)


def state_is(builds: BuildJobs, order: BuildOrder, phase: BuildPhase) -> Callable[[], Awaitable[bool]]:
    async def found() -> bool:
        return builds.state(order).phase is phase

    return found


def test_ten_new_nodes_on_an_uncovered_kernel_cause_one_build(play: Play, ordered: Ordered) -> None:
    async def story(lab: ClusterWithoutNodes) -> None:
        async with lab.builds() as builds:
            for number in range(1, 11):  # one after the other, as an autoscaler's nodes come
                builds.set_orders([ordered() for _ in range(number)])
                await lab.clock.sleep(0.5)
            await lab.until(state_is(builds, ordered(), BuildPhase.RUNNING))
            assert await lab.jobs() == [f"{ordered().name}-1"]
            await lab.end(0, DIGEST)
            await lab.until(state_is(builds, ordered(), BuildPhase.DONE))
            assert builds.state(ordered()).digest == DIGEST
            builds.set_orders([ordered()])
            await lab.clock.sleep(3600)
            assert lab.posts("jobs.batch") == [201]
            assert (ordered().target, BuildPhase.DONE) in lab.told

    play(story)


def test_a_failure_is_told_tried_again_and_given_up(play: Play, ordered: Ordered) -> None:
    async def story(lab: ClusterWithoutNodes) -> None:
        async with lab.builds() as builds:
            builds.set_orders([ordered()])
            for _ in range(2):  # the Job itself lets one pod more try
                await lab.end(1, "install-ubuntu: Canonical has no modules of branch 525")
            await lab.until(state_is(builds, ordered(), BuildPhase.FAILED))
            told = builds.state(ordered())
            for fact in ("exit code 1", "install-ubuntu: Canonical has no modules of branch 525"):
                assert fact in told.text
            assert told.again is not None
            assert told.again - told.since == RETRIES.pause
            await lab.until(state_is(builds, ordered(), BuildPhase.RUNNING), 700)
            assert builds.state(ordered()).attempts == 2
            for _ in range(2):
                await lab.end(1, "still none")
            await lab.until(state_is(builds, ordered(), BuildPhase.FAILED))
            await lab.clock.sleep(7200)
            assert builds.state(ordered()).again is None
            assert await lab.jobs() == [f"{ordered().name}-1", f"{ordered().name}-2"]

    play(story)


def test_a_job_of_an_earlier_controller_is_adopted(play: Play, ordered: Ordered) -> None:
    async def story(lab: ClusterWithoutNodes) -> None:
        async with lab.builds() as builds:
            builds.set_orders([ordered()])
            await lab.until(state_is(builds, ordered(), BuildPhase.RUNNING))
        async with lab.builds() as builds:
            builds.set_orders([ordered()])
            await lab.until(state_is(builds, ordered(), BuildPhase.RUNNING))
            await lab.end(0, DIGEST)
            await lab.until(state_is(builds, ordered(), BuildPhase.DONE))
        assert lab.posts("jobs.batch") == [201]

    play(story)


def test_two_controllers_at_once_make_one_job(play: Play, ordered: Ordered) -> None:
    async def story(lab: ClusterWithoutNodes) -> None:
        async with lab.builds() as one, lab.builds() as other:
            one.set_orders([ordered()])
            other.set_orders([ordered()])
            for builds in (one, other):
                await lab.until(state_is(builds, ordered(), BuildPhase.RUNNING))
            assert await lab.jobs() == [f"{ordered().name}-1"]
            assert lab.posts("jobs.batch").count(201) == 1

    play(story)


def test_several_kernels_build_side_by_side_and_share_the_files(play: Play, ordered: Ordered, jammy: PoolKey) -> None:
    newer = msgspec.structs.replace(jammy, kernel="5.15.0-70-generic")

    async def story(lab: ClusterWithoutNodes) -> None:
        async with lab.builds() as builds:
            builds.set_orders([ordered()], by="nodes")
            builds.set_orders([ordered(newer)], by="next kernels")
            for order in (ordered(), ordered(newer)):
                await lab.until(state_is(builds, order, BuildPhase.RUNNING))
            files = [each.metadata.name for each in (await lab.client.list(CONFIGMAPS, NAMESPACE)).items]
            assert sum(name.startswith("tessera-build-ubuntu-") for name in files) == 1

    play(story)


def test_a_build_that_nobody_wants_any_more_is_not_tried_again(play: Play, ordered: Ordered) -> None:
    async def story(lab: ClusterWithoutNodes) -> None:
        async with lab.builds() as builds:
            builds.set_orders([ordered()])
            for _ in range(2):
                await lab.end(1, "no")
            await lab.until(state_is(builds, ordered(), BuildPhase.FAILED))
            builds.set_orders([])
            await lab.clock.sleep(3600)
            assert await lab.jobs() == [f"{ordered().name}-1"]

    play(story)


def test_a_server_that_refuses_is_told_and_asked_again(play: Play, ordered: Ordered) -> None:
    async def story(lab: ClusterWithoutNodes) -> None:
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "0"}}}
        await lab.client.create(RESOURCE_QUOTAS.as_dicts(), quota, NAMESPACE)
        await lab.clock.sleep(5)
        async with lab.builds() as builds:
            builds.set_orders([ordered()])
            await lab.until(state_is(builds, ordered(), BuildPhase.FAILED))
            assert f"Job {ordered().name}-1 cannot be made: " in builds.state(ordered()).text
            for _ in range(100):  # who asks often is not answered more often
                builds.set_orders([ordered()])
                await lab.clock.sleep(0.1)
            assert len(lab.posts("jobs.batch")) < 10
            await lab.client.delete(RESOURCE_QUOTAS, "none", NAMESPACE)
            await lab.until(state_is(builds, ordered(), BuildPhase.RUNNING))
            assert "cannot be made" not in builds.state(ordered()).text

    play(story)


def test_a_replica_that_does_not_lead_writes_nothing(play: Play, ordered: Ordered) -> None:
    async def story(lab: ClusterWithoutNodes) -> None:
        client = lab.cluster.client("tessera-controller")
        builds = BuildJobs(KubeRuntime(client=client, clock=lab.clock, rng=random.Random(0), may_act=lambda: False))
        running = asyncio.ensure_future(builds.run())
        builds.set_orders([ordered()])
        await lab.clock.sleep(60)
        assert await lab.jobs() == []
        running.cancel()
        await asyncio.wait({running})

    play(story)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_controller_that_dies_at_any_write_leaves_one_build(
    play: Play, ordered: Ordered, at: int, after: bool
) -> None:
    async def story(lab: ClusterWithoutNodes) -> None:
        alive = lab.cluster.client("tessera-controller")
        mortal = TransportUntilWrite(alive._transport, last=at - 1, applied=after)
        client: Any = Client(mortal, field_manager="tessera-controller", clock=lab.clock)
        async with lab.builds(client) as builds:
            builds.set_orders([ordered()] * 10)
            await lab.clock.sleep(30)
        assert mortal.dead is (at < 3), "a build is two writes; the third point lies beyond them"
        async with lab.builds() as builds:
            builds.set_orders([ordered()] * 10)
            await lab.until(state_is(builds, ordered(), BuildPhase.RUNNING))
            await lab.end(0, DIGEST)
            await lab.until(state_is(builds, ordered(), BuildPhase.DONE))
        assert await lab.jobs() == [f"{ordered().name}-1"]
        assert lab.posts("jobs.batch").count(201) == 1
        assert len(await lab.pods()) == 1

    play(story)
