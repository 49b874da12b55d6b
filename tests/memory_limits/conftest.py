"""A node with two shared cards: real processes, their pods in a folder that plays /proc, memory from NVML.

The cards are simulated, the API server is the lab's.
"""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from tests.support.agent_runtime import make_parts

from tessera.agent.base.host import ProcessTable
from tessera.agent.base.node_objects import EventType
from tessera.agent.base.runtime import Metrics
from tessera.agent.base.settings import AgentOptions, EnforcementMode
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.inventory.device_state import DeviceUser
from tessera.agent.inventory.gpu_inventory import read_gpu_inventory, sharing_gpus
from tessera.agent.inventory.sliceable_gpus import SliceableGpus
from tessera.agent.satellites import MemoryInputs
from tessera.api.names import PodUid
from tessera.api.sharing.advertisement import make_advertisement
from tessera.api.sharing.devices import Advertisement
from tessera.api.sharing.profile import MigStrategy
from tessera.api.sharing.profile_parser import parse_profile
from tessera.clock import Clock, LoopClock
from tessera.kube.client import Client
from tessera.kube.eviction import Evictor
from tessera.kube.resources import NAMESPACES, PODS, Pod
from tessera.memory_limits.enforcement import MemoryEnforcement, ProcessMemoryReader
from tessera.memory_limits.monitor import MemoryMonitor
from tessera.memory_limits.policy import MemoryPolicy, MemoryRules
from tessera.nvml.interface import DeviceMemory, Nvml
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.simulation.virtual_time import run_virtual

T = TypeVar("T")
GIB = 2**30
CONTAINER = "c" * 64
STRANGER = PodUid("3c5e1e1f-0f3e-4a0b-9a2e-5d1b6c7d8e9f")


class Counting(InlineNvml):
    """Simulated cards; counts how often anything was asked of them, and may lie about their size."""

    calls = 0
    claimed: int | None = None

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        self.calls += 1
        answer = await super().call(operation, call, card=card)
        if isinstance(answer, DeviceMemory) and self.claimed is not None:
            return msgspec.structs.replace(answer, total=self.claimed)
        return answer


