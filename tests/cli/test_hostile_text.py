"""No text of others reaches a terminal, a page or a log raw, whichever field of whichever object it stands in.

Each string of the objects that commands read is spoiled, all that are free text at once and then each of the others by
itself, and every command that reads a cluster is run.
"""

import copy
import json
import logging
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli.objects import Objects, encoded, objects, serving
from tests.explain.test_pods import NOW

from tessera.cli.base.process import LOG_LINE, EscapingFormatter
from tessera.cli.main import COMMANDS, main
from tessera.limits import FACT_SHOWN, LINE_SHOWN

FORGED = "What would help:"
EVIL = f"\x1b[2J\x1b[H\n{FORGED}\n  - forged\r\x9b31m\u202e\x7f\x00<script>alert(1)</script>"

#: Commands that read a cluster; what runs for long, or only asks registries, shows nothing of objects.
READING = (
    ["map"],
    ["map", "--colour"],
    ["map", "-o", "json"],
    ["map", "--summary"],
    ["map", "--held-by", "team"],
    ["why", "a", "-n", "team"],
    ["why", "b", "-n", "team"],
    ["why", "c", "-n", "team"],
    ["why", "d", "-n", "team"],
    ["why", "a", "-n", "team", "-o", "json"],
    ["why", "deployment/web", "-n", "team"],
    ["why", "job/train", "-n", "team"],
    ["why", "node/n1"],
    ["why", "node/n2"],
    ["why", "node/n1", "-o", "json"],
    ["top"],
    ["top", "--by", "cards"],
    ["top", "-o", "json"],
    ["topo", "n3"],
    ["topo", "n3", "-o", "json"],
    ["usage"],
    ["usage", "--by", "user", "-o", "csv"],
    ["usage", "-o", "json"],
    ["defrag", "--plan"],
    ["queue"],
    ["queue", "-o", "json"],
    ["queue", "-o", "name"],
    ["queue", "-o", "yaml"],
    ["queue", "-o", "jsonpath={.pods[*]}"],
    ["kueue", "config"],
    ["resize", "a", "--back", "-n", "team"],
    ["idle", "--unknown"],
    ["idle", "-o", "json"],
    ["health"],
    ["health", "n3"],
    ["health", "-o", "json"],
    ["cordon", "n1/0", "--reason", "fan is loud"],
    ["uncordon", "n1/1"],
    ["doctor", "--all"],
    ["doctor", "-o", "json"],
    ["version"],
    ["version", "-o", "json"],
    ["driver", "status", "-v"],
    ["driver", "status", "-o", "json"],
    ["driver", "images", "--cluster"],
    ["provisioning", "report"],
    ["provisioning", "report", "-o", "html"],
    ["provisioning", "report", "-o", "json"],
    ["provisioning", "report", "-o", "svg"],
    ["autoscaler", "advise"],
    ["autoscaler", "advise", "-o", "json"],
    ["autoscaler", "advise", "-o", "capi"],
    ["autoscaler", "warm", "--pods-per-hour", "5", "--max-waiting-share", "0.05"],
    ["install", "--dry-run"],
)
#: One of each kind of output.
BRIEF = [each for each in READING if "json" not in each and "--colour" not in each and "images" not in each]


#: Fields whose text decides what an object is or which it is; each of these is spoiled by itself.
STRUCTURE = frozenset(
    """
    name namespace uid kind apiVersion type status phase controller effect hostname nodeName strategy holderIdentity
    renewTime creationTimestamp lastTransitionTime lastTimestamp since resource profile product gpuUUID GPUUUID
    computeCapability cpu memory pods size start id node reason image
    kubernetes.io/hostname app.kubernetes.io/name nvidia.com/mig.config records.jsonl usage.json
    """.split()  # noqa: SIM905 - shorter than one a line
)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from leaves(each, (*path, at))


def spoil(value: Any, path: tuple[str | int, ...]) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] += EVIL


ALL = list(leaves(objects()))
FREE = [path for path in ALL if path[-1] not in STRUCTURE]


