"""What a trip through Tessera touches: files entered, functions, and moves from file to file.

    python -m bench.trail
    python -m bench.trail --trips pod --files --json trail.json

A trip begins in a quiet cluster and ends when its result is seen: *pod*, from the creation of a pod that asks for one
slice until it runs; *label*, from the label for a sharing profile until kubelet offers the shares; *xid*, from an error
of a card until the pod on it has its Event; *sample*, from a new value of a card until the live page shows it; *node*,
for half a second after a change of a Node that concerns nobody, which is what a large cluster has most of. All
processes of Tessera run in this one, on virtual time, on a node with one card; a hook sees every call of a function.
The hook counts what others do meanwhile too, such as a renewed Lease, so the figures vary by a few files. Of the files,
*lab* are entered only by the simulated cluster: its cards, and what its API server and kubelet borrow from Tessera.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.virtual_lab import ENTRYPOINT, VirtualLab

from tessera.clock import LoopClock
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.source import ClusterSource
from tessera.kube.resources import NODES
from tessera.nvml.interface import GpuEventKind
from tessera.nvml.measurements import Quantity
from tessera.nvml.simulated.machine_state import SimEvent
from tessera.visibility import FULL
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.installation.install import install_tessera
from tessera_lab.simulation.virtual_time import run_virtual

ROOT = Path(__file__).resolve().parents[1] / "src" / "tessera"
LAB = f"{ROOT}_lab/"
CARDS = f"{ROOT}/nvml/simulated/"
#: The rooms of processes: the simulated cluster calls these as a cluster would, and does not borrow them.
PROCESSES = tuple(f"{ROOT}/{room}/" for room in ("agent", "controller", "dashboard", "webhook"))
#: Simulated seconds after which a cluster is quiet.
QUIET = 120.0
#: A sharing profile that takes no device away.
SHARES = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"


class Trail:
    """Sees the calls of functions of Tessera."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.functions: set[tuple[str, str]] = set()
        self.moves = 0
        #: The files that Tessera's own processes enter.
        self.own: set[str] = set()
        self._last = ""

    def see(self, frame: FrameType, event: str, _argument: Any) -> None:
        """One event of the profiler."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{ROOT}/"):
            self.files[code.co_filename] += 1
            self.functions.add((code.co_filename, code.co_qualname))
            self.moves += code.co_filename != self._last
            self._last = code.co_filename
            if code.co_filename not in self.own and not self._is_borrowed(frame):
                self.own.add(code.co_filename)

    @staticmethod
    def _is_borrowed(frame: FrameType) -> bool:
        """True if the simulated cluster made this call for itself, or if its cards are called."""
        if frame.f_code.co_filename.startswith(CARDS):
            return True
        caller = frame
        while caller.f_back is not None and caller.f_back.f_code.co_filename.startswith(f"{ROOT}/"):
            caller = caller.f_back
            if caller.f_code.co_filename.startswith(CARDS):
                return True
        of_lab = caller.f_back is not None and caller.f_back.f_code.co_filename.startswith(LAB)
        return of_lab and not caller.f_code.co_filename.startswith(PROCESSES)

    def figures(self) -> dict[str, Any]:
        """What was seen: of files their number by the folder of Tessera, and all names; of functions all names."""
        paths = [str(Path(each).relative_to(ROOT)) for each in self.files]
        rooms = Counter(path.partition("/")[0] for path in paths)
        return {
            "files": len(paths),
            "lab": len(self.files.keys() - self.own),
            "functions": len(self.functions),
            "moves": self.moves,
            "rooms": dict(rooms.most_common()),
            "entered": sorted(paths),
            "called": sorted(f"{Path(path).relative_to(ROOT)}:{name}" for path, name in self.functions),
        }


async def pod_runs(lab: VirtualLab) -> AsyncIterator[None]:
    """A pod with one slice, from its creation until it runs."""
    yield
    await lab.create("one", {"nvidia.com/mig-1g.5gb": 1})
    await lab.until(lambda: (pod := lab.pod("one")) is not None and pod.status.phase == "Running", "the pod runs")


async def label_is_offered(lab: VirtualLab) -> AsyncIterator[None]:
    """A sharing profile, from the node's label until kubelet offers the shares.

    They have the name of the whole cards: where a name goes, the agent waits a second for pods that are on their way.
    """
    await lab.config_map("sharing-profiles", {"four": SHARES})
    await asyncio.sleep(QUIET)
    yield
    await lab.label("node-1", profile="four")
    await lab.until(lambda: 4 in lab.gpus().values(), "the node offers four shares")


async def xid_is_told(lab: VirtualLab) -> AsyncIterator[None]:
    """An error that asks for a reset, from the driver's event until the pod on the card has an Event."""
    await lab.create("one", {"nvidia.com/gpu": 1})
    await lab.running("one")
    await asyncio.sleep(QUIET)
    yield
    machine = lab.machine()
    machine.report(SimEvent(GpuEventKind.XID, machine.uuids()[0], 48))
    await lab.until(lambda: lab.events_of("one", "GpuNeedsReset"), "the pod is told")


