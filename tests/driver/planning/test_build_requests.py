"""The build that a policy requests for a pool, and the time that nodes wait for it."""

import random

import msgspec
import pytest

from tessera.api.nodes.node_marks import BUILD_TIMEOUT
from tessera.clock import LoopClock
from tessera.driver.build.builds import BuildJobs
from tessera.driver.build.orders import BuildOrder, BuildSettings
from tessera.driver.build.states import BuildPhase, BuildState
from tessera.driver.driver_sets import PoolKey
from tessera.driver.planning.strategy import PUSH_TIMEOUT, BuildRequests, build_progress
from tessera.driver.planning.strategy import PoolBuildState as Stands
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource
from tessera.kube.client import Client
from tessera.kube.leader_election import KubeRuntime
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.simulation.virtual_time import run_virtual

ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))

POOL = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
POLICY = DriverPolicy(
    kind="ClusterPolicy",
    name="p",
    source=ImageSource(repository="nvcr.io/nvidia", image="driver", version="525.125.06"),
    build_repository="registry.local/drivers",
    build_secret="push",
)
NOW = 1_000_000.0


def stands(found: BuildState, *, wanted_since: float = NOW, policy: DriverPolicy = POLICY) -> tuple[Stands, str]:
    def state(_: BuildOrder) -> BuildState:
        return found

    view, _ = build_progress(policy, POOL, BuildSettings(), state, wanted_since=wanted_since, now=NOW)
    return view.state, view.reason


def test_the_order_is_for_the_pool_and_is_pushed_with_the_policys_secret() -> None:
    _, made = build_progress(
        POLICY, POOL, BuildSettings(), lambda _: BuildState(phase=BuildPhase.NONE), wanted_since=NOW, now=NOW
    )
    assert made is not None
    assert made.pool == POOL
    assert made.target.startswith("registry.local/drivers/driver:525.125.06-5.15.0-69-generic")
    assert made.settings.push_secret == "push"


@pytest.mark.parametrize("phase", [BuildPhase.NONE, BuildPhase.RUNNING])
def test_a_build_that_runs_or_will_is_waited_for(phase: BuildPhase) -> None:
    state, reason = stands(BuildState(phase=phase, since=NOW - 60 if phase is BuildPhase.RUNNING else 0.0))
    assert state is Stands.RUNNING
    assert "registry.local/drivers/driver" in reason


def test_the_job_that_is_waited_for_is_named() -> None:
    _, made = build_progress(
        POLICY, POOL, BuildSettings(), lambda _: BuildState(phase=BuildPhase.NONE), wanted_since=NOW, now=NOW
    )
    assert made is not None
    _, reason = stands(BuildState(phase=BuildPhase.RUNNING, since=NOW - 60, attempts=2))
    assert reason == f"Waits for the one build of {made.target}, Job tessera-system/{made.name}-2."
    assert "Job" not in stands(BuildState(phase=BuildPhase.NONE))[1]


def test_the_wait_for_a_build_ends() -> None:
    late = NOW - BUILD_TIMEOUT - 1
    assert stands(BuildState(phase=BuildPhase.RUNNING, since=late))[0] is Stands.OVERDUE
    assert stands(BuildState(phase=BuildPhase.NONE), wanted_since=late)[0] is Stands.OVERDUE


def test_a_build_that_failed_says_why() -> None:
    state, reason = stands(BuildState(phase=BuildPhase.FAILED, text="no headers"))
    assert (state, "no headers" in reason) == (Stands.FAILED, True)


def test_a_push_that_the_registry_does_not_show_is_waited_for_a_moment_only() -> None:
    assert stands(BuildState(phase=BuildPhase.DONE, since=NOW - 1))[0] is Stands.RUNNING
    state, reason = stands(BuildState(phase=BuildPhase.DONE, since=NOW - PUSH_TIMEOUT - 1))
    assert state is Stands.FAILED
    assert "does not show it" in reason


def test_what_cannot_be_built_is_a_failure_with_its_reason_and_no_order() -> None:
    other = PoolKey(os_id="flatcar", os_version="3815.2.2", kernel="6.1.77-flatcar", architecture="amd64")
    view, made = build_progress(
        POLICY, other, BuildSettings(), lambda _: BuildState(phase=BuildPhase.NONE), wanted_since=NOW, now=NOW
    )
    assert made is None
    assert view.state is Stands.FAILED
    assert "flatcar" in view.reason


def test_the_timeout_begins_with_the_first_node_that_waits_and_ends_with_the_last() -> None:
    async def story() -> None:
        clock = LoopClock(NOW)
        client = Client(InProcessTransport(ApiServer(clock), ADMIN), field_manager="t", clock=clock)
        building = BuildRequests(
            BuildJobs(KubeRuntime(client=client, clock=clock, rng=random.Random(0))), BuildSettings(), clock
        )
        assert building.seconds_until_due() is None
        for _ in range(2):
            building.request([(POLICY, POOL)])
            assert building.progress(POLICY, POOL).state is Stands.RUNNING
            assert building.seconds_until_due() is not None
            await clock.sleep(BUILD_TIMEOUT / 2 + 1)
        building.request([(POLICY, POOL)])
        assert building.progress(POLICY, POOL).state is Stands.OVERDUE
        building.request([])
        assert building.seconds_until_due() is None
        assert building.progress(POLICY, POOL).state is Stands.RUNNING

    run_virtual(story())


def test_a_policy_that_names_no_repository_for_builds_waits_for_none() -> None:
    async def story() -> None:
        clock = LoopClock(NOW)
        client = Client(InProcessTransport(ApiServer(clock), ADMIN), field_manager="t", clock=clock)
        building = BuildRequests(
            BuildJobs(KubeRuntime(client=client, clock=clock, rng=random.Random(0))), BuildSettings(), clock
        )
        policy = msgspec.structs.replace(POLICY, build_repository="")
        assert building.progress(policy, POOL).state is Stands.NONE

    run_virtual(story())
