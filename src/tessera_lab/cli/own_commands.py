"""Tessera's own commands as the lab runs them: in its process, with the production parsers."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from tessera.accept.acceptance import accept_machine
from tessera.accept.checks import Status, worst
from tessera.cli import accept, agent, controller, dashboard, webhook
from tessera.cli.install import operator
from tessera.cli.install.drivers import apply_choice, parse_choice
from tessera.cli.install.operator_process import Operator
from tessera.cli.uninstall.command import has_left, parse_removal, report_removal
from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.nvml.errors import DriverNotLoaded, NvmlError
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera.text import UserError
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
        accept=_run_acceptance,
    )


async def _run_acceptance(
    arguments: Sequence[str], machine: SimulatedMachine | None, clock: Clock, log: Callable[[str], None]
) -> None:
    """Runs ``tessera accept`` on a node's simulated cards.

    Raises:
        SystemExit: a check failed, or there are no cards; the log has the reason.
    """
    try:
        if machine is None:
            raise DriverNotLoaded("nvmlInit")
        with tempfile.TemporaryDirectory() as folder:
            trials = msgspec.structs.replace(accept.parse_options(arguments), folder=Path(folder))
            document = accept_machine(machine, clock, None, trials, say=log)
    except (NvmlError, UserError) as error:
        log(f"error: {error}")
        raise SystemExit(1) from error
    log(msgspec.json.encode(document).decode())
    if worst(document.checks) is Status.FAILED:
        raise SystemExit(accept.FAILED)


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
