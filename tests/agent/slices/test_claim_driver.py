"""ResourceClaims on one node: the agent prepares what the controller promised, and nothing else.

The tests do what controller, kubelet and container runtime do. Kubelet calls over the lab's bus; the same calls over
real sockets are tested in ``tests/kubelet/test_claim_server.py``.
"""

import asyncio
import functools
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from tests.agent.conftest import NAMESPACE, NODE, MortalNvml, Place, Scene, run
from tests.agent.test_killed_anywhere import succeed_the_dead

from tessera.agent.base.settings import ConfigMapName
from tessera.api.instaslice import INSTASLICES
from tessera.api.names import CLAIM_DRIVERS, DEVICE_API_DRA, DEVICE_API_LABEL
from tessera.claims.agent.claim_driver import GONE_CHECK
from tessera.dra.claims import RESOURCE_CLAIMS
from tessera.dra.node_devices import partition_name
from tessera.dra.resource_slices import RESOURCE_SLICES
from tessera.kube.resources import CONFIGMAPS, EVENTS, NAMESPACES, NODES
from tessera.kubelet.interfaces import ClaimRef, PluginError, PreparedDevice
from tessera.mig.models import model_by_short_name
from tessera.nvml.interface import GpuEventKind, MigUuid
from tessera.nvml.simulated.machine_state import SimEvent
from tessera_lab.kubelet.containers.environment import CdiError
from tessera_lab.kubelet.device_plugins.claim_client import ClaimPluginClient

T = TypeVar("T")

DRIVER = "gpu.tessera.dev"
ONE: Place = ("3g.20gb", 0, 4)
TWO: Sequence[Place] = (("1g.5gb", 0, 0), ("2g.10gb", 0, 2))


def device(place: Place) -> str:
    profile, card, start = place
    return partition_name(card, model_by_short_name("A100-40GB").geometry.profile(profile), start)


def result(number: int, place: Place) -> dict[str, Any]:
    return {"request": f"r{number}", "driver": DRIVER, "pool": NODE, "device": device(place)}


async def write_claim(
    scene: Scene,
    name: str,
    results: Sequence[Mapping[str, Any]],
    *,
    pods: Sequence[str] = (),
    namespace: str = "default",
) -> ClaimRef:
    """A claim as controller and kube-scheduler leave it: allocated, and reserved for its pods, which are bound.

    The agent does not watch claims. Without ``pods`` the claim has one of its own name.
    """
    users = pods or (name,)
    for user in users:
        if user not in scene.made:
            await scene.pod(user, {"main": {}})
            await scene.bind(user)
    count = max(1, len(results))
    requests = [{"name": f"r{number}", "exactly": {"deviceClassName": "any"}} for number in range(count)]
    made = await scene.client.create(
        RESOURCE_CLAIMS.as_dicts(),
        {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}},
        namespace,
    )
    if results:
        await write_status(scene, name, allocation(results) | reserved(scene, *users), namespace)
    return ClaimRef(namespace, name, str(made["metadata"]["uid"]))


