"""What outlives the agent's process, and what a file that is none costs."""

from pathlib import Path

import pytest

from tessera.agent.keptfile import KeptFile

Value = dict[str, int]


def kept(path: Path) -> KeptFile[Value]:
    return KeptFile(path, Value)


def test_another_process_reads_what_was_saved_last(tmp_path: Path) -> None:
    path = tmp_path / "state" / "value.json"
    file = kept(path)
    assert file.load() is None
    file.save({"a": 1})
    file.save({"a": 2})
    assert kept(path).load() == {"a": 2}
    assert [each.name for each in path.parent.iterdir()] == ["value.json"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": "text"}', b"[1]", b"\xff"])
def test_a_file_that_is_none_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(content)
    assert kept(path).load() is None


def test_a_folder_in_its_place_counts_as_empty_and_cannot_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.mkdir()
    assert kept(path).load() is None
    with pytest.raises(IsADirectoryError):
        kept(path).save({"a": 1})


def test_the_same_value_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    file = kept(path)
    file.save({"a": 1})
    path.unlink()
    file.save({"a": 1})
    assert not path.exists()
    file.save({"a": 2})
    assert path.exists()


def test_what_must_survive_the_machine_is_written_though_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    file = kept(path)
    file.save({"a": 1})
    path.unlink()
    file.save({"a": 1}, flush=True)
    assert kept(path).load() == {"a": 1}


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_value(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    kept(path).save({"a": 1})
    path.with_name("value.json.new").write_bytes(b'{"a"')
    assert kept(path).load() == {"a": 1}
    kept(path).save({"a": 3})
    assert kept(path).load() == {"a": 3}
