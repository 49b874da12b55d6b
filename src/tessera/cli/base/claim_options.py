"""The options about ResourceClaims: the same of every process, of the installation and of the lab."""

from collections.abc import Callable
from typing import Any

import click

from tessera.api.names import CLAIM_DRIVERS, CLAIM_PLACEMENTS
from tessera.cli.base.connection import CommandError


def claim_driver_option(text: str) -> Callable[[Any], Any]:
    """Adds ``--claim-driver``; ``text`` says what the program does with the driver's claims."""
    return click.option("--claim-driver", type=click.Choice(CLAIM_DRIVERS), help=text)


def claim_placement_option(function: Any) -> Any:
    """Adds ``--claim-placement``."""
    option = click.option(
        "--claim-placement",
        type=click.Choice(CLAIM_PLACEMENTS),
        default=CLAIM_PLACEMENTS[0],
        show_default=True,
        help="Who places ResourceClaims; scheduler: kube-scheduler's own allocator.",
    )
    return option(function)


def check_claim_options(driver: str | None, placement: str) -> None:
    """Refuses a placement of claims without a driver, which would have no effect.

    Raises:
        CommandError: there is no driver.
    """
    if placement != CLAIM_PLACEMENTS[0] and not driver:
        raise CommandError(f"error: --claim-placement {placement} needs --claim-driver")
