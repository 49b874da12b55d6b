"""Measures the load of pods with slices on a real API server: a burst on fake nodes, with any kubeconfig.

    python bench/server.py --kubeconfig ~/.kube/config             200 pods on 100 fake nodes of 8 simulated A100
    python bench/server.py --kubeconfig FILE --pods 1000 --json server.json
    python bench/server.py --kubeconfig FILE --claims              a third burst, of pods with a ResourceClaim each

The cluster must not have Tessera installed. The benchmark installs ``deploy/`` without its Deployments, with agents'
pods on the fake nodes alone: where a node has no such pod, the controller takes its agent for silent, and says so. It
runs ``tessera controller`` and ``tessera webhook`` here as processes of their own under their service accounts, and
registers fake nodes: the lab's kubelets with the production agents, in one more process, under the identities that
real ones have (by impersonation, so the kubeconfig must be an administrator's). The fake nodes are tainted and the
pods select them, so that nothing of the cluster mixes with the two. Pods are placed by the cluster's scheduler where
``--scheduler`` names it, else by the lab's. In the end all of it is removed again. The API server must reach this
machine at ``--address`` for its webhook calls.

Cards, images and containers are simulated; the API server is whatever the kubeconfig names. Its CPU time is read from
its ``/metrics``: with several replicas behind one address that is one of them, and the figure means little.

Two bursts run one after the other, first of pods without GPUs, then of pods with a slice. With ``--claims`` as many
fake nodes more give slices by ResourceClaims, and a third burst asks for the same profiles by a template each; that
needs a cluster with a scheduler and a controller manager. A pod's time counts from the moment the create is sent;
*ungated*, *bound* and *running* are when a watcher sees them. CPU of the API server is counted from
the first create until all pods run and their Events are sent, and once more until all are deleted and their slices
given back.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import DEVICE_API_LABEL, GATE, INSTASLICE_NAMESPACE, resource_of
from tessera.cli import agent
from tessera.cli.base.kubeconfig import load_config
from tessera.cli.install.apply import render
from tessera.cli.install.manifests import InstallChoices
from tessera.clock import Clock, SystemClock
from tessera.dra.node_devices import DRIVER
from tessera.kube.cache import WatchEvent
from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, NotFound
from tessera.kube.informer import Informer, InformerGroup
from tessera.kube.resources import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Pod
from tessera.kube.resources.meta import Resource, resource_for
from tessera.mig.names import resource_spelling
from tessera_lab.cluster.remote_nodes import ClusterAccess, run_nodes
from tessera_lab.installation.install import apply_manifests
from tessera_lab.scheduler.claim_binding import RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES

MIX = {"1g.5gb": 0.20, "1g.10gb": 0.10, "2g.10gb": 0.30, "3g.20gb": 0.30, "4g.20gb": 0.10}
#: How many creations are under way at once, as a workload controller's burst would have.
CREATORS = 20
TIMEOUT = 600.0
#: Figures whose ratio in one run counts: the figure, and the two bursts.
RATIOS = (
    ("API server CPU ms a pod until it runs", "slices", "plain"),
    ("API server CPU ms a pod, whole life", "slices", "plain"),
    ("ungated p99 s", "slices", "plain"),
    ("bound p99 s", "claims", "slices"),
)
#: Seconds without an Event after which all of a burst are taken for sent.
EVENTS_PAUSE = 2.0
#: Verbs of the server's metric that change something.
WRITES = {"POST", "PUT", "PATCH", "APPLY", "DELETE"}
SYSTEM, SCHEDULER, BURST = "tessera-system", "tessera-bench", "tessera-bench"
#: Keeps the cluster's own pods away from the fake nodes, and the benchmark's pods on them.
FAKE = "bench.tessera.dev/fake"
PREFIX = "tessera-bench-"
TAINT = {"key": FAKE, "value": "true", "effect": "NoSchedule"}


# The process of fake nodes


async def fake_nodes(given: argparse.Namespace) -> None:
    """Kubelets, agents and a scheduler, until this process is ended."""
    daemonset = next(each for each in _rendered(given.claims) if each["kind"] == "DaemonSet")
    container = daemonset["spec"]["template"]["spec"]["containers"][0]
    arguments: Sequence[str] = container["args"]
    variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    await run_nodes(
        given.kubeconfig,
        nodes=f"{given.nodes * (1 + given.claims)}*{given.cards}xA100-40GB",
        prefix=PREFIX,
        label=FAKE,
        taint=TAINT,
        folder=Path(given.folder),
        agent=lambda name: agent.parse_options(arguments, variables | {"NODE_NAME": name}),
        scheduler="" if given.scheduler else SCHEDULER,
        by_claims=_claim_nodes(given),
    )


def _claim_nodes(given: argparse.Namespace) -> set[str]:
    """The fake nodes whose agents give slices by claims: the second half."""
    return (
        {f"{PREFIX}node-{number}" for number in range(given.nodes + 1, 2 * given.nodes + 1)} if given.claims else set()
    )


# Installing and removing


def _rendered(claims: bool) -> Sequence[dict[str, Any]]:
    """What ``tessera install`` would apply."""
    return list(render(InstallChoices(claim_driver=DRIVER if claims else "", dashboard=False)))


def _manifests(address: str, port: int, *, claims: bool) -> Iterator[dict[str, Any]]:
    """``deploy/`` without its Deployments, its agents for the fake nodes; webhooks are called at this machine."""
    for manifest in _rendered(claims):
        if manifest["kind"] in {"Deployment", "PodDisruptionBudget", "Service"}:
            continue
        if manifest["kind"] == "DaemonSet":
            manifest["spec"]["template"]["spec"].setdefault("nodeSelector", {})[FAKE] = "true"
        for webhook in manifest.get("webhooks", ()):
            path = webhook["clientConfig"].pop("service")["path"]
            webhook["clientConfig"]["url"] = f"https://{address}:{port}{path}"
        yield manifest


async def remove(client: Client, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Deletes what was installed, webhooks first, and the fake nodes."""
    await _delete_all(client, NODES.as_dicts(), FAKE)
    for manifest in sorted(manifests, key=lambda each: "webhooks" not in each):
        metadata = manifest["metadata"]
        with suppress(NotFound):
            await client.delete(resource_for(manifest), metadata["name"], metadata.get("namespace"))
    with suppress(NotFound):
        await client.delete(NAMESPACES, BURST)


