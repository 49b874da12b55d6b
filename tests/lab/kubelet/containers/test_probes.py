"""Probes of containers whose image has a program, and how such a container is stopped."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.errors import NotFound
from tessera.kube.resources import PODS
from tessera_lab.kubelet.containers.probes import Probe
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, ImageProgram, ProgramContext, SimulatedImage

#: Simulated seconds from a pod's creation until its container has started.
SOON = 0.01


async def start(lab: ControlPlaneLab, program: ImageProgram, **container: Any) -> Any:
    """A node, and a pod of this program that began with whole seconds of the pod's own time."""
    catalogue = ImageCatalogue({"app": SimulatedImage(program=program)})
    (node,) = await lab.start_nodes("n1", catalogue=catalogue)
    body = {
        "metadata": {"name": "p"},
        "spec": {
            "nodeName": "n1",
            "terminationGracePeriodSeconds": container.pop("grace", 30),
            "containers": [{"name": "main", "image": "app", **container}],
        },
    }
    await lab.api.create(PODS.as_dicts(), body, "default")
    await lab.clock.sleep(SOON)
    return node


async def flags(lab: ControlPlaneLab) -> tuple[bool, bool]:
    """Started and ready, as the API has them."""
    status = (await lab.get(PODS, "p"))["status"]
    container = status["containerStatuses"][0]
    condition = next(each["status"] for each in status["conditions"] if each["type"] == "Ready")
    assert (condition == "True") is container["ready"]
    return container["started"], container["ready"]


def healthy_after(seconds: float, *, done: Callable[[], None] = lambda: None) -> ImageProgram:
    async def run(context: ProgramContext) -> int:
        await context.clock.sleep(seconds)
        context.set_startup_hook(done)
        context.ready()
        await asyncio.Event().wait()
        return 0

    return run


@pytest.mark.parametrize(
    ("probe", "at"),
    [
        (Probe(period=10), 30.0),  # ready at 25: the next tick
        (Probe(period=1), 25.0),
        (Probe(delay=60, period=10), 60.0),  # upstream's: never before a minute
        (Probe(delay=61, period=10), 70.0),
    ],
)
async def test_a_startup_probe_succeeds_at_its_first_tick_after_delay_and_readiness(
    lab: ControlPlaneLab, probe: Probe, at: float
) -> None:
    hooked: list[float] = []
    began = lab.clock.monotonic()
    done = lambda: hooked.append(lab.clock.monotonic() - began)  # noqa: E731
    written = {"initialDelaySeconds": int(probe.delay), "periodSeconds": int(probe.period), "failureThreshold": 120}
    await start(lab, healthy_after(24.5, done=done), startupProbe=written)
    await lab.clock.sleep(at - 0.2)
    assert (await flags(lab), hooked) == ((False, False), [])
    await lab.clock.sleep(0.4)
    assert await flags(lab) == (True, True)
    assert hooked == [pytest.approx(at, abs=0.15)]


async def test_without_probes_a_container_is_ready_when_it_runs(lab: ControlPlaneLab) -> None:
    await start(lab, healthy_after(1000))
    assert await flags(lab) == (True, True)


async def test_readiness_is_looked_at_when_the_container_has_started_and_then_at_ticks(lab: ControlPlaneLab) -> None:
    await start(lab, healthy_after(0), readinessProbe={"periodSeconds": 10})
    assert await flags(lab) == (True, True)


async def test_readiness_comes_and_goes_by_its_thresholds(lab: ControlPlaneLab) -> None:
    async def program(context: ProgramContext) -> int:
        await context.clock.sleep(4.5)
        context.ready()
        await context.clock.sleep(10)  # until 14.5
        context.ready(False)
        await asyncio.Event().wait()
        return 0

    await start(lab, program, readinessProbe={"periodSeconds": 2, "successThreshold": 2, "failureThreshold": 3})
    await lab.clock.sleep(7.5)  # ticks at 6 and 8
    assert await flags(lab) == (True, False)
    await lab.clock.sleep(1)
    assert await flags(lab) == (True, True)
    await lab.clock.sleep(11)  # failed at 16, 18 and 20
    assert await flags(lab) == (True, True)
    await lab.clock.sleep(1)
    assert await flags(lab) == (True, False)
    assert "Unhealthy" in {reason for reason, _ in await lab.notes("p")}


