"""One node in one process: API server, kubelet's device manager, simulated cards, and agents that can be killed.

What the controller and kubelet's pod workers do is done by the test itself, step by step, through the API and through
kubelet's own calls.
"""

import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.api_clients import ADMINISTRATORS, in_process_client
from tests.support.scenes import marked_scene, repeated_scene_player, scene_player

from tessera.agent.base.host import RunOnHost
from tessera.agent.base.runtime import AgentEnvironment
from tessera.agent.base.settings import AgentOptions
from tessera.agent.run import run_components
from tessera.agent.simulated import SimulatedPrograms
from tessera.agent.wiring import Components
from tessera.api.instaslice import INSTASLICES, Instaslice
from tessera.cli.agent import node_satellites
from tessera.clock import Clock, LoopClock, rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.resources import NAMESPACES, NODES, PODS
from tessera.kubelet.interfaces import Kubelet, PluginError
from tessera.mig.models import model_by_short_name
from tessera.nvml.interface import GpuInstance, Nvml
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera.replay.recorder import Recorders
from tessera_lab.apiserver.interfaces import GroupResource
from tessera_lab.apiserver.kinds.versions import DEFAULT
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.apiserver.resource_types import ResourceType, Subresource
from tessera_lab.kubelet.containers.environment import CdiRegistry
from tessera_lab.kubelet.device_plugins.inprocess import InProcessKubelet
from tessera_lab.kubelet.devices.checkpoint import MemoryCheckpoint
from tessera_lab.kubelet.devices.device_ledger import DeviceAllocationError, PodUid
from tessera_lab.kubelet.devices.device_manager import DeviceManager

T = TypeVar("T")

NODE = "node-1"
NAMESPACE = "instaslice-system"
#: A slice: profile, index of its card, start.
Place = tuple[str, int, int]


class MortalNvml(InlineNvml):
    """Simulated cards whose caller dies at one chosen call, before or after it took effect.

    Args:
        nvml: the cards.
        clock: for their latencies.
        last: number of the call, from 1, that kills; 0 for never.
        after: the call still takes effect.

    Attributes:
        kill: ends the process; the call that it ends in never returns, nor does any later one.
    """

    def __init__(self, nvml: SimulatedMachine, clock: Clock, *, last: int = 0, after: bool = False) -> None:
        super().__init__(nvml, clock)
        self.calls = 0
        self.kill: Callable[[], object] = lambda: None
        self._last = last
        self._after = after

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        self.calls += 1
        if self._last and self.calls >= self._last:
            if self._after and self.calls == self._last:
                await super().call(operation, call, card=card)
            self.kill()
            await asyncio.Event().wait()
        return await super().call(operation, call, card=card)


