"""Modules that one run of the command line imports."""

import subprocess
import sys

#: Each of these costs more than all that an overview or a help text needs.
HEAVY = {"aiohttp", "grpc", "cryptography", "prometheus_client", "uvloop", "yaml", "rich"}
_PROGRAM = (
    "import sys; from tessera.cli.main import main; main(sys.argv[1:]); print('\\n', *sys.modules, file=sys.stderr)"
)


def imported_modules(*arguments: str) -> set[str]:
    """Runs ``tessera`` with the arguments; returns the top-level modules that are loaded at its end."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], check=True, capture_output=True, text=True)
    return {name.partition(".")[0] for name in done.stderr.split()}
