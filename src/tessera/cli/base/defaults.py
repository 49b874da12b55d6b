"""Defaults of options from the user's file: ``$TESSERA_CONFIG``, or ``~/.config/tessera/config.yaml``.

It maps a command to its options, written as on the command line without the dashes::

    top: {sort: busy, namespace: team-a}
    map: {color: false}
    driver: {status: {output: json}}

The command line overrides it. A name that no command has is an error, since a default that is ignored misleads.
"""

import os
from collections.abc import Mapping
from typing import Any

import click

_VARIABLE = "TESSERA_CONFIG"


def default_file() -> str:
    """The file's path, whether it exists or not."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")  # noqa: PTH111, PTH118
    return os.environ.get(_VARIABLE) or os.path.join(folder, "tessera", "config.yaml")  # noqa: PTH118


def read_defaults() -> Mapping[str, Any] | None:
    """What the file says; None without a file.

    Raises:
        ClickException: it is named and missing, or cannot be read.
    """
    path = default_file()
    if not os.path.exists(path) and _VARIABLE not in os.environ:  # noqa: PTH110 - pathlib costs every start
        return None
    import yaml

    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            found = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise click.ClickException(f"defaults in {path}: {' '.join(str(error).split())}") from error
    if found is not None and not isinstance(found, dict):
        raise click.ClickException(f"defaults in {path}: commands are expected, such as top: {{sort: busy}}")
    return found


def defaults_of(command: click.Command, name: str, given: object, known: Mapping[str, object]) -> Mapping[str, Any]:
    """The defaults of one command by click's names of its parameters.

    Args:
        command: the command.
        name: its name.
        given: what the file says of it.
        known: the commands below it.

    Raises:
        ClickException: it has no such option.
    """
    names = {text.lstrip("-"): each.name for each in command.params for text in (*each.opts, *each.secondary_opts)}
    options = dict(given) if isinstance(given, dict) else {"": given}
    wrong = next((each for each in options if each not in names and each not in known), None)
    if wrong is not None:
        raise click.ClickException(
            f"defaults in {default_file()}: {name} has no option {str(wrong)[:60]!r};"
            f" it has {', '.join(sorted(each for each in names if len(each) > 1))}"
        )
    loaded = command.commands if isinstance(command, click.Group) else {}
    return {
        str(names.get(each, each)): defaults_of(loaded[each], each, value, {}) if each in loaded else value
        for each, value in options.items()
    }
