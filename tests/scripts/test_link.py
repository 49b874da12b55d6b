"""The commands that a checkout gets: they start whatever the path of the checkout is."""

import subprocess
import sys
from pathlib import Path

import pytest
from scripts.link import COMMAND, LONGEST_FIRST_LINE, start_of_script


@pytest.mark.parametrize(
    "name",
    ["plain", "my work", "it's $HOME", 'a "b" `c`', "größer", "x" * LONGEST_FIRST_LINE],
    ids=["plain", "blank", "quote and dollar", "quotes", "not ASCII", "long"],
)
def test_a_command_starts_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    (folder / "module.py").write_text("def main(): import sys; print(sys.argv[1:])\n")
    script = folder / "command"
    script.write_text(COMMAND.format(start=start_of_script(str(folder / "python")), module="module", function="main"))
    script.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(script)
    for path in (script, link):
        done = subprocess.run([path, "a b", "$c"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
        assert (done.stdout, done.stderr, done.returncode) == ("['a b', '$c']\n", "", 0)
