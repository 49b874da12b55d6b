"""``tessera demo``: shows the life of a slice of a Deployment, on a simulated cluster.

The demo runs the production code: API client, webhook, controller, agent, device plugin over gRPC. Only the cluster and
the cards are simulated, and the output marks them. The times are measured in the run.

A :class:`Progress` shows the steps on a terminal: a live line with the seconds while a step runs, a line with its time
when it is done.

Times are in one column, and lines fit a terminal of 80 columns. Without a terminal, only the finished lines are
written, so that a log stays readable. Hand-written because the live line is all that the demo needs: ``rich`` with its
dependencies is 13 MB, and its import takes 124 ms.
"""

import random
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import click
import msgspec

from tessera.api.instaslice import INSTASLICES, Instaslice
from tessera.api.names import GATE, INSTASLICE_NAMESPACE, resource_of
from tessera.cli.base.connection import connect, report_errors
from tessera.cli.base.console import say, say_coloured, say_document, say_json_text, say_live, shows_colours
from tessera.cli.base.process import run_command
from tessera.cli.base.tiles import draw
from tessera.clock import Clock, SystemClock
from tessera.explain.card_map import cards_of
from tessera.kube.cache import WatchEvent
from tessera.kube.client import Client
from tessera.kube.informer import Informer, InformerGroup
from tessera.kube.resources import DEPLOYMENTS, NODES, PODS, Node, Pod
from tessera_lab.cli import kept_demo
from tessera_lab.daemon import lab_folder

#: Columns of a step's text.
WIDTH = 66
#: Frames of the spinner before a running step, and seconds between two frames.
_FRAMES, _REDRAW_SECONDS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", 0.1


class TimedStep(msgspec.Struct, frozen=True):
    """One finished step and how long it took, seconds."""

    text: str
    seconds: float


class Progress:
    """Writes steps to standard output and remembers their times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.steps: list[TimedStep] = []
        self.live = shows_colours()

    @contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """Shows ``doing`` until the block ends, then ``done`` with the time; after a failure ``doing`` stays."""
        started = self._clock.monotonic()
        try:
            with self._spinner(doing):
                yield
        except BaseException:
            say_coloured(f"  {self._paint('✗', 31)} {doing}")
            raise
        self.finish(done, self._clock.monotonic() - started)

    def finish(self, done: str, seconds: float) -> None:
        """Writes one finished step."""
        self.steps.append(TimedStep(done, seconds))
        say_coloured(f"  {self._paint('✓', 32)} {done:<{WIDTH}} {seconds:6.2f} s")

    def command(self, line: str) -> None:
        """Writes a command line as a user would type it; its output follows."""
        say_coloured("", self._paint(f"$ {line}", 1))

    def _paint(self, text: str, code: int) -> str:
        """The text in ANSI's rendition ``code``, on a terminal."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.live else text

    @contextmanager
    def _spinner(self, text: str) -> Iterator[None]:
        """Redraws one line with the seconds that passed, from a thread, until the block ends."""
        if not self.live:
            yield
            return
        started, ended = self._clock.monotonic(), threading.Event()

        def redraw() -> None:
            for frame in cycle(_FRAMES):
                say_live(f"  {frame} {text:<{WIDTH}} {self._clock.monotonic() - started:6.1f} s")
                if ended.wait(_REDRAW_SECONDS):
                    return

        drawing = threading.Thread(target=redraw, daemon=True)
        drawing.start()
        try:
            yield
        finally:
            ended.set()
            drawing.join()
            say_live("")


NODE = "node-1"
CARDS = "4xA100-40GB"
PROFILE = "3g.20gb"
#: Latencies of the simulation, seconds; they show that pull and slicing overlap.
PULL, SLICE = 1.0, 0.4
#: Seconds; longer than any step takes on a slow machine, so a longer step has failed.
STEP_TIMEOUT = 60.0

DEPLOYMENT = {
    "metadata": {"name": "vllm", "namespace": "default", "labels": {"app": "vllm"}},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "vllm"}},
        "template": {
            "metadata": {"labels": {"app": "vllm"}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "vllm",
                        "image": "vllm/vllm-openai:latest",
                        "resources": {"limits": {resource_of(PROFILE): 1}},
                    }
                ],
            },
        },
    },
}

#: The end of a demo that leaves nothing.
NEXT = """\
Three things to try next:
  {tessera} demo --keep           # three nodes, every kind of card, a queue that moves, a live page
  {tessera} plan mig H100-80GB    # which slices a card holds, and where
  {tessera} lab up --help         # a cluster of your own: cards, kernels, autoscaled groups
"""


