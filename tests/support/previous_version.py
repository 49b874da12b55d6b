"""The version before, kept by ``scripts/previous_version.py``: its chart, and its code for containers of a lab."""

import compileall
from pathlib import Path

from tests.support.archives import unpack

FOLDER = Path(__file__).parents[1] / "fixtures" / "previous"


def previous_chart() -> Path:
    """The packaged chart."""
    (found,) = FOLDER.glob("tessera-*.tgz")
    return found


def previous_version() -> str:
    """Its version, such as ``0.1.0``."""
    return previous_chart().stem.removeprefix("tessera-")


def unpack_previous(folder: Path) -> Path:
    """Unpacks its code and compiles it; returns the folder with the package ``tessera``.

    Its processes start at once: each would compile all that it imports.
    """
    (archive,) = FOLDER.glob("tessera-*.tar.xz")
    unpack(archive, folder)
    compileall.compile_dir(folder, quiet=1)
    return folder
