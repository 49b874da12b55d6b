"""A kernel is announced: counted, built and let through. A whole lab on virtual time, with simulated registries."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.support.build_cluster import play_in_build_cluster

from tessera.clock import LoopClock
from tessera.driver.build.builds import BuildJobs
from tessera.driver.driver_sets import NAMESPACE, PoolKey
from tessera.driver.images import Outcome
from tessera.driver.kernels import CONFIG_MAP
from tessera.driver.next_kernels import (
    COVERAGE_ANNOTATION,
    CoverageMetrics,
    KernelsInUse,
    NextKernels,
)
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, JOBS
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.drivers.driver_catalogue import SimulatedResolver, build_catalogue, driver_image
from tessera_lab.simulation.cost_model import CostModel

COSTS = CostModel()
K = "5.15.0-118-generic"
K1 = "5.15.0-119-generic"
IMAGE = "quay.io/acme/driver:535.183.06-{}-ubuntu22.04"
BUILT = "registry.local/gpu/driver:535.183.06-{}-ubuntu22.04"
NODE = PoolKey(os_id="ubuntu", os_version="22.04", kernel=K, architecture="amd64")
POLICY = DriverPolicy(
    kind="ClusterPolicy",
    name="cluster-policy",
    use_precompiled=True,
    source=ImageSource(repository="quay.io/acme", image="driver", version="535.183.06"),
    build_repository="registry.local/gpu",
)


class ClusterWithRegistry:
    """A cluster with one ordinary node, where builds run, and a registry that has an image for the kernel of today."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_800_000_000.0)
        self.catalogue = build_catalogue(COSTS, {IMAGE.format(K): driver_image("535.183.06", COSTS, kernel=K)})
        self.catalogue.name("registry.local/gpu/driver:none", driver_image("1", COSTS))
        self.cluster = SimulatedCluster(
            parse_nodes("0"), clock=self.clock, options=ClusterOptions(catalogue=self.catalogue, kernel=K)
        )
        self.client = self.cluster.client("test")
        self.registry = SimulatedResolver(self.catalogue, self.clock)
        self.metrics = CollectorRegistry()
        self.coverage = CoverageMetrics(self.metrics)

    @asynccontextmanager
    async def following(self, policy: DriverPolicy = POLICY) -> AsyncIterator[NextKernels]:
        """A controller's gate and builds, for as long as it lives."""
        client = self.cluster.client("tessera-controller")
        runtime = KubeRuntime(client=client, clock=self.clock, rng=random.Random(0))
        builds = BuildJobs(runtime)
        made = NextKernels(
            runtime,
            resolver=self.registry,
            in_use=lambda: KernelsInUse(pools=((NODE, policy),)),
            builds=builds,
            metrics=self.coverage,
        )
        running = [asyncio.ensure_future(each.run()) for each in (builds, made)]
        try:
            yield made
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    async def announce(self, **systems: str) -> None:
        data = {name.replace("_", "."): text for name, text in systems.items()}
        await self.client.apply(CONFIGMAPS.as_dicts(), CONFIG_MAP, {"data": data}, NAMESPACE)

    async def until(self, found: Callable[[], Any], seconds: float = 60.0) -> float:
        """Looks every simulated second; returns how many it took."""
        began = self.clock.monotonic()
        async with asyncio.timeout(seconds):
            while not found():
                await self.clock.sleep(1.0)
        return self.clock.monotonic() - began

    async def written(self) -> str:
        """Returns the coverage annotation of the list of next kernels."""
        held = await self.client.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)
        return held.metadata.annotations[COVERAGE_ANNOTATION]

    async def jobs(self) -> list[str]:
        found = (await self.client.list(JOBS, NAMESPACE)).items
        return [job.metadata.annotations["tessera.dev/build-target"] for job in found]

    def metric(self, kernel: str) -> float | None:
        labels = {"pool": "ubuntu22.04 amd64", "kernel": kernel}
        return self.metrics.get_sample_value("tessera_driver_next_kernel_covered", labels)


Play = Callable[[Callable[[ClusterWithRegistry], Awaitable[None]]], None]


@pytest.fixture
def play() -> Play:
    """Plays a story in a new cluster, on virtual time."""
    return partial(play_in_build_cluster, ClusterWithRegistry)


def test_a_pending_kernel_without_an_image_is_counted_built_and_let_through(play: Play) -> None:
    async def story(lab: ClusterWithRegistry) -> None:
        async with lab.following() as gate:
            await lab.announce(ubuntu22_04=K1)
            await lab.until(lambda: gate.report.rows)
            assert gate.report.summary == "0/1 covered"
            assert gate.report.gates == {"ubuntu22.04 amd64": False}
            assert lab.metric(K1) == 0
            await lab.until(lambda: "a build is under way" in gate.report.sentence)
            assert await lab.jobs() == [BUILT.format(K1)]
            written = await lab.written()
            assert written.startswith("0/1 covered. ubuntu22.04 5.15.0-119-generic amd64: ")
            assert written == gate.report.sentence

            took = await lab.until(lambda: gate.report.open, COSTS.build_seconds + 300)
            assert took >= COSTS.build_seconds - 60
            assert gate.report.summary == "1/1 covered"
            assert gate.report.rows[0].image == BUILT.format(K1)
            assert lab.metric(K1) == 1
            await lab.clock.sleep(1)
            assert await lab.written() == "1/1 covered. 1 next kernels known."
            assert await lab.jobs() == [BUILT.format(K1)]

    play(story)


