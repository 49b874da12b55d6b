"""``tessera driver mirror`` between real registries, with skopeo itself."""

import shlex
import subprocess
from pathlib import Path

import pytest
from tests.cli.driver.conftest import CERN
from tests.driver.registry.servers import PASSWORD, docker_config

from tessera.cli.main import main

NODES = ("--kernel", "5.15.0-69-generic", "--os", "ubuntu22.04", "--version", "525.125.06")
BRANCH, BUILDER = "driver:525-5.15.0-69-generic-ubuntu22.04", "driver:525.125.06-ubuntu22.04"


class Mirror:
    """Runs the command from one registry to another."""

    def __init__(self, capsys: pytest.CaptureFixture[str], origin: str, site: str) -> None:
        self._capsys = capsys
        self.origin, self.site = origin, site

    def __call__(self, *arguments: str, code: int = 0, repository: str = "nvidia") -> list[str]:
        where = ["--from", f"{self.origin}/{repository}", "--to", f"{self.site}/copies", "--plain-http"]
        assert main(["driver", "mirror", *where, *arguments]) == code
        said = self._capsys.readouterr()
        return [*said.out.splitlines(), *said.err.splitlines()]

    def there(self, capsys: pytest.CaptureFixture[str]) -> list[str]:
        """The tags of the site's registry."""
        main(["driver", "images", "--repository", f"{self.site}/copies", "--plain-http"])
        return capsys.readouterr().out.split()


@pytest.fixture
def mirror(capsys: pytest.CaptureFixture[str], origin: str, site: str) -> Mirror:
    return Mirror(capsys, origin, site)


def test_what_a_kernel_needs_is_copied_once(mirror: Mirror, capsys: pytest.CaptureFixture[str]) -> None:
    first = mirror(*NODES)
    assert [line.split(" (")[0] for line in first] == [
        f"copied: {mirror.origin}/nvidia/{name} to {mirror.site}/copies/{name}" for name in (BRANCH, BUILDER)
    ]
    assert sorted(mirror.there(capsys)) == [BRANCH.partition(":")[2], BUILDER.partition(":")[2]]
    assert mirror(*NODES) == [f"exists already: {mirror.site}/copies/{name}" for name in (BRANCH, BUILDER)]


def test_nodes_find_in_the_mirror_what_they_find_at_the_origin(
    mirror: Mirror, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror(*NODES)
    digests = []
    for repository in (f"{mirror.origin}/nvidia", f"{mirror.site}/copies"):
        assert main(["driver", "images", "--repository", repository, "--plain-http", *NODES]) == 0
        (taken,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Tessera uses: ")]
        digests.append(taken.partition("@")[2])
    assert digests[0] == digests[1]


def test_the_commands_of_a_dry_run_do_the_same(mirror: Mirror) -> None:
    commands = mirror(*NODES, "--dry-run")
    assert all(line.startswith("skopeo copy --retry-times=3 ") for line in commands)
    for line in commands:
        subprocess.run(shlex.split(line), check=True, capture_output=True)
    assert mirror(*NODES, "--dry-run") == [
        f"# exists already: {mirror.site}/copies/{name}" for name in (BRANCH, BUILDER)
    ]


def test_the_seeds_fork_comes_over_under_the_name_that_nvidias_operator_asks_for(
    mirror: Mirror, capsys: pytest.CaptureFixture[str]
) -> None:
    fedora = ("--kernel", "5.16.13-200.fc35.x86_64", "--os", "fedora35", "--version", CERN)
    (line,) = mirror(*fedora, repository="fifofonix")
    assert f"to {mirror.site}/copies/driver:{CERN}-fedora35 (" in line
    assert mirror.there(capsys) == [f"{CERN}-fedora35"]


def test_several_architectures_and_kernels_to_come(mirror: Mirror, tmp_path: Path) -> None:
    kernels = tmp_path / "kernels"
    kernels.write_text("# soon\n5.15.0-119-generic\nubuntu22.04 5.15.0-69-generic arm64\n")
    copied = mirror("--kernel-list", str(kernels), "--os", "ubuntu22.04", "--version", "525.125.06")
    assert [line.split()[3] for line in copied] == [f"{mirror.site}/copies/{BUILDER}"]
    again = mirror(*NODES, "--arch", "amd64", "--arch", "arm64", "--all-platforms")
    assert [line.split(" (")[0].rpartition("/")[2] for line in again] == [BRANCH, BUILDER]
    assert again[1].startswith("exists already: ")


def test_without_the_builder_every_kernel_needs_its_own_image(mirror: Mirror) -> None:
    said = mirror(*NODES, "--arch", "amd64", "--arch", "arm64", "--no-builder", code=1)
    assert len(said) == 2
    assert "no image: ubuntu22.04 5.15.0-69-generic arm64: " in said[1]
    assert "is there for linux/amd64, not for linux/arm64" in said[1]


def test_a_kernel_without_any_image_is_named_and_the_others_are_copied(mirror: Mirror) -> None:
    said = mirror("--kernel", "5.15.0-69-generic", "--kernel", "6.1", "--os", "ubuntu22.04", "--version", "535", code=1)
    assert said[0].startswith("copied: ")
    assert said[1].startswith("no image: ubuntu22.04 6.1 amd64: ")


def test_without_skopeo_only_a_dry_run_works(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (told,) = mirror(*NODES, code=1)
    assert told.startswith("error: skopeo is not in PATH: install the package skopeo")
    assert len(mirror(*NODES, "--dry-run")) == 2


def test_credentials_reach_skopeo_by_file_only(
    capsys: pytest.CaptureFixture[str], locked: str, site: str, tmp_path: Path
) -> None:
    auth = tmp_path / "auth.json"
    auth.write_bytes(docker_config(locked))
    mirror = Mirror(capsys, locked, site)
    (told,) = mirror(*NODES, "--no-builder", code=1)
    assert "without credentials (401)" in told
    (shown,) = mirror(*NODES, "--no-builder", "--auth", str(auth), "--dry-run")
    assert f"--authfile={auth}" in shown
    assert PASSWORD not in shown
    (copied,) = mirror(*NODES, "--no-builder", "--auth", str(auth))
    assert copied.startswith("copied: ")


def test_a_file_of_kernels_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["--from", "a.local/x", "--to", "b.local/x", "--version", "525", "--os", "ubuntu22.04", "--kernel-list"]
    for content, says in (
        (b"\xff", "not UTF-8: byte 0 is 0xff"),
        (b"5.15.0-69-generic sparc\n", "only amd64 or arm64"),
    ):
        (tmp_path / "kernels").write_bytes(content)
        assert main(["driver", "mirror", *named, str(tmp_path / "kernels")]) == 1
        told = capsys.readouterr().err
        assert told.startswith(f"error: {tmp_path / 'kernels'}: ")
        assert says in told


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--to", "r.local/x"], ("give --from, --version", "--kernel with --os or --kernel-list")),
        (["--from", "a.io/b"], ("Missing option '--to'",)),
        (["--to", "r.local/x", "--from", "a.io/b", "--version", "1", "--kernel", "6.1"], ("--kernel needs --os",)),
        (["--to", "r.local/x", "--cluster", "--from", "a.io/b"], ("leave --from, --kernel and --version out",)),
    ],
)
def test_what_is_wrong_with_a_command_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], facts: tuple[str, ...]
) -> None:
    assert main(["driver", "mirror", *arguments]) == 1
    told = capsys.readouterr().err
    for fact in facts:
        assert fact in told
    assert told.count("\n") == 1
