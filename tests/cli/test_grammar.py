"""kubectl's grammar holds for every command: one table over all of them."""

import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.cli.objects import Objects, encoded, objects, serving
from tests.support.terminal import on_terminal

from tessera.cli.base.grammar import Output, render
from tessera.cli.main import PROCESSES, main, tessera
from tessera.mig.names import nvml_spelling

Words = tuple[str, ...]

#: Reading commands whose answer changes while one looks at it. ``top`` is live without an option, and ``accept`` and
#: ``doctor`` test a machine or an installation once.
WATCHED = (
    *(("map",), ("why",), ("queue",), ("defrag",), ("usage",), ("idle",), ("health",), ("topo",)),
    ("driver", "status"),
)
#: Reading commands about pods of the fleet.
FLEET = ("map", "queue", "top", "idle", "health", "usage")
#: Options of kubectl that each command about pods or cards has; ``top`` is live without ``-w``, and ``defrag`` is about
#: the whole cluster.
READS: Mapping[str, set[str]] = {
    **{name: {"-n", "-A", "-l", "-o", "-w"} for name in FLEET},
    "top": {"-n", "-A", "-l", "-o"},
    "why": {"-n", "-l", "-o", "-w"},
    "topo": {"-n", "-o", "-w"},
    "defrag": {"-o", "-w"},
}


def commands(group: click.Group, words: Words = ()) -> dict[Words, click.Command]:
    found: dict[Words, click.Command] = {}
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found[*words, name] = command
        found |= commands(command, (*words, name)) if isinstance(command, click.Group) else {}
    return found


COMMANDS = commands(tessera)
OPTIONS = {words: {name for each in command.params for name in each.opts} for words, command in COMMANDS.items()}
#: Those that a person runs.
OF_PERSONS = {words: options for words, options in OPTIONS.items() if words[0] not in PROCESSES}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_help_has_an_example(words: Words) -> None:
    shown = CliRunner().invoke(tessera, [*words, "--help"], prog_name="tessera").stdout
    after = shown.partition("Example")[2]
    assert f"tessera {words[0]}" in after


@pytest.mark.parametrize("words", OF_PERSONS, ids=" ".join)
def test_an_option_means_the_same_everywhere(words: Words) -> None:
    options = OF_PERSONS[words]
    if "--kubeconfig" in options:
        assert {"--context", "--as", "--as-group", "--token", "--request-timeout"} <= options
    if "--watch" in options:
        assert "-w" in options
    assert ("--namespace" in options) == ("-n" in options)
    if "--output" in options:
        assert "-o" in options
        (form,) = (each for each in COMMANDS[words].params if "--output" in each.opts)
        for text in ("json", "yaml", "name", "jsonpath={.a}"):
            assert isinstance(form.type.convert(text, form, None), Output)


def test_the_fleets_commands_take_one_namespace_or_all_labels_and_watch() -> None:
    for name, options in READS.items():
        assert options | {"--kubeconfig"} <= OPTIONS[name,], name
    assert {words for words, options in OPTIONS.items() if "-w" in options} == set(WATCHED)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[str]]:
    """The options for a server with one of each object."""
    there = Objects()
    there.found = encoded(objects())
    with serving(there, tmp_path) as kubeconfig:
        yield ["--kubeconfig", str(kubeconfig)]


@pytest.mark.parametrize("words", WATCHED, ids=" ".join)
def test_watch_shows_the_answer_on_a_screen_until_ctrl_c(words: Words, cluster: list[str]) -> None:
    more = {"why": ["a", "-n", "team"], "defrag": ["--plan"], "topo": ["n3"]}.get(words[0], [])
    with on_terminal(*words, *more, "-w", *cluster, env=os.environ, columns=90, rows=12) as screen:
        screen.until("\x1b[J")  # the empty screen
        lines = screen.picture().removeprefix("\x1b[H").split("\r\n")
        assert re.match(r" *\w", lines[0]), lines
        assert len(lines) <= 12
        screen.process.send_signal(signal.SIGINT)
        assert screen.process.wait(timeout=60) == 130
        screen.until("\x1b[?1049l")


