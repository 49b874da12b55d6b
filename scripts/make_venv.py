"""Makes the virtual environment that the Makefile works in; installs Debian's venv package when it is missing."""

import os
import shutil
import subprocess
import sys
import venv


def main() -> int:
    """Creates the environment named on the command line; leaves nothing half-made behind."""
    target = sys.argv[1]
    if sys.version_info < (3, 11):
        print(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    package = f"python3.{sys.version_info[1]}-venv"
    try:
        try:
            venv.create(target, with_pip=True)
        except (subprocess.CalledProcessError, SystemExit):
            install(package)
            venv.create(target, with_pip=True, clear=True)
    except (subprocess.CalledProcessError, SystemExit):
        shutil.rmtree(target, ignore_errors=True)
        print(
            f"Python's venv module cannot make an environment here: install it (Debian: {package}) and run again",
            file=sys.stderr,
        )
        return 1
    return 0


def install(package: str) -> None:
    """Installs a Debian package where there are the means and the rights.

    Raises:
        subprocess.CalledProcessError: it could not be installed.
        SystemExit: there is no apt here, or no right to use it.
    """
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise SystemExit
    subprocess.run([apt, "update", "-q"], check=True)
    subprocess.run([apt, "install", "-y", "-q", package], check=True)


if __name__ == "__main__":
    sys.exit(main())