def allocation(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
    return {
        "allocation": {
            "allocationTimestamp": "2026-11-29T11:00:00Z",
            "devices": {"results": list(results)},
            "nodeSelector": {"nodeSelectorTerms": [term]},
        }
    }


def reserved(scene: Scene, *pods: str) -> dict[str, Any]:
    return {"reservedFor": [{"resource": "pods", "name": pod, "uid": scene.uid(pod)} for pod in pods]}


async def write_status(scene: Scene, name: str, status: Mapping[str, Any], namespace: str = "default") -> None:
    await scene.client.merge_patch(RESOURCE_CLAIMS, name, {"status": status}, namespace, subresource="status")


async def allocate(scene: Scene, name: str, *places: Place, pods: Sequence[str] = ()) -> ClaimRef:
    return await write_claim(scene, name, [result(number, place) for number, place in enumerate(places)], pods=pods)


class Drivers:
    """Kubelet's drivers of claims: the instances that are registered, oldest first."""

    def __init__(self) -> None:
        self.clients: list[ClaimPluginClient] = []

    def add_driver(self, name: str, client: ClaimPluginClient) -> None:
        assert name in CLAIM_DRIVERS
        self.clients.append(client)

    def remove_driver(self, name: str, client: ClaimPluginClient) -> None:
        assert name in CLAIM_DRIVERS
        self.clients.remove(client)


class Kubelet:
    """Calls for one claim at a time whichever agent is registered."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._drivers = Drivers()
        scene.bus.start(scene.kubelet.add_plugin, scene.kubelet, self._drivers)

    def is_served(self) -> bool:
        return bool(self._drivers.clients)

    async def client(self) -> ClaimPluginClient:
        async def is_served() -> bool:
            return self.is_served()

        await self._scene.until(is_served)
        return self._drivers.clients[-1]

    async def prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        answer = (await (await self.client()).prepare([claim]))[claim.uid]
        if isinstance(answer, PluginError):
            raise answer
        return answer

    async def unprepare(self, claim: ClaimRef) -> None:
        answer = (await (await self.client()).unprepare([claim]))[claim.uid]
        if answer is not None:
            raise answer


async def begin(
    scene: Scene, *, last_call: int = 0, after: bool = False, way: str = DEVICE_API_DRA, driver: str = DRIVER
) -> tuple[Kubelet, MortalNvml]:
    scene.options = msgspec.structs.replace(scene.options, claim_driver=driver)
    await scene.begin(agent=False)
    await choose(scene, way)
    kubelet = Kubelet(scene)
    cards = scene.start_agent(last_call=last_call, after=after)
    return kubelet, cards


async def joined(scene: Scene) -> Kubelet:
    """A node that gives its slices to claims, whose agent has described its cards."""
    kubelet, _ = await begin(scene)
    await scene.joined()
    return kubelet


async def choose(scene: Scene, way: str) -> None:
    """The administrator says how the node gives its slices."""
    await scene.client.merge_patch(NODES, NODE, {"metadata": {"labels": {DEVICE_API_LABEL: way}}})


async def prepared(
    scene: Scene, kubelet: Kubelet, name: str, *places: Place
) -> tuple[ClaimRef, Sequence[PreparedDevice]]:
    claim = await allocate(scene, name, *places)
    await scene.promise(name, *places)
    return claim, await kubelet.prepare(claim)


async def told(scene: Scene, claim: ClaimRef) -> list[tuple[str, str, int]]:
    """Reason, text and count of the claim's events."""
    await scene.clock.sleep(1)
    found = (await scene.client.list(EVENTS, claim.namespace)).items
    return [(each.reason, each.message, each.count) for each in found if each.involved_object.uid == claim.uid]


def environment(scene: Scene, devices: Sequence[PreparedDevice]) -> set[str]:
    """What a container that gets all of them has in its variable."""
    names = [cdi for each in devices for cdi in each.cdi_devices]
    return set(scene.cdi.edits(names).env["NVIDIA_VISIBLE_DEVICES"].split(","))


async def test_a_claim_gets_what_was_promised_to_it(scene: Scene) -> None:
    kubelet = await joined(scene)
    _, devices = await prepared(scene, kubelet, "two", *TWO)
    assert [(each.requests, each.pool, each.device) for each in devices] == [
        ((f"r{number}",), NODE, device(place)) for number, place in enumerate(TWO)
    ]
    assert environment(scene, devices) == {scene.mig_uuid(place) for place in TWO}
    assert sorted(scene.places()) == sorted(TWO)


async def test_the_same_call_gets_the_same_answer(scene: Scene) -> None:
    kubelet = await joined(scene)
    claim, devices = await prepared(scene, kubelet, "one", ONE)
    instances = scene.instances()
    assert list(await asyncio.gather(kubelet.prepare(claim), kubelet.prepare(claim))) == [devices, devices]
    assert scene.instances() == instances
    ((reason, text, count),) = await told(scene, claim)
    assert (reason, count) == ("ClaimPrepared", 1)
    assert text.startswith(f"{device(ONE)} of {NODE}, ")


@pytest.mark.scene(latencies={"create_gpu_instance": 3.0})
async def test_prepare_waits_for_a_promise_that_comes_after_the_allocation(scene: Scene) -> None:
    """The API server has the promise; the agent's watch is behind."""
    kubelet = await joined(scene)
    claim = await allocate(scene, "one", ONE)
    promised = asyncio.create_task(scene.promise("one", ONE))
    await promised
    assert environment(scene, await kubelet.prepare(claim)) == {scene.mig_uuid(ONE)}


async def test_unprepare_gives_everything_back(scene: Scene) -> None:
    kubelet = await joined(scene)
    claim, _ = await prepared(scene, kubelet, "two", *TWO)
    await kubelet.unprepare(claim)
    await kubelet.unprepare(claim)
    assert not scene.cdi_files()
    await scene.remove("two")
    await scene.clock.sleep(1)
    assert sorted(scene.places()) == sorted(TWO)  # the next pod that shares the claim may come
    await scene.release("two")
    await scene.until(scene.is_empty)
    await scene.until(scene.journal_is_empty)
    await kubelet.unprepare(ClaimRef("default", "never", "nobody-knows-it"))


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("between", ["prepared", "unprepared"])
async def test_a_shared_claim_keeps_its_slice_from_pod_to_pod(scene: Scene, between: str, restart: bool) -> None:
    """The promise has the UID of the first pod, which ended before the second one started."""
    kubelet = await joined(scene)
    claim = await allocate(scene, "shared", ONE, pods=("first", "second"))
    await scene.promise("first", ONE)
    devices = await kubelet.prepare(claim)
    before = environment(scene, devices)
    if between == "unprepared":
        await kubelet.unprepare(claim)
    await scene.remove("first")
    await write_status(scene, "shared", reserved(scene, "second"))
    if restart:
        await scene.restart_agent()
    await scene.clock.sleep(2)
    assert await kubelet.prepare(claim) == devices
    assert environment(scene, devices) == before == {scene.mig_uuid(ONE)}
    await kubelet.unprepare(claim)
    await scene.release("first")
    await scene.until(scene.is_empty)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("end", ["deleted", "succeeded", "never bound"])
async def test_a_shared_claim_is_prepared_first_for_the_pod_that_is_left(scene: Scene, end: str, restart: bool) -> None:
    """The pod that has the promise ended before kubelet prepared anything for it; the claim never lost its places."""
    kubelet = await joined(scene)
    await scene.pod("first", {"main": {}}, claims=("shared",))
    if end != "never bound":
        await scene.bind("first")
    await scene.pod("second", {"main": {}}, claims=("shared",))
    await scene.bind("second")
    claim = await allocate(scene, "shared", ONE, pods=("first", "second"))
    await scene.promise("first", ONE)
    await scene.clock.sleep(2)
    made = scene.instances()
    if end == "succeeded":
        await scene.finish("first")
    else:
        await scene.remove("first")
    await write_status(scene, "shared", reserved(scene, "second"))
    await scene.clock.sleep(2)
    assert scene.instances() == made
    if restart:
        await scene.restart_agent()
    devices = await kubelet.prepare(claim)
    assert environment(scene, devices) == {scene.mig_uuid(ONE)}
    await kubelet.unprepare(claim)
    await scene.release("first")
    await scene.until(scene.is_empty)


@pytest.mark.parametrize(
    ("named", "resource", "group"),
    [
        ("shared", "podgroups", "scheduling.k8s.io"),
        ("other", "podgroups", "scheduling.k8s.io"),
        ("shared", "workers", "example.com"),
    ],
)
async def test_a_claim_of_a_group_of_pods_goes_to_a_pod_that_names_it(
    scene: Scene, named: str, resource: str, group: str
) -> None:
    """A claim that a PodGroup names is reserved for the group, and not for its pods (Kubernetes 1.37)."""
    kubelet = await joined(scene)
    await scene.pod("member", {"main": {}}, claims=[named])
    await scene.bind("member")
    claim = await write_claim(scene, "shared", [result(0, ONE)], pods=["member"])
    user = {"apiGroup": group, "resource": resource, "name": "g", "uid": "uid-of-g"}
    await write_status(scene, "shared", {"reservedFor": [user]})
    await scene.promise("member", ONE)
    if (named, resource) == ("shared", "podgroups"):
        assert environment(scene, await kubelet.prepare(claim)) == {scene.mig_uuid(ONE)}
    else:
        with pytest.raises(PluginError, match=r"reservedFor names no pod"):
            await kubelet.prepare(claim)


async def test_a_promise_whose_pod_lives_serves_no_claim_that_does_not_name_the_pod(scene: Scene) -> None:
    """Somebody gave a claim of the same namespace a place that is another pod's, which is not bound yet."""
    kubelet = await joined(scene)
    await scene.pod("owner", {"main": {}})
    await scene.promise("owner", ONE)
    claim = await allocate(scene, "other", ONE)
    with pytest.raises(PluginError, match=r"to no pod of status\.reservedFor"):
        await kubelet.prepare(claim)


async def test_a_claim_that_outlives_its_promise_keeps_its_slice_until_it_is_unprepared(scene: Scene) -> None:
    """The pod was force-deleted: its claim and its promise go at once, kubelet unprepares later."""
    kubelet = await joined(scene)
    claim, devices = await prepared(scene, kubelet, "one", ONE)
    await scene.remove("one")
    await scene.client.delete(RESOURCE_CLAIMS, "one", "default")
    await scene._patch({"spec": {"podAllocationRequests": {scene.uid("one"): None}}})
    next_claim = await allocate(scene, "next", ONE)
    await scene.promise("next", ONE)
    waiting = asyncio.create_task(kubelet.prepare(next_claim))
    await scene.clock.sleep(15)
    assert not waiting.done()
    assert environment(scene, devices) == {scene.mig_uuid(ONE)}
    await kubelet.unprepare(claim)
    assert environment(scene, await waiting) == {scene.mig_uuid(ONE)}
    assert not await is_defined(scene, devices)


async def test_two_claims_of_a_pod_have_the_slices_of_one_promise(scene: Scene) -> None:
    kubelet = await joined(scene)
    claims = [await allocate(scene, f"c{number}", place, pods=("one",)) for number, place in enumerate(TWO)]
    await scene.promise("one", *TWO)
    answers = await asyncio.gather(*map(kubelet.prepare, claims))
    assert [environment(scene, each) for each in answers] == [{scene.mig_uuid(place)} for place in TWO]
    await kubelet.unprepare(claims[0])
    await scene.remove("one")
    await scene._patch({"spec": {"podAllocationRequests": {scene.uid("one"): None}}})
    await scene.clock.sleep(1)
    assert environment(scene, answers[1]) == {scene.mig_uuid(TWO[1])}
    await kubelet.unprepare(claims[1])
    await scene.until(scene.is_empty)


async def test_an_agent_that_comes_back_defines_the_devices_again(scene: Scene) -> None:
    """Kubelet asks once: after a restart of the agent, and when the folder was wiped by a reboot."""
    kubelet = await joined(scene)
    claim, devices = await prepared(scene, kubelet, "two", *TWO)
    uuids = environment(scene, devices)
    await scene.kill_agent()
    shutil.rmtree(scene.options.cdi_dir)
    scene.start_agent()
    await kubelet.client()
    assert environment(scene, devices) == uuids
    assert await kubelet.prepare(claim) == devices
    assert sorted(scene.places()) == sorted(TWO)


async def test_a_prepared_claim_keeps_its_slice_though_its_promise_is_lost(scene: Scene) -> None:
    kubelet = await joined(scene)
    claim, _ = await prepared(scene, kubelet, "one", ONE)
    await scene._patch({"spec": {"podAllocationRequests": {scene.uid("one"): None}}})
    await scene.restart_agent()
    assert environment(scene, await kubelet.prepare(claim)) == {scene.mig_uuid(ONE)}
    assert scene.places() == [ONE]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pool": "another-node"}, "is of pool another-node; this node's is node-1"),
        ({"device": "gpu-7-mig-1g5gb-19-0"}, "this node has no device gpu-7-mig-1g5gb-19-0"),
        ({"adminAccess": True}, "request r0 does not ask for adminAccess"),
        ({}, "promised GPU-.*:3g.20gb:4 to no pod of status.reservedFor: somebody else wrote its status"),
    ],
)
async def test_an_allocation_that_is_not_ours_is_refused(scene: Scene, change: dict[str, Any], reason: str) -> None:
    kubelet = await joined(scene)
    labels = {"resource.kubernetes.io/admin-access": "true"}
    await scene.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": labels}})
    claim = await write_claim(scene, "forged", [{**result(0, ONE), **change}])
    refusals = []
    for _ in range(2):
        with pytest.raises(PluginError, match=reason) as refused:
            await kubelet.prepare(claim)
        refusals.append(str(refused.value))
    assert not scene.instances()
    assert not scene.cdi_files()
    assert await told(scene, claim) == [("ClaimNotPrepared", refusals[0], 2)]


