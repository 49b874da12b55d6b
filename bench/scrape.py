"""The cost of metrics on one node: a sample, its text, and a scrape, with 8 cards x 7 slices and 56 pods.

    python bench/scrape.py                     about half a minute
    python bench/scrape.py --json scrape.json

The cards are simulated, so the time that NVML itself takes is not in it; everything else is the agent's code. *sample*
reads all cards, slices and holders; *text* writes the series; *scrape* is one GET of ``/metrics`` over loopback, while
samples go on. The alternative writes the same rows with ``prometheus_client`` in each scrape, as an exporter without a
text of its own does. *share of a core* is the CPU time of sample and text, one of each in 10 seconds, and of one scrape
in 10 seconds.
"""

import argparse
import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tessera.agent.base.host import ProcessTable
from tessera.agent.base.settings import MetricNames
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.agent.inventory.sliceable_gpus import SliceLease
from tessera.agent.monitoring.exporter import PERIOD
from tessera.agent.monitoring.exposition import ExpositionOptions, render
from tessera.agent.monitoring.findings import LeaseFindings
from tessera.agent.monitoring.lease_states import LeaseStates
from tessera.agent.monitoring.sampler import NodeSampler
from tessera.api.names import PodUid
from tessera.api.sharing.devices import Advertisement
from tessera.clock import SystemClock
from tessera.kube.resources import ObjectMeta, Pod, Uid
from tessera.kubelet.interfaces import ClaimPlugin, ContainerDevices, ContainerResources, DevicePlugin, PodResources
from tessera.nvml.interface import GpuUuid
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera.serving.status_server import FRESH, serve_status

CARDS, SLICES, PROFILE = 8, 7, "1g.10gb"


class Node:
    """A node whose slices are all held, as the rest of the agent sees it; also its kubelet."""

    def __init__(self) -> None:
        self.machine = SimulatedMachine(f"{CARDS}xH100-80GB", seed="node-1", mig=True)
        self.offer = Advertisement(resources={})
        self._leases: list[SliceLease] = []
        self._pods: list[Pod] = []
        self._listed: list[PodResources] = []
        for gpu in self.machine.uuids():
            for start in range(SLICES):
                self._add_pod(gpu, start)

    def _add_pod(self, gpu: GpuUuid, start: int) -> None:
        number = len(self._pods)
        gi_id = self.machine.create_gpu_instance(gpu, PROFILE, start)
        device = self.machine.create_compute_instance(gpu, gi_id, 0).mig_uuid
        self.machine.start_process(device, 1 << 30, activity=0.5)
        name, uid, device_id = f"training-{number:02}", f"uid-{number}", f"{gpu}:{PROFILE}:{start}"
        self._pods.append(Pod(metadata=ObjectMeta(name=name, namespace="team", uid=Uid(uid))))
        self._leases.append(SliceLease(PodUid(uid), device, device_id))
        devices = (ContainerDevices(resource_name=f"nvidia.com/mig-{PROFILE}", device_ids=(device_id,)),)
        containers = (ContainerResources(name="main", devices=devices),)
        self._listed.append(PodResources(name=name, namespace="team", containers=containers))

    def leases(self) -> Sequence[SliceLease]:
        """The slices that pods hold."""
        return self._leases

    def live_pods(self) -> Sequence[Pod]:
        """The pods of the node."""
        return self._pods

    async def pod_resources(self) -> Sequence[PodResources]:
        """Kubelet's list of devices."""
        return self._listed

    async def serve(self, plugin: DevicePlugin) -> None:
        """No device plugin is served here."""
        raise NotImplementedError(plugin)

    async def serve_claims(self, plugin: ClaimPlugin, on_registered: Callable[[], None] = lambda: None) -> None:
        """No driver is served here."""
        raise NotImplementedError(plugin)


class Page:
    """A process whose ``/metrics`` is this text, or what a registry writes."""

    def __init__(self) -> None:
        self.text = b""
        self.registry: CollectorRegistry | None = None

    def metrics_text(self) -> bytes:
        """The text of ``/metrics``."""
        return self.text if self.registry is None else generate_latest(self.registry)

    def unready_reason(self) -> str:
        """Always ready."""
        return ""


class Families(Collector):
    """The rows of a text as families of ``prometheus_client``."""

    def __init__(self, text: bytes) -> None:
        self._families = list(text_string_to_metric_families(text.decode()))

    def collect(self) -> Any:
        """The families, made once; a real exporter has to make them anew."""
        return self._families