class PodTimeline:
    """Moments of the demo's pod by name, in seconds of the clock, as watches report them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.times: dict[str, float] = {}

    def record(self, moment: str) -> None:
        """Records the time of a moment, unless it is recorded already."""
        self.times.setdefault(moment, self._clock.monotonic())

    def pod(self, event: WatchEvent[Pod]) -> None:
        """Handles a change of a pod."""
        pod = event.object
        if pod.metadata.labels.get("app") != "vllm":
            return
        self.record("created")
        gates = {gate.name for gate in pod.spec.scheduling_gates}
        self.record("held" if GATE in gates else "ungated")
        if pod.spec.node_name:
            self.record("scheduled")
        if pod.status.phase == "Running":
            self.record("running")

    def instaslice(self, event: WatchEvent[Instaslice]) -> None:
        """Handles a change of a node's slices."""
        for result in event.object.status.pod_allocation_results.values():
            self.record("promised")
            if result.allocation_status.allocation_status_daemonset == "created":
                self.record("slice")

    def seconds_between(self, first: str, last: str) -> float:
        """Seconds from one moment to another."""
        return self.times[last] - self.times[first]


@click.command()
@click.option("--keep", is_flag=True, help="Keep the simulated cluster running, and show commands to try.")
@report_errors
def command(keep: bool) -> int:
    """Show how Tessera makes a slice on demand, on simulated cards.

    The demo starts a simulated Kubernetes cluster with four A100 cards on this machine, installs Tessera in it, and
    creates a Deployment that requests nvidia.com/mig-3g.20gb. Tessera holds its pod, makes a slice for it, and lets it
    run. Then the demo deletes the Deployment, and Tessera removes the slice. The demo needs no GPU, no cluster and no
    special rights, and takes about ten seconds.

    With --keep, the cluster has two more nodes with four H100 cards each, and goes on running: pods come, wait, work
    and go, and a card fails and is mended. Some cards are cut on demand; others are fixed instances, shares and whole.

    \b
    Example:
      tessera demo
    """
    clock = SystemClock()
    progress = Progress(clock)
    say("Tessera demo: production code on a simulated cluster with simulated cards", "")
    try:
        with _lab(progress, keep=keep) as lab:
            if keep:
                say("", f"Look at it in a browser: {lab.page}", "")
            run_command(_play(lab, progress, clock, keep=keep))
            if keep:
                kept_demo.play_scenario(lab)
            _summary(progress)
            say_document("\n" + (kept_demo.next_steps(lab) if keep else NEXT.format(tessera=_program())))
    except KeyboardInterrupt:
        left = keep and lab_folder.find_running_lab(lab_folder.default_folder()) is not None
        say(
            "interrupted; " + ("end the cluster with: tessera lab down" if left else "nothing is left running"),
            err=True,
        )
        return 130
    return 0


def _program() -> str:
    """``tessera``, by its path if the shell does not find it."""
    return "tessera" if shutil.which("tessera") else shlex.quote(str(Path(sys.executable).with_name("tessera")))


@contextmanager
def _lab(progress: Progress, *, keep: bool) -> Iterator[lab_folder.LabState]:
    """Starts a lab and removes it at the end of the block; with ``keep``, the default lab, which stays."""
    arguments = [
        "--nodes",
        kept_demo.NODES_KEPT if keep else CARDS,
        "--image-pull",
        str(PULL),
        "--slice-latency",
        str(SLICE),
    ]
    if keep:
        folder = lab_folder.default_folder()
        with progress.step(
            "starting a simulated cluster, installing Tessera (deploy/)",
            f"simulated cluster is up, Tessera installed: {kept_demo.NODES_KEPT}",
        ):
            lab = lab_folder.start(folder, [*arguments, "--dashboard"])
        yield lab
        return
    with tempfile.TemporaryDirectory(prefix="tessera-demo-", ignore_cleanup_errors=True) as top:
        folder = Path(top, "lab")
        try:
            with progress.step(
                "starting a simulated cluster, installing Tessera (deploy/)",
                f"simulated cluster is up, Tessera installed: 1 node, {CARDS}",
            ):
                lab = lab_folder.start(folder, arguments)
            yield lab
        finally:
            lab_folder.stop(folder)


