"""Limits on input from outside are defined in one package; the page has those that users meet, and names the others."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tessera import limits
from tessera.limits import (
    Limit,
    claims,
    drivers,
    messages,
    nodes,
    planning,
    pods,
    processes,
    records,
    settings,
)
from tessera_lab import limits as lab

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "limits.md"
FOLDER = Path(limits.__file__).parent

#: The modules of limits in the order of the page, each with its title there.
TABLES: dict[str, ModuleType] = {
    "Text in messages": messages,
    "Files of settings": settings,
    "Pods": pods,
    "Resource claims": claims,
    "Nodes": nodes,
    "Decisions and caches": planning,
    "Processes": processes,
    "Drivers and registries": drivers,
    "Records, pages, reports and archives": records,
    "The lab": lab,
}

#: Words in the name of a bound.
WORDS = {"MOST", "LONGEST", "LARGEST", "MAX"}
#: Kubernetes' own bounds on names: a label and a subdomain (RFC 1123).
NAMES = {63, 253}
#: Smaller numbers say how often something is tried, or how many names a sentence lists.
SMALL = 32
#: Integers that bound nothing that others can choose.
OTHERS = {
    "tessera/agent/health/fault.py:MOST_DOUBLED": "returns of a mark, which the agent counts",
    "tessera/kubelet/sockets.py:_LONGEST_PATH": "Linux's bound on the path of a socket",
    "tessera/nvml/simulated/machine_state.py:MOST_EVENTS": "the buffer of a simulated card",
}


#: Those whose limits authors of pods and files meet; for the others the page has a link to the module.
SHOWN = {"Files of settings", "Pods"}


def test_the_page_lists_the_limits_of_pods_and_files_with_their_values() -> None:
    wanted = "".join(table(title, module) for title, module in TABLES.items() if title in SHOWN)
    listed = PAGE.read_text(encoding="utf-8").partition("## ")
    assert listed[1] + listed[2] == wanted.removesuffix("\n"), "docs/limits.md should have:\n" + wanted


@pytest.mark.parametrize("title", TABLES)
def test_the_page_leads_to_every_module_of_limits(title: str) -> None:
    path = Path(str(TABLES[title].__file__)).relative_to(ROOT)
    assert f"[{title}](../{path})" in PAGE.read_text(encoding="utf-8")


def test_every_limit_has_its_reason() -> None:
    found = [pair for module in TABLES.values() for pair in limits_of(module)]
    assert {name for name, each in found if len(each.reason.split()) < 3} == set()


def test_every_module_of_limits_has_a_table() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "limit"}
    assert modules == {module.__name__.rpartition(".")[2] for module in TABLES.values()} - {"limits"}


def test_limits_are_defined_in_the_modules_of_limits_and_nowhere_else() -> None:
    found = {each for path in sorted(SOURCE.rglob("*.py")) if "apiserver" not in path.parts for each in bounds(path)}
    text = "make these a Limit in tessera/limits, or list them above if others cannot choose the bounded value"
    assert found == set(OTHERS), f"{text}: {sorted(found ^ set(OTHERS))}"


def test_every_limit_is_used() -> None:
    definitions = {*FOLDER.glob("*.py"), Path(lab.__file__)}
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py") if path not in definitions)
    manifests = {"POLICY_ENTRIES"}  # deploy/policies/pods.yaml, tests/deploy/test_device_access.py
    names = [name for module in TABLES.values() for name, _ in limits_of(module)]
    assert {name for name in names if name not in source} == manifests


def limits_of(module: ModuleType) -> Iterator[tuple[str, Limit]]:
    """Name and limit of each definition of a module, in its order."""
    for name, value in vars(module).items():
        if isinstance(value, Limit):
            yield name, value


def table(title: str, module: ModuleType) -> str:
    """A section of the page: the heading and the table of one module."""
    rows = (f"| `{name}` | {each.bounds} | {int(each):,} {each.unit} |" for name, each in limits_of(module))
    return "\n".join([f"## {title}", "", "| limit | bounds | at most |", "|---|---|---|", *rows, "", ""])


def bounds(path: Path) -> Iterator[str]:
    """Integers of a module whose names mean a maximum: ``cli/files.py:_LONGEST``."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name) and WORDS & set(target.id.split("_")):
                    value = number(statement.value)
                    if value is not None and value >= SMALL and value not in NAMES:
                        yield f"{path.relative_to(SOURCE)}:{target.id}"


def number(expression: ast.expr) -> int | None:
    """The integer that an expression of constants stands for: ``64 * 1024``."""
    if any(not isinstance(part, ast.BinOp | ast.operator | ast.Constant) for part in ast.walk(expression)):
        return None
    value = eval(compile(ast.Expression(expression), "", "eval"))
    return value if isinstance(value, int) else None
