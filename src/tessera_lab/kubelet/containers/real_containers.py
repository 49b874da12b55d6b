"""Containers that run for real: Tessera's own processes, through the injected entrypoint."""

import traceback
from collections.abc import Sequence

from tessera_lab.kubelet.context import ContainerContext, Entrypoint

#: Tessera's commands that are run for real.
OWN_COMMANDS = frozenset({"agent", "controller", "webhook"})


def is_own(argv: Sequence[str]) -> bool:
    """Whether the container is one of Tessera's processes."""
    return len(argv) > 1 and argv[0].rsplit("/", 1)[-1] == "tessera" and argv[1] in OWN_COMMANDS


async def exit_code(entrypoint: Entrypoint, context: ContainerContext) -> int:
    """Runs the process to its end; one that raises ends with 1 and its traceback in the container's log."""
    try:
        return await entrypoint(context)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception:  # noqa: BLE001 - a process that dies ends its container, not the lab
        for line in traceback.format_exc().splitlines():
            context.log(line)
        return 1
