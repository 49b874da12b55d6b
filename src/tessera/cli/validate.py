"""``tessera validate``: tests that containers of this node can compute on its cards."""

from collections.abc import Callable
from pathlib import Path

import click

from tessera.api.nodes.node_marks import CUDA_READY, MARKER_FOLDER, TOOLKIT_READY
from tessera.cli.base.console import say
from tessera.cli.base.grammar import Output, output_option
from tessera.cli.base.process import run_within

#: Seconds. Enough for a driver without persistence mode to start many cards and compute on each.
_TIMEOUT = 300.0
#: Seconds. NVIDIA's diagnostics of many cards take minutes.
_PREFLIGHT_TIMEOUT = 1800.0
#: Exit code if a card is not well; 1 is an error of the command.
_TOO_SLOW = 2


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
    help="Fail after this time, for a driver that hangs.  [default: 300, with --preflight 1800]",
)
@click.option("--preflight", is_flag=True, help="Test memory, computations and bandwidths of each card instead.")
@click.option("--card", metavar="UUID", help="With --preflight: only this card, and no way between cards.")
@click.option(
    "--quick",
    is_flag=True,
    help="With --card: only computations, memory and copies of the one device that CUDA_VISIBLE_DEVICES names, the card"
    " or a MIG device of it; no rate is judged.",
)
@click.option(
    "--tools/--no-tools",
    default=True,
    help="With --preflight: also run NVIDIA's dcgmi diag and all_reduce_perf, if this image has them.  [default: run]",
)
@output_option("text", text="Output format of --preflight")
@click.option("--simulated", is_flag=True, help="Only write the marker files and use no card; for the lab.")
def command(
    *,
    folder: Path,
    timeout: float | None,
    preflight: bool,
    card: str | None,
    quick: bool,
    tools: bool,
    output: Output,
    simulated: bool,
) -> int:
    """Test every card of this node: query it, then add two vectors on it.

    After the queries the command writes the marker file toolkit-ready, after the computations cuda-ready. It runs in a
    container with runtimeClassName nvidia, like every other container that uses cards, so its success means that pods
    can use the cards.

    With --preflight, it writes no marker and needs cards that nobody uses: it writes a pattern into the free memory of
    each card and reads it again, multiplies matrices, and times copies within the card, to the host and to the next
    card. A rate far below the board's figure, or below the other cards of the node, is a finding; the exit code is then
    2.

    \b
    Example:
      tessera validate
    """
    if card is not None and not preflight:
        raise click.UsageError("--card is for --preflight")
    if quick and card is None:
        raise click.UsageError("--quick needs --card")
    if simulated:
        return _validate_simulated(folder)
    hung = "the driver hangs in the step of the last line"
    if not preflight:
        return run_within(timeout or _TIMEOUT, lambda: _report(lambda: _validate(folder)), hung=hung)
    return run_within(
        timeout or _PREFLIGHT_TIMEOUT, lambda: _report(lambda: _preflight(card, tools, output, quick=quick)), hung=hung
    )


def _report(work: Callable[[], int]) -> int:
    """Does the work; an error of a step becomes the command's."""
    from tessera.accept.cuda import CudaError
    from tessera.cli.base.validation_steps import ValidationFailed
    from tessera.nvml.errors import NvmlError

    try:
        return work()
    except NvmlError as error:
        raise click.ClickException(f"NVML: {error} (nvmlReturn_t {error.code})") from error
    except CudaError as error:
        raise click.ClickException(f"CUDA: {error}") from error
    except (ValidationFailed, OSError) as error:
        raise click.ClickException(str(error)) from error


def _validate(folder: Path) -> int:
    from tessera.agent.base.node_files import MarkerFiles
    from tessera.cli.base.validation_steps import validate

    validate(MarkerFiles(folder), _say)
    return 0


def _preflight(card: str | None, tools: bool, output: Output, *, quick: bool) -> int:
    """Tests cards and prints the result."""
    from tessera.accept.cuda import load_cuda
    from tessera.accept.preflight import preflight_lines, run_preflight, run_quick
    from tessera.nvml.interface import GpuUuid
    from tessera.nvml.real.real_nvml import RealNvml

    nvml = RealNvml()
    try:
        only = None if card is None else GpuUuid(card)
        if quick and only is not None:
            found = run_quick(nvml, load_cuda(), only)
        else:
            found = run_preflight(nvml, load_cuda(), only=only, tools=tools)
    finally:
        nvml.close()
    output.show(found, preflight_lines(found), (f"card/{each.uuid}" for each in found.cards))
    return _TOO_SLOW if found.findings else 0


def _validate_simulated(folder: Path) -> int:
    from tessera.agent.base.node_files import MarkerFiles

    markers = MarkerFiles(folder)
    for name in (TOOLKIT_READY, CUDA_READY):
        written = markers.write(name, f"simulated\n{markers.about_driver()}")
        _say(f"simulated, no card was used: {name} {'written to' if written else 'not written, there is no'} {folder}")
    return 0


def _say(line: str) -> None:
    say(line)