def check(shown: str, what: object) -> None:
    shown = shown.replace("\t", "")  # columns of topo
    steering = {each for each in shown if each != "\n" and unicodedata.category(each) in {"Cc", "Cf", "Zl", "Zp"}}
    assert not steering, f"{what}: {steering}"
    assert "\n  - forged" not in shown, what
    assert "<script" not in shown or not shown.lstrip().startswith(("<!doctype", "<svg")), what
    if not shown.startswith(("{", "[", "<")):
        assert max(map(len, shown.splitlines()), default=0) <= max(LINE_SHOWN, LOG_LINE), what


def run_all(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str], what: object, commands: Sequence[Sequence[str]] = READING
) -> list[str]:
    shown = []
    for command in commands:
        main([*command, "--kubeconfig", str(kubeconfig)])
        out, err = capsys.readouterr()
        if "--colour" in command:
            out = out.replace("\x1b[0m", "").replace("\x1b[48;5;114;38;5;16m", "")
        check(out, (command, what))
        check(err, (command, what))
        if "json" in command and out:
            json.loads(out)
        shown.append(out + err)
    return shown


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Objects, Path]]:
    monkeypatch.setattr("time.time", lambda: NOW)
    there = Objects()
    with serving(there, tmp_path) as kubeconfig:
        yield there, kubeconfig


def test_commands_show_the_objects_when_nothing_is_spoiled(
    server: tuple[Objects, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    there, kubeconfig = server
    there.found = encoded(objects())
    shown = run_all(kubeconfig, capsys, "nothing")
    failed = [(command, text) for command, text in zip(READING, shown, strict=True) if text.startswith("error")]
    assert not failed


def test_free_text_of_every_object_is_escaped(server: tuple[Objects, Path], capsys: pytest.CaptureFixture[str]) -> None:
    there, kubeconfig = server
    spoiled = objects()
    for path in FREE:
        spoil(spoiled, path)
    there.found = encoded(spoiled)
    shown = run_all(kubeconfig, capsys, "all")
    assert r"\x1b[2J" in "".join(shown), "something of it must have been shown, or this tests nothing"
    (refused,) = (text for command, text in zip(READING, shown, strict=True) if command[0] == "resize")
    assert r"\x1b[2J" in refused, "the server's refusal names what others wrote"


#: `make test` tries every twenty-fourth field, `make soak` each.
@pytest.mark.parametrize("every", [24, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", sorted(objects()))
def test_each_field_that_decides_is_escaped(
    kind: str, every: int, server: tuple[Objects, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    there, kubeconfig = server
    alike: dict[tuple[str, ...], tuple[str | int, ...]] = {}
    for path in ALL:
        if path[0] == kind and path not in FREE:
            alike.setdefault(tuple(each for each in path if isinstance(each, str)), path)
    for path in list(alike.values())[::every]:
        spoiled = copy.deepcopy(objects())
        spoil(spoiled, path)
        there.found = encoded(spoiled)
        run_all(kubeconfig, capsys, path, BRIEF)


def test_every_command_is_known_to_this_test() -> None:
    first = {command[0] for command in READING}
    processes = {"controller", "webhook", "agent", "operator", "mps-host"}
    # An uninstallation would delete the objects; accept reads a node and the log of a pod that it makes.
    silent = {
        "accept",
        "plan",
        "config",
        "completion",
        "dashboard",
        "debug",
        "uninstall",
        "wait-for",
        "validate",
        *processes,
    }
    assert set(COMMANDS) == first | silent, "a new command joins READING, or the others with a reason"


def test_a_log_line_is_one_line() -> None:
    record = logging.LogRecord("n", logging.INFO, "p", 1, "pod %s", (EVIL + "x" * 2 * LOG_LINE,), None)
    line = EscapingFormatter("%(levelname)s %(message)s").format(record)
    check(line, "log")
    assert line.startswith(r"INFO pod \x1b[2J")
    assert len(line) == LOG_LINE


def test_a_fact_is_cut() -> None:
    from tessera.explain.explanation import Explanation, ExplanationReport, report_lines

    report = ExplanationReport(
        kind="pod", namespace="n", name="p", answers=(Explanation(case="c", verdict="v", facts=("x" * 10**6,)),)
    )
    assert max(map(len, report_lines(report))) <= FACT_SHOWN + 4
