"""`transship methods`: every method of every verb, read from the files that define them."""

from __future__ import annotations

import dataclasses

import click

from transship import registry
from transship.cli.options import memory_option, print_json
from transship.errors import printable
from transship.numerics import MemoryBudget


@click.command("methods", epilog="Example: transship methods merge")
@click.argument("verb", required=False, type=click.Choice(registry.VERBS))
@memory_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(verb: str | None, memory: str | None, as_json: bool) -> None:
    """List the methods of each verb, or of one.

    Each has its parameters, their defaults and its paper.
    """
    MemoryBudget.parse(memory).require(0, "importing all methods")
    cards = registry.describe_all([verb] if verb else registry.VERBS)
    if as_json:
        print_json([dataclasses.asdict(card) for card in cards])
        return
    recipes = registry.method_names("merge", "merge")  # what recipes can name, spelled as they spell it
    for card in cards:
        spelled = card.verb == "merge" and card.name in recipes
        recipe = f", in recipes merge_method: {card.name.replace('-', '_')}" if spelled else ""
        name = printable(f"{card.verb} --method {card.name}{recipe}")
        click.echo(f"{click.style(name, bold=True)}  {card.summary}")
        if card.paper:
            click.echo(f"    paper: {card.paper}")
        for parameter in card.parameters:
            called = parameter.name.replace("-", "_") if spelled else parameter.name
            click.echo(f"    {called}: {parameter.type} = {parameter.default}  {parameter.help}")
