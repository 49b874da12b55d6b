"""``tessera lab scenario``: what pods and cards of a lab do over time."""

from pathlib import Path

import click

from tessera.cli.base.connection import report_errors
from tessera.cli.base.console import say
from tessera_lab.cli.lab_cards import send
from tessera_lab.cli.lab_folder_option import dir_option, running_lab_folder


@click.command("scenario", short_help="Let pods and cards of the lab do something over time.")
@click.argument("scenario", metavar="[NAME|FILE]", required=False)
@click.option("--stop", is_flag=True, help="Stop the scenario, remove its pods and mend the cards that it broke.")
@dir_option
@report_errors
def scenario_command(folder: Path | None, scenario: str | None, stop: bool) -> None:
    """Play a scenario on the lab's simulated cards; without an argument, list the built-in ones.

    A scenario creates pods, lets pods compute and hold memory, and breaks and mends cards, each at its time. The same
    scenario gives the same curves in each run. Only one plays at a time: another one ends it. When a scenario with an
    end is over, the lab stays as it is until --stop.

    \b
    Examples:
      tessera lab scenario
      tessera lab scenario working-day
      tessera lab scenario my-scenario.yaml
      tessera lab scenario --stop
    """
    if stop and scenario:
        raise ValueError("--stop takes no scenario: it stops the one that plays")
    if stop:
        send(folder, "scenario-stop", {})
    elif scenario is None:
        _list(folder)
    else:
        name, text = _read(scenario)
        send(folder, "scenario", {"name": name, "text": text})


def _list(folder: Path | None) -> None:
    from tessera_lab.activity.library import builtin_names, builtin_scenario
    from tessera_lab.daemon.control_socket import send_request

    names = builtin_names()
    width = max(map(len, names))
    say(*(f"{name:<{width}}  {builtin_scenario(name).about}" for name in names))
    say("", f"In this lab: {send_request(running_lab_folder(folder), 'scenario-status')}")


def _read(given: str) -> tuple[str, str]:
    """Returns name and text of a built-in scenario or of a file.

    Raises:
        ValueError: there is neither, or the text is no scenario.
    """
    from difflib import get_close_matches

    from tessera.text import one_line
    from tessera_lab.activity.library import builtin_names, builtin_text
    from tessera_lab.activity.scenario import ScenarioError, parse_scenario
    from tessera_lab.limits import LAB_SCENARIO

    names = builtin_names()
    if given in names:
        return given, builtin_text(given)
    path = Path(given)
    if not path.is_file():
        meant = get_close_matches(given, names, 1)
        hint = f"; did you mean {meant[0]}?" if meant else f"; built-in scenarios are {', '.join(names)}"
        raise ValueError(f"no file and no built-in scenario {one_line(given)!r}{hint}")
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(LAB_SCENARIO + 1)
    try:
        parse_scenario(text)
    except ScenarioError as error:
        raise ValueError(f"{one_line(given)}: {error}") from error
    return label(path.stem), text


def label(name: str) -> str:
    """Returns a name as a label of Kubernetes has it: letters, digits and dashes, at most 40."""
    kept = "".join(each if each.isascii() and each.isalnum() else "-" for each in name)[:40].strip("-")
    return kept or "scenario"
