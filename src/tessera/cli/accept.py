"""``tessera accept``: reads and judges all that Tessera uses of a machine's cards, before they get work."""

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.grammar import Output, output_option
from tessera.cli.base.inputs import check_cards
from tessera.cli.base.process import run_command, run_within

if TYPE_CHECKING:
    from tessera.accept.acceptance import Trials
    from tessera.accept.document import Document
    from tessera.accept.mig_trial import MigTrial
    from tessera.nvml.interface import Nvml

#: Exit code if a check failed; 1 is an error of the command.
FAILED = 2
#: Seconds. Enough for a driver without persistence mode to start many cards.
_TIMEOUT = 300.0


@click.command()
@click.argument("node", required=False)
@output_option("text")
@click.option(
    "--identified", is_flag=True, help="Keep UUIDs, PCI addresses, host name and node name in the JSON document."
)
@click.option(
    "--driver-root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/run/nvidia/driver"),
    show_default=True,
    help="Folder into which a driver container mounts its files; used if it has NVIDIA's library.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=_TIMEOUT,
    show_default=True,
    help="Fail after this time, for a driver that hangs.",
)
@click.option(
    "--mig",
    metavar="GPU",
    default="",
    help="Try MIG on this card, by index: make and destroy each instance, then restore its mode. Nobody may hold it.",
)
@click.option("--compute", is_flag=True, help="Run the preflight's computations on cards that nobody uses.")
@click.option("--pod", is_flag=True, help="With NODE: let a pod get a card of the node, compute on it, and go.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/tessera"),
    show_default=True,
    help="Folder in which --mig keeps how the card was.",
)
@click.option("--simulate", metavar="CARDS", callback=check_cards, help="Accept simulated cards, e.g. 2xH100-80GB.")
@cluster_options
@report_errors
def command(
    *,
    node: str | None,
    output: Output,
    identified: bool,
    driver_root: Path,
    timeout: float,
    simulate: str | None,
    mig: str,
    compute: bool,
    pod: bool,
    state_dir: Path,
    kubeconfig: Path | None,
    context: str | None,
) -> int:
    """Read everything that Tessera uses of a machine's cards, and check it.

    The command changes nothing, except on the card of --mig. It makes every call of NVIDIA's library on every card and
    times it, and compares the answers with /sys, /dev, /proc and nvidia-smi. Without NODE it reads this machine, and
    needs the driver, no cluster. With NODE it runs on that node of the cluster, in a pod without rights that it removes
    at the end, and compares the node's capacity and labels too. --mig needs a privileged pod, and a node that is
    cordoned.

    --mig makes each instance at each start of a card that nobody holds, destroys it, and shows the seconds of each. It
    gives the card its MIG mode again, also after Ctrl-C; a run that was killed leaves a file in --state-dir, and the
    next run with --mig restores the card first.

    The output has one line for each check. The JSON document has every value; it names no machine unless --identified
    is given, and says in "contains" what it has. tessera lab up --nodes-from makes a simulated node of it.

    The exit code is 0 if no check failed, 2 if one failed, and 1 after an error of the command.

    \b
    Examples:
      tessera accept
      tessera accept -o json > accept.json
      tessera accept gpu-1
      tessera accept gpu-1 --mig 0 --compute --pod
      tessera accept --simulate 2xH100-80GB
    """
    from tessera.accept.acceptance import Trials
    from tessera.accept.checks import Status, worst
    from tessera.accept.document import hide_names

    if node is None and pod:
        raise click.UsageError("--pod needs NODE: a pod needs a cluster")
    trials = Trials(mig=mig, compute=compute, folder=state_dir)
    if node is None:
        document = _accept_here(driver_root, simulate, trials, timeout)
    elif simulate is not None:
        raise click.UsageError("--simulate is for this machine; a node has the cards of its agent")
    else:
        seconds = math.ceil(timeout)
        run = _accept_node(node, trials, pod=pod, seconds=seconds, kubeconfig=kubeconfig, context=context)
        document = run_command(run)
    if output.for_programs:
        output.show(document if identified else hide_names(document), ())
    else:
        _print(document)
    return FAILED if worst(document.checks) is Status.FAILED else 0


