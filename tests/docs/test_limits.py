"""Limits on input from outside are defined in one module; the page has those that users meet, and names the others."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tessera import limits
from tessera.dra import limits as claims
from tessera.driver import limits as drivers
from tessera_lab import limits as lab

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "limits.md"

#: The modules of limits in the order of the page, each with its title there.
MODULES: dict[str, ModuleType] = {
    "The core": limits,
    "Resource claims": claims,
    "Drivers and registries": drivers,
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


#: The headings in the core's module whose limits authors of pods and files meet.
SHOWN = ("Files of settings", "Pods")


def test_the_page_lists_the_limits_of_pods_and_files_with_their_values() -> None:
    wanted = "".join(table(title) for title in SHOWN)
    listed = PAGE.read_text(encoding="utf-8").partition("## ")
    assert listed[1] + listed[2] == wanted.removesuffix("\n"), "docs/limits.md should have:\n" + wanted


@pytest.mark.parametrize("title", MODULES)
def test_the_page_leads_to_every_module_of_limits(title: str) -> None:
    path = Path(str(MODULES[title].__file__)).relative_to(ROOT)
    assert f"[{title}](../{path})" in PAGE.read_text(encoding="utf-8")


def test_every_limit_has_its_reason() -> None:
    assert {name for name, reason in definitions() if len(reason.split()) < 3} == set()


def test_every_module_of_limits_is_named_here() -> None:
    assert set(SOURCE.rglob("limits.py")) == {Path(str(module.__file__)) for module in MODULES.values()}


def test_limits_are_defined_in_the_modules_of_limits_and_nowhere_else() -> None:
    found = {each for path in sorted(SOURCE.rglob("*.py")) if "apiserver" not in path.parts for each in bounds(path)}
    text = "make these a Limit, or list them above if others cannot choose the bounded value"
    assert found == set(OTHERS), f"{text}: {sorted(found ^ set(OTHERS))}"


def test_every_limit_is_used() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    uses = Counter(re.findall(r"[A-Z_]+", source))
    assert {name for name, _ in definitions() if uses[name] == 1} == set()


def definitions() -> Iterator[tuple[str, str]]:
    """Name and reason of each limit of the source, the satellites' included."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(func=ast.Name(id="Limit"), args=[_, _, _, ast.Constant(value=str(reason))]),
                ):
                    yield name, reason


def table(title: str) -> str:
    """A section of the page: a heading of the core's module, and the table of the limits below it."""
    section = Path(limits.__file__).read_text(encoding="utf-8").partition(f"\n# {title}\n")[2].partition("\n# ")[0]
    named = {name: getattr(limits, name) for name in re.findall(r"^([A-Z_]+) = ", section, re.MULTILINE)}
    rows = (f"| `{name}` | {each.bounds} | {int(each):,} {each.unit} |" for name, each in named.items())
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
