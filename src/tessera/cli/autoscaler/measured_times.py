"""Where times come from: a file, or the records of the cluster that kubectl would use."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import Failure, connected

if TYPE_CHECKING:
    from tessera.cli.autoscaler.cluster_facts import ClusterFacts
    from tessera.provisioning.advise.samples import GroupTimes

FILE = click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)


def times_and_facts(
    samples: Path | None, kubeconfig: Path | None, context: str | None
) -> "tuple[tuple[GroupTimes, ...], ClusterFacts]":
    """The measured times, and what is known of the autoscaler: nothing where the times come from a file.

    Args:
        samples: the file; None for the cluster.
        kubeconfig: as the option.
        context: as the option.

    Raises:
        Failure: the file has mistakes.
    """
    from tessera.cli.autoscaler.cluster_facts import NOTHING, look

    if samples is not None:
        return _read(samples), NOTHING

    async def asked() -> "tuple[tuple[GroupTimes, ...], ClusterFacts]":
        async with connected("tessera-autoscaler", kubeconfig, context) as client:
            return await look(client)

    return asyncio.run(asked())


def _read(file: Path) -> "tuple[GroupTimes, ...]":
    from tessera.api.documents import FileRefused
    from tessera.cli.autoscaler.time_files import read_times
    from tessera.cli.base.input_files import named, text_of
    from tessera.provisioning.advise.samples import refused

    try:
        return read_times(text_of(file), named(file))
    except FileRefused as error:
        first, *mistakes = refused(named(file), error)
        raise Failure(f"error: {first}", *mistakes) from error