@pytest.mark.parametrize(
    ("users", "namespace", "reason"),
    [
        (("thief",), "default", "to no pod of status.reservedFor: somebody else wrote its status.allocation"),
        (("owner", "thief"), "default", "is held by claim default/owner"),
        (("owner",), "other", "the promise to default/owner serves claims of namespace default only"),
        (("elsewhere",), "default", "to no pod of status.reservedFor"),
        ((), "default", "status.reservedFor names no pod"),
    ],
    ids=["no promise", "held", "another tenant", "another place", "nobody"],
)
async def test_a_device_of_another_claim_is_refused(
    scene: Scene, users: Sequence[str], namespace: str, reason: str
) -> None:
    """Nobody else checks: the API server takes an allocation of a device that another claim holds."""
    kubelet = await joined(scene)
    await scene.client.create(NAMESPACES, {"metadata": {"name": "other"}})
    _, devices = await prepared(scene, kubelet, "owner", ONE)
    await prepared(scene, kubelet, "elsewhere", ("1g.5gb", 0, 0))
    thief = await write_claim(scene, "thief", [result(0, ONE)], pods=users, namespace=namespace)
    if not users:
        await write_status(scene, "thief", {"reservedFor": None})
    began = scene.clock.monotonic()
    with pytest.raises(PluginError, match=reason):
        await kubelet.prepare(thief)
    assert scene.clock.monotonic() - began < 1  # else a forged claim would hold kubelet's call
    assert environment(scene, devices) == {scene.mig_uuid(ONE)}
    assert len(scene.cdi_files()) == 2