def test_the_overview_shows_commands_in_groups_and_no_process() -> None:
    shown = CliRunner().invoke(tessera, ["--help"]).stdout
    titles = [line.rstrip(":") for line in shown.splitlines() if line in {"Use:", "Operate:", "Plan:"}]
    assert titles == ["Use", "Operate", "Plan"]
    assert not [name for name in PROCESSES if f"\n  {name} " in shown]
    assert "Exit codes" in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["queue", "-A", "-n", "team"], "-A shows all namespaces, -n one of them"),
        (["queue", "-n", "team", "-A"], "-A shows all namespaces, -n one of them"),
        (["map", "-o", "xml"], "'xml' is not one of tiles, json, yaml, name, jsonpath=TEMPLATE"),
        *(([*words, "-w", "-o", "yaml"], "--watch draws on a terminal") for words in WATCHED if len(words) == 1),
        (["why", "pod", "a", "b"], "one object is explained, and 3 words are given"),
        (["why"], "name an object, or choose pods by -l"),
        (["why", "a", "-l", "app=web"], "name an object, or choose pods by -l"),
        (["map", "--request-timeout", "soon"], '"soon" is not a duration'),
    ],
)
def test_a_mistake_is_told(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert text in capsys.readouterr().err


def test_a_form_for_programs_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("json", "yaml", "name", "jsonpath={.profiles[0].profile}"):
        assert main(["plan", "mig", "A100-40GB", "-o", form]) == 0
    assert main(["plan", "mig", "A100-40GB", "-o", 'jsonpath={range .profiles[*]}{.profile}{"\\n"}{end}']) == 0
    shown = capsys.readouterr().out
    assert shown.count('"profile"') >= 5
    assert "model: A100-40GB" in shown
    assert "model/A100-40GB" in shown
    assert shown.endswith("1g.5gb\n1g.5gb+me\n1g.10gb\n2g.10gb\n3g.20gb\n4g.20gb\n7g.40gb\n")


DOCUMENT: dict[str, Any] = {"items": [{"n": "a", "c": {"x.y/z": 1}}, {"n": "b", "ok": True}], "none": None}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.items[*].n}", "a b"),
        ("{.items[-1].n}", "b"),
        (".items[0].n", "a"),
        ("{$.items[0].c.x\\.y/z} {.items[0].c['x.y/z']}", "1 1"),
        ("{.items[9].n}{.nothing.at.all}", ""),
        ("{range .items[*]}{.n}={.ok};{end}.", "a=;b=true;."),
        ("{range .nothing[*]}{.n}{end}x", "x"),
        ("{.none}", "null"),
        ("{.items[0].c}", '{"x.y/z": 1}'),
        ("{.items.*.n}", "a b"),
    ],
)
def test_a_template_is_read_as_kubectl_reads_it(template: str, text: str) -> None:
    assert render(template, DOCUMENT) == text


@pytest.mark.parametrize(
    "template", ["{.a", "{range .a[*]}x", "{end}", "{.a[?(@.b==1)]}", "{.a[0:2]}", "{.a b}", '{"a}']
)
def test_a_template_of_another_form_is_refused_with_the_part(template: str) -> None:
    with pytest.raises(ValueError, match="jsonpath"):
        render(template, json.loads('{"a": [1, 2]}'))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("1g.5gb.me", "1g.5gb+me"),
        ("nvidia.com/mig-1g.5gb.me", "1g.5gb+me"),
        ("1g.24gb.me.all", "1g.24gb+me.all"),
        ("1g.24gb-me", "1g.24gb-me"),
        ("3g.20gb.shared", "3g.20gb.shared"),
        ("gpu", "gpu"),
    ],
)
def test_both_spellings_of_a_profile_are_read(given: str, name: str) -> None:
    assert nvml_spelling(given) == name


# Defaults and the manual page


@pytest.fixture
def defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file."""
    monkeypatch.setenv("TESSERA_CONFIG", str(tmp_path / "config.yaml"))
    return tmp_path / "config.yaml"


def test_the_users_file_has_defaults_that_the_command_line_overrides(
    defaults: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults.write_text("plan: {mig: {output: name}}\nusage: {since: 1w, namespace: [a, b]}\n")
    assert main(["plan", "mig", "A30"]) == 0
    assert capsys.readouterr().out == "model/A30\n"
    assert main(["plan", "mig", "A30", "-o", "jsonpath={.model}"]) == 0
    assert capsys.readouterr().out == "A30\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nosuch: {a: 1}", "there is no command 'nosuch'"),
        ("plan: {mig: {outptu: json}}", "mig has no option 'outptu'; it has"),
        ("plan: {mig: json}", "mig has no option ''"),
        ("- a", "commands are expected"),
        ("plan: {mig: {output: xml}}", "'xml' is not one of"),
        (":\n- {", "config.yaml: "),
    ],
)
def test_a_wrong_default_is_told_with_the_file(
    defaults: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults.write_text(text)
    assert main(["plan", "mig", "A30"]) == 1
    assert told in capsys.readouterr().err


def test_a_named_file_that_is_not_there_is_told(defaults: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "mig"]) == 1
    assert str(defaults) in capsys.readouterr().err


def test_the_manual_page_has_every_command_and_no_line_that_roff_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "man"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {f".SS tessera {' '.join(words)}".replace("-", "\\-") for words in COMMANDS} <= set(lines)
    assert "Show every card: its slices or shares, the pods that have them, and what has room." in lines
    kept = False
    for line in lines:
        kept = line == ".nf" or (kept and line != ".fi")
        assert line.strip()
        assert kept or not line.startswith(" "), "roff breaks a line that is indented"
        assert kept or not line.startswith("tessera map"), "examples keep their lines"
    assert {line.split()[0] for line in lines if line.startswith((".", "'"))} == {
        *(".TH", ".SH", ".SS", ".PP", ".TP", ".nf", ".fi"),
    }