def test_the_gate_opens_at_once_when_the_build_is_pushed(play: Play) -> None:
    async def story(lab: ClusterWithRegistry) -> None:
        async with lab.following() as gate:
            await lab.announce(ubuntu22_04=K1)
            await lab.until(lambda: lab.catalogue.find_image(BUILT.format(K1)) is not None, COSTS.build_seconds + 300)
            assert await lab.until(lambda: gate.report.open) <= 5

    play(story)


def test_a_restart_in_the_middle_of_a_build_orders_no_second_one(play: Play) -> None:
    async def story(lab: ClusterWithRegistry) -> None:
        async with lab.following() as gate:
            await lab.announce(ubuntu22_04=K1)
            await lab.until(lambda: "a build is under way" in gate.report.sentence)
        assert lab.metric(K1) is None, "who does not lead says nothing"
        async with lab.following() as gate:
            await lab.until(lambda: gate.report.open, COSTS.build_seconds + 300)
        assert len(await lab.jobs()) == 1

    play(story)


def test_what_somebody_else_pushes_opens_the_gate_without_a_build(play: Play) -> None:
    without = msgspec.structs.replace(POLICY, build_repository="")

    async def story(lab: ClusterWithRegistry) -> None:
        async with lab.following(without) as gate:
            await lab.announce(ubuntu22_04=K1)
            await lab.until(lambda: gate.report.rows)
            assert "no build repository is set" in gate.report.sentence
            lab.catalogue.push(IMAGE.format(K1), driver_image("535.183.06", COSTS, kernel=K1))
            assert await lab.until(lambda: gate.report.open, 90) <= 61
            assert await lab.jobs() == []

    play(story)


def test_a_kernel_that_is_covered_already_costs_nothing(play: Play) -> None:
    async def story(lab: ClusterWithRegistry) -> None:
        async with lab.following() as gate:
            await lab.announce(ubuntu22_04=K)
            await lab.until(lambda: gate.report.open and gate.report.rows)
            asked = len(lab.registry.asked)
            await lab.clock.sleep(900)
            assert len(lab.registry.asked) == asked
            assert await lab.jobs() == []

    play(story)


@pytest.mark.parametrize("outcome", [Outcome.UNREACHABLE, Outcome.UNAUTHORIZED])
def test_a_registry_that_gives_no_clear_answer_orders_no_build(play: Play, outcome: Outcome) -> None:
    async def story(lab: ClusterWithRegistry) -> None:
        lab.catalogue.refuse("quay.io/*", outcome)
        async with lab.following() as gate:
            await lab.announce(ubuntu22_04=K1)
            await lab.until(lambda: gate.report.rows)
            await lab.clock.sleep(600)
            assert not gate.report.open
            assert await lab.jobs() == []

    play(story)


def test_a_kernel_that_is_taken_from_the_list_is_forgotten(play: Play) -> None:
    async def story(lab: ClusterWithRegistry) -> None:
        async with lab.following() as gate:
            await lab.announce(ubuntu22_04=K1)
            await lab.until(lambda: lab.metric(K1) == 0)
            await lab.announce(ubuntu22_04=f"{K}\n{K1}")
            await lab.until(lambda: len(gate.report.rows) == 2)
            await lab.client.delete(CONFIGMAPS, CONFIG_MAP, NAMESPACE)
            await lab.until(lambda: not gate.report.rows)
            assert lab.metric(K1) is None
            assert gate.report.notice is None

    play(story)


def test_a_list_that_is_wrong_is_told(play: Play) -> None:
    async def story(lab: ClusterWithRegistry) -> None:
        async with lab.following() as gate:
            await lab.announce(ubuntu22_04=f"latest\n{K}")
            await lab.until(lambda: gate.report.problems)
            await lab.clock.sleep(1)
            assert (await lab.written()).startswith("ubuntu22.04: kernel 'latest': write what uname -r says")

    play(story)


def test_what_cannot_be_built_says_why(play: Play) -> None:
    branch = msgspec.structs.replace(POLICY, source=msgspec.structs.replace(POLICY.source, version="latest"))

    async def story(lab: ClusterWithRegistry) -> None:
        async with lab.following(branch) as gate:
            await lab.announce(ubuntu22_04=K1)
            await lab.until(lambda: gate.report.rows)
            for fact in ("it cannot be built", "driver version 'latest'", "not of the form"):
                assert fact in gate.report.sentence

    play(story)
