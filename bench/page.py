"""Cost of the live page on a large cluster: making its documents, finding what changed, and sending it to readers.

    python bench/page.py
    python bench/page.py --nodes 50 --readers 100 --json page.json
    python bench/page.py --serve 8099

The cluster is made up: nodes with 8 cards of 7 slices each, and a pod on each slice. In each round one node in eight
reports new values, as if all agents took a sample within eight rounds. ``--serve`` plays it, four rounds a second, for
a browser.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec

from tessera.api.nodes.usage import CardUsage, DeviceUsage, LeaseUsage, NodeUsage
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.feed import Feed, FeedGroup
from tessera.dashboard.server import PageAddress, PageServer
from tessera.dashboard.visibility import Visibility
from tessera.explain.explanation import ExplanationReport
from tessera.kube.resources import Pod
from tessera.usage.agent_pages import FleetUsage

CARDS, SLICES = 8, 7
GIB = 2.0**30
#: Of all nodes, one in so many changes in a round.
PART = 8


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


async def explain(namespace: str, pod: str, _visible: Visibility) -> ExplanationReport:
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


async def serve(nodes: int, port: int) -> None:
    """Plays the cluster until cancelled."""
    fleet, feeds = Fleet(nodes), FeedGroup()
    server = PageServer(feeds, explain, PageAddress("127.0.0.1", port))

    async def play() -> None:
        while True:
            feeds.publish(make_documents(fleet.advance(), fleet.pods, []))
            await asyncio.sleep(0.25)

    async with asyncio.TaskGroup() as group:
        group.create_task(server.run(lambda _, actual: print(f"http://localhost:{actual}/, a made-up cluster")))
        group.create_task(play())


def main() -> None:
    """Measures and prints the table, or serves the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200, help="nodes with 8 cards each")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of changes")
    parser.add_argument("--readers", type=int, default=50, help="readers of the feed")
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve the page of this cluster instead")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    if given.serve is not None:
        asyncio.run(serve(given.nodes, given.serve))
        return
    rows = measure(given.nodes, given.rounds, given.readers)
    load = os.getloadavg()[0]
    cards = given.nodes * CARDS
    print(f"{cards:,} cards, {cards * SLICES:,} pods, one node in {PART} changes in a round; load {load:.1f}")
    print(f"{'step':<24}{'unit':>8}{'median':>10}{'largest':>10}")
    for row in rows:
        print(f"{row['step']:<24}{row['unit']:>8}{row['median']:>10.1f}{row['largest']:>10.1f}")
    if given.json is not None:
        given.json.write_text(json.dumps({"cards": cards, "load": load, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
