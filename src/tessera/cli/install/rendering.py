"""The objects of an installation, from the files of ``deploy/`` and the user's choices."""

from tessera.cli.install.manifests import InstallChoices, Manifest, manifests
from tessera.doctor.manifests import deploy_folder, install_manifests, page_manifests, read_manifests

#: The file with OpenShift's security context constraints, below ``deploy/options``.
OPENSHIFT = "openshift/constraints.yaml"
#: The file with cert-manager's objects.
CERTIFICATES = "cert-manager/certificates.yaml"
#: The file with the live page, there.
DASHBOARD = "dashboard/dashboard.yaml"


def render(choices: InstallChoices) -> list[Manifest]:
    """Reads the files and returns all objects in the order in which they are applied."""
    return manifests(
        install_manifests(),
        option("evict.yaml"),
        choices,
        option("replace.yaml"),
        constraints=option(OPENSHIFT),
        certificates=option(CERTIFICATES),
        dashboard=page_manifests(),
        claims=option("claims.yaml"),
    )


def option(file: str) -> list[Manifest]:
    """The objects of a file below ``deploy/options``."""
    return read_manifests(deploy_folder() / "options" / file)
