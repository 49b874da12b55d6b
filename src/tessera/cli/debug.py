"""``tessera debug``: fetches the decisions that a process recorded, and replays them with this version's code."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.cli.base.connection import CommandError, cluster_options, connect_transport, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.grammar import Output, output_option
from tessera.cli.base.process import run_command

if TYPE_CHECKING:
    from tessera.kube.client import Client
    from tessera.kube.resources import Pod
    from tessera.observe.record_player import Difference
    from tessera.replay.recorder import Record

#: Differences of one record that are shown. Later ones often follow from the first.
SHOWN = 3
#: Characters of a result that are shown.
_RESULT = 400


@click.group()
def command() -> None:
    """Fetch the decisions of a running process, and replay them with this version's code.

    A process records its decisions if TESSERA_RECORD says how many to keep. Records hold names of pods and nodes; they
    hold no Secret, no environment and no command line of a pod. A record from a cluster can be kept as a test.

    \b
    Examples:
      kubectl -n tessera-system set env deployment/tessera-controller TESSERA_RECORD=2000
      tessera debug record controller.jsonl
      tessera debug record --node gpu-1 agent.jsonl
      tessera debug replay controller.jsonl
    """


@command.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--node", metavar="NODE", help="Fetch from the agent of this node instead of the controller.")
@click.option("--namespace", "-n", default=SYSTEM_NAMESPACE, show_default=True, help="Tessera's namespace.")
@click.option("--here", is_flag=True, help="Print the records of the process in this container, without a cluster.")
@cluster_options
@report_errors
def record(
    *, file: Path | None, node: str | None, namespace: str, here: bool, kubeconfig: Path | None, context: str | None
) -> None:
    """Write the recorded decisions of the controller, or of a node's agent, into FILE.

    \b
    Examples:
      tessera debug record controller.json
      tessera debug record node-1.json --node node-1
    """
    if here:
        sys.stdout.buffer.write(run_command(_fetch_here()))
        return
    if file is None:
        raise click.UsageError("name the FILE to write the records into")
    if not file.parent.is_dir():
        raise CommandError(f"error: the folder {file.parent} does not exist; create it, or name another FILE")
    if node == "":
        raise click.UsageError("--node needs the name of a node")
    found = run_command(_fetch(namespace, node, kubeconfig, context))
    file.write_bytes(found)
    from tessera.text import count_noun

    replay = shlex.join(["tessera", "debug", "replay", str(file)])
    say(f"{count_noun(len(found.splitlines()), 'record')} in {file}; replay them with: {replay}")


@command.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@output_option("table")
@report_errors
def replay(file: Path, output: Output) -> None:
    """Decide again with this version's code, and show each decision that differs from the records in FILE.

    The exit code is 1 if a decision differs.

    \b
    Example:
      tessera debug replay controller.json
    """
    from tessera.limits import RECORD_SIZE
    from tessera.replay.recorder import read_records

    try:
        with file.open("rb") as stream:  # a pipe or a device has no size beforehand
            records = read_records(stream.read(RECORD_SIZE + 1))
    except OSError as error:
        raise CommandError(f"error: {file}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"error: {file}: {error}") from error
    if not records:
        raise CommandError(f"error: {file} has no records")
    results = [(each, _differences(each, file)) for each in records]
    output.show(
        [_as_json(each, found) for each, found in results],
        (line for each, found in results for line in _lines(each, found)),
    )
    if any(found for _, found in results):
        sys.exit(1)


async def _fetch_here() -> bytes:
    from tessera.replay.recorder import NO_RECORDS, fetch_records

    try:
        return await fetch_records()
    except ConnectionRefusedError:
        raise CommandError(f"error: {NO_RECORDS}") from None


async def _fetch(namespace: str, node: str | None, kubeconfig: Path | None, context: str | None) -> bytes:
    from tessera.cli.base.pod_exec import run_in_container

    found, failures = b"", []
    async with connect_transport("tessera-debug", kubeconfig, context) as (client, transport):
        for pod in await _pods(client, namespace, node):
            container = pod.spec.containers[0].name
            this = ["tessera", "debug", "record", "--here"]
            done = await run_in_container(transport, namespace, pod.metadata.name, container, this)
            found += done.stdout
            if done.failure:
                message = done.stderr.decode(errors="replace").strip() or done.failure
                failures.append(f"{pod.metadata.name}: {message.removeprefix('error: ')}")
    if not found:
        raise CommandError(*(f"error: {each}" for each in failures or ["the process has made no decision yet"]))
    return found


async def _pods(client: "Client", namespace: str, node: str | None) -> "Sequence[Pod]":
    """The running pods of the controller, or the running pod of a node's agent."""
    from tessera.kube.resources import PODS

    app = "tessera-controller" if node is None else "tessera-agent"
    listed = await client.list(PODS, namespace, label_selector=f"app.kubernetes.io/name={app}")
    running = [each for each in listed.items if each.status.phase == "Running" and node in {None, each.spec.node_name}]
    if not running:
        where = "" if node is None else f" on node {node}"
        raise CommandError(
            f"error: no pod of {app} runs in namespace {namespace}{where}; use --namespace if Tessera runs in another"
        )
    return running


def _differences(record: "Record", file: Path) -> "list[Difference]":
    from tessera.observe.record_player import DECIDERS
    from tessera.observe.record_player import replay as play
    from tessera.replay.state_codec import NotPlainError

    kind = DECIDERS.get(record.decider)
    if kind is None:
        raise CommandError(
            f"error: {file}: this version has no decider {record.decider!r}; its deciders are {', '.join(DECIDERS)}"
        )
    try:
        return list(play(record, kind))
    except NotPlainError as error:
        raise CommandError(f"error: {file}: decider {record.decider}: {error}") from error


def _title(record: "Record") -> str:
    return f"{record.decider} {record.name}".rstrip()


def _lines(record: "Record", found: "Sequence[Difference]") -> Iterator[str]:
    from tessera.text import count_noun

    decisions = count_noun(len(record.decisions), "decision")
    before = f" ({record.skipped} earlier ones were not recorded)" if record.skipped else ""
    if not found:
        yield f"{_title(record)}: {decisions}{before}: all the same now"
        return
    yield f"{_title(record)}: {decisions}{before}: {len(found)} differ now"
    for each in found[:SHOWN]:
        yield f"  decision {each.index} on {_short(each.recorded.arguments)}"
        yield f"    recorded: {each.recorded.error or _short(each.recorded.result)}"
        yield f"    now:      {each.now.error or _short(each.now.result)}"


def _short(value: Any) -> str:
    import msgspec

    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _RESULT else f"{text[:_RESULT]}…"


def _as_json(record: "Record", found: "Sequence[Difference]") -> Any:
    return {
        "decider": record.decider,
        "name": record.name,
        "decisions": len(record.decisions),
        "skipped": record.skipped,
        "differences": found,
    }
