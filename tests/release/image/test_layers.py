import os
import tarfile
from pathlib import Path

import pytest
from release.image.layers import write_archive


def tree(folder: Path, umask: int, order: list[str]) -> Path:
    before = os.umask(umask)
    try:
        for name in order:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
        (folder / "bin/program").chmod(0o777)
        (folder / "tmp").mkdir()
        (folder / "tmp").chmod(0o1777)
        (folder / "link").symlink_to("bin/program")
        (folder / "hard").hardlink_to(folder / "etc/b")
    finally:
        os.umask(before)
    return folder


def archive(folder: Path) -> bytes:
    write_archive(folder, folder.parent / "layer.tar", seconds=1_700_000_000)
    return (folder.parent / "layer.tar").read_bytes()


def test_one_tree_is_one_archive_whoever_made_it(tmp_path: Path) -> None:
    names = ["etc/a", "etc/b", "bin/program"]
    first = tree(tmp_path / "1" / "tree", 0o022, names)
    second = tree(tmp_path / "2" / "tree", 0o077, names[::-1])
    os.utime(second / "etc/a", (1, 1))
    assert archive(first) == archive(second)


def test_files_are_roots_and_only_root_writes_them(tmp_path: Path) -> None:
    archive(tree(tmp_path / "tree", 0o000, ["etc/a", "etc/b", "bin/program"]))
    with tarfile.open(tmp_path / "layer.tar") as layer:
        members = {each.name: each for each in layer}
    assert {(each.uid, each.gid, each.uname, each.mtime) for each in members.values()} == {(0, 0, "", 1_700_000_000)}
    modes = {name: each.mode for name, each in members.items() if not each.issym()}
    assert modes == {
        "bin": 0o755,
        "bin/program": 0o755,
        "etc": 0o755,
        "etc/a": 0o644,
        "etc/b": 0o644,
        "hard": 0o644,
        "tmp": 0o1777,
    }


@pytest.mark.parametrize("name", ["link", "hard"])
def test_a_hard_link_is_a_file_and_a_symbolic_one_a_link(tmp_path: Path, name: str) -> None:
    archive(tree(tmp_path / "tree", 0o022, ["etc/a", "etc/b", "bin/program"]))
    with tarfile.open(tmp_path / "layer.tar") as layer:
        member = layer.getmember(name)
    assert (member.type, member.linkname) == {
        "link": (tarfile.SYMTYPE, "bin/program"),
        "hard": (tarfile.REGTYPE, ""),
    }[name]
