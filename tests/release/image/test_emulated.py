"""The image for arm64 run by qemu, one process at a time: an emulated processor, and no machine of that kind."""

import subprocess
import sys

import pytest
from tests.release.image.unpacked import UnpackedImage, allowed

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not allowed(), reason="makes mount namespaces, which needs root"),
]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["install", "--output", "yaml"],
        ["plan", "mig", "A100-40GB", "3g.20gb", "4g.20gb"],
        ["controller", "--help"],
        ["webhook", "--help"],
        ["agent", "--help"],
    ],
    ids=" ".join,
)
def test_a_command_answers_as_on_this_machine(arm_image: UnpackedImage, arguments: list[str]) -> None:
    done = arm_image.run("tessera", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    here = subprocess.run([sys.executable, "-m", "tessera", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == here.stdout


def test_the_compiled_libraries_load_and_work(arm_image: UnpackedImage) -> None:
    code = """
import grpc, uvloop, aiohttp, ssl, lzma, platform, msgspec, yaml
from cryptography.hazmat.primitives.asymmetric import ec
async def nothing(): return platform.machine()
ec.generate_private_key(ec.SECP256R1())
assert msgspec.json.decode(b'{"a": 1}') == yaml.load("a: 1", yaml.CSafeLoader)
print(uvloop.run(nothing()), len(ssl.create_default_context().get_ca_certs()) > 100)
"""
    done = arm_image.run("/usr/bin/python3.11", "-I", "-c", code)
    assert (done.stdout, done.stderr) == ("aarch64 True\n", "")


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (["/usr/bin/sh", "-c", "read -r go && echo $go"], "go\n"),
        (["/usr/bin/nsenter", "--version"], "nsenter from util-linux 2.38.1\n"),
    ],
    ids=["shell", "nsenter"],
)
def test_the_programs_that_the_agent_starts_run(arm_image: UnpackedImage, command: list[str], output: str) -> None:
    assert arm_image.run(*command, text="go\n").stdout == output