class Proc:
    """A /proc that shows real processes in the cgroups of pods."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.table = ProcessTable(folder)
        self._stack = stack

    def start(self, pod: PodUid | None) -> subprocess.Popen[bytes]:
        """A real process that ends when it is asked to."""
        command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
        child = self._stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
        self._stack.callback(child.kill)
        here = self.folder / str(child.pid)
        here.mkdir()
        (here / "stat").symlink_to(f"/proc/{child.pid}/stat")
        (here / "cgroup").write_text(f"0::/kubepods/burstable/pod{pod}/{CONTAINER}\n" if pod else "0::/user.slice\n")
        return child

    def earlier(self, child: subprocess.Popen[bytes]) -> None:
        """Shows another process of the same PID and pod, which started before this one."""
        stat = self.folder / str(child.pid) / "stat"
        name, _, rest = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")
        fields = rest.split()
        fields[19] = str(int(fields[19]) - 1)
        stat.unlink()
        stat.write_text(f"{name}) {' '.join(fields)}")

    def now(self, child: subprocess.Popen[bytes]) -> None:
        """Shows the process that has the PID now."""
        stat = self.folder / str(child.pid) / "stat"
        stat.unlink()
        stat.symlink_to(f"/proc/{child.pid}/stat")


class Node:
    """Two cards, pods in the API, and what kubelet gave to them."""

    def __init__(self, proc: Proc, folder: Path) -> None:
        self.proc = proc
        self.table = proc.table
        self.machine = SimulatedMachine("2xA100-40GB", seed="n")
        self.gpu, self.other = self.machine.uuids()
        self.clock: Clock = LoopClock(1_700_000_000.0)
        self.hardware = Counting(self.machine, self.clock)
        self.changes = ChangeNotifier()
        self.file = folder / "state" / "shares.json"
        self.pods: dict[str, Pod] = {}
        self.held: dict[str, list[DeviceUser]] = {}
        self.offer = Advertisement(resources={})
        self.told: list[tuple[str, str, str]] = []
        self.kubelet_answers = True
        self.api_answers = True
        #: Called before an event is told.
        self.before_telling: Callable[[str], None] = lambda _: None

    async def begin(self) -> None:
        """There is an API server."""
        user = UserInfo(name="agent", groups=("system:masters",))
        transport = InProcessTransport(ApiServer(self.clock), user)
        self.client = Client(transport, field_manager="agent", clock=self.clock)
        await self.client.create(NAMESPACES, {"metadata": {"name": "team"}})

    async def share(self, replicas: int, *, block: str = "timeSlicing", devices: str = "all") -> None:
        """A sharing profile comes into force."""
        text = (
            f"sharing: {{{block}: {{resources: [{{name: nvidia.com/gpu, replicas: {replicas}, devices: {devices}}}]}}}}"
        )
        gpus = sharing_gpus((await read_gpu_inventory(self.hardware)).gpus)
        self.offer = make_advertisement(gpus, parse_profile(f"version: v1\n{text}"), MigStrategy.MIXED)
        self.changes.notify()

    async def pod(
        self, name: str, *ids: str, namespace: str = "team", annotations: Mapping[str, str] | None = None
    ) -> PodUid:
        """A pod that was admitted with entries."""
        meta = {"name": name, "namespace": namespace, "annotations": dict(annotations or {})}
        body = {"metadata": meta, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}
        made = await self.client.create(PODS, body, namespace)
        self.pods[name] = made
        uid = PodUid(made.metadata.uid)
        for entry in ids:
            holder = DeviceUser(
                pod=uid, namespace=namespace, name=name, container="c", resource="nvidia.com/gpu", ids=(entry,)
            )
            self.held.setdefault(entry.partition("::")[0], []).append(holder)
        self.changes.notify()
        return uid

    def process(self, pod: PodUid | None, gib: float) -> subprocess.Popen[bytes]:
        """A process of a pod begins to hold memory of the first card."""
        child = self.proc.start(pod)
        self.hold(child.pid, gib)
        return child

    def hold(self, pid: int, gib: float) -> None:
        """NVML tells of a process of that PID."""
        self.machine.start_process(self.gpu, int(gib * GIB), pid=pid)

    def live_pods(self) -> list[Pod]:
        return list(self.pods.values())

    async def read_users(self) -> Mapping[str, Sequence[DeviceUser]]:
        if not self.kubelet_answers:
            raise ConnectionError("kubelet is being restarted")
        return self.held

    def record_on_pod(self, pod: Pod, reason: str, text: str, kind: EventType) -> None:
        assert kind == "Warning"
        self.before_telling(reason)
        self.told.append((pod.metadata.name, reason, text))

    def reasons(self) -> list[tuple[str, str]]:
        return [(pod, reason) for pod, reason, _ in self.told]

    def watch(self, mode: EnforcementMode, **rules: Any) -> MemoryMonitor:
        self.metrics = Metrics()
        found = MemoryRules(mode=mode, **{"start_grace": 0.0, **rules})
        reader = ProcessMemoryReader(self.hardware, self.table)
        return MemoryMonitor(
            make_parts(
                options=AgentOptions(node_name="node-1", state_dir=self.file.parent),
                metrics=self.metrics,
                changes=self.changes,
                clock=self.clock,
            ),
            reader=reader,
            policy=MemoryPolicy(found),
            enforcement=MemoryEnforcement(
                mode=mode,
                processes=self.table,
                read_card=reader.read,
                evictor=Evictor(self.client),
                record=self.record_on_pod,
                metrics=self.metrics,
            ),
            inputs=MemoryInputs(
                offer=lambda: self.offer,
                api_reachable=lambda: self.api_answers,
                live_pods=self.live_pods,
                read_users=self.read_users,
                cards=SliceableGpus,
                held=tuple,
            ),
        )

    def gauge(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    def memory(self, name: str, pod: str, namespace: str = "team") -> float | None:
        amount = self.gauge(f"tessera_memory_{name}_bytes", pod=pod, namespace=namespace, gpu=self.gpu)
        return None if amount is None else amount / GIB


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[Proc]:
    with ExitStack() as stack:
        folder = tmp_path / "proc"
        folder.mkdir()
        yield Proc(folder, stack)


@pytest.fixture
def node(proc: Proc, tmp_path: Path) -> Node:
    return Node(proc, tmp_path)


def play(node: Node, mode: EnforcementMode, story: Callable[[], Awaitable[None]], **rules: Any) -> None:
    """Plays a story on virtual time while the watch runs."""

    async def played() -> None:
        await node.begin()
        watch = asyncio.create_task(node.watch(mode, **rules).run())
        try:
            await story()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    run_virtual(played())


async def hog_and_neighbour(node: Node, hog: float = 25, neighbour: float = 8) -> list[subprocess.Popen[bytes]]:
    """A card of 40 GiB in four shares, of which two pods have one each."""
    await node.share(4)
    pods = [await node.pod(name, f"{node.gpu}::{n}") for n, name in enumerate(("hog", "neighbour"))]
    return [node.process(pod, gib) for pod, gib in zip(pods, (hog, neighbour), strict=True)]
