"""``tessera lab break``, ``mend``, ``use-memory`` and ``scenario``: what happens to a lab's cards over time."""

from pathlib import Path
from typing import Any

import click

from tessera.cli.base.connection import report_errors
from tessera.cli.base.console import say, say_document
from tessera.nvml.errors import UnknownNvmlError
from tessera_lab.limits import LAB_XID

dir_option = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The lab's folder.  [default: $TESSERA_LAB or ~/.tessera/lab]",
)


def running_lab_folder(folder: Path | None) -> Path:
    """Returns the folder of the running lab.

    Raises:
        LabError: no lab runs in the given folder.
    """
    from tessera_lab.daemon.lab_folder import resolve_folder

    return resolve_folder(folder).absolute()


def send(folder: Path | None, word: str, arguments: dict[str, Any]) -> None:
    """Sends a request with JSON arguments to the running lab, and prints the answer."""
    import json

    from tessera_lab.daemon.lab_folder import send_request

    say_document(send_request(running_lab_folder(folder), word, json.dumps(arguments)))


@click.group("break")
def break_command() -> None:
    """Break hardware of the lab.

    \b
    Example:
      tessera lab break gpu node-1/0 --xid 79
    """


@break_command.command("gpu")
@click.argument("card", metavar="NODE/INDEX")
@click.option(
    "--xid", type=click.IntRange(1, int(LAB_XID)), help="The driver reports this XID; 79 also loses the card."
)
@click.option(
    "--fault",
    metavar="NAME",
    default="",
    help="One of the faults above.",
)
@click.option(
    "--code",
    type=click.IntRange(1, UnknownNvmlError.code),
    help="NVML's error of the fault unreadable (nvmlReturn_t); 999, unknown, unless named.",
)
@dir_option
@report_errors
def break_gpu(folder: Path | None, card: str, xid: int | None, fault: str, code: int | None) -> None:
    """Break a simulated card. Tessera is not told; it notices as on real nodes.

    \b
    Faults:
      lost           it fell off the bus, with XID 79
      ecc            an uncorrectable ECC error, with XID 48; the driver asks for a reset
      heat           92 degrees Celsius, and the hardware slows it down
      warm           the driver slows it down before it gets too hot
      slow           the hardware slows it down, and gives no cause
      power          the server's power supply slows it down
      power-cap      it draws its power limit, and its clocks are lowered
      nvlink         its NVLinks are down, with XID 74
      nvlink-errors  its NVLinks send packets again, and are trained again
      fabric         its NVLink fabric reports less bandwidth and an unhealthy route
      sram           errors of its on-chip memory exceed NVIDIA's threshold: a card to replace
      spare-row      a bad row of its memory is replaced at its next reset
      no-spare-row   a row of its memory is bad, and no spare row is left: a card to replace
      computing      programs on it fail, which only a preflight shows
      silent         the driver reports none of its errors
      unreadable     every call on it fails, also those that list it
      no-slices      it refuses new MIG instances

    \b
    Examples:
      tessera lab break gpu node-1/0 --xid 79
      tessera lab break gpu node-1/2 --fault heat
      tessera lab break gpu node-1/3 --fault unreadable --code 8
    """
    if (xid is None) == (not fault):
        raise ValueError(
            "name either --xid or --fault, e.g. --xid 79; for the faults see: tessera lab break gpu --help"
        )
    send(folder, "break", {"card": card, "xid": xid, "fault": fault, "code": code})


@click.group("mend")
def mend_command() -> None:
    """Mend hardware of the lab.

    \b
    Example:
      tessera lab mend gpu node-1/0
    """


@mend_command.command("gpu")
@click.argument("card", metavar="NODE/INDEX")
@dir_option
@report_errors
def mend_gpu(folder: Path | None, card: str) -> None:
    """Remove all faults from a simulated card.

    The node reboots if the card had fallen off the bus: a driver does not find such a card again before that.

    \b
    Example:
      tessera lab mend gpu node-1/0
    """
    send(folder, "mend", {"card": card})


@click.command("use-memory", short_help="Let a pod hold memory on its simulated cards.")
@click.argument("pod")
@click.argument("size")
@click.option("-n", "--namespace", default="default", show_default=True, help="The pod's namespace.")
@dir_option
@report_errors
def use_memory_command(folder: Path | None, pod: str, size: str, namespace: str) -> None:
    """Let a pod hold SIZE of memory, e.g. 12Gi, on each simulated card or MIG device that it has.

    A pod that holds more than its share of a shared card is what the memory watchdog acts on: see --memory-limits of
    the agent.

    \b
    Example:
      tessera lab use-memory trainer 12Gi -n team-a
    """
    send(folder, "use-memory", {"pod": pod, "namespace": namespace, "size": size})


@click.command("scenario", short_help="Let pods and cards of the lab do something over time.")
@click.argument("scenario", metavar="[NAME|FILE]", required=False)
@click.option("--stop", is_flag=True, help="Stop the scenario, remove its pods and mend the cards that it broke.")
@dir_option
@report_errors
def scenario_command(folder: Path | None, scenario: str | None, stop: bool) -> None:
    """Play a scenario on the lab's simulated cards; without an argument, list the built-in ones.

    A scenario creates pods, lets pods compute and hold memory, and breaks and mends cards, each at its time. The same
    scenario gives the same curves in each run. Only one plays at a time: another one ends it. When a scenario with an
    end is over, the lab stays as it is until --stop.

    \b
    Examples:
      tessera lab scenario
      tessera lab scenario working-day
      tessera lab scenario my-scenario.yaml
      tessera lab scenario --stop
    """
    if stop and scenario:
        raise ValueError("--stop takes no scenario: it stops the one that plays")
    if stop:
        send(folder, "scenario-stop", {})
    elif scenario is None:
        _list(folder)
    else:
        name, text = _read(scenario)
        send(folder, "scenario", {"name": name, "text": text})


def _list(folder: Path | None) -> None:
    from tessera_lab.activity.scenario import builtin_names, builtin_scenario
    from tessera_lab.daemon.lab_folder import send_request

    names = builtin_names()
    width = max(map(len, names))
    say(*(f"{name:<{width}}  {builtin_scenario(name).about}" for name in names))
    say("", f"In this lab: {send_request(running_lab_folder(folder), 'scenario-status')}")


def _read(given: str) -> tuple[str, str]:
    """Returns name and text of a built-in scenario or of a file.

    Raises:
        ValueError: there is neither, or the text is no scenario.
    """
    from difflib import get_close_matches

    from tessera.text import one_line
    from tessera_lab.activity.scenario import ScenarioError, builtin_names, builtin_text, parse_scenario
    from tessera_lab.limits import LAB_SCENARIO

    names = builtin_names()
    if given in names:
        return given, builtin_text(given)
    path = Path(given)
    if not path.is_file():
        meant = get_close_matches(given, names, 1)
        hint = f"; did you mean {meant[0]}?" if meant else f"; built-in scenarios are {', '.join(names)}"
        raise ValueError(f"no file and no built-in scenario {one_line(given)!r}{hint}")
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(LAB_SCENARIO + 1)
    try:
        parse_scenario(text)
    except ScenarioError as error:
        raise ValueError(f"{one_line(given)}: {error}") from error
    return label(path.stem), text


def label(name: str) -> str:
    """Returns a name as a label of Kubernetes has it: letters, digits and dashes, at most 40."""
    kept = "".join(each if each.isascii() and each.isalnum() else "-" for each in name)[:40].strip("-")
    return kept or "scenario"