@pytest.mark.scene(latencies={"create_gpu_instance": 3.0})
async def test_two_claims_that_ask_for_one_slice_at_once_do_not_both_get_it(scene: Scene) -> None:
    kubelet = await joined(scene)
    claims = [await allocate(scene, name, ONE, pods=("one",)) for name in ("first", "second")]
    waiting = asyncio.gather(*map(kubelet.prepare, claims), return_exceptions=True)
    await scene.promise("one", ONE)
    answers = await waiting
    assert [isinstance(each, PluginError) for each in answers].count(True) == 1
    assert len(scene.cdi_files()) == 1


async def test_a_device_is_not_given_on_while_a_process_uses_it(scene: Scene) -> None:
    """A pod was force-deleted: its claim is gone, its processes are not, and the controller has promised the place."""
    kubelet = await joined(scene)
    first, _ = await prepared(scene, kubelet, "first", ONE)
    before = scene.mig_uuid(ONE)
    pid = scene.machine.start_process(MigUuid(before), 2**30)
    await kubelet.unprepare(first)
    await scene.remove("first")
    await scene._patch({"spec": {"podAllocationRequests": {scene.uid("first"): None}}})
    second = await allocate(scene, "second", ONE)
    await scene.promise("second", ONE)
    waiting = asyncio.create_task(kubelet.prepare(second))
    await scene.clock.sleep(15)
    assert not waiting.done()
    assert scene.mig_uuid(ONE) == before
    scene.machine.end_process(pid)
    assert environment(scene, await waiting) == {scene.mig_uuid(ONE)}


