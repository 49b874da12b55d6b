"""A driver of claims and kubelet over real sockets: registration, calls, health, and what is left afterwards."""

import asyncio
import shutil
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.driver.kubelet_gate import GatedKubelet
from tessera.claims.agent.claim_server import serve_claims
from tessera.clock import SystemClock
from tessera.kubelet.grpc import REGISTERED, GrpcKubelet
from tessera.kubelet.inotify import watch_folder
from tessera.kubelet.interfaces import ClaimDeviceHealth, ClaimRef, PluginError, PreparedDevice
from tessera.kubelet.proto import dra_pb2 as dra
from tessera.kubelet.proto import drahealth_pb2 as health
from tessera.kubelet.proto import pluginregistration_pb2 as registration
from tessera.kubelet.wire import (
    CLAIM_SERVICES,
    GET_INFO,
    NOTIFY_STATUS,
    OPTIONS,
    PLUGIN_REGISTRATION,
    PREPARE,
    UNPREPARE,
    WATCH_HEALTH,
    service,
)
from tessera_lab.kubelet.device_plugins.claim_client import ClaimPluginClient, ClaimRegistry

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


class Instance:
    """One of the agents of an update, behind its gate; all have the node's state in common.

    Attributes:
        state: by claim, how often it was prepared.
    """

    def __init__(self, node: Node, state: Counter[str]) -> None:
        self.state = state
        self.proceeds = asyncio.Event()
        self.begun = asyncio.Event()
        self.driver_name = DRIVER
        self.registered = asyncio.Event()
        clock = SystemClock()
        self.gate = GatedKubelet(node.kubelet, ChangeNotifier(), clock)
        self.task = asyncio.create_task(self.gate.serve_claims(self, self.registered.set))

    async def prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        self.begun.set()
        await self.proceeds.wait()
        self.state[claim.name] += 1
        return [DEVICE]

    async def unprepare(self, claim: ClaimRef) -> None:
        await self.proceeds.wait()
        del self.state[claim.name]

    async def watch_health(self) -> AsyncIterator[Sequence[ClaimDeviceHealth]]:
        yield ()
        await asyncio.Event().wait()

    async def end_owner(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


class Kubelet:
    """Kubelet's drivers: calls the newest that it is connected to, and gives no call a second try."""

    def __init__(self) -> None:
        self.clients: list[ClaimPluginClient] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def add_driver(self, name: str, client: ClaimPluginClient) -> None:
        assert name == DRIVER
        self.clients.append(client)
        self._tell()

    def remove_driver(self, name: str, client: ClaimPluginClient) -> None:
        assert name == DRIVER
        if client in self.clients:
            self.clients.remove(client)
            self._tell()

    def _tell(self) -> None:
        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = asyncio.create_task(tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self.clients) == count)

    def prepare(self, name: str) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.clients[-1].prepare([ClaimRef("team", name, f"uid-{name}")]))

    def unprepare(self, name: str) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.clients[-1].unprepare([ClaimRef("team", name, f"uid-{name}")]))


class ImpatientClock(SystemClock):
    """Pauses take no time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@asynccontextmanager
async def watched_by_kubelet(node: Node) -> AsyncIterator[Kubelet]:
    kubelet = Kubelet()
    task = asyncio.create_task(ClaimRegistry(node.registry, kubelet, ImpatientClock()).run())
    try:
        yield kubelet
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_kubelet_waits_for_a_socket_on_which_nobody_listens_yet(node: Node) -> None:
    early, moved = node.registry / "early-reg.sock", node.plugins / "moved"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(early))
        async with watched_by_kubelet(node) as kubelet:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await node.info(early)
            async with node.serving(FakeDriver()) as own:
                await kubelet.until(1)
                moved.hardlink_to(own)
                moved.replace(early)
                await kubelet.until(2)


async def test_kubelet_tries_a_failed_registration_again(node: Node) -> None:
    """Such as that of a driver on a node whose load lets no call end in time."""
    told = asyncio.Queue[bool]()
    answers = iter((grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE))

    async def info(_request: Any, context: Any) -> registration.PluginInfo:
        if (code := next(answers, None)) is not None:
            await context.abort(code, "")
        return registration.PluginInfo(type="DRAPlugin", name=DRIVER, supported_versions=CLAIM_SERVICES)

    async def notify(request: registration.RegistrationStatus, _context: Any) -> Any:
        told.put_nowait(request.plugin_registered)
        return registration.RegistrationStatusResponse()

    server = grpc.aio.server()
    handlers = GET_INFO.handle_unary(info), NOTIFY_STATUS.handle_unary(notify)
    server.add_generic_rpc_handlers((service(PLUGIN_REGISTRATION, *handlers),))
    server.add_insecure_port(f"unix:{node.registry}/slow-reg.sock")
    await server.start()
    try:
        async with watched_by_kubelet(node), asyncio.timeout(20):
            assert await told.get()
        assert told.empty()
    finally:
        await server.stop(None)


async def test_every_claim_of_an_update_is_prepared_once_and_at_the_first_try(node: Node) -> None:
    """Claims come before, while nobody acts, and afterwards; the first agent's registration outlives its calls."""
    state: Counter[str] = Counter()
    async with watched_by_kubelet(node) as kubelet:
        first = Instance(node, state)
        await kubelet.until(1)
        running = kubelet.prepare("running")
        await first.begun.wait()
        await first.gate.hold()
        await first.end_owner()
        between = [kubelet.prepare(f"between-{number}") for number in range(56)]
        first.proceeds.set()  # nothing of the first agent acts any more
        assert not state
        second = Instance(node, state)
        await second.registered.wait()
        await kubelet.until(2)
        after = kubelet.prepare("after")
        undone = kubelet.unprepare("gone")
        ending = asyncio.create_task(first.gate.end())
        second.proceeds.set()
        answers = await asyncio.gather(running, *between, after)
        assert await undone == {"uid-gone": None}
        await ending
        await kubelet.until(1)
        await kubelet.prepare("last")
        await second.end_owner()
    assert all(tuple(one.values()) == ((DEVICE,),) for one in answers)
    names = {"running", "after", "last", *(f"between-{number}" for number in range(56))}
    assert state == dict.fromkeys(names, 1)
    assert not node.sockets()
    assert not list((node.plugins / DRIVER).iterdir())


async def test_a_call_outlasts_a_successor_that_dies(node: Node) -> None:
    """The dead one leaves its socket; the agent after it answers."""
    state: Counter[str] = Counter()
    async with watched_by_kubelet(node) as kubelet:
        first = Instance(node, state)
        await kubelet.until(1)
        await first.gate.hold()
        await first.end_owner()
        waiting = kubelet.prepare("one")
        dead = Instance(node, state)
        await dead.begun.wait()
        await dead.end_owner()
        assert not state
        third = Instance(node, state)
        third.proceeds.set()
        assert (await waiting) == {"uid-one": (DEVICE,)}
        await first.gate.end()
        await third.end_owner()
    assert state == {"one": 1}


async def test_a_call_that_nobody_takes_over_ends_with_kubelets_deadline(node: Node) -> None:
    first = Instance(node, Counter())
    await node.until(node.sockets)
    (own,) = node.sockets()
    await first.gate.hold()
    await first.end_owner()
    async with channel((await node.info(own)).endpoint) as to:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await PREPARE["v1.DRAPlugin"].unary(to)(dra.NodePrepareResourcesRequest(claims=[claim("one")]), timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await first.gate.end()
    assert not node.sockets()
