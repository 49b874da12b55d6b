"""Every benchmark starts, and ends at its smallest size; a bar that is missed is no failure unless it is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench.__main__ import BENCHMARKS, ROOT

FOLDER = ROOT / "bench"
#: Those that take more than a second of CPU at their smallest size.
SLOW = {
    *(
        "claims",
        "cli",
        "decisions",
        "eta",
        "experiments",
        "handover",
        "large",
        "new_nodes",
        "placement",
        "pod_notices",
        "ports",
        "preferred",
        "reservations",
    ),
    *("autoscale_services", "page", "readiness", "reviews"),
    *("scrape", "server", "sharing", "slices", "spares", "state_values", "top", "two_cards", "watch"),
}
#: Files that are no benchmark: this runner, the unit of speed, another way to start one, policies that are compared,
#: and counts of the source.
OTHERS = {"__main__", "calibration", "claim_clusters", "decide", "rivals", "size", "trail"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Two nodes, and pods of one trace."""
    nodes = ["sn,cpu_milli,memory_mib,gpu,model", "n1,96000,393216,8,G2", "n2,16000,122880,2,P100"]
    pods = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec", *(f"p{n},4000,8192,1,1000," for n in range(10))]
    (tmp_path / "openb_node_list_gpu_node.csv").write_text("\n".join(nodes))
    (tmp_path / "openb_pod_list_default.csv").write_text("\n".join(pods))
    return tmp_path


def test_every_file_is_known() -> None:
    found = {each.stem for each in FOLDER.glob("*.py")} | {each.parent.name for each in FOLDER.glob("*/__main__.py")}
    assert found - OTHERS == BENCHMARKS.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in SLOW else []) for name in BENCHMARKS]
)
def test_a_benchmark_starts_and_ends(name: str, traces: Path) -> None:
    traced = ["--openb", str(traces)] if BENCHMARKS[name].needs_traces else []
    done = run(name, "--smallest", *traced)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) > 3  # the two lines around it, and what it says itself


def test_a_missed_bar_is_the_exit_code_only_if_asked_for(traces: Path) -> None:
    """All cards are asked for at once, so FGD's published allocation is missed."""
    pods = traces / "openb_pod_list_default.csv"
    pods.write_text(pods.read_text() + "\nhuge,4000,8192,8,1000,G2" * 9)
    told = run("openb", "--smallest", "--openb", str(traces))
    checked = run("openb", "--smallest", "--openb", str(traces), "--check")
    assert "SHORT" in told.stdout
    assert (told.returncode, checked.returncode) == (0, 1)
    assert "failed: openb" in checked.stderr


def test_one_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    """Openb finds no traces in the folder."""
    done = run("openb", "churn", "--smallest", "--openb", str(tmp_path))
    assert done.returncode == 1
    assert "== churn: exit code 0" in done.stdout
    assert "failed: openb" in done.stderr


def test_what_is_not_known_is_refused_with_the_names_there_are() -> None:
    done = run("chrun")
    assert done.returncode == 2
    assert "no such benchmark: chrun; there are autoscale_services, churn," in done.stderr


def test_without_traces_their_benchmark_says_what_it_wants() -> None:
    assert "== openb: not run, it reads FGD's traces (--openb DIRECTORY)" in run("openb").stdout
