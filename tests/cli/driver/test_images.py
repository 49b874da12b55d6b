"""``tessera driver images`` against a real registry."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.driver.registry.servers import PASSWORD, docker_config, silent

from tessera.cli.main import main

NODES = ("--kernel", "5.15.0-69-generic", "--os", "ubuntu22.04")


class Said:
    """One run's exit code and output."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def images(capsys: pytest.CaptureFixture[str], host: str, *arguments: str) -> Said:
    code = main(["driver", "images", "--repository", f"{host}/nvidia", "--plain-http", *arguments])
    return Said(code, *capsys.readouterr())


def test_a_versions_tags_are_listed_as_the_seed_greps_them(capsys: pytest.CaptureFixture[str], origin: str) -> None:
    said = images(capsys, origin, "--version", "510.47.03")
    assert said.code == 0
    assert set(said.out.split()) == {
        "510.47.03-centos7",
        "510.47.03-rhcos4.10",
        "510.47.03-rhcos4.9",
        "510.47.03-ubuntu18.04",
        "510.47.03-ubuntu20.04",
    }


def test_a_branch_does_not_match_in_the_middle_of_a_number(capsys: pytest.CaptureFixture[str], origin: str) -> None:
    said = images(capsys, origin, "--version", "525", "--os", "ubuntu22.04", "-o", "json")
    assert said.json == {
        "Repository": f"{origin}/nvidia/driver",
        "Tags": ["525-5.15.0-69-generic-ubuntu22.04", "525.125.06-ubuntu22.04"],
    }
    assert images(capsys, origin, "--version", "52").code == 1


def test_a_kernels_images_are_listed_with_what_they_are(capsys: pytest.CaptureFixture[str], origin: str) -> None:
    said = images(capsys, origin, *NODES, "-o", "json")
    assert [(each["tag"], each["outcome"]) for each in said.json["tags"]] == [
        ("535-5.15.0-69-generic-ubuntu22.04", "found"),
        ("525-5.15.0-69-generic-ubuntu22.04", "found"),
    ]
    assert all(each["digest"].startswith("sha256:") and each["sizeBytes"] for each in said.json["tags"])
    table = images(capsys, origin, *NODES)
    assert table.out.splitlines()[0].split() == ["TAG", "ANSWER", "SIZE", "DIGEST"]
    assert "Give the driver's --version" in table.out


def test_the_image_that_is_taken_is_marked_and_the_others_have_a_reason(
    capsys: pytest.CaptureFixture[str], origin: str
) -> None:
    said = images(capsys, origin, *NODES, "--version", "525.125.06", "-o", "json")
    (answer,) = said.json["images"]
    assert answer["strategy"] == "precompiled-branch"
    assert [(each["kind"], each["outcome"], each.get("taken", False)) for each in answer["candidates"]] == [
        ("precompiled", "not found", False),
        ("precompiled-branch", "found", True),
        ("builder", "found", False),
    ]
    taken = answer["candidates"][1]
    assert answer["image"] == f"{origin}/nvidia/driver@{taken['digest']}"
    assert taken["sizeBytes"] > 0
    assert "(404)" in answer["candidates"][0]["why"]
    assert "535-5.15.0-69-generic-ubuntu22.04" in answer["tags"]

    table = images(capsys, origin, *NODES, "--version", "525.125.06")
    assert table.code == 0
    assert f"Tessera uses: {answer['image']}" in table.out
    (marked,) = [line for line in table.out.splitlines() if line.startswith("*")]
    assert marked.split()[1:4] == ["precompiled-branch", "525-5.15.0-69-generic-ubuntu22.04", "found"]


def test_a_kernel_without_an_image_gets_the_builder_and_one_without_both_nothing(
    capsys: pytest.CaptureFixture[str], origin: str
) -> None:
    other = ("--kernel", "5.15.0-118-generic", "--os", "ubuntu22.04", "--version")
    built = images(capsys, origin, *other, "525.125.06")
    assert built.code == 0
    assert "built: " in built.out
    none = images(capsys, origin, *other, "530")
    assert none.code == 1
    assert "blocked: No image fits ubuntu22.04 5.15.0-118-generic amd64." in none.out


def test_another_architecture_is_named(capsys: pytest.CaptureFixture[str], origin: str) -> None:
    said = images(capsys, origin, *NODES, "--arch", "aarch64", "--version", "525.125.06", "-o", "json")
    (answer,) = said.json["images"]
    assert [each["outcome"] for each in answer["candidates"]] == ["not found", "wrong architecture", "found"]
    assert "is there for linux/amd64, not for linux/arm64" in answer["candidates"][1]["why"]


def test_credentials_come_from_a_file_or_from_a_login(
    capsys: pytest.CaptureFixture[str], locked: str, tmp_path: Path
) -> None:
    refused = images(capsys, locked, "--version", "525")
    assert refused.code == 1
    assert refused.err.startswith("error: unauthorized: ")
    assert "give a pull secret" in refused.err
    (tmp_path / "auth.json").write_bytes(docker_config(locked))
    assert images(capsys, locked, "--version", "525", "--auth", str(tmp_path / "auth.json")).code == 0
    (tmp_path / ".docker").mkdir()
    (tmp_path / "auth.json").rename(tmp_path / ".docker" / "config.json")
    said = images(capsys, locked, *NODES, "--version", "525.125.06")
    assert said.code == 0
    assert PASSWORD not in said.out


def test_a_refusal_while_asking_for_a_kernel_is_told_with_its_name(
    capsys: pytest.CaptureFixture[str], locked: str
) -> None:
    said = images(capsys, locked, *NODES, "--version", "525.125.06")
    assert said.code == 1
    assert "unauthorized" in said.out
    assert "The registry did not list the tags: " in said.out


def test_a_registry_without_tls_is_not_asked_unless_told_to(capsys: pytest.CaptureFixture[str], origin: str) -> None:
    assert main(["driver", "images", "--repository", f"{origin}/nvidia", "--version", "525"]) == 1
    assert "plain HTTP is used only where asked" in capsys.readouterr().err
    with silent() as other:
        plain = ["--plain-http", other, "--version", "525"]
        assert main(["driver", "images", "--repository", f"{origin}/nvidia", *plain]) == 1


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--kernel", "5.15.0-69-generic"], ("--kernel needs --os", "for example ubuntu22.04")),
        (["--cluster", "--kernel", "5.15.0"], ("leave --kernel and --os out",)),
        ([*NODES[:3], "Ubuntu 22.04"], ("write ID and VERSION_ID of os-release", "for example ubuntu22.04")),
        (["--kernel", "x", "--os", "ubuntu22.04"], ("write what uname -r says",)),
        (["--repository", "nvcr.io/Nvidia"], ("repository 'Nvidia/driver'", "is not lower-case")),
        (["--registry-ca", __file__], ("has no certificate in PEM",)),
        (["--auth", __file__], ("is no JSON of the form",)),
    ],
)
def test_what_is_wrong_with_a_command_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], facts: tuple[str, ...]
) -> None:
    assert main(["driver", "images", *arguments]) == 1
    told = capsys.readouterr().err
    for fact in facts:
        assert fact in told
    assert told.count("\n") == 1
