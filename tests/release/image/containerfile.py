"""The Containerfile built by the real buildah, without a container engine: chroots in a mount namespace of their own.

No image can be pulled here, so the base image is made from Debian's packages under the name that the Containerfile has.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from release.platforms import Platform
from release.wheels import ROOT

_TOOLS = Path(sys.prefix) / "tools"
#: The certificate authorities of this machine, for pip in the build.
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_BASE = "docker.io/library/debian:12-slim"
# buildah starts itself anew without the environment that says where its libraries are unpacked.
_NAMESPACE = """
libraries=$1 machines=/usr/lib/x86_64-linux-gnu; shift
[ ! -d "$libraries" ] || mount -t overlay overlay -o lowerdir="$libraries":$machines $machines
exec "$@"
"""


class Buildah:
    """buildah with its store below a folder.

    Args:
        folder: for store and settings.
    """

    def __init__(self, folder: Path) -> None:
        subprocess.run([str(ROOT / "scripts" / "need-debian"), str(_TOOLS), "buildah", "mmdebstrap"], check=True)
        self._folder = folder
        unpacked = _TOOLS / "buildah.d"
        self._libraries = unpacked / "usr/lib/x86_64-linux-gnu"
        self._program = str(unpacked / "usr/bin/buildah") if unpacked.is_dir() else str(shutil.which("buildah"))
        (folder / "registries.conf").write_text("")
        (folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        (folder / "pip.conf").write_text("[global]\ncert = /authorities.crt\n" if _AUTHORITIES.exists() else "")

    def make_base(self) -> None:
        """Makes the base image of the Containerfile."""
        archive = self._folder / "base.tar"
        mmdebstrap = str(_TOOLS / "bin/mmdebstrap")
        subprocess.run([mmdebstrap, "--variant=apt", "--mode=root", "bookworm", str(archive)], check=True)
        container = self._run("from", *self._policy, "scratch").strip()
        self._run("add", container, str(archive), "/")
        self._run("commit", *self._policy, container, _BASE)

    def build(self, platform: Platform, layout: Path, *, seconds: int) -> None:
        """Builds the image of a platform into an OCI layout with the tag ``x``."""
        mounts = [f"{self._folder}/pip.conf:/etc/pip.conf:ro"]
        if _AUTHORITIES.exists():
            mounts.append(f"{_AUTHORITIES}:/authorities.crt:ro")
        self._run(
            *("build", *self._policy, "--isolation=chroot", "--network=host", "--pull-never", "--layers=false"),
            *("--format=oci", f"--timestamp={seconds}", f"--platform={platform}"),
            # buildah 1.28 knows the builder's platform only from an argument; podman 5 and BuildKit fill it in.
            *("--build-arg=BUILDPLATFORM=linux/amd64", *(f"--volume={each}" for each in mounts)),
            *("--tag=tessera:built", str(ROOT)),
        )
        self._run("push", *self._policy, "tessera:built", f"oci:{layout}:x")

    @property
    def _policy(self) -> list[str]:
        return ["--signature-policy", str(self._folder / "policy.json")]

    def _run(self, *arguments: str) -> str:
        store = ("--root", str(self._folder / "store"), "--runroot", str(self._folder / "run"))
        settings = ("--storage-driver", "vfs", "--registries-conf", str(self._folder / "registries.conf"))
        done = subprocess.run(
            [
                *("unshare", "--mount", "sh", "-ec", _NAMESPACE, "sh", str(self._libraries)),
                *(self._program, *store, *settings, *arguments),
            ],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"buildah {arguments[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout
