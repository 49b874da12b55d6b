"""``tessera accept``: reads and judges all that Tessera uses of a machine's cards, before they get work."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import report_errors
from tessera.cli.base.console import say, say_json
from tessera.cli.base.driver_thread import run_within
from tessera.cli.base.inputs import check_cards

if TYPE_CHECKING:
    from tessera.accept.checks import CheckResult
    from tessera.accept.facts import Facts
    from tessera.nvml.interface import Nvml

#: Exit code if a check failed; 1 is an error of the command.
FAILED = 2
#: Seconds. Enough for a driver without persistence mode to start many cards.
_TIMEOUT = 300.0


@click.command()
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
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
@click.option("--simulate", metavar="CARDS", callback=check_cards, help="Accept simulated cards, e.g. 2xH100-80GB.")
@report_errors
def command(*, output: str, identified: bool, driver_root: Path, timeout: float, simulate: str | None) -> int:
    """Read everything that Tessera uses of this machine's cards, and check it.

    The command changes nothing. It makes every call of NVIDIA's library on every card and times it, and compares the
    answers with /sys, /dev, /proc and nvidia-smi. It needs the driver, no cluster.

    The output has one line for each check. The JSON document has every value; it names no machine unless --identified
    is given, and says in "contains" what it has. tessera lab up --nodes-from makes a simulated node of it.

    The exit code is 0 if no check failed, 2 if one failed, and 1 after an error of the command.

    \b
    Examples:
      tessera accept
      tessera accept -o json > accept.json
      tessera accept --simulate 2xH100-80GB
    """
    from tessera.accept.checks import Status, judge_all, worst
    from tessera.accept.document import make_document

    facts = run_within(timeout, lambda: _read(driver_root, simulate), hung="NVIDIA's driver hangs; reboot the node")
    results = judge_all(facts)
    if output == "json":
        say_json(make_document(facts, results, anonymous=not identified))
    else:
        _print(facts, results)
    return FAILED if worst(results) is Status.FAILED else 0


def _read(driver_root: Path, simulate: str | None) -> "Facts":
    from tessera.accept.machine_files import MachineFiles
    from tessera.accept.reading import read_facts
    from tessera.clock import SystemClock
    from tessera.nvml.real.library import find_library

    library = None if simulate is not None else find_library(driver_root)
    files = None
    if simulate is None:
        tool = ("nvidia-smi",) if library is None else ("chroot", str(driver_root), "nvidia-smi")
        files = MachineFiles(smi=tool)
    nvml = _open(library, simulate)
    try:
        return read_facts(nvml, SystemClock(), files=files)
    finally:
        nvml.close()


def _open(library: Path | None, simulate: str | None) -> "Nvml":
    if simulate is None:
        from tessera.nvml.real.real_nvml import RealNvml

        return RealNvml(library=library)
    from tessera.nvml.simulated.simulated_machine import SimulatedMachine

    return SimulatedMachine(simulate, seed="accept")


def _print(facts: "Facts", results: "list[CheckResult]") -> None:
    from tessera.accept.checks import result_lines
    from tessera.text import count_noun, list_names

    models = list_names(sorted({card.name for card in facts.cards}))
    simulated = " (simulated)" if facts.simulated else ""
    say(f"{count_noun(len(facts.cards), 'card')}{simulated}: {models or 'none'}")
    say(*result_lines(results))
    say("This text names no machine. The JSON document has every value: tessera accept -o json")
