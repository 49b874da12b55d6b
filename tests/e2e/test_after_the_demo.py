"""A newcomer types the commands that the demo's output suggests, or stops reading the output."""

import os
import re
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "tessera", "demo"]


def test_every_line_that_it_suggests_works_and_the_last_ends_the_lab(lab_folder: Path) -> None:
    env = {**os.environ, "TESSERA_LAB": str(lab_folder), "PYTHONUTF8": "1"}
    done = subprocess.run([*COMMAND, "--keep"], env=env, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    (kubeconfig,) = re.findall(r"export KUBECONFIG=(.*)\n", done.stdout)
    asked = {**env, "KUBECONFIG": kubeconfig, "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    suggested = re.findall(r"^  ((?:kubectl|tessera) .*)$", done.stdout, re.MULTILINE)
    assert len(suggested) >= 6
    for line in suggested:
        command = line.partition("#")[0].partition("| jq")[0]
        ran = subprocess.run(command, shell=True, env=asked, capture_output=True, text=True, timeout=180)
        assert (ran.returncode, ran.stderr) == (0, ""), line
    assert not lab_folder.exists()


def test_when_its_reader_goes_away_it_ends_quietly_and_leaves_nothing(lab_folder: Path) -> None:
    env = {**os.environ, "TMPDIR": str(lab_folder.parent), "PYTHONUTF8": "1"}
    with subprocess.Popen(COMMAND, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        while "cluster is up" not in demo.stdout.readline():
            pass
        demo.stdout.close()
        assert demo.stderr.read() == ""
        assert demo.wait(timeout=180) == 0
    assert list(lab_folder.parent.iterdir()) == []
