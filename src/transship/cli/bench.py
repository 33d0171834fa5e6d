"""`transship bench`: the papers' tables by one command."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transship.cli.options import memory_option, print_json
from transship.errors import OptionError
from transship.numerics import TORCH, MemoryBudget
from transship.progress import Bars, duration, keeping
from transship.report import markdown

if TYPE_CHECKING:
    from transship_suites.runner import Suite
    from transship_suites.runner.results import SuiteResult
    from transship_suites.runner.run import SuiteRun


# the most that a process of a quick or full scale was seen to take is 4 GB (theseus-text), rounded up
WORK = 6_000_000_000
# minutes below which processes are not worth their start
SHORT = 2
# needs of one kind above which those from one place share a line
MANY = 6


@click.command("bench", epilog="Example: transship bench shared-geometry --quick")
@click.argument("names", nargs=-1, metavar="[SUITE]...")
@click.option("--quick", is_flag=True, help="Minutes instead of the full size; short for --scale quick.")
@click.option(
    "--scale",
    type=click.Choice(["quick", "full", "paper"]),
    help="The size [default: full]; 'paper' is the paper's own setting: its models, its data, a GPU.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("transship-bench"),
    show_default=True,
    help="Where results go: OUT/SUITE/SCALE/{results.json, results.md, report.html}.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1, max=1024),
    help="Processes side by side [default: one per core, as far as memory goes; one for short suites].",
)
@memory_option
@click.option(
    "--device", help="Where models run [default: cuda for suites that need a GPU, cpu for all others]."
)
@click.option(
    "--set",
    "changes",
    nargs=2,
    multiple=True,
    metavar="NAME VALUE",
    help="Change an option of the scale, as JSON; pages and results state it.",
)
@click.option(
    "--fresh", is_flag=True, help="Forget finished cases and trained models, and compute all again."
)
@click.option("--skip-missing", is_flag=True, help="Leave out suites whose data or models are not here.")
@click.option("--force", is_flag=True, help="Replace another run's results in OUT.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the list of suites, or their results.")
@click.option(
    "--suites",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with suites of your own, in place of ours.",
)
def command(
    names: tuple[str, ...],
    quick: bool,
    scale: str | None,
    out: Path,
    seed: int,
    jobs: int | None,
    memory: str | None,
    device: str | None,
    changes: tuple[tuple[str, str], ...],
    fresh: bool,
    skip_missing: bool,
    force: bool,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Re-run the papers' tables and judge their claims.

    Each claim is confirmed, refuted or undecided. Without a SUITE, the suites are listed with their claims,
    times and needs; 'all' runs every one. A run that was stopped continues with the same command. Data and
    models are looked for in $TRANSSHIP_DATA and $TRANSSHIP_MODELS, then in the cache, then on the hub;
    finished work is kept in the cache (see `transship cache`).
    """
    from transship_suites.runner import bench  # start-up: `--help` of all commands

    if memory is not None and scale == "paper":
        raise OptionError(
            "nobody has measured what --scale paper takes", where="--memory", fix="leave --memory out"
        )
    budget = MemoryBudget.parse(memory)
    budget.require(WORK if jobs is None else jobs * (WORK + TORCH) - TORCH, "a suite")
    if quick and scale not in (None, "quick"):
        raise OptionError(f"--quick and --scale {scale} contradict each other", where="bench", fix="give one")
    suites = bench.choose(names or ("all",), folder)
    if not names:
        _list([bench.card(suite) for suite in suites], as_json)
        return
    size = "quick" if quick else scale or "full"
    if "all" in names:
        suites = _keep(*bench.able(suites, size, missing=True))
    if changes:
        suites = [
            suite.with_options(size, _parsed(changes)) if size in suite.scales else suite for suite in suites
        ]
    if skip_missing:
        suites = _keep(*bench.able(suites, size, device=device))
    runs = bench.prepare(suites, size, seed=seed, fresh=fresh, device=device)
    folders = [bench.check_output(run, out, force=force) for run in runs]
    results: dict[str, SuiteResult] = {}
    for run in _watch(runs, jobs or _processes(runs, budget.limit)):
        result = results[run.suite.name] = run.result()
        written = bench.write_results(run.suite, result, folders[runs.index(run)])
        _tell(result, written, as_json)
    in_order = [results[run.suite.name] for run in runs]
    if len(runs) > 1:
        written = bench.write_joint([run.suite for run in runs], in_order, out)
        click.echo(f"all suites on one page: {written[0]}", err=True)
    if as_json:
        print_json([result.to_json() for result in in_order])


def _keep(suites: list[Suite], left_out: dict[str, str]) -> list[Suite]:
    """Say which suites are left out, and why; return the others."""
    for name, reason in left_out.items():
        click.echo(f"{name}: left out, {reason}", err=True)
    return suites


