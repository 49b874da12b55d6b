"""The archive is bounded, says what it holds, and stays below its folder."""

import io
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

from tessera.doctor.archive import ARCHIVE_FILE, ARCHIVE_SIZE, FOLDER, Archive


def read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path, "r:gz") as tar:
        found = {}
        for member in tar.getmembers():
            stream = tar.extractfile(member)
            assert stream is not None
            found[member.name.removeprefix(f"{FOLDER}/")] = stream.read()
        return found


def manifest(path: Path) -> Any:
    return json.loads(read(path)["manifest.json"])


def test_the_manifest_lists_each_file_and_what_is_missing(tmp_path: Path) -> None:
    archive = Archive()
    archive.add_json("nodes.json", "nodes", [{"name": "n1"}])
    archive.omit("pods", "you may not list pods")
    size = archive.write(tmp_path / "case.tar.gz", tessera="1")
    assert size == (tmp_path / "case.tar.gz").stat().st_size
    told = manifest(tmp_path / "case.tar.gz")
    (file,) = told["files"]
    assert (file["path"], file["what"], file["cut"]) == ("nodes.json", "nodes", 0)
    assert told["leftOut"] == [{"what": "pods", "why": "you may not list pods"}]
    assert told["tessera"] == "1"
    assert json.loads(read(tmp_path / "case.tar.gz")["nodes.json"]) == [{"name": "n1"}]


def test_it_is_for_its_owner_only_also_if_the_file_was_there(tmp_path: Path) -> None:
    path = tmp_path / "case.tar.gz"
    path.write_bytes(b"old")
    path.chmod(0o644)
    Archive().write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_of_a_long_log_the_end_is_kept(tmp_path: Path) -> None:
    archive = Archive()
    archive.add("logs/a.log", "log of a", b"x" * ARCHIVE_FILE + b"the end", from_end=True)
    archive.write(tmp_path / "case.tar.gz")
    content = read(tmp_path / "case.tar.gz")["logs/a.log"]
    assert len(content) == ARCHIVE_FILE
    assert content.endswith(b"the end")
    assert manifest(tmp_path / "case.tar.gz")["files"][0]["cut"] == 7


def test_a_full_archive_takes_nothing_more_and_says_so(tmp_path: Path) -> None:
    archive = Archive()
    for number in range(ARCHIVE_SIZE // ARCHIVE_FILE + 1):
        archive.add(f"logs/{number}.log", f"log {number}", b"\0" * ARCHIVE_FILE)
    assert sum(each.size for each in archive.files) == ARCHIVE_SIZE
    (missing,) = archive.left_out
    assert "the archive is full" in missing.why


def test_no_name_leads_out_of_its_folder(tmp_path: Path) -> None:
    archive = Archive()
    archive.add("logs/../../etc/cron.d/x\n.log", "a hostile name", b"1")
    archive.add("/etc/passwd", "another", b"2")
    archive.write(tmp_path / "case.tar.gz")
    assert [each.path for each in archive.files] == ["logs/etc/cron.d/x_.log", "etc/passwd"]
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "case.tar.gz").read_bytes())) as tar:
        assert all(name.startswith(f"{FOLDER}/") and ".." not in name for name in tar.getnames())
