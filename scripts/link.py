"""Puts this checkout's packages and their commands into the virtual environment, without building anything.

A ``.pth`` file leads to ``src``; a ``.dist-info`` folder for each package holds its version and entry points, so that
``importlib.metadata`` answers as it does after ``pip install``.
"""

import shlex
import shutil
import stat
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = (ROOT / "pyproject.toml", ROOT / "packaging" / "tessera-lab" / "pyproject.toml")
COMMAND = """{start}
import sys
try:
    from {module} import {function}
except KeyboardInterrupt:
    sys.exit(130)
sys.exit({function}())
"""
#: Linux reads no more of a script's first line, and cuts it at a blank.
LONGEST_FIRST_LINE = 127


def main() -> None:
    """Writes the .pth file, the metadata of both packages, and the scripts."""
    packages = Path(sysconfig.get_path("purelib"))
    for old in packages.glob("tessera*-[0-9]*.dist-info"):  # of another version, or of a former name
        shutil.rmtree(old)
    (packages / "tessera.pth").write_text(f"{ROOT / 'src'}\n")
    for project in PROJECTS:
        described = tomllib.loads(project.read_text())["project"]
        _write_metadata(described)
        for name, target in described.get("scripts", {}).items():
            _write_script(name, *target.split(":"))


def _write_metadata(project: Mapping[str, Any]) -> None:
    name, version = project["name"], project["version"]
    folder = Path(sysconfig.get_path("purelib"), f"{name.replace('-', '_')}-{version}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = [("console_scripts", project.get("scripts", {})), *project.get("entry-points", {}).items()]
    text = "".join(f"[{group}]\n" + "".join(f"{key} = {value[key]}\n" for key in value) for group, value in groups)
    (folder / "entry_points.txt").write_text(text)


def _write_script(name: str, module: str, function: str) -> None:
    script = Path(sysconfig.get_path("scripts"), name)
    script.write_text(COMMAND.format(start=start_of_script(sys.executable), module=module, function=function))
    script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def start_of_script(python: str) -> str:
    """The first lines of a Python script: of any interpreter, whatever its path.

    If the path does not fit into a first line, ``sh`` starts the interpreter; to Python the same lines are a text.
    """
    if " " not in python and len(f"#!{python}".encode()) <= LONGEST_FIRST_LINE:
        return f"#!{python}"
    return f"""#!/bin/sh\n'''exec' {shlex.quote(python)} "$0" "$@"\n' '''"""


if __name__ == "__main__":
    main()
