"""Bounds on the input of others stand in one module, and the security page lists them as the program has them."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tessera.limits import all_limits

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "security.md"

#: Words in the name of a bound.
WORDS = {"MOST", "LONGEST", "LARGEST", "MAX"}
#: Kubernetes' own bounds on names: a label and a subdomain (RFC 1123).
NAMES = {63, 253}
#: Smaller numbers say how often something is tried, or how many names a sentence lists.
SMALL = 32
#: Integers that bound nothing that others can choose.
OTHERS = {
    "tessera/agent/health/faults.py:_MOST_DOUBLED": "returns of a mark, which the agent counts",
    "tessera/kubelet/sockets.py:_LONGEST_PATH": "Linux's bound on the path of a socket",
    "tessera/nvml/simulated/hardware.py:MOST_EVENTS": "the buffer of a simulated card",
    "tessera/webhook/nodes/label_index.py:_MOST": "the range of a 64-bit integer",
}


def test_the_security_page_lists_every_limit_with_its_value_and_reason() -> None:
    rows = [
        f"| `{name}` | {limit.bounds} | {int(limit):,} {limit.unit} | {limit.reason} |" for name, limit in all_limits()
    ]
    table = PAGE.read_text(encoding="utf-8").partition("## Limits")[2].partition("\n## ")[0]
    listed = [line for line in table.splitlines() if line.startswith("| `")]
    assert listed == rows, "the table of docs/security.md should read:\n" + "\n".join(rows)


def test_bounds_stand_in_the_module_of_limits_and_nowhere_else() -> None:
    found = {each for path in sorted(SOURCE.rglob("*.py")) if "apiserver" not in path.parts for each in bounds(path)}
    text = "make these a Limit in tessera/limits.py, or list them above if others cannot choose what they bound"
    assert found == set(OTHERS), f"{text}: {sorted(found ^ set(OTHERS))}"


def test_every_limit_is_used() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py") if path.name != "limits.py")
    manifests = {"POLICY_ENTRIES"}  # deploy/policies/pods.yaml, tests/deploy/test_device_access.py
    assert {name for name, _ in all_limits() if name not in source} == manifests


def bounds(path: Path) -> Iterator[str]:
    """Integers of a module whose name says that they are the most of something: ``cli/files.py:_LONGEST``."""
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
