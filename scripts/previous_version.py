"""Keeps this version as the version before: its packaged chart and its code, for the tests of an upgrade.

Run it at a release, before the version in pyproject.toml is raised::

    .venv/bin/python scripts/previous_version.py

It writes tests/fixtures/previous/: the chart as ``helm package`` makes it, and the wheel as ``hatchling build`` makes it
without the built live page, packed by LZMA. The tests run controller, webhook and agents from this wheel
(``tessera lab up --image``). So they need neither git history nor a registry.
"""

import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "fixtures" / "previous"
#: Parts of the wheel that no process of the tests reads.
_LEFT_OUT = "tessera/dashboard/assets/"
#: The same content gives the same file.
_TIME = (1980, 1, 1, 0, 0, 0)


def main() -> None:
    """Writes the files in place of those of an earlier version."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in (*FOLDER.glob("*.whl"), *FOLDER.glob("*.tgz")):
        old.unlink()
    helm = Path(sysconfig.get_path("scripts"), "helm")
    subprocess.run([helm, "package", ROOT / "charts" / "tessera", "--destination", FOLDER], check=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(command, check=True, cwd=ROOT)
        (wheel,) = Path(folder).glob("tessera-*.whl")
        pack(wheel, FOLDER / wheel.name)


def pack(wheel: Path, target: Path) -> None:
    """Writes a wheel's files, without what is left out, into a smaller one."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as packed:
        for name in sorted(source.namelist()):
            if not name.startswith(_LEFT_OUT):
                entry = zipfile.ZipInfo(name, _TIME)
                entry.compress_type = zipfile.ZIP_LZMA
                packed.writestr(entry, source.read(name))


if __name__ == "__main__":
    main()
