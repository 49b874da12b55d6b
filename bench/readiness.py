"""From a marker to kubelet: how long the agent takes over what others have got ready, in real time.

    python bench/readiness.py
    python bench/readiness.py --runs 50 --json readiness.json

Each run is a fresh agent on simulated cards: a driver container's marker is written, then that of the validation. Real
are the clock, the files, inotify, and kubelet's sockets with gRPC; the API server is in the process. NVIDIA's operator
spends up to 5 s on each of these two looks, since it looks every 5 s.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from tessera.agent.base.node_files import MarkerFiles
from tessera.agent.base.settings import AgentOptions
from tessera.agent.lifecycle import run_lifecycle
from tessera.agent.simulated import SimulatedDriver, SimulatedPrograms
from tessera.api.nodes.node_marks import CUDA_READY, DRIVER_CONTAINER_READY, DRIVER_READY
from tessera.cli.agent import node_satellites
from tessera.clock import SystemClock
from tessera.doctor.manifests import install_manifests
from tessera.kube.client import Client
from tessera.kube.resources import NODES
from tessera.kubelet.grpc import GrpcKubelet
from tessera.kubelet.interfaces import PluginOptions
from tessera.nvml.simulated.machine_state import DRIVER_VERSION
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.installation.install import apply_manifests
from tessera_lab.kubelet.device_plugins.grpc_servers import PodResourcesServer, RegistrationServer
from tessera_lab.kubelet.device_plugins.plugin_client import PluginClient
from tessera_lab.kubelet.devices.checkpoint import MemoryCheckpoint
from tessera_lab.kubelet.devices.device_manager import DeviceManager

NODE, CARDS = "node-1", "8xA100-80GB"
ROWS = ("driver marker to driver-ready", "validation to registration", "validation to devices counted")


async def run(number: int, folder: Path) -> dict[str, float]:
    """One agent; milliseconds by row."""
    clock = SystemClock()
    server = ApiServer(clock)
    client = Client(
        InProcessTransport(server, UserInfo(name="agent", groups=("system:masters",))),
        field_manager="agent",
        clock=clock,
    )
    await apply_manifests(
        client, [each for each in install_manifests() if each["kind"] in {"CustomResourceDefinition", "Namespace"}]
    )
    await client.create(NODES.as_dicts(), {"metadata": {"name": NODE}, "status": {"nodeInfo": {"bootID": "boot-1"}}})
    machine = SimulatedMachine(CARDS, seed=NODE, driver=None)
    markers = MarkerFiles(folder / "validations")
    (folder / "validations").mkdir()
    times: dict[str, float] = {}
    counted = asyncio.Event()
    manager = DeviceManager(
        clock=clock, checkpoint=MemoryCheckpoint(), on_change=lambda: _count(manager, counted), running_pods=list
    )

    async def registered(resource_name: str, options: PluginOptions, client: PluginClient) -> None:
        times.setdefault(ROWS[1], clock.monotonic())
        await manager.add_plugin(resource_name, options, client)

    options = AgentOptions(
        node_name=NODE, cdi_dir=folder / "cdi", state_dir=folder / "state", markers_dir=folder / "validations"
    )
    options.state_dir.mkdir()
    kubelet = GrpcKubelet(folder, folder / "pods.sock", clock=clock)
    async with RegistrationServer(folder, registered), PodResourcesServer(folder / "pods.sock", manager):
        driver, programs = SimulatedDriver(machine, clock), SimulatedPrograms(machine, clock)
        rng, satellites = random.Random(number), node_satellites(options)
        life = run_lifecycle(options, client, driver, kubelet, clock, rng=rng, programs=programs, satellites=satellites)
        agent = asyncio.create_task(life)
        await asyncio.sleep(0.2)  # it has come to rest, as one that waits for minutes has
        machine.load_driver(DRIVER_VERSION)
        began = clock.monotonic()
        markers.write(DRIVER_CONTAINER_READY)
        await _until(markers, lambda: markers.present(DRIVER_READY))
        times[ROWS[0]] = clock.monotonic()
        await asyncio.sleep(0.05)
        validated = clock.monotonic()
        markers.write(CUDA_READY, markers.about_driver())
        await counted.wait()
        times[ROWS[2]] = clock.monotonic()
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
        await manager.stop()
    starts = dict(zip(ROWS, (began, validated, validated), strict=True))
    return {row: (times[row] - starts[row]) * 1000 for row in ROWS}


def _count(manager: DeviceManager, counted: asyncio.Event) -> None:
    if sum(manager.ledger.counts()[1].values()):
        counted.set()


async def _until(markers: MarkerFiles, holds: Callable[[], bool]) -> None:
    async for _ in markers.changes():
        if holds():
            return


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="agents that are started one after the other")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    runs = []
    for number in range(given.runs):
        with tempfile.TemporaryDirectory(prefix="tb", dir="/tmp") as path:
            runs.append(asyncio.run(run(number, Path(path))))
    print(f"from a marker to kubelet, ms of {given.runs} runs each; simulated cards ({CARDS}), all else real")
    print(f"{'':<34}{'p50':>8}{'p90':>8}{'max':>8}")
    rows = []
    for row in ROWS:
        found = sorted(each[row] for each in runs)
        p90 = found[min(len(found) - 1, int(len(found) * 0.9))]
        rows.append({"what": row, "p50": statistics.median(found), "p90": p90, "max": found[-1]})
        print(f"{row:<34}{rows[-1]['p50']:>8.1f}{p90:>8.1f}{found[-1]:>8.1f}")
    figures = {"runs": given.runs, "cards": CARDS, "simulated": ["cards", "API server"], "rows": rows}
    if given.json is None:
        print(json.dumps(figures))
    else:
        given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
