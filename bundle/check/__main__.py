"""``python -m bundle.check``: prints what the rules find; ends with 1 for an error or a new warning."""

import sys
from pathlib import Path

import click

from bundle.check.problems import WARNING
from bundle.check.reading import read_bundle
from bundle.check.rules import KEPT, check
from bundle.files import FOLDER


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), default=FOLDER)
def main(folder: Path) -> None:
    """Check the bundle in FOLDER."""
    failed = False
    for rule, problem in check(read_bundle(folder)):
        kept = KEPT.get(rule, "") if problem.level == WARNING else ""
        failed |= not kept
        sys.stdout.write(f"{problem.level}: {problem.text}{f' (kept: {kept})' if kept else ''}\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