def _accept_here(driver_root: Path, simulate: str | None, trials: "Trials", timeout: float) -> "Document":
    """This machine's document. A trial of MIG runs in the main thread, where a signal ends it in order."""
    if not trials.mig:
        hung = "NVIDIA's driver hangs; reboot the node"
        return run_within(timeout, lambda: _accept(driver_root, simulate, trials), hung=hung)
    with _end_by_signal():
        return _accept(driver_root, simulate, trials)


@contextmanager
def _end_by_signal() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does: a card is restored on the way out."""
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


async def _accept_node(
    node: str, trials: "Trials", *, pod: bool, seconds: int, kubeconfig: Path | None, context: str | None
) -> "Document":
    from tessera.accept.node_run import accept_node
    from tessera.clock import SystemClock

    async with connect("tessera-accept", kubeconfig, context) as client:
        return await accept_node(
            client,
            SystemClock(),
            node,
            trials=trials,
            pod_trial=pod,
            seconds=seconds,
            say=lambda line: say(line, err=True),
        )


def _accept(driver_root: Path, simulate: str | None, trials: "Trials") -> "Document":
    from tessera.accept.acceptance import accept_machine
    from tessera.accept.machine_files import MachineFiles
    from tessera.clock import SystemClock

    files = None if simulate is not None else MachineFiles(smi=_smi(driver_root))
    nvml = _open(driver_root, simulate)
    try:
        return accept_machine(nvml, SystemClock(), files, trials, say=lambda line: say(line, err=True))
    finally:
        nvml.close()


def parse_options(arguments: Sequence[str]) -> "Trials":
    """The trials of a container's arguments."""
    from tessera.accept.acceptance import Trials

    values = command.make_context("accept", list(arguments)).params
    return Trials(mig=values["mig"], compute=values["compute"], folder=values["state_dir"])


def _smi(driver_root: Path) -> tuple[str, ...]:
    """How nvidia-smi is called: as a program of this system, else of the driver container's."""
    import shutil

    if shutil.which("nvidia-smi") is None and (driver_root / "usr/bin/nvidia-smi").exists():
        return "chroot", str(driver_root), "nvidia-smi"
    return ("nvidia-smi",)


def _open(driver_root: Path, simulate: str | None) -> "Nvml":
    """The cards: simulated, of the driver that the loader finds, or of a driver container."""
    if simulate is not None:
        from tessera.nvml.simulated.simulated_machine import SimulatedMachine

        return SimulatedMachine(simulate, seed="accept")
    from tessera.nvml.errors import LIBRARY_NOT_FOUND, DriverNotLoaded
    from tessera.nvml.real.library import find_library
    from tessera.nvml.real.real_nvml import RealNvml

    try:
        return RealNvml()
    except DriverNotLoaded as error:
        library = find_library(driver_root)
        if error.code != LIBRARY_NOT_FOUND or library is None:
            raise
    return RealNvml(library=library)


def _print(document: "Document") -> None:
    from tessera.accept.checks import result_lines
    from tessera.accept.preflight import preflight_lines
    from tessera.text import count_noun, list_names

    facts = document.facts
    models = list_names(sorted({card.name for card in facts.cards}))
    simulated = " (simulated)" if facts.simulated else ""
    say(f"{count_noun(len(facts.cards), 'card')}{simulated}: {models or 'none'}")
    say(*result_lines(document.checks))
    if document.preflight is not None:
        say(*preflight_lines(document.preflight))
    if document.mig is not None:
        say(*slice_lines(document.mig))
    say("This text names no machine. The JSON document has every value: tessera accept -o json")


def slice_lines(trial: "MigTrial") -> Iterator[str]:
    """The seconds of each instance, as a table."""
    mode = f"on after {trial.enable:.3g} s, off after {trial.disable:.3g} s" if trial.enable else "was on"
    yield f"MIG on card {trial.card}, {trial.product}: mode {mode}"
    yield f"{'PROFILE':<16} {'START':>5} {'CREATE s':>9} {'DESTROY s':>9} {'FILES':>5}"
    for each in trial.slices:
        times = each.error or f"{each.create:>9.3f} {each.destroy:>9.3f} {each.device_files:>5}"
        yield f"{each.profile:<16} {each.start:>5} {times}"
