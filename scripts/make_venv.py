"""Makes the virtual environment that the Makefile works in; installs Debian's venv package when it is missing."""

import shutil
import subprocess
import sys
import venv


def main() -> int:
    """Creates the environment named on the command line."""
    target = sys.argv[1]
    if sys.version_info < (3, 11):
        print(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    try:
        venv.create(target, with_pip=True)
    except (subprocess.CalledProcessError, SystemExit):
        apt = shutil.which("apt-get")
        if apt is None:
            print(
                "Python's venv module cannot make an environment here: install it and run again",
                file=sys.stderr,
            )
            return 1
        package = f"python3.{sys.version_info[1]}-venv"
        subprocess.run([apt, "install", "-y", "-q", package], check=True)
        venv.create(target, with_pip=True, clear=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
