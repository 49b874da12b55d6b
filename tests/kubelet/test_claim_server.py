"""A driver of claims and kubelet over real sockets: registration, calls, health, and what is left afterwards."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from tessera.claims.agent.claim_server import serve_claims
from tessera.clock import SystemClock
from tessera.kubelet.grpc import REGISTERED, GrpcKubelet
from tessera.kubelet.inotify import watch_folder
from tessera.kubelet.interfaces import ClaimDeviceHealth, ClaimRef, PluginError, PreparedDevice
from tessera.kubelet.methods import CLAIM_SERVICES, GET_INFO, NOTIFY_STATUS, OPTIONS, PREPARE, UNPREPARE, WATCH_HEALTH
from tessera.kubelet.proto import dra_pb2 as dra
from tessera.kubelet.proto import drahealth_pb2 as health
from tessera.kubelet.proto import pluginregistration_pb2 as registration

T = TypeVar("T")

DRIVER = "gpu.tessera.dev"
DEVICE = PreparedDevice(requests=("slice",), pool="n1", device="gpu-0", cdi_devices=("k8s.gpu.tessera.dev/claim=a",))


class FakeDriver:
    """Prepares what it is told to."""

    def __init__(self) -> None:
        self.driver_name = DRIVER
        self.calls: list[tuple[str, ClaimRef]] = []
        self.waiting = asyncio.Event()
        self.states: asyncio.Queue[Sequence[ClaimDeviceHealth]] = asyncio.Queue()

    async def prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        self.calls.append(("prepare", claim))
        if claim.name == "refused":
            raise PluginError("the card is lost")
        if claim.name == "slow":
            await self.waiting.wait()
        return [] if claim.name == "empty" else [DEVICE]

    async def unprepare(self, claim: ClaimRef) -> None:
        self.calls.append(("unprepare", claim))
        if claim.name == "refused":
            raise PluginError("a process still uses it")

    async def watch_health(self) -> AsyncIterator[Sequence[ClaimDeviceHealth]]:
        while True:
            yield await self.states.get()


class Node:
    """Kubelet's folders, and what kubelet does with the sockets in them."""

    def __init__(self, folder: Path) -> None:
        self.registry, self.plugins = folder / "r", folder / "p"
        self.registry.mkdir()
        self.plugins.mkdir()
        self.kubelet = GrpcKubelet(
            folder, registry=self.registry, claim_plugins=self.plugins, serve_claims=serve_claims, clock=SystemClock()
        )

    def sockets(self) -> list[Path]:
        return sorted(self.registry.glob("*-reg.sock"))

    async def until(self, found: Callable[[], T]) -> T:
        async with asyncio.timeout(20), aclosing(watch_folder(self.registry)) as changes:
            async for _ in changes:
                if answer := found():
                    return answer
        raise AssertionError("the folder is no longer watched")

    @asynccontextmanager
    async def serving(self, driver: FakeDriver) -> AsyncIterator[Path]:
        before = self.sockets()
        task = asyncio.create_task(self.kubelet.serve_claims(driver))
        (own,) = await self.until(lambda: set(self.sockets()) - set(before))
        try:
            yield own
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def info(self, socket_: Path) -> registration.PluginInfo:
        async with channel(socket_) as to:
            return await GET_INFO.unary(to)(registration.InfoRequest(), timeout=5)

    async def tell(self, socket_: Path, error: str = "") -> None:
        status = registration.RegistrationStatus(plugin_registered=not error, error=error)
        async with channel(socket_) as to:
            await NOTIFY_STATUS.unary(to)(status, timeout=5)


