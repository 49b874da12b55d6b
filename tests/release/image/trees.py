"""Small trees of an image, with Tessera's own real one."""

from pathlib import Path

from release.image.labels import Origin
from release.image.root import make_application

ORIGIN = Origin("0.1.0", "0123456789abcdef", 1_700_000_000, "https://forge.example/tessera")


def make_trees(folder: Path) -> Path:
    """The trees of one image: a system and libraries of one file each, and Tessera as it is."""
    for name, file in (("system", "etc/os-release"), ("libraries", "usr/local/lib/library.py")):
        path = folder / name / file
        path.parent.mkdir(parents=True)
        path.write_text(name)
    make_application(folder / "application")
    return folder