async def test_a_startup_probe_that_fails_too_often_restarts_the_container(lab: ControlPlaneLab) -> None:
    await start(lab, healthy_after(1000), startupProbe={"periodSeconds": 10, "failureThreshold": 3})
    await lab.clock.sleep(19)  # failed at 0 and 10
    assert (await lab.get(PODS, "p"))["status"]["containerStatuses"][0]["restartCount"] == 0
    await lab.clock.sleep(2)
    status = (await lab.get(PODS, "p"))["status"]["containerStatuses"][0]
    assert (status["restartCount"], status["lastState"]["terminated"]["exitCode"]) == (1, 137)
    notes = [reason for reason, _ in await lab.notes("p")]
    assert notes.count("Unhealthy") == 1
    assert "Killing" in notes


async def test_a_program_s_end_is_the_container_s(lab: ControlPlaneLab) -> None:
    async def program(context: ProgramContext) -> int:
        context.log(f"on {context.host.name} with {context.host.kernel}")
        raise ValueError("no such file")

    node = await start(lab, program, terminationMessagePolicy="FallbackToLogsOnError")
    ended = (await lab.get(PODS, "p"))["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert ended["exitCode"] == 1
    assert "simulated: ValueError: no such file" in ended["message"]
    assert "on n1 with 6.8.0-simulated" in node.pods.log("default", "p", "main", previous=True).texts()


def cleaning(seconds: float, cleaned: list[float]) -> ImageProgram:
    async def run(context: ProgramContext) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            await context.clock.sleep(seconds)
            cleaned.append(context.clock.monotonic())
        return 0

    return run


async def test_a_program_that_is_stopped_may_clean_up(lab: ControlPlaneLab) -> None:
    cleaned: list[float] = []
    await start(lab, cleaning(5, cleaned))
    await lab.api.delete(PODS, "p", "default")
    await lab.clock.sleep(4.9)
    assert await lab.exists(PODS, "p")
    await lab.clock.sleep(0.2)
    assert len(cleaned) == 1
    assert not await lab.exists(PODS, "p")


async def test_nobody_waits_longer_than_the_grace_period(lab: ControlPlaneLab) -> None:
    cleaned: list[float] = []
    await start(lab, cleaning(60, cleaned), grace=10)
    await lab.api.delete(PODS, "p", "default")
    await lab.clock.sleep(10.1)
    with pytest.raises(NotFound):
        await lab.get(PODS, "p")
    await lab.clock.sleep(100)
    assert cleaned == []


async def test_a_machine_that_goes_down_waits_for_nobody(lab: ControlPlaneLab) -> None:
    cleaned: list[float] = []
    node = await start(lab, cleaning(3600, cleaned))
    node.reboot()
    await lab.clock.sleep(40)
    assert (await lab.get(PODS, "p"))["status"]["containerStatuses"][0]["restartCount"] == 1
    assert cleaned == []


async def test_a_pod_that_is_deleted_at_once_still_has_two_seconds(lab: ControlPlaneLab) -> None:
    cleaned: list[float] = []
    await start(lab, cleaning(1.5, cleaned))
    await lab.api.delete(PODS, "p", "default", grace_seconds=0)
    await lab.clock.sleep(2)
    assert len(cleaned) == 1


@given(began=st.floats(0, 1e5), after=st.floats(0, 1e4), period=st.integers(1, 60).map(float))
def test_a_probe_is_made_at_the_first_tick_that_may_be(began: float, after: float, period: float) -> None:
    tick = Probe(period=period).tick(began, began + after)
    assert after - 1e-5 <= tick - began < after + period
    assert round((tick - began) / period, 4).is_integer()


def test_ticks_are_the_pod_s_own() -> None:
    probe = Probe(period=10)
    assert probe.tick(3, 3) == 3
    assert probe.tick(3, 3.1) == 13
    assert probe.tick(3, 13) == 13
    assert Probe.of({}, "startupProbe") is None
    assert Probe.of({"startupProbe": {"exec": {}}}, "startupProbe") == Probe()
