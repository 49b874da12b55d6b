"""Counts the code lines of the core and of each satellite: no blanks, comments or docstrings.

    python -m bench.size

Generated modules are left out.
"""

import ast
import io
import tokenize
from pathlib import Path

from tessera.cli.base.features import FEATURES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tessera"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Counts the lines of a module that have code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def sizes() -> dict[str, int]:
    """Returns the code lines of the core and of each satellite that has Python code, by name."""
    folders = {ROOT / folder: each.name for each in FEATURES for folder in each.folders}
    found = {"core": 0}
    for path in SOURCE.rglob("*.py"):
        if "_pb2" not in path.name:
            name = next((folders[each] for each in (path, *path.parents) if each in folders), "core")
            found[name] = found.get(name, 0) + code_lines(path.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    for name, lines in sizes().items():
        print(f"{lines:7,}  {name}")
