"""Reads measured times from a file, or from the records of a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec

from tessera.api.problems import FileRefused
from tessera.cli.base.connection import CommandError, connect
from tessera.cli.base.inputs import display_name, read_text
from tessera.cli.base.process import run_command
from tessera.nesting import decode_json
from tessera.provisioning.history import RECORDS_KEY
from tessera.provisioning.report import read_records
from tessera.provisioning.start_times import A_WEEK, GroupTimes, from_file, from_records, refusal_lines

if TYPE_CHECKING:
    from tessera.cli.autoscaler.cluster_facts import ClusterFacts

FILE = click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)


def times_and_facts(
    samples: Path | None, kubeconfig: Path | None, context: str | None
) -> "tuple[tuple[GroupTimes, ...], ClusterFacts]":
    """The measured times, and the facts about the autoscaler; there are none if the times come from a file.

    Args:
        samples: the file; None for the cluster.
        kubeconfig: value of the option.
        context: value of the option.

    Raises:
        CommandError: the file has mistakes.
    """
    from tessera.cli.autoscaler.cluster_facts import NOTHING, read_cluster

    if samples is not None:
        return _read(samples), NOTHING

    async def read() -> "tuple[tuple[GroupTimes, ...], ClusterFacts]":
        async with connect("tessera-autoscaler", kubeconfig, context) as client:
            return await read_cluster(client)

    return run_command(read())


def _read(file: Path) -> "tuple[GroupTimes, ...]":
    try:
        return read_times(read_text(file), display_name(file))
    except FileRefused as error:
        first, *mistakes = refusal_lines(display_name(file), error)
        raise CommandError(f"error: {first}", *mistakes) from error


def read_times(text: str, name: str) -> tuple[GroupTimes, ...]:
    """The times in a file.

    Args:
        text: its content.
        name: its name in messages.

    Raises:
        FileRefused: rows have mistakes.
        ValueError: records or results have mistakes; the text names file, place and mistake.
    """
    loaded = _first(text)
    if isinstance(loaded, dict) and "results" in loaded:
        return _of_results(text, name)
    if RECORDS_KEY in text or (isinstance(loaded, dict) and {"records", "node"} & set(loaded)):
        return from_records(read_records(text, name))
    return from_file(text)


def _first(text: str) -> Any:
    """The JSON value of the text or of its first line; the first element of a list; None for other text."""
    for part in (text, text.lstrip().partition("\n")[0]):
        try:
            loaded = decode_json(part)
        except msgspec.DecodeError:
            continue
        return loaded[0] if isinstance(loaded, list) and loaded else loaded
    return None


class _Result(msgspec.Struct):
    """The samples of a scenario, as ``tessera bench`` writes them."""

    experiment: str
    scenario: str
    samples: tuple[Annotated[float, msgspec.Meta(ge=0, le=A_WEEK)], ...] = ()
    simulated: bool = False


class _Results(msgspec.Struct):
    results: tuple[_Result, ...]


def _of_results(text: str, name: str) -> tuple[GroupTimes, ...]:
    """Returns the times of new nodes from Ready on, which ``tessera bench autoscale`` measures."""
    try:
        results = msgspec.json.decode(text, type=_Results).results
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{name}: holds no results of experiments: {error}") from None
    return tuple(
        GroupTimes(group=each.scenario, ready=each.samples, simulated=each.simulated)
        for each in results
        if each.experiment == "autoscale"
    )
