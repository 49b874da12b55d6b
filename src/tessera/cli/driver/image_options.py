"""Options of several commands about driver images: which image is meant, and how to answer."""

import click

#: Where NVIDIA publishes drivers, and under which name.
REPOSITORY, IMAGE = "nvcr.io/nvidia", "driver"

image_option = click.option("--image", default=IMAGE, show_default=True, help="As in the ClusterPolicy.")
version_option = click.option(
    "--version", "driver", metavar="NAME", default="", help="Driver version or branch: 525.125.06, 525."
)
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to answer."
)
