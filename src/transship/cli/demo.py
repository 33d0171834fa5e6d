"""`transship demo`: the four verbs on two small models that are trained on the spot."""

from __future__ import annotations

import time
from pathlib import Path

import click

from transship.cli.options import memory_option, print_json, writing
from transship.numerics import MemoryBudget

# beside torch itself; the whole process was measured at 0.9 GB
WORK = 600_000_000


@click.command("demo", epilog="Example: transship demo --fast")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path("transship-demo"))
@click.option("--fast", is_flag=True, help="Train less: under a minute.")
@memory_option
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(folder: Path, fast: bool, memory: str | None, as_json: bool) -> None:
    """Try the four verbs on small models, offline.

    It takes under three minutes on two cores. The demo trains two vision transformers of different width on
    scikit-learn's digits, keeps them in FOLDER for the next run, uses each verb on them, and writes
    FOLDER/report.html.
    """
    MemoryBudget.parse(memory).require(WORK, "the demo")
    import torch  # after the memory is known to do
    from transformers.utils import logging

    from transship_suites.demo import steps  # start-up: torch

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)  # products this small cost less than the threads' waiting for each other
    begun = time.monotonic()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)  # before minutes of training
        demo = steps.Demo(folder, steps.FAST if fast else steps.FULL)
        bases = demo.bases()
        click.echo(
            "accuracy on digits: "
            + ", ".join(f"{name} model {100 * share:.1f} %" for name, share in bases.items()),
            err=as_json,
        )
        click.echo(steps.HEADING, err=as_json)
        results = []
        for verb in (demo.transport, demo.merge, demo.translate, demo.adapt):
            results.append(verb())
            click.echo(results[-1].line(), err=as_json)
        written = steps.write(steps.story(bases, results, demo.train, demo.test), folder)
    click.echo(f"written: {written} ({time.monotonic() - begun:.0f} s)", err=True)
    if as_json:
        print_json({"bases": bases, **{step.verb: dict(step.figures) for step in results}})
