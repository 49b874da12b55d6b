"""An experiment on a live cluster: what is refused before it, what is told meanwhile, what is kept of it.

Samples cost minutes and machines, so none is lost: what was measured before a failure is shown and written, and what
cannot be written is printed. That hides no failure: why the experiment ended is said last. Whether a cluster is
simulated, its nodes say. On one whose time leaps nothing is measured: seconds of this machine's clock mean nothing
there.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from tessera.cli.base.connection import CommandError, connect
from tessera.cli.base.console import say, say_json_text
from tessera.cli.base.simulated_cluster import time_leaps
from tessera.kube.client.client import Client
from tessera.kube.resources import NODES
from tessera.provisioning.experiments.results import Samples, write_results


class ClusterTarget(NamedTuple):
    """Which cluster is meant, as kubectl's options say it, and how many seconds one step may take there."""

    kubeconfig: Path | None
    context: str | None
    patience: float


@asynccontextmanager
async def connect_measurable(reached: ClusterTarget, command: str) -> AsyncIterator[Client]:
    """A client for a cluster whose time is that of clocks.

    Args:
        reached: the cluster.
        command: the experiment's name.

    Raises:
        CommandError: its time leaps.
    """
    async with connect("tessera-bench", reached.kubeconfig, reached.context) as client:
        if await time_leaps(client, (await client.list(NODES)).items):
            raise CommandError(
                "error: this cluster is a lab on virtual time, which leaps over waits: seconds of a clock mean nothing "
                f"there; measure on simulated time with tessera bench {command} --lab, or start the lab without "
                "--virtual-time"
            )
        yield client


def progress_printer(scenario: str) -> Callable[[str], None]:
    """Tells on standard error how a scenario goes on."""
    return lambda text: say(f"{scenario}: {text}", err=True)


@contextmanager
def collect_results(file: Path | None) -> Iterator[list[Samples]]:
    """Prints what was measured on a live cluster, and writes it where that was asked for, however the block ends.

    Args:
        file: where it goes; None for nowhere.

    Yields:
        The list to which the block adds the results of scenarios.

    Raises:
        CommandError: all was measured, and could not be written.
    """
    results: list[Samples] = []
    try:
        yield results
    except BaseException:  # whatever it is, the samples before it have cost something
        try:
            _print_and_save(results, file)
        except CommandError as unwritten:
            say(unwritten.message, err=True)
        raise
    _print_and_save(results, file)


def _print_and_save(results: Sequence[Samples], file: Path | None) -> None:
    from tessera.cli.bench.result_table import lines

    measured = [each for each in results if each.samples or each.first is not None]
    if measured:
        say(*lines(measured, {}, {}))
        save_results(measured, file)


def save_results(results: Sequence[Samples], file: Path | None) -> None:
    """Writes results; prints them instead where that fails.

    Raises:
        CommandError: it failed.
    """
    if file is None:
        return
    written = write_results(results)
    try:
        file.write_bytes(written)
    except OSError as error:
        say_json_text(written.decode().removesuffix("\n"))
        raise CommandError(
            f"error: {file} could not be written ({error.strerror}); what belongs in it was printed instead"
        ) from error
