"""The option of all commands of a lab: its folder."""

from pathlib import Path

import click

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
