"""``python -m website.diagrams.draw`` draws the diagrams that have no picture yet; ``make pictures`` calls it.

mermaid runs in Chromium, as it would in a reader's browser. It is a package of npm, pinned in ``package-lock.json``
here; neither the site nor its build needs it.
"""

import shutil
import subprocess
from pathlib import Path

from playwright.sync_api import sync_playwright

from website.diagrams.blocks import FOLDER, blocks, missing_pictures, picture_name

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
_SCRIPT = HERE / "node_modules" / "mermaid" / "dist" / "mermaid.min.js"
#: Labels as text of the picture: labels in HTML are lost where a browser shows a picture of its own.
_SETTINGS = {
    "startOnLoad": False,
    "theme": "neutral",
    "htmlLabels": False,
    "flowchart": {"htmlLabels": False, "wrappingWidth": 400},
    "fontFamily": "system-ui, sans-serif",
}
_DRAW = """async ([settings, text]) => {
  mermaid.initialize(settings);
  return (await mermaid.render("diagram", text)).svg;
}"""


def main() -> None:
    """Draws what is missing, and removes pictures of diagrams that are gone."""
    if not _SCRIPT.is_file():
        install = [_program("npm"), "ci", "--silent", "--no-audit", "--no-fund"]
        subprocess.run(install, cwd=HERE, check=True)  # noqa: S603 - fixed arguments
    wanted = list(missing_pictures(DOCS))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_program("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(path=_SCRIPT)
        for name, text in wanted:
            (DOCS / FOLDER / name).write_text(page.evaluate(_DRAW, [_SETTINGS, text]) + "\n", encoding="utf-8")
        browser.close()
    pages = (each.read_text(encoding="utf-8") for each in DOCS.rglob("*.md"))
    kept = {picture_name(block) for page_text in pages for block in blocks(page_text)}
    for picture in (DOCS / FOLDER).glob("diagram-*.svg"):
        if picture.name not in kept:
            picture.unlink()


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"error: {name} is missing; it draws the diagrams, and nothing else here needs it")
    return found


if __name__ == "__main__":
    main()
