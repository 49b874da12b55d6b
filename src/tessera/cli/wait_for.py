"""``tessera wait-for``: an init container that ends when parts of the driver stack are ready."""

import re
from pathlib import Path

import click

from tessera.api.driver.node_status import MARKER_FOLDER
from tessera.cli.base.process import run_process

#: What a shell says of a program that SIGTERM ended: a container that was told to stop has not found its markers.
_TERMINATED = 143
_NAME = re.compile(r"[.\w-]+")


@click.command()
@click.argument("markers", metavar="MARKER...", nargs=-1, required=True)
@click.option(
    "--in",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(MARKER_FOLDER),
    show_default=True,
    help="Where markers lie; it may come later.",
)
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up then.  [default: never]")
def command(markers: tuple[str, ...], folder: Path, timeout: float | None) -> int:
    """Wait until marker files are there, and end at once then.

    Parts of the driver stack tell each other on a node that they are ready: driver-ready, toolkit-ready, cuda-ready,
    plugin-ready. Nothing is looked at by the clock: the kernel tells of a new file.

    \b
    As an init container, with the host's folder mounted:
      tessera wait-for driver-ready
    """
    for name in markers:
        if not _NAME.fullmatch(name):
            raise click.BadParameter(f'"{name}" is no name of a marker, such as driver-ready', param_hint="MARKER")
    found: list[bool] = []
    run_process(_wait(markers, folder, timeout, found))
    return 0 if found else _TERMINATED


async def _wait(names: tuple[str, ...], folder: Path, seconds: float | None, found: list[bool]) -> None:
    import asyncio
    from contextlib import aclosing

    from tessera.agent.base.marker_files import MarkerFiles

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
            f"{', '.join(missing)}: not in {folder} after {seconds:g} seconds; look at whoever writes it"
        ) from None
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be watched: {error}") from None
