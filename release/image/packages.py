"""Packages of Debian 12 for any architecture, without installing them and without running anything of them.

apt reads the signed lists of the mirror that this machine already uses, with a state of its own, so that packages of
another architecture come without ``dpkg --add-architecture``. Only the packages named here are taken, not what they
depend on: the image has no package manager and no shell but dash. ``tests/release`` checks that no binary lacks a
library.
"""

import hashlib
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from release.platforms import Platform
from release.programs import run

#: The release whose Python is the one that the tests run on, and that the pinned wheels are for.
SUITE = "bookworm"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

#: Package -> why it is in the image. Order does not matter.
PACKAGES = {
    "base-files": "os-release for scanners; NVIDIA's runtime finds the library folder by debian_version",
    "ca-certificates": "registries of driver images are asked over TLS",
    "dash": "starts MPS daemons (tessera.agent.mps.process_launcher)",
    "libbz2-1.0": "bz2",
    "libc-bin": "ldconfig for NVIDIA's runtime, which mounts the driver's libraries",
    "libc6": "",
    "libexpat1": "pyexpat",
    "libffi8": "ctypes: NVML, CUDA, inotify",
    "libgcc-s1": "for the compiled wheels",
    "liblzma5": "lzma: lists of kernels",
    "libpcre2-8-0": "nsenter",
    "libpython3.11-minimal": "",
    "libpython3.11-stdlib": "",
    "libselinux1": "nsenter",
    "libssl3": "ssl",
    "libstdc++6": "for the compiled wheels",
    "libuuid1": "uuid",
    "python3.11-minimal": "",
    "util-linux": "nsenter, by which the agent asks its host to reboot",
    "zlib1g": "zlib",
}

#: Packages of which only these files are taken.
_ONLY = {
    "libc-bin": ("etc/ld.so.conf", "usr/sbin/ldconfig", "usr/share/doc/libc-bin/copyright"),
    "util-linux": ("usr/bin/nsenter", "usr/share/doc/util-linux/copyright"),
    "base-files": (
        "etc/debian_version",
        "etc/os-release",
        "usr/lib/os-release",
        "usr/share/doc/base-files/copyright",
        "usr/share/common-licenses/",
    ),
}

#: Files that nothing in the image uses: pages, converters of iconv, and modules of Python whose libraries are left out.
_NOT = (
    "usr/share/man/",
    "usr/share/locale/",
    "usr/share/lintian/",
    "usr/share/bug/",
    "usr/share/gcc/",
    "usr/share/gdb/",
    "usr/share/applications/",
    "usr/share/pixmaps/",
    "usr/share/binfmts/",
    "usr/share/debianutils/",
    "usr/lib/python3.11/lib2to3/",
    "usr/lib/python3.11/pydoc_data/",
    "usr/lib/python3.11/ensurepip/",
    "usr/lib/python3.11/distutils/",
    "usr/lib/python3.11/curses/",
    "usr/lib/python3.11/dbm/",
    "usr/lib/python3.11/sqlite3/",
    "usr/lib/python3.11/test/",
    "usr/lib/python3.11/turtle.py",
    "usr/sbin/update-ca-certificates",
)
_MODULES_WITHOUT_LIBRARY = ("_crypt", "_curses", "_curses_panel", "_dbm", "_sqlite3", "nis", "readline")


def download(platform: Platform, folder: Path) -> list[Path]:
    """Downloads the packages that are not in the folder yet; apt checks signatures and hashes.

    Returns:
        Their files, sorted by name.
    """
    folder = folder.resolve()
    apt = _Apt(platform, folder / "apt")
    apt.run("update")
    found = {}
    for line in apt.run("--print-uris", "download", *PACKAGES).splitlines():
        _, file, _, digest = line.split()
        name, version, _ = file.split("_")
        found[name] = folder / file
        if not _is(found[name], digest):
            apt.run("download", f"{name}={version.replace('%3a', ':')}", folder=folder)
    return [found[name] for name in sorted(found)]


