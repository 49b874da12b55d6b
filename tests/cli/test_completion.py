"""Completion in the real shells, and by the real kubectl."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Words that are typed -> words that are offered, among others.
TYPED = [
    ("pl", ["plan"]),
    ("config ch", ["check"]),
    ("plan mig --o", ["--output"]),
    ("why --output ", ["json", "text"]),
    ("nothing-of-this-name", []),
]
BASH = """
source <(tessera completion bash)
COMP_WORDS=($TYPED); [[ $TYPED != *' ' ]] || COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_tessera_completion tessera
printf '%s\\n' "${COMPREPLY[@]}"
"""
# Outside of a line editor there is no compadd; what it would get is printed.
ZSH = """
compdef() { : }
module_path+=($MODULES)
_describe() { print -l -- ${${(P)3}%%:*} }
compadd() { print -l -- ${(P)@[-1]} }
source <(tessera completion zsh)
words=(${(z)TYPED}); [[ $TYPED != *' ' ]] || words+=('')
CURRENT=${#words}
_tessera_completion
"""
FISH = """
tessera completion fish | source
complete -C "$TYPED" | string split -f1 \\t
true
"""


def offered(shell: list[str], typed: str, folder: Path) -> list[str]:
    command = folder / "tessera"
    command.write_text(f"#!{sys.executable} -I\nimport sys\nfrom tessera.cli.main import main\nsys.exit(main())\n")
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "TYPED": f"tessera {typed}",
        "HOME": str(folder),
        # Where zsh is unpacked it does not find its own modules.
        "MODULES": str(next((Path(sys.prefix) / "tools").glob("zsh.d/usr/lib/*/zsh/*"), "")),
    }
    done = subprocess.run(shell, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(done.stdout.split())


@pytest.mark.parametrize(("typed", "words"), TYPED, ids=[typed for typed, _ in TYPED])
def test_bash_completes(typed: str, words: list[str], tmp_path: Path) -> None:
    found = offered(["bash", "--norc", "-c", BASH], typed, tmp_path)
    assert set(words) <= set(found)
    assert bool(found) is bool(words)


@pytest.mark.soak
@pytest.mark.parametrize(("typed", "words"), TYPED, ids=[typed for typed, _ in TYPED])
@pytest.mark.parametrize(("shell", "script"), [("zsh", ["-f", "-c", ZSH]), ("fish", ["--no-config", "-c", FISH])])
def test_zsh_and_fish_complete(shell: str, script: list[str], typed: str, words: list[str], tmp_path: Path) -> None:
    tools = Path(sys.prefix) / "tools"
    subprocess.run([str(ROOT / "scripts" / "need-debian"), str(tools), shell], check=True, capture_output=True)
    program = shutil.which(shell, path=f"{tools / 'bin'}:{os.environ['PATH']}")
    assert program
    assert set(words) <= set(offered([program, *script], typed, tmp_path))


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (["pl"], ["plan\tCompute a MIG layout for a card model, without a cluster.", ":4"]),
        (["why", "--output", "j"], ["json", "jsonpath=", ":4"]),
        (["config", "check", ""], [":0"]),
        (["nothing-of-this-name"], [":4"]),
    ],
    ids=["command", "value", "file", "unknown"],
)
def test_kubectl_completes_its_plugin(typed: list[str], answer: list[str], tmp_path: Path) -> None:
    plugin = tmp_path / "kubectl-tessera"
    plugin.write_text(f"#!{sys.executable} -I\nimport sys\nfrom tessera.cli.main import main\nsys.exit(main())\n")
    plugin.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    printed = subprocess.run(
        ["kubectl", "tessera", "completion", "kubectl"], capture_output=True, text=True, env=environment, check=True
    )
    completer = tmp_path / "kubectl_complete-tessera"
    completer.write_text(printed.stdout)
    completer.chmod(0o755)
    done = subprocess.run(
        ["kubectl", "__complete", "tessera", *typed], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.splitlines() == answer


@pytest.mark.parametrize(("name", "shown"), [("tessera", "tessera"), ("kubectl-tessera", "kubectl tessera")])
def test_help_has_the_name_by_which_it_was_called(name: str, shown: str, tmp_path: Path) -> None:
    program = tmp_path / name
    program.write_text(f"#!{sys.executable} -I\nimport sys\nfrom tessera.cli.main import main\nsys.exit(main())\n")
    program.chmod(0o755)
    done = subprocess.run([str(program), "map", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"Usage: {shown} map ")
    unknown = subprocess.run([str(program), "mapp"], capture_output=True, text=True)
    assert "did you mean 'map'?" in unknown.stderr
