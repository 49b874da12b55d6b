"""A burst of pods that ask for slices, on a simulated cluster: how long until each is ungated, and what it costs.

    python bench/slices.py                                   three runs, under a minute on two quiet cores
    python bench/slices.py --controller-process              Tessera's controller as a process of its own, over HTTPS
    python bench/slices.py --nodes 400 --runs 1 --json slices.json

What is simulated: API server, scheduler, kubelets and cards, all in this process together with Tessera's own webhook
and one agent a node, which run the production code. So times are those of the simulated cluster on this machine, one
core of it, and no forecast for a real one; API calls are what a real one would see. Images are there already, making a
slice takes no time, and nodes keep their files in memory. With ``--controller-process`` the controller is
``tessera controller`` as users run it, and its CPU time and memory are its own.

Every run has a fresh cluster, on which the same number of pods without GPUs is measured first, as what the simulated
control plane costs by itself. A step's time counts from the moment the create is sent: *stored* is its answer, with
the webhook's gate; *ungated* and *running* are when a watcher sees them, *made* when the agent records the slice.
CPU and calls are counted until the cluster is quiet again, the burst's late events included. ``core`` is the part of
one core that this process got: well below 1 while it was busy means that the machine had other work, and the times
mean little.

The mix is the one called "mid" in the placement benchmark: 1g .20, 1g double memory .10, 2g .30, 3g .30, 4g .10.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from tessera.api.instaslice import INSTASLICES, Instaslice
from tessera.api.names import GATE, INSTASLICE_NAMESPACE, resource_of
from tessera.cli.base.process import reduce_garbage_collection
from tessera.clock import Clock, SystemClock
from tessera.kube.cache import WatchEvent
from tessera.kube.informer import Informer, InformerGroup
from tessera.kube.resources import PODS, SERVICE_ACCOUNTS, Pod
from tessera_lab.apiserver.authz.certificates import CertificateAuthority
from tessera_lab.apiserver.main.http_server import HttpServer
from tessera_lab.cli.own_commands import own_commands
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.installation.install import build_entrypoint, install_tessera

MIX = {"1g.5gb": 0.20, "1g.10gb": 0.10, "2g.10gb": 0.30, "3g.20gb": 0.30, "4g.20gb": 0.10}
#: How many creations are under way at once, as a workload controller's burst would have.
CREATORS = 20
TIMEOUT = 600.0
#: Where the nodes' files lie, if it is there: a hundred nodes would share this machine's one disk.
MEMORY = Path("/dev/shm")
#: Seconds without a call about pods, slices or events after which the cluster counts as quiet.
QUIET = 0.5
NAMESPACE, ACCOUNT = "tessera-system", "tessera-controller"
STEPS = ("stored", "ungated", "made", "running")
#: Who calls the API server, by the beginning of the user's name.
CALLERS = {
    "controller": f"system:serviceaccount:{NAMESPACE}:tessera-controller",
    "agents": f"system:serviceaccount:{NAMESPACE}:tessera-agent",
    "webhook": f"system:serviceaccount:{NAMESPACE}:tessera-webhook",
    "scheduler": "system:kube-scheduler",
    "kubelets": "system:node:",
}


class Timeline:
    """The time at which each pod of one namespace reached each step, by pod name, in seconds of the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._names: dict[str, str] = {}
        self.sent: dict[str, float] = {}
        self.reached: dict[str, dict[str, float]] = {step: {} for step in STEPS}

    def pod_seen(self, event: WatchEvent[Pod]) -> None:
        """A change of a pod."""
        pod = event.object
        self._names[pod.metadata.uid] = pod.metadata.name
        if not any(gate.name == GATE for gate in pod.spec.scheduling_gates):
            self.note("ungated", pod.metadata.name)
        if pod.status.phase == "Running":
            self.note("running", pod.metadata.name)

    def object_seen(self, event: WatchEvent[Instaslice]) -> None:
        """A change of a node's record."""
        for uid, result in event.object.status.pod_allocation_results.items():
            if result.allocation_status.allocation_status_daemonset == "created" and uid in self._names:
                self.note("made", self._names[uid])

    def note(self, step: str, name: str) -> None:
        """The pod is there now, if it was not before."""
        if name in self.sent:
            self.reached[step].setdefault(name, self._clock.monotonic())

    def figures(self, step: str) -> dict[str, float]:
        """Median, 99th percentile and rate of a step; nothing where no pod took it."""
        reached = self.reached[step]
        if not reached:
            return {}
        took = sorted(at - self.sent[name] for name, at in reached.items())
        return {
            f"{step} p50 s": took[len(took) // 2],
            f"{step} p99 s": took[int(len(took) * 0.99)],
            f"{step} pods/s": len(took) / (max(reached.values()) - min(self.sent.values())),
        }


# Processes


class Usage(msgspec.Struct, frozen=True):
    """A process's use of resources: CPU seconds so far, and MiB resident now."""

    cpu: float
    rss: float


def usage(pid: int | None = None) -> Usage:
    """Of a process, by default this one (Linux, proc(5))."""
    folder = Path(f"/proc/{pid or 'self'}")
    times = folder.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
    pages = int(folder.joinpath("statm").read_text().split()[1])
    ticks = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    own = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(own.ru_utime + own.ru_stime if pid is None else ticks, pages * resource.getpagesize() / 2**20)


@asynccontextmanager
async def controller_process(cluster: SimulatedCluster, folder: Path) -> AsyncIterator[int]:
    """``tessera controller`` at the cluster's HTTPS front, under its service account; gives its process id."""
    authority = CertificateAuthority(cluster.clock.now())
    front = HttpServer(cluster.server, authority)
    await front.start()
    path, body = SERVICE_ACCOUNTS.path(NAMESPACE, ACCOUNT, "token"), {"spec": {"expirationSeconds": 86_400}}
    kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    answer = await cluster.client("bench").request("POST", path, body={**kind, **body})
    token = msgspec.json.decode(answer.body)["status"]["token"]
    (folder / "ca.crt").write_bytes(authority.certificate)
    config = folder / "kubeconfig"
    config.write_text(json.dumps(kubeconfig(front.url, "ca.crt", token)))
    arguments = ("controller", "--kubeconfig", str(config), "--identity", "bench", "--log-level", "warning")
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tessera", *arguments)
    try:
        yield process.pid
    finally:
        process.terminate()
        await process.wait()
        await front.close()


def kubeconfig(server: str, authority: str, token: str) -> dict[str, Any]:
    """A kubeconfig with a bearer token."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": server, "certificate-authority": authority}}],
        "users": [{"name": "bench", "user": {"token": token}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }


# The bursts


def pod(name: str, limits: Mapping[str, int]) -> dict[str, Any]:
    """A pod of one container that stays."""
    container = {"name": "c", "image": "busybox", "command": ["sleep", "infinity"], "resources": {"limits": limits}}
    return {"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}


class Bench:
    """One cluster under measurement.

    Args:
        cluster: the cluster, running, with Tessera in it.
        pods: mirrors the pods.
        objects: mirrors the nodes' records.
        pid: the controller's process, None if it runs in this one.
    """

    def __init__(
        self, cluster: SimulatedCluster, pods: Informer[Pod], objects: Informer[Instaslice], pid: int | None = None
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._watched = InformerGroup(pods, objects)
        self._pid = pid
        self._timeline = Timeline(cluster.clock)
        pods.add_handler(self._pod_seen)
        objects.add_handler(self._object_seen)

    def _pod_seen(self, event: WatchEvent[Pod]) -> None:
        self._timeline.pod_seen(event)

    def _object_seen(self, event: WatchEvent[Instaslice]) -> None:
        self._timeline.object_seen(event)

    def running(self) -> Any:
        """Keeps the mirrors running inside the block."""
        return self._watched.running()

    async def until(self, found: Callable[[], bool], what: str) -> None:
        """Waits for a state of the mirrors."""
        await self._watched.wait_until(found, TIMEOUT, what)

    async def burst(self, pods: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Creates the pods as fast as the API server takes them; all figures once they run and all is quiet."""
        timeline = self._timeline = Timeline(self._cluster.clock)
        await self._quiet()
        self._cluster.server.audit.clear()
        before, began = self._usages(), self._cluster.clock.monotonic()
        await self._create(pods, timeline)
        running = timeline.reached["running"]
        await self.until(lambda: len(running) == len(pods), "all pods run")
        wall = self._cluster.clock.monotonic() - began
        core = (usage().cpu - before["this"].cpu) / wall
        await self._quiet()
        figures = {name: value for step in STEPS for name, value in timeline.figures(step).items()}
        return figures | self._calls(len(pods)) | self._spent(before) | {"core": core}

    async def _create(self, pods: Sequence[dict[str, Any]], timeline: Timeline) -> None:
        client, waiting = self._cluster.client("bench"), list(reversed(pods))

        async def creator() -> None:
            while waiting:
                each = waiting.pop()
                name = each["metadata"]["name"]
                timeline.sent[name] = self._cluster.clock.monotonic()
                await client.create(PODS.as_dicts(), each, "default")
                timeline.note("stored", name)

        await asyncio.gather(*(creator() for _ in range(CREATORS)))

    async def _quiet(self) -> None:
        seen = -1
        while (calls := self._busy()) != seen:
            seen = calls
            await self._cluster.clock.sleep(QUIET)

    def _busy(self) -> int:
        verbs = self._cluster.server.audit.verbs.items()
        return sum(count for (_, _, what, _), count in verbs if what not in {"leases.coordination.k8s.io", "nodes"})

    def _usages(self) -> dict[str, Usage]:
        return {"this": usage()} | ({"controller": usage(self._pid)} if self._pid else {})

    def _spent(self, before: Mapping[str, Usage]) -> dict[str, float]:
        after = self._usages()
        spent = {f"CPU s, {name} process": now.cpu - before[name].cpu for name, now in after.items()}
        return spent | {f"RSS MiB, {name} process": now.rss for name, now in after.items()}

    def _calls(self, pods: int) -> dict[str, float]:
        """API calls per pod: of each caller all of them and the writes among them, and of all together."""
        calls: Counter[str] = Counter()
        for entry in self._cluster.server.audit:
            name = next((name for name, user in CALLERS.items() if entry.user.startswith(user)), "others")
            events = " events" if entry.resource == "events" else ""
            calls["calls per pod, all"] += 1
            calls[f"calls per pod, {name}{events}"] += 1
            if entry.is_write and name in {"controller", "agents", "webhook"}:
                calls["writes per pod, Tessera"] += 1
        return {name: count / pods for name, count in calls.items()}


async def measure(given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One run: both bursts on one cluster."""
    clock, rng = SystemClock(), random.Random(seed)
    commands = own_commands()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.folder)))
        cluster = SimulatedCluster(
            parse_nodes(f"{given.nodes}*{given.cards}xA100-40GB"),
            clock=clock,
            options=ClusterOptions(cdi=folder, seed=seed, fair_queues=True),
            entrypoint=build_entrypoint(commands),
        )
        began = clock.monotonic()
        await stack.enter_async_context(cluster.running())
        client = cluster.client("bench")
        await install_tessera(client, without={ACCOUNT} if given.controller_process else ())
        pid = None
        if given.controller_process:
            pid = await stack.enter_async_context(controller_process(cluster, folder))
        pods = Informer(client, PODS, clock=clock, rng=rng, namespace="default")
        objects = Informer(client, INSTASLICES, clock=clock, rng=rng, namespace=INSTASLICE_NAMESPACE)
        bench = Bench(cluster, pods, objects, pid)
        async with bench.running():
            await bench.until(lambda: len(objects.cache) == given.nodes, "all nodes have joined")
            joined = clock.monotonic() - began
            plain = await bench.burst([pod(f"plain-{n}", {}) for n in range(given.pods)])
            chosen = rng.choices(list(MIX), list(MIX.values()), k=given.pods)
            asking = [pod(f"slice-{n}", {resource_of(name): 1}) for n, name in enumerate(chosen)]
            sliced = await bench.burst(asking)
    return {"seed": seed, "joined_s": joined, "plain": plain, "slices": sliced}


# What is shown


def shown(values: Sequence[float]) -> str:
    """Median, and the range where there is one."""
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    text = f"{middle:.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(runs: Sequence[Mapping[str, Any]]) -> None:
    """Both bursts side by side."""
    names = list(dict.fromkeys(name for run in runs for group in ("slices", "plain") for name in run[group]))
    print(f"{'':36}{'plain pods':>24}{'pods with a slice':>24}")
    for name in names:
        cells = [[run[group][name] for run in runs if name in run[group]] for group in ("plain", "slices")]
        print(f"{name:36}" + "".join(f"{shown(cell) if cell else '-':>24}" for cell in cells))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--cards", type=int, default=8, help="cards per node")
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3, help="fresh clusters; shown are median and range")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--controller-process", action="store_true", help="run `tessera controller` over HTTPS")
    parser.add_argument("--folder", type=Path, default=MEMORY if MEMORY.is_dir() else None, help="of the nodes' files")
    parser.add_argument("--json", type=Path, help="write the figures of all runs to this file")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    reduce_garbage_collection()
    runs: list[dict[str, Any]] = []
    for number in range(given.runs):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runs.append(runner.run(measure(given, given.seed + number)))
        if number + 1 < given.runs:
            gc.collect()
        print(f"run {number + 1} of {given.runs}: {given.nodes} nodes joined after {runs[-1]['joined_s']:.1f} s")
    where = "a process of its own" if given.controller_process else "this process"
    print(f"\nburst of {given.pods} pods on {given.nodes} simulated nodes x {given.cards} cards, controller in {where}")
    print(f"{os.cpu_count()} cores, load {load:.1f} at the start; median (least-most) of {given.runs} runs")
    table(runs)
    if given.json:
        options = {name: value for name, value in vars(given).items() if name not in {"json", "folder"}}
        machine = {"cores": os.cpu_count(), "load": load, "python": sys.version.split()[0]}
        given.json.write_text(json.dumps({"options": options, "machine": machine, "runs": runs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
