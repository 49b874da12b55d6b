"""Removes an agent's files from its node. Folders that are mounted stay, empty; kubelet made them, not the agent."""

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from tessera.api.names import CDI_KIND

#: Beginning of the names of all CDI files that the agent writes, finished or not.
_CDI = CDI_KIND.replace("/", "-")


def remove_files(*, state: Path, cdi: Path, mps: Path | None, keep: Collection[Path] = ()) -> list[str]:
    """Removes the agent's state, its CDI files, and the pipes and logs of MPS daemons that have ended.

    Args:
        state: folder of the state files; all of it is the agent's.
        cdi: folder of CDI files, which the agent shares with others.
        mps: folder of the MPS daemons, all of which is the agent's; ``None`` to leave it.
        keep: state files that stay.

    Returns:
        The files that could not be removed, for people.
    """
    return [
        *_remove(each for each in _files(state, "*") if each not in keep),
        *_remove(path for pattern in (f"{_CDI}*", f".{_CDI}*") for path in _files(cdi, pattern)),
        *(_empty(mps) if mps is not None else ()),
    ]


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _empty(folder: Path) -> list[str]:
    return _remove(iter(_files(folder, "*")))


def _remove(paths: Iterator[Path]) -> list[str]:
    left: list[str] = []
    for path in paths:
        try:
            if path.is_mount():
                left += _empty(path)
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"{path} stays, remove it by hand: {error.strerror or error}")
    return left
