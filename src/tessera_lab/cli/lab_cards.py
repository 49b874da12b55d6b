"""``tessera lab break``, ``mend`` and ``use-memory``: what happens to a lab's simulated cards, by hand."""

from pathlib import Path
from typing import Any

import click

from tessera.cli.base.connection import report_errors
from tessera.cli.base.console import say_document
from tessera.nvml.errors import UnknownNvmlError
from tessera_lab.cli.lab_folder_option import dir_option, running_lab_folder
from tessera_lab.limits import LAB_XID


def send(folder: Path | None, word: str, arguments: dict[str, Any]) -> None:
    """Sends a request with JSON arguments to the running lab, and prints the answer."""
    import json

    from tessera_lab.daemon.control_socket import send_request

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