async def sample_is_shown(lab: VirtualLab) -> AsyncIterator[None]:
    """A temperature, from the card until the live page, which has one reader, shows it."""
    feeds = FeedGroup()
    source = ClusterSource(lab.client, feeds, watched=lambda: True, clock=lab.clock, rng=random.Random(0))
    showing = asyncio.create_task(source.run())
    with feeds.join(FULL, "reader") as feed:

        def shows(value: int) -> bool:
            update = feed.read(None)
            return update is not None and any(f'"temperature":{value}'.encode() in each for each in update.texts)

        machine = lab.machine()
        await asyncio.sleep(QUIET)
        yield
        machine.set_measured(machine.uuids()[0], Quantity.TEMPERATURE, 77.0)
        async with asyncio.timeout(QUIET):
            while not shows(77):
                await feed.wait(feed.version)
    showing.cancel()


async def node_changes(lab: VirtualLab) -> AsyncIterator[None]:
    """A change of the Node that concerns nobody, such as a heartbeat or an annotation of others; half a second."""
    yield
    await lab.client.merge_patch(NODES, "node-1", {"metadata": {"annotations": {"example.com/seen": "1"}}})
    await asyncio.sleep(0.5)


#: By name, the trip and the layout of the node's cards. A trip yields once, when all is prepared and it begins.
TRIPS: dict[str, tuple[Callable[[VirtualLab], AsyncIterator[None]], str]] = {
    "pod": (pod_runs, "dynamic"),
    "label": (label_is_offered, ""),
    "xid": (xid_is_told, ""),
    "sample": (sample_is_shown, ""),
    "node": (node_changes, "dynamic"),
}


def measure(name: str) -> dict[str, Any]:
    """Makes a trip in a cluster of its own."""
    trip, layout = TRIPS[name]
    trail = Trail()

    async def play(folder: Path) -> None:
        options = ClusterOptions(cdi=folder, mig_config=layout, pages=True)
        nodes, clock = parse_nodes("1xA100-40GB"), LoopClock(1_800_000_000)
        cluster = SimulatedCluster(nodes, clock=clock, options=options, entrypoint=ENTRYPOINT)
        async with cluster.running():
            await install_tessera(cluster.client("install"))
            lab = VirtualLab(cluster)
            async with lab.watched.running():
                await lab.until(lambda: lab.tells("node-1") and lab.trusts_webhook(), "Tessera works")
                await asyncio.sleep(QUIET)
                steps = trip(lab)
                await anext(steps)
                sys.setprofile(trail.see)
                try:
                    await anext(steps, None)
                finally:
                    sys.setprofile(None)

    with tempfile.TemporaryDirectory() as folder:
        run_virtual(play(Path(folder)))
    return trail.figures()


def main() -> None:
    """Makes the trips and prints a line for each."""
    parser = argparse.ArgumentParser(prog="trail.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--trips", nargs="*", choices=sorted(TRIPS), default=list(TRIPS))
    parser.add_argument("--files", action="store_true", help="name the files")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    print(f"{'trip':<8}{'files':>7}{'lab':>5}{'functions':>11}{'moves':>8}  rooms")
    rows = {}
    for name in given.trips:
        row = rows[name] = measure(name)
        rooms = ", ".join(f"{room} {count}" for room, count in row["rooms"].items())
        print(f"{name:<8}{row['files']:>7}{row['lab']:>5}{row['functions']:>11}{row['moves']:>8}  {rooms}", flush=True)
        for path in row["entered"] if given.files else ():
            print(f"    {path}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
