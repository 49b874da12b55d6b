"""A CDI file has the form that runtimes read, and is replaced as a whole or not at all."""

import json
from pathlib import Path

from tessera.agent.base.device_plugin import define_device, write_cdi_file
from tessera.nvml.interface import DeviceFile

CONTROL = DeviceFile(path="/dev/nvidiactl", major=195, minor=255)
CARD = DeviceFile(path="/dev/nvidia0", major=195, minor=0)


def test_a_file_has_the_form_of_the_specification(tmp_path: Path) -> None:
    path = tmp_path / "cdi" / "x.json"
    write_cdi_file(
        path,
        "example.com/card",
        [define_device("0", {"A": "1"}, [CONTROL, CARD, CONTROL]), define_device("set", {"A": "2"})],
    )
    assert json.loads(path.read_bytes()) == {
        "cdiVersion": "0.6.0",
        "kind": "example.com/card",
        "devices": [
            {
                "name": "0",
                "containerEdits": {
                    "env": ["A=1"],
                    "deviceNodes": [
                        {"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255, "permissions": "rw"},
                        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "permissions": "rw"},
                    ],
                },
            },
            {"name": "set", "containerEdits": {"env": ["A=2"]}},
        ],
    }


def test_an_equal_file_is_not_written_and_another_is_replaced_by_rename(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_cdi_file(path, "example.com/card", [define_device("0", {"A": "1"})])
    first = path.stat().st_ino
    write_cdi_file(path, "example.com/card", [define_device("0", {"A": "1"})])
    assert path.stat().st_ino == first
    with path.open("rb") as reader:
        before = path.read_bytes()
        write_cdi_file(path, "example.com/card", [define_device("0", {"A": "2"})])
        assert reader.read() == before, "a runtime that was reading has the old file in full"
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]
