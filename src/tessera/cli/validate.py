"""``tessera validate``: tests that containers of this node can compute on its cards."""

import os
from pathlib import Path

import click

from tessera.api.driver.node_status import CUDA_READY, MARKER_FOLDER, TOOLKIT_READY
from tessera.cli.base.console import say

#: Seconds. Enough for a driver without persistence mode to start many cards and compute on each.
_TIMEOUT = 300.0


@click.command()
@click.option(
    "--markers-dir",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(MARKER_FOLDER),
    show_default=True,
    help="Folder for the marker files toolkit-ready and cuda-ready.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=_TIMEOUT,
    show_default=True,
    help="Fail after this time, for a driver that hangs.",
)
@click.option("--simulated", is_flag=True, help="Only write the marker files and use no card; for the lab.")
def command(folder: Path, timeout: float, simulated: bool) -> int:
    """Test every card of this node: query it, then add two vectors on it.

    After the queries the command writes the marker file toolkit-ready, after the computations cuda-ready. It runs in a
    container with runtimeClassName nvidia, like every other container that uses cards, so its success means that pods
    can use the cards.
    """
    if simulated:
        return _validate_simulated(folder)
    import threading

    outcome: list[str] = []
    work = threading.Thread(target=_work, args=(folder, outcome), daemon=True)
    work.start()
    work.join(timeout)
    if work.is_alive():
        say(f"error: no answer within {timeout:g} seconds: the driver hangs in the step of the last line", err=True)
        os._exit(1)  # a thread that hangs in the driver cannot be ended in order
    if outcome[0]:
        raise click.ClickException(outcome[0])
    return 0


def _work(folder: Path, outcome: list[str]) -> None:
    """Validates, and appends the text of the error to ``outcome``; an empty text after success."""
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


def _validate_simulated(folder: Path) -> int:
    from tessera.agent.base.marker_files import MarkerFiles

    markers = MarkerFiles(folder)
    for name in (TOOLKIT_READY, CUDA_READY):
        written = markers.write(name, f"simulated\n{markers.about_driver()}")
        _say(f"simulated, no card was used: {name} {'written to' if written else 'not written, there is no'} {folder}")
    return 0


def _say(line: str) -> None:
    say(line)
