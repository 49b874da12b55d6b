"""The image's files in three trees: Debian and Python, the libraries, Tessera. Each is one layer.

The Containerfile and :mod:`release.image.layout` both make them with this module, so there is one recipe. Nothing of
the platform is run, so an image for arm64 is made on amd64 at the same speed.

Rules:

- The same packages, pins and tree make the same bytes. Compiled modules carry the hash of their source, no time.
- Modules are compiled here, since the root file system is read-only where the image runs.
- No file belongs to another user than root, and none is writable by others, so any user ID can run the image.
"""

import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

from release import wheels
from release.image import packages
from release.platforms import Platform
from release.programs import run

#: CPython of the image; the same version compiles its modules.
PYTHON = "3.11"
#: Where Debian's Python looks for what is not Debian's.
SITE = f"usr/local/lib/python{PYTHON}/dist-packages"
#: The order of the layers: what changes least is lowest, so an update of Tessera loads the last one only.
TREES = ("system", "libraries", "application")
#: The user of controller and webhook; NONROOT of distroless images.
USER = 65532

_PASSWD = f"root:x:0:0:root:/:/bin/sh\nnonroot:x:{USER}:{USER}:nonroot:/:/bin/sh\n"
_GROUP = f"root:x:0:\nnonroot:x:{USER}:\n"
# -I: no variable of a pod's environment changes what Python loads. -u: a log line is written at once.
_COMMAND = f"#!/usr/bin/python{PYTHON} -Iu\nimport sys\nfrom tessera.cli.main import main\nsys.exit(main())\n"


def build(platform: Platform, folder: Path, cache: Path) -> None:
    """Makes the three trees below a folder.

    Args:
        platform: one of :data:`release.platforms.IMAGES`.
        folder: is made; must not exist.
        cache: where downloaded packages stay.

    Raises:
        SystemExit: this Python is not the image's version, or something cannot be downloaded.
    """
    if not platform.library_folder:
        raise SystemExit(f"error: there is no image for {platform}: it is for nodes, which run Linux")
    if f"{sys.version_info[0]}.{sys.version_info[1]}" != PYTHON:
        raise SystemExit(
            f"error: the image has Python {PYTHON}, and the same version must compile its modules; this is "
            f"{sys.version.split()[0]}. Run this with python{PYTHON}, or build with the Containerfile"
        )
    system, libraries, application = (folder / name for name in TREES)
    _make_system(platform, system, cache / platform.architecture)
    wheels.install(platform, PYTHON, libraries / SITE)
    _drop_commands(libraries / SITE)
    make_application(application)
    for tree in (system, libraries, application):
        _compile(tree)


def make_application(tree: Path) -> None:
    """Makes the tree of Tessera itself: its package from its wheel, its command, its licence; compiles nothing."""
    wheel = wheels.build(tree / "wheel")
    with ZipFile(wheel) as archive:
        archive.extractall(tree / SITE)
    shutil.rmtree(tree / "wheel")
    command = tree / "usr/local/bin/tessera"
    command.parent.mkdir(parents=True)
    command.write_text(_COMMAND, encoding="utf-8")
    command.chmod(0o755)
    # Red Hat's check of images looks for a licence here.
    (tree / "licenses").mkdir()
    shutil.copyfile(wheels.ROOT / "LICENSE", tree / "licenses/LICENSE")


def _make_system(platform: Platform, tree: Path, cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")
    for package in packages.download(platform, cache):
        packages.unpack(package, tree)
    (tree / "usr/bin/sh").unlink(missing_ok=True)
    (tree / "usr/bin/sh").symlink_to("dash")
    # Mount points of a pod, and a folder for temporary files where a pod mounts one.
    for name in ("dev", "proc", "sys", "run", "var/lib/tessera", "tmp"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    (tree / "tmp").chmod(0o1777)
    (tree / "etc/passwd").write_text(_PASSWD, encoding="utf-8")
    (tree / "etc/group").write_text(_GROUP, encoding="utf-8")
    _join_authorities(tree)


def _join_authorities(tree: Path) -> None:
    """One file of all certificate authorities, where OpenSSL looks for it; Debian's package makes it when installed."""
    authorities = sorted((tree / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    bundle = tree / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True)
    bundle.write_text("".join(each.read_text(encoding="utf-8") for each in authorities), encoding="utf-8")
    shutil.rmtree(tree / "usr/share/ca-certificates")
    (tree / "usr/lib/ssl").mkdir(parents=True, exist_ok=True)
    (tree / "usr/lib/ssl/cert.pem").symlink_to("/etc/ssl/certs/ca-certificates.crt")


def _drop_commands(site: Path) -> None:
    """Removes the libraries' commands, which name the builder's Python, and their lines in the records of pip."""
    shutil.rmtree(site / "bin", ignore_errors=True)
    for record in site.glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        record.write_text("".join(line for line in lines if not line.startswith("../../bin/")), encoding="utf-8")


def _compile(tree: Path) -> None:
    folders = [str(each) for each in (tree / f"usr/lib/python{PYTHON}", tree / SITE) if each.is_dir()]
    command = [sys.executable, "-m", "compileall", "-qq", "-f", "--invalidation-mode", "unchecked-hash"]
    run(*command, "-s", str(tree), "-p", "/", *folders)
