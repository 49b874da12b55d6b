"""``tessera validate``: whether containers of this node can compute on its cards."""

import os
from pathlib import Path

import click

from tessera.api.driver.node_status import CUDA_READY, MARKER_FOLDER, TOOLKIT_READY
from tessera.cli.base.console import say

#: Seconds within which a driver of many cards without persistence mode has come up and computed.
_TIMEOUT = 300.0


@click.command()
@click.option(
    "--markers",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(MARKER_FOLDER),
    show_default=True,
    help="Where to leave toolkit-ready and cuda-ready.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=_TIMEOUT,
    show_default=True,
    help="A driver that hangs counts as one that fails.",
)
@click.option("--simulated", is_flag=True, help="Touch no card, say so, and leave the markers: for the lab.")
def command(folder: Path, timeout: float, simulated: bool) -> int:
    """Ask every card of the node, then add vectors on it, and leave a marker after each of the two.

    Runs as a container like any other that uses cards, with runtimeClassName nvidia: what works here works for pods.
    """
    if simulated:
        return _simulated(folder)
    import threading

    outcome: list[str] = []
    work = threading.Thread(target=_work, args=(folder, outcome), daemon=True)
    work.start()
    work.join(timeout)
    if work.is_alive():
        say(f"error: no answer within {timeout:g} seconds after the last line; the driver hangs", err=True)
        os._exit(1)  # a thread that hangs in the driver cannot be ended in order
    if outcome[0]:
        raise click.ClickException(outcome[0])
    return 0


def _work(folder: Path, outcome: list[str]) -> None:
    """Appends what went wrong; empty for nothing."""
    from tessera.agent.base.marker_files import MarkerFiles
    from tessera.agent.validation.cuda import CudaError
    from tessera.agent.validation.steps import ValidationFailed, validate
    from tessera.nvml.errors import NvmlError

    text = "the validation ended unexpectedly; the traceback is above"
    try:
        validate(MarkerFiles(folder), _say)
        text = ""
    except NvmlError as error:
        text = f"NVML: {error} (nvmlReturn_t {error.code})"
    except CudaError as error:
        text = f"CUDA: {error}"
    except (ValidationFailed, OSError) as error:
        text = str(error)
    finally:
        outcome.append(text)


def _simulated(folder: Path) -> int:
    from tessera.agent.base.marker_files import MarkerFiles

    markers = MarkerFiles(folder)
    for name in (TOOLKIT_READY, CUDA_READY):
        there = markers.write(name, f"simulated\n{markers.about_driver()}")
        _say(f"simulated: no card was touched; {name} {'written to' if there else 'not written, there is no'} {folder}")
    return 0


def _say(line: str) -> None:
    say(line)
