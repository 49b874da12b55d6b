"""Keeps this version as the version before: its packaged chart and its code, for the tests of an upgrade.

Run it at a release, before the version in pyproject.toml is raised::

    .venv/bin/python scripts/previous_version.py

It writes tests/fixtures/previous/: the chart as ``helm package`` makes it, and the files of the wheel that ``hatchling
build`` makes, without the built live page, as one compressed archive, which is half as large as a wheel. The tests
unpack it and run controller, webhook and agents from it (``tessera lab up --image``). So they need neither git history
nor a registry.
"""

import io
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "fixtures" / "previous"
#: Parts of the wheel that no process of the tests reads.
_LEFT_OUT = "tessera/dashboard/assets/"


def main() -> None:
    """Writes the files in place of those of an earlier version."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in (*FOLDER.glob("*.tar.xz"), *FOLDER.glob("*.tgz")):
        old.unlink()
    helm = Path(sysconfig.get_path("scripts"), "helm")
    subprocess.run([helm, "package", ROOT / "charts" / "tessera", "--destination", FOLDER], check=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(command, check=True, cwd=ROOT)
        (wheel,) = Path(folder).glob("tessera_gpu-*.whl")
        pack(wheel, FOLDER / f"tessera-{wheel.name.split('-')[1]}.tar.xz")


def pack(wheel: Path, target: Path) -> None:
    """Packs a wheel's files, without what is left out; the same content gives the same archive."""
    with zipfile.ZipFile(wheel) as source, tarfile.open(target, "w:xz", preset=9) as packed:
        for name in sorted(source.namelist()):
            if not name.startswith(_LEFT_OUT):
                entry, content = tarfile.TarInfo(name), source.read(name)
                entry.size = len(content)
                packed.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main()