@pytest.mark.parametrize("how", ["gone", "another", "free"])
async def test_a_claim_that_is_not_the_one_that_kubelet_means_is_refused(scene: Scene, how: str) -> None:
    kubelet = await joined(scene)
    claim = await write_claim(scene, "one", [] if how == "free" else [result(0, ONE)])
    await scene.promise("one", ONE)
    if how != "free":
        await scene.client.delete(RESOURCE_CLAIMS, "one", "default")
    if how == "another":
        await allocate(scene, "one", ONE)
    reasons = {"gone": "does not exist", "another": "was made anew", "free": "has no allocation"}
    with pytest.raises(PluginError, match=reasons[how]):
        await kubelet.prepare(claim)


@pytest.mark.scene(cards="8xA100-40GB", latencies={"create_gpu_instance": 0.3, "create_compute_instance": 0.2})
async def test_fifty_six_claims_at_once_are_ready_within_kubelets_time(scene: Scene) -> None:
    places: list[Place] = [("1g.5gb", card, start) for card in range(8) for start in range(7)]
    kubelet = await joined(scene)
    claims = [await allocate(scene, f"c{number}", place) for number, place in enumerate(places)]
    for number, place in enumerate(places):
        await scene.promise(f"c{number}", place)
    began = scene.clock.monotonic()
    answers = await asyncio.gather(*map(kubelet.prepare, claims))
    assert scene.clock.monotonic() - began < 45
    assert len({uuid for each in answers for uuid in environment(scene, each)}) == len(places)


