"""The command line: one file per command, parsing and printing only.

Commands live in files of their own and are imported when they are asked for; none of them imports torch or
transformers at the top, so that `transship --help` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import io
import os
import sys
import traceback

import click

from transship import __version__, parallel
from transship.cli.defaults import defaults_of
from transship.cli.every import equip
from transship.errors import OutputError, TransshipError, printable

# command → its module; the function in it is called `command`
COMMANDS = {
    "transport": "transship.cli.transport",
    "merge": "transship.cli.merge",
    "translate": "transship.cli.translate",
    "adapt": "transship.cli.adapt",
    "inspect": "transship.cli.inspect",
    "compare": "transship.cli.compare",
    "methods": "transship.cli.methods",
    "bench": "transship.cli.bench",
    "demo": "transship.cli.demo",
    "cache": "transship.cli.cache",
}
# commands that several processes of one launch share
SHARED = {
    ("compare",),
    ("transport",),
    ("merge", "run"),
    ("merge", "add"),
    ("merge", "remove"),
    ("adapt", "fit"),
}
# how long a thread of libgomp, which torch brings, turns while it waits for another. By default that is a
# hundred times as long, and on a machine that does other work too every wait costs the other its turn:
# `translate fit` of 400 pairs beside two busy processes took 135 s so, and takes 10 s; alone 5 s either way
SPINS = "2000"
# what the system says of a disk that takes no more
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are named, or listed."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import and return one command."""
        return _load(name) if name in COMMANDS else None


@functools.cache  # a command is equipped once
def _load(name: str) -> click.Command:
    command: click.Command = importlib.import_module(COMMANDS[name]).command
    return equip(command)


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: transship demo",
)
@click.version_option(__version__, prog_name="transship", message="%(prog)s %(version)s")
@click.pass_context
def group(context: click.Context) -> None:
    """Re-use what pretrained models have learned: transport, merge, translate, adapt.

    Every option has a default in a variable TRANSSHIP_<COMMAND>_<OPTION> or in a file transship.toml, if you
    set one.
    """
    if context.invoked_subcommand is not None:
        name = context.invoked_subcommand
        context.default_map = {name: defaults_of(_load(name), name, list(COMMANDS))}


equip(group)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: exit 2 with one sentence on a user's mistake, 130 on Ctrl-C.

    Under `accelerate launch` or `torchrun` the processes share the commands in `SHARED`; the first one prints
    and writes. Any other command is the first process's alone.
    """
    words = [_at_home(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    _wait_briefly()
    _print_anywhere()
    shared: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if parallel.launched():
        named = tuple([word for word in words if not word.startswith("-")][:2])  # -v may come first
        if named in SHARED or named[:1] in SHARED:
            shared = parallel.quiet_unless_main()
        elif not parallel.alone():
            return
    errors = sys.stderr
    try:
        with shared:
            group.main(args=words, standalone_mode=False)
    except click.exceptions.Exit as exit_:
        parallel.end(exit_.exit_code)
    except click.ClickException as mistake:
        if parallel.speaks():
            mistake.show(errors)
        parallel.end(2)
    except TransshipError as mistake:
        if parallel.speaks():
            click.echo(f"error: {printable(mistake)}", file=errors)
        parallel.end(2)
    except (KeyboardInterrupt, click.Abort) as stop:
        if parallel.speaks():
            click.echo(f"stopped; {printable(_what_is_kept(stop))}", file=errors)
        parallel.end(130)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            if parallel.speaks():
                click.echo(f"error: {printable(_no_room(error))}", file=errors)
            parallel.end(2)
        if parallel.size() == 1:
            raise
        if parallel.speaks():
            traceback.print_exc(file=errors)
        parallel.end(1)


def _at_home(word: str) -> str:
    """Return a word with the user's home folder for `~/`, which a shell leaves as it is inside quotes."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return option + equals + (os.path.expanduser(value) if value.startswith("~/") else value)


def _what_is_kept(stop: BaseException) -> str:
    """Return what an interrupted command leaves: its notes, or that there is nothing."""
    told = stop.__cause__ if isinstance(stop, click.Abort) else stop  # click puts an Abort around Ctrl-C
    return "; ".join(getattr(told, "__notes__", ())) or "nothing half-written was left"


def _wait_briefly() -> None:
    """Let waiting threads give their core away soon, unless the user has said how they wait."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch is first imported


def _print_anywhere() -> None:
    """Let a terminal whose encoding lacks a sign, such as the arrow in Latin-1, show another in its place."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _no_room(error: OSError) -> OutputError:
    """Return what to say of a disk that was full or is read-only, wherever it was met."""
    what = f"the disk takes no more ({os.strerror(error.errno or 0)})"
    where = str(error.filename or "what was being written")
    return OutputError(what, where=where, fix="make room, or choose another place, and run it again")


__all__ = ["COMMANDS", "SHARED", "group", "main"]
