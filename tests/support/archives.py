"""Unpacks tar archives on every Python that we support."""

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a tar archive that this repository or its build made."""
    with tarfile.open(archive) as packed:
        # Without a filter, Python 3.12 warns; releases before 3.11.4, such as Debian 12's, take no such argument.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(folder)
