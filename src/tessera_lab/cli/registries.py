"""The simulated registries of a lab, for commands that look for driver images of a lab's nodes."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tessera.cli.base.connection import cluster_config
from tessera.driver.images import ImageQuery, Resolution
from tessera_lab.daemon.lab_folder import default_folder, files_of, find_running_lab, send_request


class LabRegistries(msgspec.Struct, frozen=True):
    """A :class:`.Resolver` that sends each query to a lab's control socket.

    Attributes:
        folder: the lab's folder.
    """

    folder: Path

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:  # noqa: ARG002 - always fresh
        """See :meth:`.Resolver.resolve`."""
        text = await asyncio.to_thread(send_request, self.folder, "resolve", msgspec.json.encode(query).decode())
        return msgspec.json.decode(text, type=Resolution)


def find_registries(kubeconfig: Path | None, context: str | None) -> LabRegistries | None:
    """The registries of the lab whose API server a kubeconfig names; None if there is no such lab, or it has none.

    A lab is recognized by the files in its own folder; objects of the cluster are not trusted for it.
    """
    server = cluster_config(kubeconfig, context).server
    for folder in _folders(kubeconfig):
        state = find_running_lab(folder)
        if state is not None and state.registries and state.server == server:
            return LabRegistries(files_of(folder))
    return None


def _folders(kubeconfig: Path | None) -> Iterator[Path]:
    """Possible folders of the lab: the one of its kubeconfig, and the default folder of labs."""
    paths = [str(kubeconfig)] if kubeconfig else os.environ.get("KUBECONFIG", "").split(os.pathsep)
    yield from (Path(each).parent for each in paths if each)
    yield default_folder()
