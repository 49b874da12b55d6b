"""Hooks of mkdocs: pages that are not in ``docs/``, links to them, pictures of diagrams, and GitHub's anchors."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website.diagrams.blocks import show_pictures
from website.navigation import fill_navigation
from website.sources import MOVED, Sources

ROOT = Path(__file__).parents[1]
ASSETS = Path(__file__).parent / "assets"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fills the navigation, and makes anchors as GitHub does, so that the same links work there and here."""
    config.nav = fill_navigation(config.nav or [], Path(config.docs_dir))
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": slugify}
    config.markdown_extensions += ["attr_list", "website.tables:LabelTables"]
    return config


def slugify(heading: str, separator: str) -> str:
    """The anchor of a heading on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the overview, the contributor's page, the linked files of the repository, and the site's own files."""
    sources = Sources(ROOT)
    for origin, page in MOVED.items():
        text = sources.rewrite((ROOT / origin).read_text(encoding="utf-8"), origin, page)
        files.append(File.generated(config, page, content=text))
    for file in list(files):
        if file.is_documentation_page() and file.generated_by is None:
            text = (Path(config.docs_dir) / file.src_uri).read_text(encoding="utf-8")
            sources.rewrite(text, f"docs/{file.src_uri}", file.src_uri)
    for page, text in sources.pages.items():
        files.append(File.generated(config, page, content=text))
    for asset in sorted(ASSETS.iterdir()):
        files.append(File.generated(config, f"assets/{asset.name}", abs_src_path=str(asset)))
    return files


def on_page_markdown(markdown: str, page: Page, **_others: Any) -> str:
    """Rewrites links that leave the folder of pages, and shows pictures of diagrams."""
    path = page.file.src_uri
    if page.file.generated_by is None:
        markdown = Sources(ROOT).rewrite(markdown, f"docs/{path}", path)
    return show_pictures(markdown, path)