async def _delete_all(client: Client, resource: Resource[Any], label: str) -> None:
    for each in (await client.list(resource, label_selector=label)).items:
        with suppress(NotFound):
            await client.delete(resource, each["metadata"]["name"])


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """One of our processes while the block runs."""
    running = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            running.terminate()
        await running.wait()


async def account_kubeconfig(client: Client, kubeconfig: str, account: str, folder: Path) -> str:
    """A kubeconfig with a token of one of Tessera's service accounts; the rest is that of the administrator's."""
    config = load_config(clock=SystemClock(), kubeconfig=kubeconfig)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86_400}}
    answer = await client.request("POST", SERVICE_ACCOUNTS.path(SYSTEM, account, "token"), body=body)
    token = msgspec.json.decode(answer.body)["status"]["token"]
    cluster: dict[str, Any] = {"server": config.server}
    if config.verify:
        (folder / "ca.crt").write_bytes(config.ca)
        cluster |= {"certificate-authority": "ca.crt"} if config.ca else {}
    else:
        cluster["insecure-skip-tls-verify"] = True
    path = folder / f"{account}.kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "bench", "cluster": cluster}],
                "users": [{"name": "bench", "user": {"token": token}}],
                "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
                "current-context": "bench",
            }
        )
    )
    return str(path)


# Measuring


