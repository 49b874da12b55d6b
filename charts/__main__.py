"""``python -m charts`` writes the generated files of ``charts/tessera/``."""

from charts.files import FOLDER, generate


def main() -> None:
    """Writes the files."""
    for name, text in generate().items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


main()