async def measure(samples: int, scrapes: int) -> dict[str, Any]:
    """Measures all of it."""
    node = Node()
    hardware = InlineNvml(node.machine, SystemClock())
    inventory = InventoryReader(hardware, ChangeNotifier())
    await inventory.refresh()
    sampler = NodeSampler(
        hardware,
        node,
        inventory=inventory,
        offer=lambda: node.offer,
        leases=node.leases,
        claimed=dict,
        pods=node,
        processes=ProcessTable(),
        clock=SystemClock(),
    )
    options = ExpositionOptions(names=MetricNames.BOTH, node="node-1")
    await sampler.take()
    states, findings = LeaseStates(), LeaseFindings()
    sampled, judged, written = [], [], []
    page = Page()
    for _ in range(samples):
        begin = time.process_time()
        sample = await sampler.take()
        taken = time.process_time()
        states.handle(sample)
        findings.handle(sample)
        middle = time.process_time()
        page.text = render(sample, options)
        sampled.append(taken - begin)
        judged.append(middle - taken)
        written.append(time.process_time() - middle)
    own, own_cpu = await scrape(page, scrapes, sampler, options)
    page.registry = CollectorRegistry()
    page.registry.register(Families(page.text))
    other, other_cpu = await scrape(page, scrapes, sampler, options)
    cost = statistics.median(sampled) + statistics.median(judged) + statistics.median(written) + own_cpu
    return {
        "rows": sum(1 for line in page.text.splitlines() if not line.startswith(b"#")),
        "bytes": len(page.text),
        "sample_ms": 1e3 * statistics.median(sampled),
        "judge_ms": 1e3 * statistics.median(judged),
        "text_ms": 1e3 * statistics.median(written),
        "scrape_p99_ms": 1e3 * percentile(own, 0.99),
        "scrape_p50_ms": 1e3 * percentile(own, 0.5),
        "prometheus_client_p99_ms": 1e3 * percentile(other, 0.99),
        "prometheus_client_p50_ms": 1e3 * percentile(other, 0.5),
        "core_share": cost / PERIOD,
        "prometheus_client_core_share": (cost - own_cpu + other_cpu) / PERIOD,
    }


async def scrape(
    page: Page, scrapes: int, sampler: NodeSampler, options: ExpositionOptions
) -> tuple[list[float], float]:
    """Scrapes one after another while samples are taken; wall seconds of each, and CPU seconds of one on the median."""
    ports: asyncio.Queue[int] = asyncio.Queue()
    server = asyncio.create_task(
        serve_status(page, 0, address="127.0.0.1", on_listening=lambda _address, port: ports.put_nowait(port))
    )
    port = await ports.get()
    walls, cpus = [], []
    async with aiohttp.ClientSession() as session:
        for number in range(scrapes):
            sampling = asyncio.create_task(take(sampler, options)) if number % 10 == 0 else None
            await asyncio.sleep(FRESH)  # within that time clients share one answer
            begin, cpu = time.perf_counter(), time.process_time()
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                await answer.read()
            walls.append(time.perf_counter() - begin)
            if sampling is None:
                cpus.append(time.process_time() - cpu)
            else:
                await sampling
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)
    return walls, statistics.median(cpus)


async def take(sampler: NodeSampler, options: ExpositionOptions) -> None:
    """One sample and its text."""
    render(await sampler.take(), options)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below the given share of all."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def main() -> None:
    """Measures, prints a table and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100, help="samples to take (100)")
    parser.add_argument("--scrapes", type=int, default=100, help="scrapes of each kind (100)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    if given.scrapes < 2:
        parser.error(f"--scrapes: {given.scrapes}; a sample is taken during the first, so there must be 2")
    found = asyncio.run(measure(given.samples, given.scrapes))
    print(f"{CARDS} cards x {SLICES} slices, {CARDS * SLICES} pods (simulated): {found['rows']} rows")
    print(f"{'':24}{'Tessera':>12}{'prometheus_client':>20}")
    for name, key in (("scrape p50, ms", "scrape_p50_ms"), ("scrape p99, ms", "scrape_p99_ms")):
        print(f"{name:24}{found[key]:>12.2f}{found[key.replace('scrape', 'prometheus_client')]:>20.2f}")
    shares = 100 * found["core_share"], 100 * found["prometheus_client_core_share"]
    print(f"{'share of a core, %':24}{shares[0]:>12.2f}{shares[1]:>20.2f}")
    print(f"{'sample, CPU ms':24}{found['sample_ms']:>12.2f}{'the same':>20}")
    print(f"{'states, findings, CPU ms':24}{found['judge_ms']:>12.2f}{'the same':>20}")
    print(f"{'text, CPU ms':24}{found['text_ms']:>12.2f}{'in each scrape':>20}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