class Server:
    """Reads the API server's own ``/metrics``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self) -> tuple[float, Counter[str]]:
        """Its CPU seconds so far, and the requests that it has answered, by verb and resource."""
        text = (await self._client.request("GET", "/metrics")).body.decode()
        found = re.search(r"^process_cpu_seconds_total (\S+)$", text, re.MULTILINE)
        requests: Counter[str] = Counter()
        for labels, count in re.findall(r"^apiserver_request_total\{(.*?)\} (\S+)$", text, re.MULTILINE):
            of = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            what = of["resource"] + (f"/{of['subresource']}" if of["subresource"] else "")
            requests[f"{of['verb']} {what}"] += int(float(count))
        return (float(found[1]) if found else float("nan")), requests


class Burst:
    """Creates pods, follows them until they run, deletes them, follows that.

    Args:
        client: the administrator.
        clock: the time.
        scheduler: who places the pods.
        claims: as many nodes more give slices by claims.
    """

    def __init__(self, client: Client, clock: Clock, scheduler: str, *, claims: bool = False) -> None:
        self._client = client
        self._clock = clock
        self._scheduler = scheduler
        self._server = Server(client)
        rng = random.Random("bench")
        self._pods = Informer(client, PODS, clock=clock, rng=rng, namespace=BURST)
        self._objects = Informer(client, INSTASLICES, clock=clock, rng=rng, namespace=INSTASLICE_NAMESPACE)
        self._nodes = Informer(client, NODES.as_dicts(), clock=clock, rng=rng, label_selector=FAKE)
        self._published = Informer(client, RESOURCE_SLICES, clock=clock, rng=rng)
        self.watched = InformerGroup(self._pods, self._objects, self._nodes)
        if claims:
            self.watched = InformerGroup(self._pods, self._objects, self._nodes, self._published)
        self._pods.add_handler(self._pod_changed)
        self._sent: dict[str, float] = {}
        self._reached: dict[str, dict[str, float]] = {"ungated": {}, "bound": {}, "running": {}}

    def _pod_changed(self, event: WatchEvent[Pod]) -> None:
        pod, now = event.object, self._clock.monotonic()
        if not any(gate.name == GATE for gate in pod.spec.scheduling_gates):
            self._reached["ungated"].setdefault(pod.metadata.name, now)
        if pod.spec.node_name:
            self._reached["bound"].setdefault(pod.metadata.name, now)
        if pod.status.phase == "Running":
            self._reached["running"].setdefault(pod.metadata.name, now)

    async def nodes_joined(self, nodes: int) -> None:
        """Waits until every fake node offers each profile of the mix, or publishes its devices."""
        wanted = {resource_of(resource_spelling(profile)) for profile in MIX}

        def joined() -> bool:
            parts = Counter(each["spec"]["nodeName"] for each in self._published.cache.values())
            whole = {
                each["spec"]["nodeName"]
                for each in self._published.cache.values()
                if parts[each["spec"]["nodeName"]] == each["spec"]["pool"]["resourceSliceCount"]
            }
            ready = [
                each
                for each in self._nodes.cache.values()
                if wanted <= each["status"]["allocatable"].keys()
                or (DEVICE_API_LABEL in each["metadata"]["labels"] and each["metadata"]["name"] in whole)
            ]
            return len(ready) == nodes and len(self._objects.cache) == nodes

        await self.watched.wait_until(joined, TIMEOUT, f"{nodes} fake nodes offer slices")

    async def run(
        self, limits: Sequence[Mapping[str, int]], settle: float, claims: Sequence[str] = ()
    ) -> dict[str, float]:
        """One burst; ``limits`` are those of each pod, ``claims`` the templates of their claims.

        Returns:
            seconds by name, and per pod the API server's CPU (ms) and requests.
        """
        self._sent, self._reached = {}, {"ungated": {}, "bound": {}, "running": {}}
        await self._clock.sleep(settle)
        idle_cpu, _ = await self._server.read()
        began = self._clock.monotonic()
        await self._clock.sleep(settle)
        before, requests = await self._server.read()
        idle = (before - idle_cpu) / (self._clock.monotonic() - began)
        began = self._clock.monotonic()
        await self._each(len(limits), lambda n: self._create(n, limits[n], claims[n] if claims else ""))
        running = self._reached["running"]
        await self.watched.wait_until(lambda: len(running) == len(limits), TIMEOUT, f"{len(limits)} pods run")
        ran, started = await self._events_sent()
        took = self._clock.monotonic() - began
        await self._each(len(limits), self._delete)
        await self.watched.wait_until(self._empty, TIMEOUT, "all pods are gone and their slices given back")
        after, last = await self._events_sent()
        whole = self._clock.monotonic() - began
        count = len(limits)
        figures = {
            "created pods/s": count / (max(self._sent.values()) - min(self._sent.values())),
            **self._quantiles("ungated"),
            **self._quantiles("bound"),
            **self._quantiles("running"),
            "API server CPU ms a pod until it runs": (ran - before - idle * took) * 1000 / count,
            "API server CPU ms a pod, whole life": (after - before - idle * whole) * 1000 / count,
            "API server CPU, idle, % of a core": idle * 100,
        }
        last.subtract(requests)
        started.subtract(requests)
        calls = {
            f"requests a pod: {what}": number / count for what, number in last.most_common() if number >= count / 20
        }
        writes = sum(number for what, number in started.items() if what.split()[0] in WRITES and "leases" not in what)
        return figures | {"writes a pod until it runs": writes / count} | calls

    async def _events_sent(self) -> tuple[float, Counter[str]]:
        """Reads the server once no Event was sent for two seconds.

        Kubelets and schedulers send them one by one, long after the pods of a fast burst run: read at once, a burst of
        plain pods left half of them to the next burst.
        """
        seen = -1
        while True:
            cpu, requests = await self._server.read()
            if (sent := sum(number for what, number in requests.items() if what.endswith(" events"))) == seen:
                return cpu, requests
            seen = sent
            await self._clock.sleep(EVENTS_PAUSE)

    def _quantiles(self, step: str) -> dict[str, float]:
        took = sorted(at - self._sent[name] for name, at in self._reached[step].items())
        return {f"{step} p50 s": took[len(took) // 2], f"{step} p99 s": took[int(len(took) * 0.99)]}

    def _empty(self) -> bool:
        return not len(self._pods.cache) and not any(
            each.status.pod_allocation_results or each.spec.pod_allocation_requests
            for each in self._objects.cache.values()
        )

    async def _each(self, count: int, act: Callable[[int], Any]) -> None:
        waiting = list(reversed(range(count)))

        async def worker() -> None:
            while waiting:
                await act(waiting.pop())

        await asyncio.gather(*(worker() for _ in range(CREATORS)))

    async def _create(self, number: int, limits: Mapping[str, int], template: str) -> None:
        container = {"name": "c", "image": "busybox", "command": ["sleep", "infinity"], "resources": {"limits": limits}}
        spec = {
            "schedulerName": self._scheduler,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "nodeSelector": {FAKE: "true"},
            "tolerations": [{"key": FAKE, "operator": "Exists"}],
            "containers": [container],
        }
        if template:
            container["resources"] = {"claims": [{"name": "slice"}]}
            spec["resourceClaims"] = [{"name": "slice", "resourceClaimTemplateName": template}]
        name = f"bench-{number}"
        self._sent[name] = self._clock.monotonic()
        await self._client.create(PODS.as_dicts(), {"metadata": {"name": name}, "spec": spec}, BURST)

    async def _delete(self, number: int) -> None:
        await self._client.delete(PODS, f"bench-{number}", BURST)


async def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Installs, measures and removes."""
    clock = SystemClock()
    access = ClusterAccess(given.kubeconfig, clock)
    client = access("tessera-bench")
    manifests = list(_manifests(given.address, given.port, claims=given.claims))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(access.close)
        await refuse_installed(client)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.folder)))
        stack.push_async_callback(remove, client, manifests)
        await apply_manifests(
            client, [*manifests, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BURST}}]
        )
        with suppress(AlreadyExists):  # a controller makes it where there is one
            await client.create(SERVICE_ACCOUNTS.as_dicts(), {"metadata": {"name": "default"}}, BURST)
        for command, extra in _processes(given):
            config = await account_kubeconfig(client, given.kubeconfig, f"tessera-{command}", folder)
            arguments = ("-m", "tessera", command, "--kubeconfig", config, "--log-level", "warning", *extra)
            await stack.enter_async_context(process(*arguments))
        nodes = [f"--nodes={given.nodes}", f"--cards={given.cards}", f"--folder={folder}"]
        nodes += [f"--scheduler={given.scheduler}"] if given.scheduler else []
        nodes += ["--claims"] if given.claims else []
        child = (__file__, "--kubeconfig", given.kubeconfig, "--only-nodes", *nodes)
        await stack.enter_async_context(process(*child))
        burst = Burst(client, clock, given.scheduler or SCHEDULER, claims=given.claims)
        async with burst.watched.running():
            await burst.nodes_joined(given.nodes * (1 + given.claims))
            for profile in MIX if given.claims else ():
                await client.create(RESOURCE_CLAIM_TEMPLATES, _template(profile), BURST)
            chosen = random.Random(given.seed).choices(list(MIX), list(MIX.values()), k=given.pods)
            runs = []
            for _ in range(given.runs):
                print("burst of plain pods", flush=True)
                plain = await burst.run([{}] * given.pods, given.settle)
                print("burst of pods with a slice", flush=True)
                slices = await burst.run([{resource_of(name): 1} for name in chosen], given.settle)
                runs.append({"plain": plain, "slices": slices})
                if given.claims:
                    print("burst of pods with a claim", flush=True)
                    runs[-1]["claims"] = await burst.run(
                        [{}] * given.pods, given.settle, list(map(_template_name, chosen))
                    )
        return {"nodes": given.nodes, "cards": given.cards, "pods": given.pods, "runs": runs}


