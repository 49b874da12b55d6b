"""The security page lists every limit as the program has it."""

from pathlib import Path

from tessera.limits import all_limits

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_the_security_page_lists_every_limit_with_its_value_and_reason() -> None:
    rows = [
        f"| `{name}` | {limit.bounds} | {int(limit):,} {limit.unit} | {limit.reason} |" for name, limit in all_limits()
    ]
    table = PAGE.read_text(encoding="utf-8").partition("## Limits")[2].partition("\n## ")[0]
    listed = [line for line in table.splitlines() if line.startswith("| `")]
    assert listed == rows, "the table of docs/security.md should read:\n" + "\n".join(rows)
