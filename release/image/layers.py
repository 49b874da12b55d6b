"""A tree as the archive of a layer: the same tree makes the same bytes, whoever made it and when."""

import tarfile
from pathlib import Path


def write_archive(tree: Path, file: Path, *, seconds: int) -> None:
    """Writes a tree as an uncompressed tar archive.

    Names are sorted, every file belongs to root and has the same time, and a hard link is a file of its own. The umask
    of the one who builds does not show: all may read a file, the owner may write it, and all may run it if the owner
    may. A folder with the sticky bit is for all.

    Args:
        tree: the folder that becomes ``/``.
        file: the archive; overwritten.
        seconds: Unix time of every file.
    """
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree.rglob("*")):
            member = tarfile.TarInfo(path.relative_to(tree).as_posix())
            member.mtime = seconds
            status = path.lstat()
            if path.is_symlink():
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                archive.addfile(member)
            elif path.is_dir():
                member.type, member.mode = tarfile.DIRTYPE, 0o1777 if status.st_mode & 0o1000 else 0o755
                archive.addfile(member)
            else:
                member.size, member.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
                with path.open("rb") as content:
                    archive.addfile(member, content)
