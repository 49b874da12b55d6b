"""An error in any function of kubelet, scheduler or workload controllers spoils one thing for a while, never the lab.

Each run is the same short life of a small cluster. A trace function counts the places that the life passes, and in the
next runs it throws at one of them, in the middle of the program itself. Whatever was hit, the cluster goes on: its
nodes run new pods, and every workload comes to what its spec says.
"""

import asyncio
import gc
import logging
import os
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import tessera_lab
from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.resources import (
    CONFIGMAPS,
    DAEMONSETS,
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    STATEFULSETS,
)
from tessera.kubelet.interfaces import ContainerAllocateResponse, Device, PluginOptions, PreferredRequest
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.simulation.virtual_time import run_virtual

PARTS = tuple(os.fspath(Path(tessera_lab.__file__).parent / name) for name in ("kubelet", "scheduler", "workloads"))
RESOURCE = "example.com/device"
#: Runs of the ordinary test; the long one throws at every place.
SAMPLE = 8
#: Virtual seconds in which everything must be as its spec says, the longest back-off among them.
MENDED = 900.0

Obj = dict[str, Any]


class Thrown(Exception):  # noqa: N818 - what the test throws
    """An error that nobody foresaw."""


@pytest.fixture(autouse=True)
def _collect_abandoned_calls() -> Iterator[None]:
    """Collects coroutines that were passed to a function which threw before it awaited them.

    Python warns of each. Without this fixture a later test, in which the collector happens to run, gets the warning.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
        yield
        gc.collect()


class Plugin:
    """A device plugin with two devices."""

    resource_name = RESOURCE
    options = PluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        yield [Device(id="a"), Device(id="b")]
        await asyncio.Event().wait()

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        return [request.available[: request.size] for request in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:
        return [ContainerAllocateResponse(envs={"GIVEN": ",".join(ids)}) for ids in requests]

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        del device_ids


class Places:
    """The places of the program that a life passes while it is armed, and where it throws."""

    def __init__(self, target: CodeType | None = None) -> None:
        self.seen: dict[CodeType, None] = {}
        self.thrown = False
        self._target = target

    @contextmanager
    def armed(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        del event, argument
        code = frame.f_code
        if code is self._target and not self.thrown:
            return self._line
        if (
            self._target is None
            and code.co_filename.startswith(PARTS)
            and code.co_name not in {"<genexpr>", "<module>"}
        ):
            self.seen.setdefault(code)
        return None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        del argument
        if event == "line" and not self.thrown:
            self.thrown = True
            raise Thrown(f"{frame.f_code.co_qualname} line {frame.f_lineno}")
        return self._line


def template(app: str, **spec: Any) -> Obj:
    container = {
        "name": "c",
        "image": "app",
        "command": ["sleep", "infinity"],
        "env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "t"}}}],
        "envFrom": [{"configMapRef": {"name": "m"}}],
    }
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container], **spec}}


def workload(name: str, made: Obj | None = None, **spec: Any) -> Obj:
    spec = {"selector": {"matchLabels": {"app": name}}, "template": made or template(name), **spec}
    return {"metadata": {"name": name}, "spec": spec}


async def furnish(api: Client) -> None:
    await api.create(SECRETS.as_dicts(), {"metadata": {"name": "s"}, "data": {"t": "YQ=="}}, "default")
    await api.create(CONFIGMAPS.as_dicts(), {"metadata": {"name": "m"}, "data": {"k": "v"}}, "default")
    helper = {"name": "i", "image": "helper", "command": ["true"]}
    sidecar = {"name": "x", "image": "helper", "command": ["sleep", "infinity"], "restartPolicy": "Always"}
    inits = template("web", initContainers=[helper, sidecar])
    await api.create(DEPLOYMENTS.as_dicts(), workload("web", inits, replicas=2), "default")
    await api.create(DAEMONSETS.as_dicts(), workload("each"), "default")
    await api.create(STATEFULSETS.as_dicts(), workload("set", replicas=2, serviceName="set"), "default")
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    await api.create(SERVICES.as_dicts(), service, "default")


async def stir(api: Client, cluster: SimulatedCluster) -> None:
    """Something of everything that happens in a cluster."""
    job = template("job", restartPolicy="Never")
    job["spec"]["containers"][0]["command"] = ["sleep", "5"]
    await api.create(JOBS.as_dicts(), {"metadata": {"name": "job"}, "spec": {"template": job}}, "default")
    device = template("device", nodeSelector={"kubernetes.io/hostname": list(cluster.nodes)[-1]})
    device["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}
    await api.create(DEPLOYMENTS.as_dicts(), workload("device", device), "default")
    for name in ("web", "set"):
        resource = DEPLOYMENTS if name == "web" else STATEFULSETS
        await api.merge_patch(resource.as_dicts(), name, {"spec": {"replicas": 3}}, "default")
    pods = (await api.list(PODS.as_dicts(), "default")).items
    for pod in pods[:2]:
        await api.delete(PODS, pod["metadata"]["name"], "default")
    first = next(iter(cluster.nodes))
    await api.merge_patch(NODES.as_dicts(), first, {"metadata": {"labels": {"a": "b"}}})
    with suppress(Thrown):
        await cluster.nodes[first].restart_kubelet(1.0)
    await cluster.clock.sleep(20)
    with suppress(Thrown):
        cluster.nodes[first].reboot()
    await cluster.clock.sleep(60)


async def mended(api: Client, cluster: SimulatedCluster) -> None:
    """Returns when all is as it should be.

    Raises:
        TimeoutError: something stays spoilt; the text says what.
    """
    for index, name in enumerate(cluster.nodes):
        late = workload(f"late-{index}", template(f"late-{index}", nodeSelector={"kubernetes.io/hostname": name}))
        await api.create(DEPLOYMENTS.as_dicts(), late, "default")
    wrong = ["nothing was looked at"]
    end = cluster.clock.monotonic() + MENDED
    while wrong:
        if cluster.clock.monotonic() > end:
            raise TimeoutError("; ".join(wrong))
        await cluster.clock.sleep(5)
        wrong = [each async for each in faults(api, len(cluster.nodes))]


async def faults(api: Client, nodes: int) -> AsyncIterator[str]:
    for resource, field, wanted in (
        (DEPLOYMENTS, "availableReplicas", {"web": 3, "device": 1, **{f"late-{n}": 1 for n in range(nodes)}}),
        (STATEFULSETS, "readyReplicas", {"set": 3}),
        (DAEMONSETS, "numberReady", {"each": nodes}),
        (JOBS, "succeeded", {"job": 1}),
    ):
        for item in (await api.list(resource.as_dicts(), "default")).items:
            found = (item.get("status") or {}).get(field, 0)
            name = item["metadata"]["name"]
            if found != wanted[name]:
                yield f"{name}: {field} {found}, wanted {wanted[name]}"
    for pod in (await api.list(PODS.as_dicts(), "default")).items:
        statuses = (pod.get("status") or {}).get("containerStatuses") or ()
        if pod["metadata"]["labels"]["app"] != "job" and not all("running" in each["state"] for each in statuses):
            yield f"pod {pod['metadata']['name']}: {statuses}"


def live(places: Places) -> None:
    """One life of the cluster."""

    async def story() -> None:
        cluster = SimulatedCluster(parse_nodes("0,0"), clock=LoopClock(1_800_000_000), options=ClusterOptions())
        async with cluster.running():
            api = cluster.client("test")
            await cluster.clock.sleep(0.1)
            plugins = [asyncio.create_task(node.plugins.bus.serve(Plugin())) for node in cluster.nodes.values()]  # type: ignore[union-attr]
            await furnish(api)
            await cluster.clock.sleep(10)
            with places.armed():
                await stir(api, cluster)
            await mended(api, cluster)
            for each in plugins:
                each.cancel()

    run_virtual(story())


#: A fault in what makes a task of a coroutine leaves the coroutine behind; Python warns of it when it is collected.
UNAWAITED = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@pytest.fixture(scope="module")
def passed() -> list[CodeType]:
    places = Places()
    live(places)
    return list(places.seen)


def test_a_life_passes_most_of_the_program(passed: list[CodeType]) -> None:
    assert len(passed) > 300


@pytest.mark.soak
@UNAWAITED
def test_whatever_fails_the_lab_goes_on(passed: list[CodeType]) -> None:
    spoil(passed[:: max(1, len(passed) // SAMPLE)])


@UNAWAITED
@pytest.mark.soak
def test_everything_fails_once_and_the_lab_goes_on(passed: list[CodeType]) -> None:
    spoil(passed)


def spoil(targets: Sequence[CodeType]) -> None:
    lost = []
    # Records of errors would keep the frames of all lives in memory, and abandoned coroutines beyond this test.
    logging.disable()
    try:
        for target in targets:
            try:
                live(Places(target))
            except (TimeoutError, BaseExceptionGroup) as error:
                lost.append(f"{target.co_filename.rpartition('/tessera_lab/')[2]} {target.co_qualname}: {error!r}")
    finally:
        logging.disable(logging.NOTSET)
    assert not lost, "\n".join(lost)
