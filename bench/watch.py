"""Measures the speed of a watch of pods, decoded and handled, and the memory of a cached pod.

Run ``python bench/watch.py [--json FILE]``. A stand-in for the API server runs in a process of its own and sends pods
of 9.27 KB, managedFields included, in chunked frames of 32 KB as fast as they are taken. Each way to read them runs in
a fresh process, so that memory is comparable. Printed for each: events per second from the first to the last, CPU of
the reading process per event, resident memory per cached pod after the list and after the events.

``tessera`` is what production does: transport, reflector, cache with one index, one handler, on uvloop. The others
keep every field of a pod in a dict by name, without an index, which is less work.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import msgspec
import uvloop

from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera.kube.cluster_config import ClusterConfig
from tessera.kube.credentials import StaticCredentials
from tessera.kube.http import HttpTransport
from tessera.kube.informer import Informer, WatchEvent
from tessera.kube.resources import PODS, Pod

#: What must be reached: events per second, and KB resident per cached pod.
BARS = (20_000, 15.0)

_POD_BYTES = 9_270
#: Nodes on which the pods run, equally many on each.
_NODES = 100
_FRAME_BYTES = 32 * 1024
_FIRST_VERSION = 1_000_000_000


# The stand-in for the API server


def pod(number: int, version: int) -> dict[str, Any]:
    """A pod of a ReplicaSet as kube-apiserver serves it."""
    name = f"inference-{number // 40:05d}-7d9c6b5f48-{number:05d}"
    app = name[:-17]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name[:-6], "uid": _uid(number // 40)}
    started = "2026-11-20T10:11:12Z"
    metadata = {
        "name": name,
        "generateName": name[:-5],
        "namespace": f"team-{number % 20:02d}",
        "uid": _uid(number),
        "resourceVersion": str(version),
        "creationTimestamp": started,
        "labels": {"app": app, "pod-template-hash": "7d9c6b5f48", "team": f"team-{number % 20:02d}"},
        "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
        "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
    }
    made = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": _spec(number),
        "status": _status(number, started),
    }
    metadata["managedFields"] = _managed_fields(_POD_BYTES - len(msgspec.json.encode(made)))
    return made


def _spec(number: int) -> dict[str, Any]:
    limits = {"nvidia.com/mig-3g.20gb": "1", "cpu": "4", "memory": "16Gi"}
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10}
    container = {
        "name": "server",
        "image": "registry.example/models/server:2026.11.2",
        "args": ["--model", "/models/llama", "--port", "8080"],
        "env": [{"name": f"SETTING_{i}", "value": f"value-of-setting-{i}"} for i in range(12)],
        "resources": {"limits": limits, "requests": limits},
        "livenessProbe": probe,
        "readinessProbe": probe,
        "volumeMounts": [{"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets/serviceaccount"}],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }
    token = {"defaultMode": 420, "sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}]}
    taints = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    node = f"node-{number % _NODES:03d}"
    return {
        "volumes": [{"name": "kube-api-access", "projected": token}],
        "containers": [container],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "nodeSelector": {"kubernetes.io/hostname": node},
        "serviceAccountName": "default",
        "nodeName": node,
        "schedulerName": "default-scheduler",
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300} for key in taints
        ],
        "priority": 0,
        "enableServiceLinks": True,
    }


def _status(number: int, started: str) -> dict[str, Any]:
    kinds = ("Initialized", "PodReadyToStartContainers", "Ready", "ContainersReady", "PodScheduled")
    container = {
        "name": "server",
        "state": {"running": {"startedAt": started}},
        "lastState": {},
        "ready": True,
        "restartCount": 0,
        "image": "registry.example/models/server:2026.11.2",
        "imageID": f"registry.example/models/server@sha256:{number:064x}",
        "started": True,
    }
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": started} for kind in kinds
        ],
        "hostIP": "10.0.0.1",
        "podIP": f"10.1.{number // 250 % 250}.{number % 250}",
        "startTime": started,
        "containerStatuses": [container],
        "qosClass": "Guaranteed",
    }


def _uid(number: int) -> str:
    return str(uuid.UUID(int=random.Random(number).getrandbits(128)))


def _managed_fields(size: int) -> list[dict[str, Any]]:
    """Filled up to the size that they have in practice, with keys such as they have."""
    fields: dict[str, Any] = {}
    entry = {"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "fieldsV1": fields}
    while len(msgspec.json.encode([entry])) + 75 < size:
        fields[f'k:{{"name":"field-{len(fields):03d}"}}'] = {".": {}, "f:name": {}, "f:value": {}, "f:type": {}}
    return [entry]


class FakeApi:
    """Answers LIST in pages, and WATCH with a number of MODIFIED events at full speed."""

    def __init__(self, pods: int, events: int) -> None:
        self._events = events
        marker = str(_FIRST_VERSION)
        encoded = [msgspec.json.encode(pod(number, _FIRST_VERSION)) for number in range(pods)]
        self._items = encoded
        lines = [b'{"type":"MODIFIED","object":' + item + b"}\n" for item in encoded]
        self._parts = [line.split(f'"resourceVersion":"{marker}"'.encode()) for line in lines]

    async def serve(self) -> None:
        """Prints its port and serves until killed."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                query = parse_qs(urlsplit(head.split(b" ", 2)[1].decode()).query)
                if "watch" in query:
                    await self._watch(writer)
                else:
                    self._list(writer, query)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _list(self, writer: asyncio.StreamWriter, query: dict[str, list[str]]) -> None:
        start = int(query.get("continue", ["0"])[0])
        stop = start + int(query.get("limit", [str(len(self._items))])[0])
        token = str(stop) if stop < len(self._items) else ""
        meta = msgspec.json.encode({"resourceVersion": str(_FIRST_VERSION), "continue": token})
        body = b'{"kind":"PodList","apiVersion":"v1","metadata":' + meta + b',"items":['
        body += b",".join(self._items[start:stop]) + b"]}"
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )

    async def _watch(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        pending: list[bytes] = []
        size = 0
        for number in range(1, self._events + 1):
            head, tail = self._parts[number % len(self._parts)]
            line = b'%s"resourceVersion":"%d"%s' % (head, _FIRST_VERSION + number, tail)
            pending.append(line)
            size += len(line)
            if size >= _FRAME_BYTES or number == self._events:
                writer.write(b"%x\r\n%s\r\n" % (size, b"".join(pending)))
                pending.clear()
                size = 0
                await writer.drain()


# The ways to read


class Meter:
    """Counts events; knows when the first and the last came, and the CPU used between them."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self._expected = expected
        self.done = asyncio.Event()
        self.began = self.ended = self.cpu_began = self.cpu_ended = 0.0

    def count(self) -> None:
        """One event was handled."""
        if self._left == self._expected:
            self.began, self.cpu_began = time.perf_counter(), time.process_time()
        self._left -= 1
        if not self._left:
            self.ended, self.cpu_ended = time.perf_counter(), time.process_time()
            self.done.set()

    def figures(self) -> dict[str, float]:
        """Events per second and CPU microseconds per event."""
        number = self._expected - 1
        seconds, cpu = self.ended - self.began, self.cpu_ended - self.cpu_began
        return {"events_per_second": number / seconds, "cpu_us_per_event": cpu / number * 1e6}


def resident_kb() -> float:
    """Resident memory of this process, KB of 1024 bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


async def read_with_tessera(url: str, pods: int, events: int) -> dict[str, float]:
    """The production path."""
    clock = SystemClock()
    transport = HttpTransport(ClusterConfig(server=url, credentials=StaticCredentials()))
    client = Client(transport, field_manager="bench", clock=clock)
    await client.page(PODS, limit=1)
    before = resident_kb()
    informer = Informer(
        client, PODS, clock=clock, rng=random.Random(1), indexes={"node": lambda item: (item.spec.node_name,)}
    )
    meter = Meter(events)
    phases: dict[str, int] = {}

    def handle(event: WatchEvent[Pod]) -> None:
        phases[event.object.status.phase] = phases.get(event.object.status.phase, 0) + 1
        if event.old is not None:
            meter.count()

    informer.add_handler(handle)
    began = time.perf_counter()
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    listed = time.perf_counter() - began
    after_list = resident_kb()
    await meter.done.wait()
    after_events = resident_kb()
    assert len(informer.cache) == pods
    assert len(informer.cache.by_index("node", "node-007")) == pods // _NODES
    running.cancel()
    await asyncio.wait({running})
    await client.close()
    return {
        **meter.figures(),
        "list_seconds": listed,
        "kb_per_pod": (after_list - before) / pods,
        "kb_per_pod_after_events": (after_events - before) / pods,
    }


async def read_with_dicts(url: str, pods: int, events: int, decode: Callable[[bytes], Any]) -> dict[str, float]:
    """Aiohttp, one decode to dicts, a dict by name."""
    meter = Meter(events)
    cache: dict[tuple[str, str], Any] = {}
    phases: dict[str, int] = {}

    def take(item: Any) -> None:
        cache[item["metadata"]["namespace"], item["metadata"]["name"]] = item
        phases[item["status"]["phase"]] = phases.get(item["status"]["phase"], 0) + 1

    async with aiohttp.ClientSession(read_bufsize=2**18) as session:
        await _read_page(session, url, decode, "", 1)
        before = resident_kb()
        began = time.perf_counter()
        async for page in _read_pages(session, url, decode):
            for item in page:
                take(item)
        listed = time.perf_counter() - began
        del page, item
        after_list = resident_kb()
        async with session.get(f"{url}/api/v1/pods", params={"watch": "true"}) as answer:
            rest = b""
            while not meter.done.is_set():
                *lines, rest = (rest + await answer.content.readany()).split(b"\n")
                for line in lines:
                    take(decode(line)["object"])
                    meter.count()
    after_events = resident_kb()
    assert len(cache) == pods
    return {
        **meter.figures(),
        "list_seconds": listed,
        "kb_per_pod": (after_list - before) / pods,
        "kb_per_pod_after_events": (after_events - before) / pods,
    }


async def _read_pages(session: aiohttp.ClientSession, url: str, decode: Callable[[bytes], Any]) -> AsyncIterator[Any]:
    token = "start"
    while token:
        page = await _read_page(session, url, decode, "" if token == "start" else token, 500)
        yield page["items"]
        token = page["metadata"]["continue"]


async def _read_page(
    session: aiohttp.ClientSession, url: str, decode: Callable[[bytes], Any], token: str, limit: int
) -> Any:
    params = {"limit": str(limit), **({"continue": token} if token else {})}
    async with session.get(f"{url}/api/v1/pods", params=params) as answer:
        return decode(await answer.read())


WAYS: dict[str, Callable[[str, int, int], Any]] = {
    "tessera (informer, index, handler)": read_with_tessera,
    "aiohttp + msgspec dicts": lambda url, pods, events: read_with_dicts(url, pods, events, msgspec.json.decode),
    "aiohttp + json dicts": lambda url, pods, events: read_with_dicts(url, pods, events, json.loads),
}


# Running them


def measure(way: str, pods: int, events: int, runs: int) -> dict[str, float]:
    """The median of each figure over several runs, each with a fresh server and a fresh reader."""
    results = [_one_run(way, pods, events) for _ in range(runs)]
    return {figure: statistics.median(result[figure] for result in results) for figure in results[0]}


def _one_run(way: str, pods: int, events: int) -> dict[str, float]:
    size = ["--pods", str(pods), "--events", str(events)]
    with subprocess.Popen([sys.executable, __file__, "--serve", *size], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
            reader = [sys.executable, __file__, "--read", way, "--url", url, *size]
            return dict(json.loads(subprocess.run(reader, stdout=subprocess.PIPE, check=True).stdout))
        finally:
            server.kill()


def table(results: dict[str, dict[str, float]]) -> Iterable[str]:
    """The figures as lines of text."""
    yield f"{'':36}{'events/s':>10}{'CPU us/event':>14}{'list s':>8}{'KB/pod listed':>15}{'KB/pod after':>14}"
    for way, figures in results.items():
        yield (
            f"{way:36}{figures['events_per_second']:>10,.0f}{figures['cpu_us_per_event']:>14.1f}"
            f"{figures['list_seconds']:>8.2f}{figures['kb_per_pod']:>15.1f}{figures['kb_per_pod_after_events']:>14.1f}"
        )


def main() -> None:
    """Parses the arguments and does one of: serve, read, measure all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=5_000)
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--runs", type=int, default=3, help="the median counts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--read", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pods < _NODES or options.pods % _NODES:
        parser.error(f"--pods: {options.pods}; there are as many on each of {_NODES} nodes")
    if options.serve:
        uvloop.run(FakeApi(options.pods, options.events).serve())
    elif options.read:
        print(json.dumps(uvloop.run(WAYS[options.read](options.url, options.pods, options.events))))
    else:
        _measure_all(options)


def _measure_all(options: argparse.Namespace) -> None:
    results = {way: measure(way, options.pods, options.events, options.runs) for way in WAYS}
    print(
        f"{options.pods:,} pods of {_POD_BYTES:,} bytes, {options.events:,} events,"
        f" {options.runs} runs, {os.cpu_count()} CPUs"
    )
    print("\n".join(table(results)))
    ours = results[next(iter(WAYS))]
    rate, memory = ours["events_per_second"], ours["kb_per_pod"]
    met = rate >= BARS[0] and memory < BARS[1]
    print(f"bars: at least {BARS[0]:,} events/s, below {BARS[1]:.0f} KB per pod: {'met' if met else 'MISSED'}")
    if options.json:
        options.json.write_text(
            json.dumps({"pods": options.pods, "events": options.events, "ways": results}, indent=2) + "\n"
        )
    if options.check and not met:
        sys.exit(1)


if __name__ == "__main__":
    main()
