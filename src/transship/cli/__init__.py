"""The command line: one file per command, parsing and printing only.

Commands live in files of their own and are imported when they are asked for; none of them imports torch or
transformers at the top, so that `transship --help` answers at once.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import importlib
import io
import os
import re
import sys
import traceback
from collections.abc import Iterator
from typing import TextIO

import click

from transship import __version__, parallel
from transship.cli.defaults import defaults_of
from transship.cli.every import equip
from transship.errors import OptionError, OutputError, TransshipError, printable

# command → its module; the function in it is called `command`
COMMANDS = {
    "transport": "transship.cli.transport",
    "merge": "transship.cli.merge",
    "translate": "transship.cli.translate",
    "adapt": "transship.cli.adapt",
    "inspect": "transship.cli.inspect",
    "compare": "transship.cli.compare",
    "extract": "transship.cli.extract",
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
# what the library itself means: bold on and off; a bar's return to the start of its line, and its way up
_BOLD = re.compile("(\x1b\\[[01]m)")
_BAR = re.compile("\r?(\x1b\\[A)*")


class LazyGroup(click.Group):
    """A group whose commands are imported when they are named, or listed."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return _load(name) if name in COMMANDS else None

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named; one that is nearly right is asked back."""
        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        if words[0] not in COMMANDS and near:
            context.fail(f"No such command '{words[0]}'. Did you mean '{near[0]}'?")
        return super().resolve_command(context, words)


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
    with escaped():
        _run([_at_home(word) for word in (sys.argv[1:] if arguments is None else arguments)])


class Escaped(io.TextIOBase):
    """A stream that hands on text with its control characters escaped.

    A tensor, label, model or file may be named with signs that set the window's title, move the cursor or
    turn the reading direction. Whatever is printed passes through here: results, errors, plans, progress,
    warnings and other libraries' logs.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; only bold, and at its start what a progress bar writes, keep their meaning."""
        if not isinstance(text, str):  # click asks so whether a stream takes bytes
            raise TypeError("this stream takes text")
        bar = _BAR.match(text)
        start = bar[0] if bar is not None else ""
        parts = _BOLD.split(text[len(start) :])
        self._stream.write(start + "".join(part if _BOLD.match(part) else printable(part) for part in parts))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream behind is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What the stream behind does with signs that it lacks."""
        return self._stream.errors


@contextlib.contextmanager
def escaped() -> Iterator[None]:
    """Let standard output and standard error escape what is written to them in the block.

    A terminal whose encoding lacks a sign, such as the arrow in Latin-1, shows another in its place.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with contextlib.redirect_stdout(Escaped(sys.stdout)), contextlib.redirect_stderr(Escaped(sys.stderr)):
        yield


def _run(words: list[str]) -> None:
    _wait_briefly()
    shared: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if parallel.launched():
        named = tuple([word for word in words if not word.startswith("-")][:2])  # -v may come first
        if named in SHARED or named[:1] in SHARED:
            shared = parallel.quiet_unless_main()
        elif not parallel.alone():
            return
    errors = sys.stderr
    try:
        _check_text(words)
        with shared:
            group.main(args=words, standalone_mode=False)
    except click.exceptions.Exit as exit_:
        parallel.end(exit_.exit_code)
    except click.ClickException as mistake:
        if parallel.speaks():
            mistake.show(errors)
        parallel.end(2)
    except (KeyboardInterrupt, click.Abort) as stop:
        if parallel.speaks():
            click.echo(f"stopped; {_what_is_kept(stop)}", file=errors)
        parallel.end(130)
    except Exception as error:
        refusal = error if isinstance(error, TransshipError) else _of_the_system(error)
        if parallel.speaks() and refusal is not None:
            click.echo(f"error: {refusal.said(_one_line)}", file=errors)
        elif parallel.speaks():  # a mistake of ours keeps its traceback
            traceback.print_exc(file=errors)
        parallel.end(1 if refusal is None else 2)


def _one_line(text: str) -> str:
    """Return a part of a message in one line, whatever stands in a name from outside."""
    return text.replace("\n", "\\n")


def _at_home(word: str) -> str:
    """Return a word with the user's home folder for `~/`, which a shell leaves as it is inside quotes."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return option + equals + (os.path.expanduser(value) if value.startswith("~/") else value)


def _what_is_kept(stop: BaseException) -> str:
    """Return what an interrupted command leaves: its notes, or that there is nothing."""
    cause = stop.__cause__ if isinstance(stop, click.Abort) else stop  # click puts an Abort around Ctrl-C
    return "; ".join(getattr(cause, "__notes__", ())) or "nothing half-written was left"


def _check_text(words: list[str]) -> None:
    """Refuse bytes that are no UTF-8: libraries below take paths and names as text."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise OptionError(
                "it holds bytes that are no UTF-8", where=word, fix="rename the file, or check the locale"
            ) from None


def _wait_briefly() -> None:
    """Let waiting threads give their core away soon, unless the user has said how they wait."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch is first imported


def _of_the_system(error: Exception) -> TransshipError | None:
    """Return what to say of what the system refused, wherever it was met; None for any other error."""
    if isinstance(error, MemoryError):
        fix = "use fewer or smaller inputs, or a machine with more memory"
        return OutputError("there is not enough memory", where="this command", fix=fix)
    if not isinstance(error, OSError):
        return None
    full = error.errno in FULL
    # numpy, for one, says how much was written and not why no more
    reason = os.strerror(error.errno) if error.errno is not None else str(error).partition("\n")[0]
    what = f"{'the disk takes no more' if full else 'the system refuses'} ({reason})"
    where = str(error.filename or "what was being written")
    fix = (
        "make room, or choose another place, and run it again"
        if full
        else "check the path and its permissions"
    )
    return OutputError(what, where=where, fix=fix)


__all__ = ["COMMANDS", "SHARED", "group", "main"]
