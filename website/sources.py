"""Pages for files of the repository that the documentation links to: manifests, examples, benchmarks.

The site stands alone, so such a link leads to a page with the text of the file, or with a list of a folder's files.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

#: The folder of these pages on the site.
FOLDER = "source"
#: Pages of the site that are made of a file outside of the folder of pages.
MOVED: Mapping[str, str] = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
#: Longest file whose text is shown, in bytes.
LONGEST = 100_000
_LINK = re.compile(r"(?P<before>!?\[[^\]]*\]\()(?P<target>[^)\s]+)(?P<after>\))")
_FENCE = re.compile(r"^(```|~~~)", re.MULTILINE)
_LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".py": "python", ".json": "json", ".toml": "toml", ".sh": "sh"}
#: Folders of a checkout that are no part of the repository.
_IGNORED = frozenset({"__pycache__", "node_modules", ".venv", ".git"})
#: Files without a text that somebody reads.
_NO_TEXT = frozenset({".gz", ".png", ".pyc", ".tgz"})


class Sources:
    """The pages, gathered from the links of the others.

    Args:
        root: the repository.

    Attributes:
        pages: text of each page by its path on the site.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.pages: dict[str, str] = {}

    def rewrite(self, text: str, origin: str, page: str) -> str:
        """Returns a page whose links lead to pages of the site; the linked files become pages.

        Args:
            text: the page.
            origin: where the file is in the repository, ``docs/sharing.md``.
            page: where the page is on the site, ``sharing.md``.
        """
        parts = re.split(r"(^(?:```|~~~).*?^(?:```|~~~)[ ]*$)", text, flags=re.MULTILINE | re.DOTALL)
        return "".join(part if _FENCE.match(part) else self._rewrite(part, origin, page) for part in parts)

    def _rewrite(self, text: str, origin: str, page: str) -> str:
        def moved(found: re.Match[str]) -> str:
            return f"{found['before']}{self._target(found['target'], origin, page)}{found['after']}"

        return _LINK.sub(moved, text)

    def _target(self, target: str, origin: str, page: str) -> str:
        if "://" in target or target.startswith(("#", "mailto:")):
            return target
        path, hash_, anchor = target.partition("#")
        repository = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        site = self.site_path(repository)
        return posixpath.relpath(site, posixpath.dirname(page) or ".") + hash_ + anchor

    def site_path(self, repository: str) -> str:
        """The path on the site of a file or folder of the repository; makes its page if it has none.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if repository in MOVED:
            return MOVED[repository]
        if repository.startswith("docs/"):
            inside = repository.removeprefix("docs/")
            return f"{inside}/README.md" if (self._root / repository).is_dir() else inside
        path = self._root / repository
        name = f"{FOLDER}/{repository}{'/README' if path.is_dir() else ''}.md"
        if name not in self.pages:
            self.pages[name] = ""  # a folder may list itself by way of a link
            self.pages[name] = self._folder(path, name) if path.is_dir() else self._file(path)
        return name

    def _file(self, path: Path) -> str:
        title = path.relative_to(self._root).as_posix()
        if path.stat().st_size > LONGEST:
            return f"{_FRONT}# {title}\n\nThe file has {path.stat().st_size:,} bytes; see it in the repository.\n"
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            return f"{_FRONT}{self.rewrite(text, title, f'{FOLDER}/{title}.md')}"
        fence = "`" * max(4, *(len(run) + 1 for run in re.findall(r"`+", text)), 4)
        return f"{_FRONT}# {title}\n\n{fence}{_LANGUAGES.get(path.suffix, '')}\n{text.rstrip()}\n{fence}\n"

    def _folder(self, path: Path, name: str) -> str:
        rows = [f"- [{each}]({self._relative(path / each, name)})" for each in _files(path)]
        return f"{_FRONT}# {path.relative_to(self._root).as_posix()}\n\n" + "\n".join(rows) + "\n"

    def _relative(self, path: Path, name: str) -> str:
        return posixpath.relpath(self.site_path(path.relative_to(self._root).as_posix()), posixpath.dirname(name))


#: Such pages are found by links; the search would show each manifest before the page that explains it.
_FRONT = "---\nsearch:\n  exclude: true\n---\n\n"


def _files(folder: Path) -> Iterator[str]:
    """The text files below a folder, by their path in it."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        hidden = inside.name.startswith(".") or _IGNORED & set(inside.parts)
        if path.is_file() and not hidden and path.suffix not in _NO_TEXT:
            yield inside.as_posix()