class Scene:
    """One node and what surrounds its agent."""

    def __init__(
        self,
        folder: Path,
        cards: str = "A100-40GB",
        *,
        mig: bool = True,
        clock: Clock | None = None,
        seam: Kubelet | None = None,
        kubernetes: str = DEFAULT,
        **machine: Any,
    ) -> None:
        self.clock: Clock = clock or LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock, kubernetes=kubernetes)
        self.server.core.registry.add(
            ResourceType(
                group=INSTASLICES.group,
                version=INSTASLICES.version,
                plural=INSTASLICES.plural,
                singular="instaslice",
                kind=INSTASLICES.kind,
                list_kind="InstasliceList",
                namespaced=True,
                storage=GroupResource(INSTASLICES.group, INSTASLICES.plural),
                subresources={"status": Subresource(name="status", verbs=("get", "patch", "update"))},
                generation=True,
            )
        )
        self.client = self.user("admin")
        self.machine = SimulatedMachine(cards, seed=NODE, mig=mig, **machine)
        self.bus = InProcessKubelet()
        self.seam: Kubelet = seam or self.bus
        #: Pods by name: all that were made, and those on the node.
        self.made: dict[str, dict[str, Any]] = {}
        #: Whether a pod has a sandbox, and since when.
        self.sandboxes: dict[str, tuple[bool, float]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.kubelet = self._kubelet()
        self.cdi = CdiRegistry([folder / "cdi"])
        self.options = AgentOptions(node_name=NODE, cdi_dir=folder / "cdi", state_dir=folder / "state")
        self.agent: asyncio.Task[None] | None = None

    def user(self, name: str) -> Client:
        return in_process_client(self.server, self.clock, name, ADMINISTRATORS)

    def _kubelet(self) -> DeviceManager:
        return DeviceManager(
            clock=self.clock,
            checkpoint=MemoryCheckpoint(),
            on_change=lambda: None,
            running_pods=lambda: [(pod, PodUid(pod["metadata"]["uid"])) for pod in self.pods.values()],
        )

    # The cluster ------------------------------------------------------------------------------------------------

    async def begin(self, *, label: str = "dynamic", agent: bool = True) -> None:
        """A node that kubelet registered, and an agent on it."""
        await self.client.create(
            NODES.as_dicts(),
            {
                "metadata": {"name": NODE, "labels": {"nvidia.com/mig.config": label}},
                "status": {"nodeInfo": {"bootID": "boot-1"}},
            },
        )
        await self.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        self.bus.start(self.kubelet.add_plugin, self.kubelet)
        if agent:
            self.start_agent()

    async def begin_slicing(self) -> None:
        """The same, and the agent has described its cards to the controller."""
        await self.begin()
        await self.joined()

    def start_agent(self, *, last_call: int = 0, after: bool = False) -> MortalNvml:
        """Starts an agent; it dies at its ``last_call``-th NVML call."""
        cards = MortalNvml(self.machine, self.clock, last=last_call, after=after)
        client = self.user("agent")
        programs = SimulatedPrograms(self.machine, self.clock)
        work = run(self.options, client, cards, self.seam, self.clock, programs=programs)
        self.agent = asyncio.create_task(_until_killed(work, client))
        cards.kill = self.agent.cancel
        return cards

    async def kill_agent(self) -> None:
        """Ends the agent's process where it stands."""
        if self.agent is not None:
            self.agent.cancel()
            await asyncio.gather(self.agent, return_exceptions=True)

    async def restart_agent(self) -> None:
        """The agent's process ends where it stands, and another one starts."""
        await self.kill_agent()
        self.start_agent()

    async def end(self) -> None:
        """Nothing is left running."""
        await self.kill_agent()
        await self.kubelet.stop()

    async def object(self) -> Instaslice:
        return await self.client.get(INSTASLICES, NODE, NAMESPACE)

    async def until(self, holds: Callable[[], Awaitable[bool]], seconds: float = 120.0) -> None:
        """Looks until something holds; virtual time passes in between."""
        deadline = self.clock.monotonic() + seconds
        while not await holds():
            assert self.clock.monotonic() < deadline, "it did not come about"
            await self.clock.sleep(0.02)

    async def joined(self) -> None:
        """The agent made its object and described its cards."""

        async def described() -> bool:
            try:
                return bool((await self.object()).status.node_resources.node_gpus)
            except NotFound:
                return False

        await self.until(described)

    # The controller's part --------------------------------------------------------------------------------------

    def slice(self, number: int, place: Place) -> dict[str, Any]:
        profile, card, start = place
        geometry = model_by_short_name("A100-40GB").geometry
        uuid = self.machine.uuids()[card]
        size = geometry.profile(profile).size
        return {"id": str(number), "profile": profile, "gpuUUID": uuid, "start": start, "size": size}

    async def promise(self, name: str, *places: Place, state: str = "") -> None:
        """Writes a promise as the controller does; one of an earlier version also wrote a result in some state."""
        uid = self.uid(name)
        slices = [self.slice(number, place) for number, place in enumerate(places)]
        ref = {"kind": "Pod", "namespace": "default", "name": name, "uid": uid}
        request = {"profile": slices[0]["profile"], "podRef": ref, "slices": slices}
        await self._patch({"spec": {"podAllocationRequests": {uid: request}}})
        if state:
            result = {
                "allocationStatus": {"allocationStatusController": state, "allocationStatusDaemonset": ""},
                "configMapResourceIdentifier": f"id-{name}",
                "gpuUUID": slices[0]["gpuUUID"],
                "migPlacement": {"size": slices[0]["size"], "start": slices[0]["start"]},
                "nodename": NODE,
            }
            await self._patch({"status": {"podAllocationResults": {uid: result}}}, subresource="status")

    async def release(self, name: str) -> None:
        """Removes the promise of an ended pod, as the controller does. The agent removes the result."""
        uid = self.uid(name)
        await self._patch({"spec": {"podAllocationRequests": {uid: None}}})

        async def gone() -> bool:
            try:
                return uid not in (await self.object()).status.pod_allocation_results
            except NotFound:  # the node gave its last card back
                return True

        await self.until(gone)

    async def reported(self, name: str, state: str) -> None:
        """The agent wrote a state of a pod."""

        async def written() -> bool:
            result = (await self.object()).status.pod_allocation_results.get(self.uid(name))
            return result is not None and result.allocation_status.allocation_status_daemonset == state

        await self.until(written)

    async def _patch(self, patch: Mapping[str, Any], subresource: str | None = None) -> None:
        await self.client.merge_patch(INSTASLICES, NODE, patch, NAMESPACE, subresource=subresource)

    # Kubelet's part ---------------------------------------------------------------------------------------------

    async def pod(
        self,
        name: str,
        containers: Mapping[str, Mapping[str, int]],
        init: Mapping[str, Mapping[str, int]] | None = None,
        sidecars: Collection[str] = (),
        claims: Collection[str] = (),
    ) -> None:
        """A pod, not on any node yet. Containers are given as counts by profile, init containers before the others."""
        spec: dict[str, Any] = {"containers": _containers(containers)}
        if claims:
            spec["resourceClaims"] = [{"name": each, "resourceClaimName": each} for each in claims]
        if init:
            spec["initContainers"] = [
                {**each, **({"restartPolicy": "Always"} if each["name"] in sidecars else {})}
                for each in _containers(init)
            ]
        pod = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
        self.made[name] = await self.client.create(PODS.as_dicts(), pod, "default")

    async def bind(self, name: str) -> None:
        """The scheduler puts the pod on the node."""
        await self.client.bind(name, "default", NODE)
        self.pods[name] = self.made[name]

    def uid(self, name: str) -> str:
        """The UID that the server gave to a pod."""
        return str(self.made[name]["metadata"]["uid"])

    async def admit(self, name: str) -> None:
        """Kubelet admits the pod: devices are picked and allocated."""
        await self.kubelet.allocate(self.made[name], PodUid(self.uid(name)))

    async def admit_promised(self, name: str, containers: Mapping[str, Mapping[str, int]], *places: Place) -> None:
        """A pod with a promise of these slices is scheduled and admitted."""
        await self.pod(name, containers)
        await self.promise(name, *places)
        await self.bind(name)
        await self.admit(name)

    async def admitted(self, name: str) -> bool:
        """True if kubelet admits the pod now; a real one would fail it and its owner would make another."""
        try:
            await self.admit(name)
        except DeviceAllocationError:
            return False
        return True

    async def start(self, name: str, container: str, *, tries: int = 60) -> Mapping[str, str]:
        """Kubelet starts a container, again after a refusal; returns what CDI puts into its environment."""
        uid = PodUid(self.uid(name))
        for _ in range(tries - 1):
            try:
                await self.kubelet.pre_start(uid, container)
                break
            except PluginError:
                await self.clock.sleep(1.0)
        else:
            await self.kubelet.pre_start(uid, container)
        names = [cdi for each in self.kubelet.allocations(uid, container) for cdi in each.cdi_devices]
        return self.cdi.edits(names).env

    async def tell_states(self, name: str, states: Mapping[str, Mapping[str, Any]], *, sandbox: bool = True) -> None:
        """Kubelet writes the states of a pod's containers into its status; the agent's watch does not know yet."""
        inits = {each["name"] for each in self.made[name]["spec"].get("initContainers", ())}
        told = [{"name": each, "state": dict(state)} for each, state in states.items()]
        ready, since = self.sandboxes.get(name, (None, 0.0))
        if ready is not sandbox:
            self.sandboxes[name] = sandbox, (since := self.clock.now())
        condition = {"type": "PodReadyToStartContainers", "status": str(sandbox), "lastTransitionTime": rfc3339(since)}
        status = {
            "phase": "Pending",
            "conditions": [condition],
            "initContainerStatuses": [each for each in told if each["name"] in inits],
            "containerStatuses": [each for each in told if each["name"] not in inits],
        }
        await self.client.merge_patch(PODS, name, {"status": status}, "default", subresource="status")

    async def finish(self, name: str, phase: str = "Succeeded") -> None:
        """All containers of the pod ended."""
        await self.client.merge_patch(PODS, name, {"status": {"phase": phase}}, "default", subresource="status")
        self.kubelet.release(PodUid(self.uid(name)))

    async def finish_and_release(self, name: str) -> None:
        """All containers of the pod ended, and the controller removed its promise."""
        await self.finish(name)
        await self.release(name)

    async def remove(self, name: str) -> None:
        """The pod object is gone."""
        self.pods.pop(name, None)
        self.kubelet.release(PodUid(self.uid(name)))
        await self.client.delete(PODS, name, "default", grace_seconds=0)

    def devices(self, name: str, container: str) -> list[str]:
        """Returns the device IDs that kubelet gave to a container."""
        held = self.kubelet.ledger.holdings(PodUid(self.uid(name)), container)
        return [device for each in held for device in each.device_ids]

    async def allocatable(self, resource: str, count: int) -> bool:
        """True if kubelet offers so many devices of a resource."""
        offered = {each.resource_name: len(each.device_ids) for each in await self.kubelet.allocatable()}
        return offered.get(resource, 0) == count

    async def object_is_gone(self) -> bool:
        """True if the node has no Instaslice object."""
        try:
            await self.object()
        except NotFound:
            return True
        return False

    async def foreign_is_told(self) -> bool:
        """True if the object lists a position that no promise explains."""
        return bool((await self.object()).status.node_resources.foreign)

    async def is_empty(self) -> bool:
        """True if the cards have no GPU instance."""
        return not self.instances()

    def cdi_files(self) -> list[str]:
        """Names of the CDI files."""
        return sorted(path.name for path in self.options.cdi_dir.glob("*"))

    async def journal_is_empty(self) -> bool:
        """True if the agent's journal has no entry."""
        return not any(json.loads(self.options.journal_file.read_bytes().splitlines()[0]).values())

    # The hardware -----------------------------------------------------------------------------------------------

    def instances(self) -> list[tuple[int, GpuInstance]]:
        """Everything on the cards, with the card's index."""
        uuids = self.machine.uuids()
        return [(index, each) for index, uuid in enumerate(uuids) for each in self.machine.instances(uuid)]

    def places(self) -> list[Place]:
        """The same as places; a half-made instance raises."""
        assert all(each.compute_instances for _, each in self.instances())
        return [(each.profile, index, each.start) for index, each in self.instances()]

    def foreign(self, place: Place) -> None:
        """Somebody else makes a slice."""
        profile, card, start = place
        uuid = self.machine.uuids()[card]
        row = model_by_short_name("A100-40GB").geometry.profile(profile)
        gi_id = self.machine.create_gpu_instance(uuid, profile, start)
        self.machine.create_compute_instance(uuid, gi_id, row.ci_profile_index)

    def mig_uuid(self, place: Place) -> str:
        """The UUID of the slice at a place."""
        profile, card, start = place
        for index, each in self.instances():
            if (each.profile, index, each.start) == (profile, card, start):
                return each.compute_instances[0].mig_uuid
        raise AssertionError(f"nothing at {place}: {self.instances()}")


async def run(
    options: AgentOptions,
    client: Client,
    hardware: InlineNvml,
    kubelet: Kubelet,
    clock: Clock,
    *,
    programs: SimulatedPrograms,
    host: RunOnHost | None = None,
) -> None:
    """Runs an agent whose driver stays."""
    environment = AgentEnvironment(
        options=options, client=client, clock=clock, rng=random.Random(1), host=host, recorders=Recorders()
    )
    await run_components(
        Components(environment, hardware, kubelet, programs=programs, satellites=node_satellites(options))
    )


async def _until_killed(work: Coroutine[Any, Any, None], client: Client) -> None:
    try:
        await work
    finally:
        await client.close()


def _containers(asked: Mapping[str, Mapping[str, int]]) -> Sequence[dict[str, Any]]:
    return [
        {
            "name": name,
            "image": "cuda",
            "resources": {"limits": {f"nvidia.com/mig-{profile}": str(count) for profile, count in counts.items()}},
        }
        for name, counts in asked.items()
    ]


@pytest.fixture
async def scene(request: pytest.FixtureRequest, tmp_path: Path, virtual_time: None) -> AsyncIterator[Scene]:
    """A fresh node on virtual time."""
    made = marked_scene(request, Scene, tmp_path)
    yield made
    await made.end()


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Plays a story on a fresh node, on virtual time, and ends everything."""
    return scene_player(Scene, tmp_path)


@pytest.fixture
def play_anew(tmp_path: Path) -> Callable[..., None]:
    """Plays many stories one after the other, each on a node of its own."""
    return repeated_scene_player(Scene, tmp_path)


@pytest.fixture
def make_scene() -> type[Scene]:
    """For stories on real time."""
    return Scene


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a name short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="ta", dir="/tmp") as path:
        yield Path(path)