def channel(path: Path | str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{path}", options=OPTIONS)


@pytest.fixture
def node(folder: Path) -> Node:
    return Node(folder)


def claim(name: str) -> dra.Claim:
    return dra.Claim(namespace="team", name=name, uid=f"uid-{name}")


async def test_kubelet_finds_the_driver_by_its_socket(node: Node) -> None:
    async with node.serving(FakeDriver()) as own:
        info = await node.info(own)
        assert (info.type, info.name) == ("DRAPlugin", DRIVER)
        assert Path(info.endpoint).parent == node.plugins / DRIVER
        assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
        await node.tell(own)
        assert node.kubelet.registrations == {DRIVER: REGISTERED}
    assert not node.sockets()
    assert not list((node.plugins / DRIVER).iterdir())
    assert not node.kubelet.registrations


async def test_a_refused_registration_is_told(node: Node) -> None:
    async with node.serving(FakeDriver()) as own:
        assert "has not asked" in node.kubelet.registrations[DRIVER]
        await node.tell(own, "no supported version")
        assert node.kubelet.registrations[DRIVER].endswith("no supported version")


@pytest.mark.parametrize("version", CLAIM_SERVICES)
async def test_each_claim_of_a_call_has_its_answer(node: Node, version: str) -> None:
    driver = FakeDriver()
    names = ["good", "refused", "empty"]
    async with node.serving(driver) as own, channel((await node.info(own)).endpoint) as to:
        call = dra.NodePrepareResourcesRequest(claims=map(claim, names))
        answers = (await PREPARE[version].unary(to)(call, timeout=5)).claims
        undone = dra.NodeUnprepareResourcesRequest(claims=map(claim, names))
        ends = (await UNPREPARE[version].unary(to)(undone, timeout=5)).claims
    assert {uid: answer.error for uid, answer in answers.items()} == {
        "uid-good": "",
        "uid-refused": "the card is lost",
        "uid-empty": "",
    }
    (device,) = answers["uid-good"].devices
    assert (list(device.request_names), device.pool_name, device.device_name) == (["slice"], "n1", "gpu-0")
    assert list(device.cdi_device_ids) == ["k8s.gpu.tessera.dev/claim=a"]
    assert not device.HasField("share_id")
    assert not answers["uid-empty"].devices
    assert {uid: answer.error for uid, answer in ends.items()} == {
        "uid-good": "",
        "uid-refused": "a process still uses it",
        "uid-empty": "",
    }
    assert ("prepare", ClaimRef("team", "good", "uid-good")) in driver.calls


async def test_a_slow_claim_does_not_hold_up_another_call(node: Node) -> None:
    driver = FakeDriver()
    async with node.serving(driver) as own, channel((await node.info(own)).endpoint) as to:
        prepare = PREPARE["v1.DRAPlugin"].unary(to)
        slow = asyncio.ensure_future(prepare(dra.NodePrepareResourcesRequest(claims=[claim("slow")]), timeout=5))
        quick = await prepare(dra.NodePrepareResourcesRequest(claims=[claim("good")]), timeout=5)
        assert quick.claims["uid-good"].devices
        assert not slow.done()
        driver.waiting.set()
        assert (await slow).claims["uid-slow"].devices


async def test_health_is_streamed_until_the_driver_ends(node: Node) -> None:
    driver = FakeDriver()
    seen: list[Any] = []
    async with node.serving(driver) as own:
        to = channel((await node.info(own)).endpoint)
        stream = WATCH_HEALTH.stream(to)(health.NodeWatchResourcesRequest())
        for healthy in (True, False, None):
            driver.states.put_nowait(
                [ClaimDeviceHealth(pool="n1", device="gpu-0", healthy=healthy, message="XID 79", since=7)]
            )
            answer = await stream.read()
            assert isinstance(answer, health.NodeWatchResourcesResponse)
            (one,) = answer.devices
            seen.append((one.device.pool_name, one.device.device_name, one.health, one.message, one.last_updated_time))
    assert seen == [("n1", "gpu-0", state, "XID 79", 7) for state in (health.HEALTHY, health.UNHEALTHY, health.UNKNOWN)]
    # Whether the end or the stop of the server arrives first is a race that kubelet sees, too.
    assert await stream.code() in {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    await to.close()


async def test_two_instances_are_served_side_by_side(node: Node) -> None:
    async with node.serving(FakeDriver()) as first:
        async with node.serving(FakeDriver()) as second:
            assert (await node.info(first)).endpoint != (await node.info(second)).endpoint
        assert node.sockets() == [first]
        assert (await node.info(first)).name == DRIVER


async def test_sockets_of_a_dead_process_go_and_those_of_others_stay(node: Node) -> None:
    (node.plugins / DRIVER).mkdir()
    dead = [node.registry / f"{DRIVER}-dead-reg.sock", node.plugins / DRIVER / "dead.sock"]
    foreign = node.registry / "gpu.nvidia.com-reg.sock"
    for path in (*dead, foreign):
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(str(path))
    async with node.serving(FakeDriver()):
        assert not any(path.exists() for path in dead)
        assert foreign.exists()


async def test_a_removed_socket_comes_again(node: Node) -> None:
    async with node.serving(FakeDriver()) as own:
        identity = own.stat().st_ino, own.stat().st_ctime_ns
        own.unlink()
        await node.until(lambda: own.exists() and (own.stat().st_ino, own.stat().st_ctime_ns) != identity)
        assert (await node.info(own)).name == DRIVER


async def test_a_removed_folder_comes_again(node: Node) -> None:
    async with node.serving(FakeDriver()) as own:
        shutil.rmtree(node.plugins / DRIVER)
        own.unlink()
        await node.until(own.exists)
        (claims,) = (node.plugins / DRIVER).iterdir()
        identity = claims.stat().st_ctime_ns
        claims.unlink()  # in the new folder, which must be watched too
        await node.until(lambda: claims.exists() and own.exists() and claims.stat().st_ctime_ns != identity)
        assert (await node.info(own)).name == DRIVER


async def test_a_folder_with_a_long_path_is_told(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    kubelet = GrpcKubelet(tmp_path, registry=long, claim_plugins=long, serve_claims=serve_claims, clock=SystemClock())
    with pytest.raises(ValueError, match="may have 107"):
        await kubelet.serve_claims(FakeDriver())
