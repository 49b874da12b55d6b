"""``python -m monitoring [URL]`` writes the files of ``deploy/monitoring/``."""

import argparse

from monitoring.files import FOLDER, generate
from monitoring.manifests import RUNBOOKS


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description="Writes the files of deploy/monitoring/.")
    parser.add_argument(
        "runbooks", nargs="?", default=RUNBOOKS, metavar="URL", help="folder with a copy of docs/runbooks"
    )
    for name, text in generate(parser.parse_args().runbooks).items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


main()
