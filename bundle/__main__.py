"""``python -m bundle`` writes the files of the bundle; options set what only its publisher knows."""

from pathlib import Path

import click

from bundle.files import FOLDER, generate
from bundle.publisher import Publisher, parse_pair


@click.command()
@click.option("--image", metavar="IMAGE", help="Tessera's image, by digest for a release.  [default: that of deploy/]")
@click.option("--provider", metavar="NAME", default="Tessera", show_default=True, help="Name of the publisher.")
@click.option("--repository", metavar="URL", default="", help="Address of the sources.")
@click.option("--maintainer", "maintainers", multiple=True, metavar="NAME=EMAIL", help="A maintainer; repeatable.")
@click.option("--link", "links", multiple=True, metavar="NAME=URL", help="A link, as to the documentation; repeatable.")
@click.option("--replaces", metavar="NAME", default="", help="The version before in the channel, as tessera.v0.0.9.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), default=FOLDER, help="Folder to write.")
def main(image: str | None, output: Path, maintainers: tuple[str, ...], links: tuple[str, ...], **texts: str) -> None:
    """Write the files."""
    publisher = Publisher(
        image=image or Publisher().image,
        maintainers=tuple(map(parse_pair, maintainers)),
        links=tuple(map(parse_pair, links)),
        **texts,
    )
    for name, text in generate(publisher).items():
        path = output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
