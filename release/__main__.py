"""``python -m release``: the image's files, the image, the kubectl plugin."""

import argparse
import sys
from pathlib import Path

from release.platforms import IMAGES, PLUGINS, platform

_CACHE = Path(".venv/release")


def main() -> int:
    """Runs one command.

    Returns:
        0; what goes wrong ends the process with one line.
    """
    parser = argparse.ArgumentParser(
        prog="python -m release", description="Makes what a release publishes. Publishes nothing."
    )
    parser.add_argument("--cache", type=Path, default=_CACHE, help="folder for downloads (default: %(default)s)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    root = commands.add_parser("root", help="the image's files, for the Containerfile and for tests")
    root.add_argument("folder", type=Path, help="is made; must not exist")
    root.add_argument("--platform", type=platform, default=IMAGES[0], help="linux/amd64 or linux/arm64")
    root.set_defaults(run=_root)

    image = commands.add_parser("image", help="the image of all platforms as an OCI layout, with its SBOM beside it")
    image.add_argument("folder", type=Path, help="is made; must not exist")
    image.add_argument("--source", default="", help="address of the public repository, for the label")
    image.add_argument("--umoci", default="umoci", help="the program umoci")
    image.set_defaults(run=_image)

    plugin = commands.add_parser("plugin", help="kubectl tessera: an archive for each platform, and krew's manifest")
    plugin.add_argument("folder", type=Path, help="is made; must not exist")
    plugin.add_argument("--source", default="", help="address of the public repository")
    plugin.add_argument(
        "--downloads", default="https://downloads.example", help="address of the folder that will have the archives"
    )
    plugin.set_defaults(run=_plugin)

    chosen = parser.parse_args()
    chosen.run(chosen)
    return 0


def _root(chosen: argparse.Namespace) -> None:
    from release.image.root import build

    build(chosen.platform, chosen.folder, chosen.cache)


def _image(chosen: argparse.Namespace) -> None:
    from release.image.labels import of_checkout
    from release.image.layout import write_layout
    from release.image.root import build
    from release.image.sbom import bill_of_materials

    origin = of_checkout(source=chosen.source)
    trees = {each: chosen.folder / "trees" / each.architecture for each in IMAGES}
    for each, tree in trees.items():
        build(each, tree, chosen.cache)
        bill = chosen.folder / f"image-{each.architecture}.cdx.json"
        bill.write_text(bill_of_materials(tree, each, origin), encoding="utf-8")
    digest = write_layout(chosen.folder / "layout", trees, origin, umoci=chosen.umoci)
    print(f"oci:{chosen.folder / 'layout'}:{origin.version} {digest}")


def _plugin(chosen: argparse.Namespace) -> None:
    import json

    from release.image.labels import of_checkout
    from release.plugin.archives import write_archive
    from release.plugin.manifest import NAME, manifest
    from release.plugin.rules import problems

    origin = of_checkout(source=chosen.source)
    chosen.folder.mkdir(parents=True)
    archives = {each: write_archive(chosen.folder, each, origin, chosen.cache) for each in PLUGINS}
    entry = manifest(archives, origin, downloads=chosen.downloads)
    found = problems(entry, f"{NAME}.yaml", {file.name: file for file in archives.values()})
    if found:
        raise SystemExit("\n".join(f"error: {line}" for line in found))
    # JSON is YAML, and krew reads YAML.
    (chosen.folder / f"{NAME}.yaml").write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")
    print(*(f"{file} {file.stat().st_size} bytes" for file in archives.values()), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
