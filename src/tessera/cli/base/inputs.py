"""Values of the command line that several commands read: numbers, cards, images, drivers of claims, and files.

The file ``-`` is standard input.
"""

import io
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import click

from tessera.api.names import CLAIM_DRIVERS, CLAIM_PLACEMENTS
from tessera.cli.base.connection import CommandError
from tessera.limits import INPUT_FILE


class Number(click.FloatRange):
    """A finite number of a range; refuses ``nan`` and ``inf``, which Python accepts as floats."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; fails with click's error for a wrong value."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def check_cards(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """A callback of an option for simulated cards, such as ``4xA100-40GB``; returns the text unchanged.

    Raises:
        click.BadParameter: the text has another form, or names an unknown model.
    """
    from tessera.nvml.simulated.machine_state import parse_spec

    if text is not None:
        try:
            parse_spec(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return text


def read_text(file: Path) -> str:
    """The text of a file; ``-`` is standard input.

    Raises:
        CommandError: it cannot be read, is longer than :data:`~tessera.limits.INPUT_FILE`, or is not UTF-8.
    """
    try:  # a pipe or a device has no size beforehand
        with _standard_input() if str(file) == "-" else file.open("rb") as opened:
            content = opened.read(INPUT_FILE + 1)
    except OSError as error:
        raise CommandError(f"error: {display_name(file)}: {error.strerror or error}") from error
    if len(content) > INPUT_FILE:
        limit = f"longer than {INPUT_FILE >> 20} MiB; is this the file that you meant?"
        raise CommandError(f"error: {display_name(file)}: {limit}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte, at = error.object[error.start], error.start
        text = f"not UTF-8: byte {at} is {byte:#04x}; save the file as text in UTF-8"
        raise CommandError(f"error: {display_name(file)}: {text}") from None


def _standard_input() -> BinaryIO:
    """The bytes of standard input, whatever the terminal's encoding is."""
    return getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())


def display_name(file: Path) -> str:
    """The file's name in messages."""
    return "standard input" if str(file) == "-" else str(file)


def check_image(_context: click.Context, _parameter: click.Parameter, image: str | None) -> str | None:
    """Returns the name of an image, by tag or digest, unchanged; kubelet would refuse another text on every node.

    Raises:
        click.BadParameter: it is no such name.
    """
    if image is None:
        return None
    from tessera.api.image_reference import ReferenceFormatError, parse_repository

    try:
        parse_repository(image)
    except ReferenceFormatError as error:
        raise click.BadParameter(str(error)) from None
    return image


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
