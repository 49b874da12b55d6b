"""Cost of the live page on a large cluster: its documents in the server, and its frames in Chromium.

    python bench/page.py
    python bench/page.py --nodes 50 --readers 100 --json page.json
    python bench/page.py --serve 8099

The cluster is made up: nodes with 8 cards of 7 slices each, and a pod on each slice. For the server, one node in eight
reports new values in each round. For the browser, as for ``--serve``, ``--tiles`` slices change in a second, each time
on as many different cards, four times a second as the server publishes. A frame is the time between two calls of
``requestAnimationFrame``: Chromium draws at most 60 in a second, and here without a GPU. Without chromium in PATH
(``scripts/need-debian .venv/tools chromium``) frames are not measured.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tessera.access.agent_pages import FleetUsage
from tessera.api.nodes.usage import CardUsage, DeviceUsage, LeaseUsage, NodeUsage
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import CardDocument, Document
from tessera.dashboard.feed import Feed, FeedGroup
from tessera.dashboard.server import PageAddress, PageServer
from tessera.dashboard.source import SHORTEST
from tessera.explain.explanation import ExplanationReport
from tessera.kube.resources import Pod
from tessera.observe.service_rows import ServiceFinding, ServiceRow
from tessera.visibility import Visibility

CARDS, SLICES = 8, 7
GIB = 2.0**30
#: The longest time between two frames, of 95 in 100: 30 frames a second.
BAR = 34.0
#: Seconds before the measurement, in which the page draws the whole cluster.
WARM_UP = 3.0
_STATES = ("busy", "idle", "resident", "never_used")
#: Notes the time of each frame, and each part of the page that changed.
_RECORD = """() => {
  window.frames_ = []; window.changes_ = 0;
  let last = performance.now();
  const next = now => { window.frames_.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next);
  const cards = document.getElementById("cards");
  new MutationObserver(all => { window.changes_ += all.length; }).observe(cards, {attributes: true, subtree: true});
}"""


class Look(NamedTuple):
    """A way to look at the page: its name, the part of its address, and the width of the window."""

    name: str
    address: str
    width: int


LOOKS = (
    Look("mosaic, laptop", "#form=mosaic", 1280),
    Look("rows, laptop", "#form=rows", 1280),
    Look("mosaic, phone", "#form=mosaic", 390),
    Look("filter, laptop", "#form=mosaic&q=state:idle", 1280),
)


#: Of all nodes, one in so many changes in a round.
PART = 8
#: As many as the controller tells.
SERVICES = 1_000


def make_node(number: int, rng: random.Random) -> NodeUsage:
    """A node with a pod on each slice; its values are drawn."""
    cards, leases = [], []
    for index in range(CARDS):
        devices = tuple(
            DeviceUsage(
                uuid=f"MIG-{number}-{index}-{slot}",
                profile="1g.10gb",
                start=slot,
                size=1,
                share=1 / 8,
                values={"engine_active": rng.random(), "memory_used": 9 * GIB * rng.random(), "memory_total": 9 * GIB},
            )
            for slot in range(SLICES)
        )
        values = {"power": 700 * rng.random(), "temperature": 40 + 40 * rng.random(), "memory_total": 80 * GIB}
        cards.append(
            CardUsage(
                uuid=f"GPU-{number}-{index}",
                index=index,
                model="NVIDIA H100",
                mig=True,
                slots=8,
                values=values,
                devices=devices,
            )
        )
        leases += [
            LeaseUsage(
                namespace=f"team-{slot}",
                pod=f"pod-{number}-{index}-{slot}",
                uid=_uid(number, index, slot),
                container="main",
                device=device.uuid,
                kind="slice",
                share=1 / 8,
                state=rng.choice(("busy", "idle", "resident", "never_used")),
                busy=device.values["engine_active"],
            )
            for slot, device in enumerate(devices)
        ]
    return NodeUsage(node=f"node-{number}", simulated=True, cards=tuple(cards), leases=tuple(leases))


def _uid(number: int, index: int, slot: int) -> str:
    return f"uid-{number}-{index}-{slot}"


def make_pods(nodes: int) -> list[Pod]:
    """The pods of these nodes, without owners."""
    places = [(n, c, s) for n in range(nodes) for c in range(CARDS) for s in range(SLICES)]
    return [
        msgspec.convert(
            {"metadata": {"name": f"pod-{n}-{c}-{s}", "uid": _uid(n, c, s)}, "spec": {"nodeName": "n"}}, Pod
        )
        for n, c, s in places
    ]


class Fleet:
    """Nodes of which some change in each round."""

    def __init__(self, nodes: int) -> None:
        self._rng = random.Random(1)
        self._nodes = [make_node(number, self._rng) for number in range(nodes)]
        self._round = 0
        self.pods = make_pods(nodes)

    def advance(self) -> FleetUsage:
        """Changes one node in :data:`PART`."""
        self._round += 1
        for number in range(self._round % PART, len(self._nodes), PART):
            self._nodes[number] = make_node(number, self._rng)
        return FleetUsage(nodes=tuple(self._nodes))


async def explain(namespace: str, pod: str, _visible: Visibility, _key: str) -> ExplanationReport:
    """No pod waits here."""
    return ExplanationReport(kind="pod", namespace=namespace, name=pod)


def measure(nodes: int, rounds: int, readers: int) -> list[dict[str, Any]]:
    """A row for each step of a round: milliseconds of CPU."""
    fleet, feed = Fleet(nodes), Feed()
    times: dict[str, list[float]] = {"make documents": [], "find changes": [], f"give to {readers} readers": []}
    sizes = []
    versions: list[int | None] = [None] * readers
    for _ in range(rounds):
        usage = fleet.advance()
        marks = [time.process_time()]
        documents = make_documents(usage, fleet.pods, [])
        marks.append(time.process_time())
        feed.publish(documents)
        marks.append(time.process_time())
        size = 0
        for reader, version in enumerate(versions):
            update = feed.read(version)
            if update is not None:
                versions[reader], size = update.version, sum(map(len, update.texts))
        marks.append(time.process_time())
        for values, begin, end in zip(times.values(), marks, marks[1:], strict=False):
            values.append(1000 * (end - begin))
        sizes.append(size)
    rows = [_row(name, "CPU ms", values) for name, values in times.items()]
    rows.append(_row("a change as text", "KiB", [size / 1024 for size in sizes[1:]]))
    rows.append(_row("a snapshot as text", "KiB", [size / 1024 for size in sizes[:1]]))
    return rows


def _row(name: str, unit: str, values: list[float]) -> dict[str, Any]:
    return {"step": name, "unit": unit, "median": statistics.median(values), "largest": max(values)}


def make_service(number: int, rng: random.Random) -> ServiceRow:
    """A service with a finding; its load is drawn."""
    finding = ServiceFinding(
        kind="throttled", pods=rng.randrange(1, 9), pod=f"s-{number}-0", node="node-1", text="throttled for 25m: slow"
    )
    return ServiceRow(
        namespace=f"team-{number % SLICES}",
        kind="Deployment",
        name=f"s-{number}",
        ready=3,
        wanted=3,
        requests=round(100 * rng.random(), 2),
        power=round(700 * rng.random()),
        findings=(finding,),
    )


class ChangingTiles:
    """Documents of a large cluster, of which some tiles change, and one service in :data:`PART`."""

    def __init__(self, nodes: int) -> None:
        fleet = Fleet(nodes)
        self._rng = random.Random(1)
        self.documents: dict[str, Document] = dict(make_documents(fleet.advance(), fleet.pods, []))
        services = (make_service(number, self._rng) for number in range(SERVICES))
        self.documents |= {f"service/{each.key}": each for each in services}
        self._keys = [key for key, each in self.documents.items() if isinstance(each, CardDocument)]

    def change(self, tiles: int) -> None:
        """Changes a tile on each of so many cards."""
        for key in self._rng.sample(self._keys, min(tiles, len(self._keys))):
            card = self.documents[key]
            assert isinstance(card, CardDocument)
            self.documents[key] = self._change_tile(card)
        for number in self._rng.sample(range(SERVICES), SERVICES // PART):
            service = make_service(number, self._rng)
            self.documents[f"service/{service.key}"] = service

    def _change_tile(self, card: CardDocument) -> CardDocument:
        at, busy = self._rng.randrange(len(card.tiles)), self._rng.random()
        tile = card.tiles[at]
        leases = tuple(
            msgspec.structs.replace(each, state=self._rng.choice(_STATES), busy=busy) for each in tile.leases
        )
        tile = msgspec.structs.replace(tile, busy=busy, leases=leases)
        return msgspec.structs.replace(card, tiles=(*card.tiles[:at], tile, *card.tiles[at + 1 :]))


async def serve(nodes: int, rate: int, port: int) -> None:
    """Serves the cluster until cancelled."""
    feeds, cluster = FeedGroup(), ChangingTiles(nodes)
    server = PageServer(feeds, explain, PageAddress("127.0.0.1", port))

    async def play() -> None:
        while True:
            cluster.change(round(rate * SHORTEST))
            feeds.publish(cluster.documents)
            await asyncio.sleep(SHORTEST)

    async with asyncio.TaskGroup() as group:
        group.create_task(server.run(lambda _, actual: print(f"http://localhost:{actual}/", flush=True)))
        group.create_task(play())


@contextmanager
def served(nodes: int, rate: int) -> Iterator[str]:
    """A server of the cluster, as a process of its own; its address."""
    command = [sys.executable, __file__, "--serve", "0", "--nodes", str(nodes), "--tiles", str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def measure_frames(chromium: str, url: str, seconds: float) -> list[dict[str, Any]]:
    """A row for each way to look at the page."""
    from playwright.sync_api import sync_playwright

    rows = []
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        with playwright.chromium.launch(executable_path=chromium, args=arguments) as browser:
            for look in LOOKS:
                with browser.new_context(viewport={"width": look.width, "height": 800}) as context:
                    page = context.new_page()
                    page.goto(url + look.address)
                    page.locator("#cards").evaluate("element => element.scrollIntoView({behavior: 'instant'})")
                    page.locator("[data-card]").first.wait_for()
                    page.wait_for_timeout(1000 * WARM_UP)
                    page.evaluate(_RECORD)
                    page.wait_for_timeout(1000 * seconds)
                    frames, changes = page.evaluate("[window.frames_, window.changes_]")
                    drawn = page.locator("[data-card]").count()
                    rows.append(_frame_row(look, frames, changes / seconds, drawn))
    return rows


def _frame_row(look: Look, frames: list[float], changes: float, drawn: int) -> dict[str, Any]:
    ordered = sorted(frames)

    def part(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)

    late = sum(each > BAR for each in frames)
    values = {"p50": part(0.5), "p95": part(0.95), "p99": part(0.99), "largest": part(1.0)}
    return {
        "look": look.name,
        "cards in the document": drawn,
        "drawn changes per s": round(changes),
        "frames": len(frames),
        **values,
        f"over {BAR:.0f} ms": late,
    }


def main() -> None:
    """Measures and prints the tables, or serves the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200, help="nodes with 8 cards each")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of changes for the server")
    parser.add_argument("--readers", type=int, default=50, help="readers of the feed")
    parser.add_argument("--tiles", type=int, default=1000, help="tiles that change in a second for the browser")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement in the browser")
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve the page of this cluster instead")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error(f"--rounds: {given.rounds}; the first round sends everything, so there must be 2")
    if given.serve is not None:
        asyncio.run(serve(given.nodes, given.tiles, given.serve))
        return
    cards = given.nodes * CARDS
    rows = measure(given.nodes, given.rounds, given.readers)
    load = os.getloadavg()[0]
    print(f"{cards:,} cards, {cards * SLICES:,} pods, one node in {PART} changes in a round; load {load:.1f}")
    _print(rows)
    figures = {"cards": cards, "load": load, "rows": rows, "frames": []}
    chromium = shutil.which("chromium", path=f"{os.environ.get('PATH', '')}:.venv/tools/bin")
    if chromium is None:
        print("frames are not measured: no chromium in PATH; get one by scripts/need-debian .venv/tools chromium")
    else:
        with served(given.nodes, given.tiles) as url:
            figures["frames"] = frames = measure_frames(chromium, url, given.seconds)
        load = figures["frames_load"] = os.getloadavg()[0]
        print(
            f"\n{given.tiles:,} tiles change in a second; ms between two frames; bar: p95 <= {BAR:.0f}; load {load:.1f}"
        )
        _print(frames)
    if given.json is not None:
        given.json.write_text(json.dumps(figures) + "\n")


def _print(rows: list[dict[str, Any]]) -> None:
    """Prints rows as a table; the first column is text."""
    texts = [[f"{each:.1f}" if isinstance(each, float) else f"{each}" for each in row.values()] for row in rows]
    lines = [list(rows[0]), *texts]
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    for first, *rest in lines:
        print(
            f"{first:<{widths[0]}}",
            *(f"{each:>{width}}" for each, width in zip(rest, widths[1:], strict=True)),
            sep="  ",
        )


if __name__ == "__main__":
    main()