def _is(file: Path, digest: str) -> bool:
    """Whether a file is there with the hash of apt's list, such as ``SHA256:0123…``."""
    kind, _, expected = digest.partition(":")
    return file.is_file() and hashlib.new(kind, file.read_bytes()).hexdigest() == expected


class _Apt:
    """apt-get for one architecture, with lists and state in a folder of its own."""

    def __init__(self, platform: Platform, folder: Path) -> None:
        (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (folder / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        (folder / "none").mkdir(exist_ok=True)
        (folder / "status").touch()
        (folder / "sources.list").write_text("".join(_sources()), encoding="utf-8")
        settings = {
            "APT::Architecture": platform.architecture,
            "APT::Architectures::": platform.architecture,
            "APT::Sandbox::User": "",
            "Debug::NoLocking": "true",
            "Dir::State": folder,
            "Dir::State::Lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder,
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": folder / "none",
        }
        self._command = [
            "apt-get",
            "-qq",
            *(part for key, value in settings.items() for part in ("-o", f"{key}={value}")),
        ]

    def run(self, *arguments: str, folder: Path | None = None) -> str:
        return run(*self._command, *arguments, folder=folder, hint="build with the Containerfile")


def _sources() -> Iterator[str]:
    """The suites of the release, from the mirrors that this machine's apt uses."""
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    mirrors = sorted(set(targets.split()))
    security = [each for each in mirrors if "security" in each]
    main = [each for each in mirrors if each not in security and each.rstrip("/").endswith("debian")]
    if not main or not security:
        raise SystemExit(
            "error: the image's packages come from Debian and its security updates, and this machine's apt has no "
            "mirror of both; build on Debian 12 or newer, or with the Containerfile"
        )
    for suite, mirror in ((SUITE, main[0]), (f"{SUITE}-updates", main[0]), (f"{SUITE}-security", security[0])):
        yield f"deb [signed-by={KEYRING}] {mirror} {suite} main\n"


def unpack(package: Path, root: Path) -> None:
    """Puts a package's files below a root whose ``/bin``, ``/lib`` and ``/sbin`` lead to ``/usr``, and its record."""
    name = package.name.split("_")[0]
    archive = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE)
    with archive, tarfile.open(fileobj=archive.stdout, mode="r|") as members:
        for member in members:
            member.name = _merged(member.name)
            if member.islnk():
                member.linkname = _merged(member.linkname)
            if not member.isdir() and _wanted(name, member.name):
                _place(members, member, root)
    record = root / "var/lib/dpkg/status.d" / name
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(run("dpkg-deb", "--field", str(package)), encoding="utf-8")


def _place(members: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    target = root / member.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
    elif member.islnk():
        target.hardlink_to(root / member.linkname)
    else:
        content = members.extractfile(member)
        assert content, f"{member.name} is neither a file nor a link"
        target.write_bytes(content.read())
        # Nothing runs with the rights of another user.
        target.chmod(member.mode & 0o755)


def _merged(name: str) -> str:
    """The name below ``/usr`` of a file in ``/bin``, ``/lib``, ``/lib64`` or ``/sbin``."""
    path = PurePosixPath(name.removeprefix("./"))
    return str("usr" / path if path.parts and path.parts[0] in {"bin", "lib", "lib64", "sbin"} else path)


def _wanted(package: str, name: str) -> bool:
    if name.startswith(("usr/share/doc/", "usr/share/doc-base/")):
        return name.endswith("/copyright")
    if package in _ONLY:
        return name.startswith(_ONLY[package])
    path = PurePosixPath(name)
    if path.parent.name == "lib-dynload" and path.name.split(".")[0] in _MODULES_WITHOUT_LIBRARY:
        return False
    if path.parent.name == "gconv" or "perl5" in path.parts:
        return False
    return not name.startswith(_NOT)