@pytest.mark.soak
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_call_is_made_good(play_anew: Callable[..., None], after: bool) -> None:
    """Claims are prepared and given back while the agent dies at one NVML call after the other."""
    calls = 0

    async def story(scene: Scene, last_call: int) -> None:
        nonlocal calls
        kubelet, cards = await begin(scene, last_call=last_call, after=after)
        successor = asyncio.create_task(succeed_the_dead(scene))
        await scene.joined()
        claim = await allocate(scene, "two", *TWO)
        await scene.promise("two", *TWO)

        async def call(what: Callable[[ClaimRef], Awaitable[T]]) -> T:
            """Kubelet calls again until a living driver has answered."""
            while True:
                try:
                    return await what(claim)
                except (ConnectionError, PluginError):
                    await scene.clock.sleep(1)

        devices = await call(kubelet.prepare)
        assert environment(scene, devices) == {scene.mig_uuid(place) for place in TWO}
        assert sorted(scene.places()) == sorted(TWO)
        await call(kubelet.unprepare)
        await scene.remove("two")
        await scene.release("two")
        await scene.until(scene.is_empty)
        await scene.until(scene.journal_is_empty)
        assert not scene.cdi_files()
        successor.cancel()
        calls = cards.calls

    async def first(scene: Scene) -> None:
        await story(scene, 0)

    play_anew(first)
    assert calls > 20
    for last in range(1, calls + 1, 3):

        async def once(scene: Scene, last: int = last) -> None:
            await story(scene, last)

        play_anew(once)


@pytest.mark.scene(latencies={"create_gpu_instance": 3.0})
async def test_a_reboot_makes_the_slices_of_prepared_claims_anew(scene: Scene) -> None:
    """Kubelet does not prepare them again, and neither the instances nor the CDI files outlived the boot."""
    kubelet = await joined(scene)
    _, devices = await prepared(scene, kubelet, "two", *TWO)
    await scene.kill_agent()
    scene.machine.reboot()
    shutil.rmtree(scene.options.cdi_dir)
    scene.start_agent()
    await scene.until(lambda: is_defined(scene, devices))
    assert environment(scene, devices) == {scene.mig_uuid(place) for place in TWO}


async def is_defined(scene: Scene, devices: Sequence[PreparedDevice]) -> bool:
    """True if the container runtime finds all devices."""
    try:
        environment(scene, devices)
    except CdiError:
        return False
    return True


async def test_a_claim_that_loses_its_slice_loses_its_cdi_file(scene: Scene) -> None:
    """The next slice at the place has the same device nodes: a container that starts again must not get them."""
    kubelet = await joined(scene)
    _, devices = await prepared(scene, kubelet, "first", ONE)
    await scene.promise("first", ONE, state="deleting")
    await scene.until(scene.is_empty)
    assert not await is_defined(scene, devices)
    await scene.release("first")
    await prepared(scene, kubelet, "second", ONE)
    assert not await is_defined(scene, devices)
    await scene.restart_agent()
    await kubelet.client()
    assert not await is_defined(scene, devices)


async def test_a_slice_that_is_being_released_is_not_handed_out(scene: Scene) -> None:
    kubelet = await joined(scene)
    claim, _ = await prepared(scene, kubelet, "one", ONE)
    pid = scene.machine.start_process(MigUuid(scene.mig_uuid(ONE)), 2**30)
    await scene.promise("one", ONE, state="deleting")
    await scene.clock.sleep(5)
    with pytest.raises(PluginError, match="still being released"):
        await kubelet.prepare(claim)
    scene.machine.end_process(pid)


