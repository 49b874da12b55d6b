"""``tessera wait-for``: an init container that ends when parts of the driver stack are ready."""

import re
from pathlib import Path

import click

from tessera.api.nodes.node_marks import MARKER_FOLDER
from tessera.cli.base.process import run_process

#: A shell's exit code for a program that SIGTERM ended: kubelet stopped the container before the markers existed.
_TERMINATED = 143
_NAME = re.compile(r"[.\w-]+")


@click.command()
@click.argument("markers", metavar="MARKER...", nargs=-1, required=True)
@click.option(
    "--markers-dir",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(MARKER_FOLDER),
    show_default=True,
    help="Folder of the marker files; it may be created later.",
)
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Fail after this time.  [default: never]"
)
def command(markers: tuple[str, ...], folder: Path, timeout: float | None) -> int:
    """Wait until all named marker files exist, then end at once.

    A part of the driver stack writes a marker file on its node when it is ready: driver-ready, toolkit-ready,
    cuda-ready, plugin-ready. The command does not poll; the kernel reports new files (inotify).

    \b
    In an init container, with the host's folder mounted:
      tessera wait-for driver-ready

    \b
    Example:
      tessera wait-for driver-ready
    """
    for name in markers:
        if not _NAME.fullmatch(name):
            raise click.BadParameter(f'"{name}" is not the name of a marker, such as driver-ready', param_hint="MARKER")
    found: list[bool] = []
    run_process(_wait(markers, folder, timeout, found))
    return 0 if found else _TERMINATED


async def _wait(names: tuple[str, ...], folder: Path, seconds: float | None, found: list[bool]) -> None:
    import asyncio
    from contextlib import aclosing

    from tessera.agent.base.node_files import MarkerFiles

    markers = MarkerFiles(folder)
    missing: list[str] = []
    try:
        async with asyncio.timeout(seconds), aclosing(markers.changes()) as changes:
            async for _ in changes:
                missing = [name for name in names if not markers.present(name)]
                if not missing:
                    found.append(True)
                    return
    except TimeoutError:
        raise click.ClickException(
            f"{', '.join(missing)}: not in {folder} after {seconds:g} seconds; see the log of the pod that writes it"
        ) from None
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be watched: {error}") from None