def _parsed(changes: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return the options that `--set` names; what is no JSON is a word."""
    options: dict[str, Any] = {}
    for name, text in changes:
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


def _side_by_side(run: SuiteRun, limit: int | None) -> int:
    """Return how many processes a suite gets that was given none: a core and memory for each."""
    if run.suite.scales[run.scale].minutes < SHORT or run.device != "cpu":
        return 1
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if limit is None else limit
    return max(1, min(os.cpu_count() or 1, has // (WORK + TORCH)))


def _processes(runs: list[SuiteRun], limit: int | None) -> int:
    """Return how many processes several suites share: what the longest would get; a device is not shared."""
    if any(run.device != "cpu" for run in runs):
        return 1
    return max(_side_by_side(run, limit) for run in runs)


def _watch(runs: list[SuiteRun], jobs: int) -> Iterator[SuiteRun]:
    """Run suites to their end, with the plan and the progress on stderr; yield each when it has ended."""
    from transship_suites.runner.run import side_by_side  # start-up

    if len(runs) > 1:
        click.echo(f"{len(runs)} suites; about {duration(sum(map(_seconds_left, runs)))}", err=True)
    bars: dict[str, Bars] = {}
    with keeping("finished cases", runs[0].home / "cases"):
        for run, step in side_by_side(runs, jobs):
            name = run.suite.name
            if step is None:
                click.echo(_plan(run, alone=len(runs) == 1), err=True)
                bars[name] = Bars(unit="cases")
                bars[name](name, len(run.earlier()[0]), len(run.cases))
                continue
            if not step.reused:
                bars[name](name, step.done, step.total)
            if step.done == step.total:
                yield run


def _plan(run: SuiteRun, *, alone: bool) -> str:
    finished = len(run.earlier()[0])
    text = f"{run.suite.name}, {run.scale}: {len(run.cases)} cases over {len(run.seeds)} seeds"
    text += f", {finished} of them finished before" if finished else ""
    return f"{text}; about {duration(_seconds_left(run))}" if alone else text


def _seconds_left(run: SuiteRun) -> float:
    """Return how long the cases that are not finished will take, by what the suite declares."""
    return 60 * run.minutes_per_case * len(run.earlier()[1])


def _tell(result: SuiteResult, written: list[Path], as_json: bool) -> None:
    if not as_json:
        from transship_suites.runner.page import table_block  # start-up

        for table in result.tables:
            click.echo(f"\n{table.title}\n\n{markdown.block_text(table_block(table))}")
        click.echo("")
        for claim in result.claims:
            click.echo(f"{claim.verdict}: {claim.text} ({claim.reason})")
    click.echo(f"written: {', '.join(map(str, written))}", err=True)


def _list(cards: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(cards)
        return
    for card in cards:
        click.echo(f"{card['name']}  {card['title']}")
        click.echo(f"  paper   {card['paper']}")
        for text, _ in card["claims"]:
            click.echo(f"  claim   {text}")
        times = ", ".join(f"{scale} {_time(minutes)}" for scale, minutes in card["minutes"].items())
        guess = " with a GPU, a guess" if list(card["minutes"]) == ["paper"] else ""
        click.echo(f"  time    {times}{guess}")
        first = next(iter(card["needs"].values()))
        for scale, needs in card["needs"].items():
            new = [need for need in needs if needs is first or need not in first]
            for line in _need_lines(new):
                click.echo(f"  needs   {line}{_only(scale)}")
        click.echo("")
    click.echo("How each claim is decided: transship bench --json, and every suite's page.")


def _time(minutes: float) -> str:
    return f"{minutes:g} min" if minutes < 600 else f"{minutes / 60:.0f} h"


def _need_lines(needs: list[tuple[str, str, str, bool]]) -> list[str]:
    """Return a line per need; where there are many of one kind, a line for all that one place has."""
    lines = []
    for kind in dict.fromkeys(need[0] for need in needs):
        own = [need for need in needs if need[0] == kind]
        places: dict[str, list[tuple[str, str, str, bool]]] = {}
        for need in own:
            places.setdefault(_place(need) if len(own) > MANY else need[1], []).append(need)
        for place, group in places.items():
            _, name, source, here = group[0]
            if len(group) == 1:
                lines.append(f"{kind} {name} ({source}): {'here' if here else 'missing'}")
            else:
                names, count = ", ".join(need[1] for need in group), sum(need[3] for need in group)
                lines.append(f"{kind} × {len(group)}, {count} here: {names} ({place})")
    return lines


def _place(need: tuple[str, str, str, bool]) -> str:
    """Return a need's source with NAME for its own name."""
    return need[2].replace(need[1].partition("@")[0], "NAME")


def _only(scale: str) -> str:
    return "" if scale == "quick" else f", for --scale {scale}"
