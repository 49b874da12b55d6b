"""The simulated registries of a lab, for commands that look for driver images in a cluster that is a lab."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tessera.clock import SystemClock
from tessera.driver.resolution import ImageQuery, Resolution
from tessera.kube.transport.kubeconfig import load_config
from tessera_lab.daemon.control_socket import send_request
from tessera_lab.daemon.lab_folder import default_folder, find_running_lab


class LabRegistries(msgspec.Struct, frozen=True):
    """The simulated registries of a lab, asked over its control socket. A :class:`.Resolver`.

    Attributes:
        folder: the lab's.
    """

    folder: Path

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:  # noqa: ARG002 - always fresh
        """See :meth:`.Resolver.resolve`."""
        text = await asyncio.to_thread(send_request, self.folder, "resolve", msgspec.json.encode(query).decode())
        return msgspec.json.decode(text, type=Resolution)


def find_registries(kubeconfig: Path | None, context: str | None) -> LabRegistries | None:
    """The registries of the lab that a kubeconfig leads to; None if it leads elsewhere, or the lab has none.

    A lab is known by the files in its own folder, not by what the cluster says of itself.
    """
    path = None if kubeconfig is None else str(kubeconfig)
    server = load_config(clock=SystemClock(), kubeconfig=path, context=context).server
    for folder in _folders(kubeconfig):
        state = find_running_lab(folder)
        if state is not None and state.registries and state.server == server:
            return LabRegistries(folder)
    return None


def _folders(kubeconfig: Path | None) -> Iterator[Path]:
    """Folders where the lab may be: beside its kubeconfig, or the default folder of labs."""
    paths = [str(kubeconfig)] if kubeconfig else os.environ.get("KUBECONFIG", "").split(os.pathsep)
    yield from (Path(each).parent for each in paths if each)
    yield default_folder()