@pytest.mark.parametrize("damage", ["bytes", "position"])
async def test_a_damaged_checkpoint_takes_nothing_from_running_claims(scene: Scene, damage: str) -> None:
    """Kubelet will not prepare the claim again, so its container must find its device at its next start."""
    kubelet = await joined(scene)
    claim, devices = await prepared(scene, kubelet, "two", *TWO)
    await scene.kill_agent()
    path = scene.options.claims_file
    if damage == "bytes":
        path.write_bytes(path.read_bytes()[:50])
    else:
        path.write_bytes(path.read_bytes().splitlines()[0].replace(b":1g.5gb:0", b"nonsense"))
    scene.start_agent()
    await kubelet.client()
    assert environment(scene, devices) == {scene.mig_uuid(place) for place in TWO}
    assert await kubelet.prepare(claim) == devices
    await kubelet.unprepare(claim)
    assert not scene.cdi_files()
    await scene.remove("two")
    await scene.release("two")
    await scene.until(scene.is_empty)


async def test_a_claim_that_was_given_other_devices_meanwhile_gets_these(scene: Scene) -> None:
    """Kubelet lost its own state, so it never unprepared the claim, which was released and placed anew."""
    kubelet = await joined(scene)
    claim, _ = await prepared(scene, kubelet, "one", ONE)
    await scene.promise("one", ONE, state="deleting")
    await scene.until(scene.is_empty)
    await scene.release("one")
    other: Place = ("1g.5gb", 0, 0)
    await write_status(scene, "one", {"reservedFor": None, "allocation": None})
    await write_status(scene, "one", allocation([result(0, other)]) | reserved(scene, "one"))
    await scene.promise("one", other)
    assert environment(scene, await kubelet.prepare(claim)) == {scene.mig_uuid(other)}


async def test_a_claim_with_nothing_of_ours_leaves_nothing(scene: Scene) -> None:
    kubelet = await joined(scene)
    claim = await write_claim(scene, "other", [{**result(0, ONE), "driver": "gpu.nvidia.com"}])
    assert await kubelet.prepare(claim) == ()
    await kubelet.unprepare(claim)
    await prepared(scene, kubelet, "second", ONE)  # which saves the journal
    journal = json.loads(scene.options.journal_file.read_bytes().splitlines()[0])
    assert set(journal["bindings"]) == {scene.uid("second")}


