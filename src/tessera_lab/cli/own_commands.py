"""Tessera's own commands as the lab runs them: in its process, with the production parsers."""

from collections.abc import Callable, Mapping, Sequence

import click
import msgspec

from tessera.cli import agent, controller, dashboard, webhook
from tessera.cli.install import operator
from tessera.cli.install.drivers import apply_choice, parse_choice
from tessera.cli.install.operator_process import Operator
from tessera.cli.uninstall.command import has_left, parse_removal, report_removal
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera_lab.installation.install import OperatorSeat, TesseraCommands


def own_commands() -> TesseraCommands:
    """The commands of Tessera's containers."""
    return TesseraCommands(
        agent=agent.parse_options,
        controller=controller.parse_options,
        webhook=webhook.parse_options,
        dashboard=dashboard.parse_options,
        driver=_run_driver,
        operator=_run_operator,
        uninstall=_run_removal,
    )


async def _run_removal(arguments: Sequence[str], client: Client, clock: Clock, log: Callable[[str], None]) -> None:
    """Runs ``tessera uninstall``.

    Raises:
        SystemExit: something stays that should go; the log has the reason.
    """
    try:
        results = await report_removal(client, clock, parse_removal(arguments), log)
    except (click.ClickException, OSError) as error:
        log(f"error: {error}")
        raise SystemExit(1) from error
    if has_left(results):
        raise SystemExit(1)


async def _run_operator(
    arguments: Sequence[str], environment: Mapping[str, str], seat: OperatorSeat, client: Client
) -> None:
    """Runs ``tessera operator``."""
    options = operator.parse_options(arguments, environment)
    place = {"http_address": seat.address} if seat.address else {"http_port": None}
    await Operator(msgspec.structs.replace(options, **place), client, seat.clock, seat.rng).run()


async def _run_driver(arguments: Sequence[str], client: Client, clock: Clock, log: Callable[[str], None]) -> None:
    """Runs ``tessera driver apply``, the one command of that group that a container has.

    Raises:
        SystemExit: the command failed; the log has the reason.
    """
    name, *others = arguments or [""]
    if name != "apply":
        raise NotImplementedError(f"tessera driver {name} in a container of the lab")
    try:
        await apply_choice(client, clock, parse_choice(others), log, log)
    except (click.ClickException, OSError) as error:
        log(f"error: {error}")
        raise SystemExit(1) from error