def _template_name(profile: str) -> str:
    return f"mig-{profile}"


def _template(profile: str) -> dict[str, Any]:
    """A template of claims for one slice of a profile."""
    selector = {"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '{profile}'"}}
    asked = {
        "name": "slice",
        "exactly": {"deviceClassName": f"mig.{DRIVER.removeprefix('gpu.')}", "selectors": [selector]},
    }
    return {"metadata": {"name": _template_name(profile)}, "spec": {"spec": {"devices": {"requests": [asked]}}}}


def _processes(given: argparse.Namespace) -> Iterator[tuple[str, Sequence[str]]]:
    claims = [f"--claim-driver={DRIVER}"] if given.claims else []
    yield "webhook", (f"--port={given.port}", f"--extra-name={given.address}", *claims)
    yield "controller", ("--identity=bench", *claims)


async def refuse_installed(client: Client) -> None:
    """Raises where Tessera is installed: two controllers would undo each other's work. So it does while that goes."""
    own = {SYSTEM, INSTASLICE_NAMESPACE, BURST}
    found = {each.metadata.name: each for each in (await client.list(NAMESPACES)).items if each.metadata.name in own}
    taken = {name for name, each in found.items() if each.metadata.deletion_timestamp is None}
    if found and not taken:
        raise SystemExit(
            f"namespace {', '.join(sorted(found))} is still being deleted, and the benchmark makes its own anew: start"
            " it again once the namespace is gone"
        )
    if taken:
        raise SystemExit(
            f"namespace {', '.join(sorted(taken))} exists: the benchmark installs Tessera itself and removes it again;"
            " use a cluster without it, or delete what an earlier run left"
        )