async def test_a_prepared_claim_is_on_the_disk_before_kubelet_has_its_answer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet's own note of it survives a crash of the machine, and then it does not ask again."""
    flushed: list[str] = []
    flush = os.fsync

    def note(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        flush(descriptor)

    kubelet = await joined(scene)
    monkeypatch.setattr(os, "fsync", note)
    claim, _ = await prepared(scene, kubelet, "one", ONE)
    path = str(scene.options.claims_file)
    assert [each for each in flushed if each.startswith(path)] == [f"{path}.new"]
    await kubelet.unprepare(claim)
    assert [each for each in flushed if each.startswith(path)] == [f"{path}.new"] * 2


@pytest.mark.parametrize("held", [True, False])
def test_a_node_with_a_prepared_claim_is_not_rebooted_for_a_card(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    commands: list[Sequence[str]] = []

    async def note(command: Sequence[str]) -> None:
        commands.append(command)

    async def story(scene: Scene) -> None:
        scene.options = msgspec.structs.replace(scene.options, repairs=ConfigMapName(NAMESPACE, "repairs"))
        kubelet, _ = await begin(scene)
        await scene.client.create(
            CONFIGMAPS.as_dicts(),
            {"metadata": {"name": "repairs"}, "data": {"repairs.yaml": "reboot: systemctl\n"}},
            NAMESPACE,
        )
        await scene.joined()
        claim, _ = await prepared(scene, kubelet, "one", ONE)
        if not held:
            await kubelet.unprepare(claim)
            await scene.remove("one")
            await scene.release("one")
        broken = scene.machine.uuids()[1]
        scene.machine.lose(broken)
        scene.machine.report(SimEvent(GpuEventKind.XID, broken, 79))
        await scene.clock.sleep(1000)
        assert bool(commands) is not held

    monkeypatch.setattr("tests.agent.conftest.run", functools.partial(run, host=note))
    play(story, cards="2xA100-40GB")


@pytest.mark.parametrize("restart", [False, True])
async def test_a_claim_that_kubelet_has_forgotten_is_given_back(scene: Scene, restart: bool) -> None:
    """Kubelet lost its state while the claim was deleted, so nobody ever unprepares it."""
    kubelet = await joined(scene)
    await prepared(scene, kubelet, "first", ONE)
    await prepared(scene, kubelet, "stays", ("1g.5gb", 0, 0))
    for name in ("first", "stays"):
        await scene.remove(name)
        await scene._patch({"spec": {"podAllocationRequests": {scene.uid(name): None}}})
    await scene.client.delete(RESOURCE_CLAIMS, "first", "default")
    if restart:
        await scene.restart_agent()
    await scene.clock.sleep(GONE_CHECK)
    assert len(scene.places()) == 2  # kubelet may only be slow: the pod was force-deleted
    await scene.clock.sleep(2 * GONE_CHECK)
    assert scene.places() == [("1g.5gb", 0, 0)]
    assert len(scene.cdi_files()) == 1


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.scene(latencies={"create_gpu_instance": 3.0})
async def test_a_claim_that_is_released_while_its_device_is_made_leaves_nothing(
    scene: Scene, kept: bool, restart: bool
) -> None:
    """Its pod was deleted by force: the claim goes, or only loses its allocation, and kubelet's call still waits."""
    kubelet = await joined(scene)
    claim = await allocate(scene, "one", ONE)
    await scene.promise("one", ONE)
    waiting = asyncio.create_task(kubelet.prepare(claim))
    await scene.clock.sleep(1)
    assert not scene.places()
    await scene.remove("one")
    if kept:
        await write_status(scene, "one", {"reservedFor": None, "allocation": None})
    else:
        await scene.client.delete(RESOURCE_CLAIMS, "one", "default")
    await scene._patch({"spec": {"podAllocationRequests": {scene.uid("one"): None}}})
    if restart:
        await scene.kill_agent()
    await asyncio.gather(waiting, return_exceptions=True)
    if restart:
        scene.start_agent()
    await kubelet.unprepare(claim)
    await scene.until(scene.is_empty)
    assert not scene.cdi_files()
    _, devices = await prepared(scene, kubelet, "next", ONE)
    assert environment(scene, devices) == {scene.mig_uuid(ONE)}
    journal = json.loads(scene.options.journal_file.read_bytes().splitlines()[0])
    assert (set(journal["owners"].values()), journal["released"]) == ({scene.uid("next")}, [])


async def test_a_node_that_is_renamed_takes_back_what_claims_had_under_its_old_name(scene: Scene) -> None:
    """Kubelet and agent find their files of the old name; the pods and claims there are gone, or allocated anew."""
    kubelet = await joined(scene)
    claim, _ = await prepared(scene, kubelet, "one", ONE)
    await prepared(scene, kubelet, "gone", ("1g.5gb", 0, 0))
    await scene.kill_agent()
    for name in ("one", "gone"):
        await scene.remove(name)
    await write_status(scene, "one", {"reservedFor": None, "allocation": None})
    await scene.client.delete(RESOURCE_CLAIMS, "gone", "default")
    await scene.client.delete(INSTASLICES, NODE, NAMESPACE)
    node = await scene.client.get(NODES.as_dicts(), NODE)
    await scene.client.delete(NODES, NODE)
    labels = node["metadata"]["labels"]
    await scene.client.create(
        NODES.as_dicts(), {"metadata": {"name": "renamed", "labels": labels}, "status": node["status"]}
    )
    scene.options = msgspec.structs.replace(scene.options, node_name="renamed")
    scene.start_agent()
    await kubelet.unprepare(claim)  # its pod is gone; of the other claim kubelet knows nothing any more
    await scene.clock.sleep(3 * GONE_CHECK)
    assert not scene.places()
    assert not scene.cdi_files()
    items = (await scene.client.list(RESOURCE_SLICES)).items
    assert {each.spec.node_name for each in items if each.spec.pool.name == "renamed"} == {"renamed"}
    await write_status(scene, "one", allocation([result(0, ONE)]))
    with pytest.raises(PluginError, match=r"is of pool node-1; this node's is renamed"):
        await kubelet.prepare(claim)