async def _play(lab: lab_folder.LabState, progress: Progress, clock: Clock, *, keep: bool) -> None:
    async with connect("tessera-demo", Path(lab.kubeconfig)) as client:
        if keep:
            await kept_demo.prepare(client)
        rng = random.Random(0)
        nodes = Informer(client, NODES, clock=clock, rng=rng)
        pods = Informer(client, PODS, clock=clock, rng=rng, namespace="default")
        slices = Informer(client, INSTASLICES, clock=clock, rng=rng, namespace=INSTASLICE_NAMESPACE)
        timeline = PodTimeline(clock)
        pods.add_handler(timeline.pod)
        slices.add_handler(timeline.instaslice)
        watched = InformerGroup(nodes, pods, slices)
        async with watched.running():
            with progress.step(f"waiting for the slices of {NODE}", f"{NODE} offers {resource_of(PROFILE)}"):
                await watched.wait_until(
                    lambda: _are_offered(nodes), STEP_TIMEOUT, f"{NODE} offers {resource_of(PROFILE)}"
                )
            await _run(client, watched, timeline, slices, progress)
            _show(lab, slices, progress)
            if not keep:
                await _delete(client, watched, pods, slices, progress)
                _show(lab, slices, progress)


def _are_offered(nodes: Informer[Node]) -> bool:
    node = nodes.cache.get(NODE)
    return node is not None and node.status.allocatable.get(resource_of(PROFILE), "0") != "0"


async def _run(
    client: Client, watched: InformerGroup, timeline: PodTimeline, slices: Informer[Instaslice], progress: Progress
) -> None:
    """Creates the Deployment and shows the progress until its pod runs on its slice."""
    with progress.step("creating deployment/vllm", f"deployment/vllm asks for {resource_of(PROFILE)}: 1"):
        await client.create(DEPLOYMENTS, DEPLOYMENT, "default")
        await watched.wait_until(lambda: "created" in timeline.times, STEP_TIMEOUT, "the pod is created")
    with progress.step("waiting for the pod to run on its slice", "the pod runs on its slice"):
        done = {"running", "slice"}
        await watched.wait_until(
            lambda: done <= timeline.times.keys() and _are_settled(slices), STEP_TIMEOUT, "the pod runs"
        )
    progress.finish(
        "  held by its gate, then promised a place and ungated", timeline.seconds_between("created", "ungated")
    )
    progress.finish(
        f"  from there: slice made on the card (simulated: {SLICE} s)", timeline.seconds_between("ungated", "slice")
    )
    progress.finish(
        f"  from there: image pulled meanwhile (simulated: {PULL} s), runs",
        timeline.seconds_between("ungated", "running"),
    )


def _are_settled(slices: Informer[Instaslice]) -> bool:
    node = slices.cache.get(f"{INSTASLICE_NAMESPACE}/{NODE}")
    states = [] if node is None else [each.allocation_status for each in node.status.pod_allocation_results.values()]
    return bool(states) and all(
        (each.allocation_status_controller, each.allocation_status_daemonset) == ("ungated", "created")
        for each in states
    )


async def _delete(
    client: Client, watched: InformerGroup, pods: Informer[Pod], slices: Informer[Instaslice], progress: Progress
) -> None:
    """Deletes the Deployment and waits until pod and slice are gone."""
    with progress.step("deleting deployment/vllm", "deployment/vllm deleted, its pod is gone"):
        await client.delete(DEPLOYMENTS, "vllm", "default", propagation="Background")
        await watched.wait_until(lambda: not list(pods.cache.values()), STEP_TIMEOUT, "the pod is gone")
    with progress.step("waiting for the slice to go", "the slice is gone, the card is whole again"):
        await watched.wait_until(lambda: _empty(slices), STEP_TIMEOUT, "the slice is gone")


def _empty(slices: Informer[Instaslice]) -> bool:
    node = slices.cache.get(f"{INSTASLICE_NAMESPACE}/{NODE}")
    return node is not None and not node.status.pod_allocation_results and not node.spec.pod_allocation_requests


def _show(lab: lab_folder.LabState, slices: Informer[Instaslice], progress: Progress) -> None:
    """Shows the Instaslice object, the list of cards and the map, as a user of the cluster would see them."""
    node = slices.cache.get(f"{INSTASLICE_NAMESPACE}/{NODE}")
    if node is None:
        return
    results = msgspec.json.format(msgspec.json.encode(node.status.pod_allocation_results), indent=2).decode()
    requested = f"kubectl get instaslice {NODE} -n {INSTASLICE_NAMESPACE} -o json | jq .status.podAllocationResults"
    progress.command(requested)
    say_json_text(results)
    progress.command("nvidia-smi -L      (simulated cards)")
    say_document(lab_folder.send_request(Path(lab.kubeconfig).parent, "smi", NODE))
    progress.command("tessera map")
    say_coloured(*draw(cards_of([node]), colour=progress.live), "")


def _summary(progress: Progress) -> None:
    say("Measured in this run, on this machine; cluster, cards and pulls are simulated:")
    for step in progress.steps:
        say(f"  {step.seconds:6.2f} s  {step.text}")