# What is shown


def table(runs: Sequence[Mapping[str, Any]]) -> None:
    """The bursts side by side, medians of the runs, and the ratios that tell what a slice or a claim costs."""
    groups = [each for each in ("plain", "slices", "claims") if each in runs[0]]
    heads = {"plain": "plain pods", "slices": "pods with a slice", "claims": "pods with a claim"}
    print(f"{'':44}" + "".join(f"{heads[each]:>22}" for each in groups))
    for name in dict.fromkeys(name for run in runs for group in reversed(groups) for name in run[group]):
        cells = [[run[group][name] for run in runs if name in run[group]] for group in groups]
        print(f"{name:44}" + "".join(f"{_shown(values) if values else '-':>22}" for values in cells))
    for name, over, under in RATIOS:
        if over in groups:
            print(f"{name}, {over} to {under}: {_shown([run[over][name] / run[under][name] for run in runs])}")


def _shown(values: Sequence[float]) -> str:
    middle = statistics.median(values)
    text = f"{middle:.{1 if abs(middle) >= 10 else 2}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", help="an administrator's; without one nothing is measured")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--cards", type=int, default=8, help="per node")
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--settle",
        type=float,
        default=10.0,
        help="seconds of quiet before each burst, whose CPU is subtracted; kubelets renew every 10 s",
    )
    parser.add_argument(
        "--scheduler",
        metavar="NAME",
        help="of the cluster, e.g. default-scheduler; without it the lab's scheduler runs beside the fake nodes",
    )
    parser.add_argument("--claims", action="store_true", help="measure pods with ResourceClaims too")
    parser.add_argument("--address", default="127.0.0.1", help="where the API server reaches this machine")
    parser.add_argument("--port", type=int, default=19443, help="the webhook's")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    shared = Path("/dev/shm")
    parser.add_argument("--folder", default=shared if shared.is_dir() else None, help="where fake nodes keep files")
    parser.add_argument("--only-nodes", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.kubeconfig:
        print("bench/server.py measures a real API server: give --kubeconfig; nothing was measured")
        return
    if given.only_nodes:
        uvloop.run(fake_nodes(given))
        return
    print(f"load before: {os.getloadavg()[0]:.1f}")
    result = uvloop.run(measure(given))
    table(result["runs"])
    if given.json:
        given.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
