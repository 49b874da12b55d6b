"""``tessera uninstall``: removes Tessera from a cluster."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.grammar import Output, output_option
from tessera.cli.base.process import run_command
from tessera.text import count_noun

if TYPE_CHECKING:
    from tessera.cli.uninstall.nodes import Result
    from tessera.cli.uninstall.removal import RemovalOptions
    from tessera.clock import Clock
    from tessera.kube.client import Client

#: Field manager of the removal's writes. It begins as those of Tessera's processes, so its own fields go as well.
COMPONENT = "tessera-uninstall"


@click.command()
@click.option(
    "--keep-slices",
    is_flag=True,
    help="Keep all GPU instances on the cards, also those that no pod uses.  [default: destroy the unused ones that"
    " Tessera made]",
)
@click.option("--keep-crds", is_flag=True, help="Keep the definitions of Instaslice, ClusterPolicy and NVIDIADriver.")
@click.option(
    "--timeout",
    type=click.IntRange(1, 86400),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait for the agents to leave their nodes.",
)
@click.option(
    "--force", is_flag=True, help="Go on without agents that have not left in time; clients of MPS daemons end then."
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed; write nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--from-hook", is_flag=True, help="Leave the objects of a Helm release to Helm, which runs this command.")
@output_option("text")
@cluster_options
@report_errors
def command(
    *,
    keep_slices: bool,
    keep_crds: bool,
    timeout: int,
    force: bool,
    dry_run: bool,
    yes: bool,
    from_hook: bool,
    output: Output,
    kubeconfig: Path | None,
    context: str | None,
) -> int:
    """Remove Tessera from a cluster, without a trace.

    Each agent leaves its node: it gives its devices back, destroys slices that no pod uses, and removes its files. Then
    the command removes gates from pods, Tessera's fields from Nodes, all objects, and the definitions of kinds. It
    prints what it does, and what stays, with the command that removes it.

    Running pods keep running, with their slices. Pods that wait for slices are told by an event and a condition.
    Drivers that Tessera installed go from each node on which no pod uses cards.

    If the command is interrupted, run it again: it continues. The exit code is 1 if something stays that should go. An
    installation by Helm is removed by helm uninstall, which runs this command.

    \b
    Examples:
      tessera uninstall --dry-run
      tessera uninstall
      tessera uninstall --keep-slices --yes
      tessera uninstall --yes -o json > removed.json
    """
    options = _options(keep_slices, keep_crds, force, timeout, from_hook, dry_run)
    if not (yes or dry_run or from_hook):
        run_command(_refuse_owned(kubeconfig, context))
        _confirm()  # outside of the event loop, which sees no Ctrl-C while it waits for a person
    return run_command(_uninstall(options, kubeconfig, context, output))


def _options(  # noqa: PLR0917 - the command's options in their order
    keep_slices: bool, keep_crds: bool, force: bool, timeout: int, from_hook: bool, dry_run: bool
) -> "RemovalOptions":
    from tessera.cli.uninstall.removal import RemovalOptions

    return RemovalOptions(
        keep_slices=keep_slices,
        keep_crds=keep_crds,
        force=force,
        timeout=float(timeout),
        from_hook=from_hook,
        dry=dry_run,
    )


def parse_removal(arguments: Sequence[str]) -> "RemovalOptions":
    """The options for the arguments of a container."""
    values = dict(command.make_context("uninstall", list(arguments)).params)
    names = ("keep_slices", "keep_crds", "force", "timeout", "from_hook", "dry_run")
    return _options(*(values[name] for name in names))


async def _refuse_owned(kubeconfig: Path | None, context: str | None) -> None:
    async with connect(COMPONENT, kubeconfig, context) as client:
        await _refuse_other_owner(client)


async def _refuse_other_owner(client: "Client") -> None:
    from tessera.cli.install.ownership import find_owner, refuse_uninstall

    if owner := await find_owner(client):
        raise CommandError(refuse_uninstall(owner))


async def _uninstall(options: "RemovalOptions", kubeconfig: Path | None, context: str | None, output: Output) -> int:
    from tessera.clock import SystemClock

    async with connect(COMPONENT, kubeconfig, context) as client:
        if not options.from_hook:
            await _refuse_other_owner(client)
        results = await report_removal(client, SystemClock(), options, (lambda _: None) if output.for_programs else say)
    if output.for_programs:
        from tessera.cli.uninstall.nodes import Left

        left = [each for each in results if isinstance(each, Left)]
        removed = [each for each in results if not isinstance(each, Left)]
        output.show({"removed": removed, "left": left}, (), (each.name for each in results))
    return int(has_left(results))


async def report_removal(
    client: "Client", clock: "Clock", options: "RemovalOptions", report: Callable[[str], object]
) -> "list[Result]":
    """Removes Tessera; reports each thing when it is done, and a summary.

    Raises:
        CommandError: a right is missing.
    """
    from tessera.cli.uninstall.nodes import Unfinished
    from tessera.cli.uninstall.removal import remove_all
    from tessera.kube.errors import Forbidden

    results: list[Result] = []

    def note(result: "Result") -> None:
        results.append(result)
        for line in lines(result, dry=options.dry):
            report(line)

    try:
        async for each in remove_all(client, clock, options):
            note(each)
    except Unfinished as unfinished:
        for stays in unfinished.left:
            note(stays)
    except Forbidden as error:
        raise CommandError(
            " ".join(str(error).split()),
            "error: the removal stopped there; run the command again with an account that has this right",
        ) from error
    report(summary(results, dry=options.dry))
    return results


def has_left(results: "Sequence[Result]") -> bool:
    """True if something stays that should go."""
    from tessera.cli.uninstall.nodes import Left

    return any(isinstance(each, Left) for each in results)


def lines(result: "Result", *, dry: bool) -> Iterator[str]:
    """The lines for one result."""
    from tessera.cli.uninstall.nodes import Left

    if isinstance(result, Left):
        yield f"{result.name} stays: {result.reason}"
        return
    yield f"{result.name} {result.result}{' (dry run)' if dry else ''}"
    yield from (f"  {note}" for note in result.notes)


def summary(results: "Sequence[Result]", *, dry: bool) -> str:
    """The last line."""
    from tessera.cli.uninstall.nodes import Left

    left = sum(isinstance(each, Left) for each in results)
    if dry:
        return f"{count_noun(len(results) - left, 'change')} (dry run); nothing was changed"
    if left:
        stays = "stays" if left == 1 else "stay"
        return f"{count_noun(left, 'thing')} {stays}; run the same command again when the reason is gone"
    return "Tessera is removed" if results else "Tessera is not installed in this cluster; nothing to remove"


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise CommandError("error: the command asks before it removes Tessera, and there is no terminal; add --yes")
    click.confirm("Remove Tessera from this cluster? tessera uninstall --dry-run shows what goes", abort=True, err=True)
