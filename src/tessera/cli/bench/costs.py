"""``tessera bench costs``: what the lab's experiments assume."""

import click

from tessera.cli.connect import reported


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to show it.")
@reported
def command(output: str) -> None:
    """Print the cost model that experiments in the lab run on.

    Numbers marked "calibrated" were chosen so that the reference operator's order of steps comes to Red Hat's means;
    nobody measured them. The others name their source.
    """
    import msgspec

    from tessera.lab.costs import CostModel, listed

    costs = listed(CostModel())
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode({"simulated": True, "costs": costs}), indent=2).decode())
        return
    width = max(len(each.name) for each in costs)
    for each in costs:
        print(f"{each.name:<{width}} {each.value:>8g} {each.unit:<6} {each.meaning}  [{each.source}]")
