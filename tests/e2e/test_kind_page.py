"""The page docs/kind.md, on a lab's node in place of kind's: every command from the installation on."""

from pathlib import Path

from tests.support.pages import ROOT, Page, Shell

PAGE = Page(ROOT / "docs" / "kind.md", stands_for={"kind-control-plane": "node-1"})


def test_every_command_prints_what_the_page_shows(lab_folder: Path) -> None:
    shell = Shell(lab_folder)
    status, printed = shell.run("tessera lab up --nodes 4xA100-40GB --no-tessera --mig-config ''")
    assert status == 0, printed
    shell.run("export KUBECONFIG=$(tessera lab status -o kubeconfig)")
    try:
        PAGE.play(shell)
    finally:
        shell.run("tessera lab down")


def test_what_needs_kind_and_an_engine_only_makes_the_image_and_the_cluster() -> None:
    (block,) = PAGE.blocks("sh")
    assert PAGE.languages == {"console", "sh"}
    assert [line.split()[0] for line in block.splitlines()] == ["podman", "podman", "kind", "kind", "export"]
