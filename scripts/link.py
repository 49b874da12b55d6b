"""Puts this checkout's package and its commands into the virtual environment, without building anything."""

import stat
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "#!{python}\nimport sys\nfrom tessera.cli.main import main\nsys.exit(main())\n"


def main() -> None:
    """Writes a .pth file and the two command scripts."""
    Path(sysconfig.get_path("purelib"), "tessera.pth").write_text(f"{ROOT / 'src'}\n")
    for name in ("tessera", "kubectl-tessera"):
        script = Path(sysconfig.get_path("scripts"), name)
        script.write_text(COMMAND.format(python=sys.executable))
        script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


if __name__ == "__main__":
    main()
