"""``--simulate CARDS``: what it takes is refused before anything starts, or is installed, if it names no cards."""

import click


def known_cards(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """The text as it is; a callback of the option.

    Raises:
        click.BadParameter: it is not of the form, or names a model that is not known.
    """
    from tessera.nvml.simulated.machine import parse_spec

    if text is not None:
        try:
            parse_spec(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return text
