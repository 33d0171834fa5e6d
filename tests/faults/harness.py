"""Strikes commands while they write: `python tests/faults/harness.py [--each N] [--seed S] [FAMILY…]`.

Every writer runs in a fork of a warm process. It is killed, interrupted or stopped at its n-th call on files,
or that call fails as on a full or broken disk. After each strike the output is the old one or the new one,
the same command finishes, its output equals that of an undisturbed run, and nothing else lies around.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from families import Family, content, environment, families, listing, make_inputs  # noqa: E402
from processes import build, ends_within, wait_for, warm  # noqa: E402

COUNT, KILL, INTERRUPT, STOP, ONCE, EVER = range(6)
FAULTS = {
    "kill": (KILL, 0),
    "Ctrl-C": (INTERRUPT, 0),
    "full disk": (EVER, errno.ENOSPC),
    "I/O error": (ONCE, errno.EIO),
}


@dataclass
class Outcome:
    """What became of one family's strikes.

    Attributes:
        calls: of an undisturbed run on files.
        strikes: kind → how many.
        problems: what went wrong, in words.
    """

    calls: int = 0
    strikes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Striker:
    """Runs the commands of a family, undisturbed and struck."""

    def __init__(self, folder: Path, inputs: Path, family: Family) -> None:
        self.folder, self.inputs, self.family = folder, inputs, family
        self.library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self.number = 0
        self.bases: list[Path | None] = [None]
        self.old: list[Any] = [[]]
        if family.before is not None:
            base = folder / "base"
            base.mkdir()
            for words in (family.before, *family.begun):
                code, output = self.run(base, words)
                assert code == 0, (words, output)
            shutil.rmtree(base / "cache", ignore_errors=True)
            self.bases = [base] if family.once else [None, base]
            self.old = [self.look(base)] if family.once else [[], self.look(base)]
        work = self.place(self.bases[0])
        code, output = self.run(work, family.command)
        assert code == 0, output
        self.new, self.listed = self.look(work), listing(work)
        assert self.new not in self.old
        shutil.rmtree(work)

    def place(self, base: Path | None) -> Path:
        """Return a new working folder with an old output, or without."""
        self.number += 1
        work = self.folder / f"struck-{self.number:05d}"
        if base is None:
            work.mkdir()
        else:
            shutil.copytree(base, work, symlinks=True)
        return work

    def fork(self, work: Path, words: Any, strike: tuple[int, int, int]) -> int:
        """Start a command in a fork that is struck at its n-th call: (n, what, error)."""
        process = os.fork()
        if process:
            return process
        code = 1
        try:
            handle = os.open(self.folder / f"{work.name}.said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            os.chdir(work)
            environment(work)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            place, what, error = strike
            self.library.strike_arm(f"{work}/".encode(), ctypes.c_long(place), what, error)
            code = _carry_out(words, self.inputs)
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            calls = self.library.strike_count()
            self.library.strike_arm(b"", ctypes.c_long(0), COUNT, 0)
            with contextlib.suppress(BaseException):
                (self.folder / f"{work.name}.calls").write_text(json.dumps([calls, sorted(sys.modules)]))
            os._exit(code)

    def run(self, work: Path, words: Any, strike: tuple[int, int, int] = (0, COUNT, 0)) -> tuple[int, str]:
        """Run a command to its end; return its exit code and what it said."""
        process = self.fork(work, words, strike)
        code = wait_for(process)
        return code, self.said(work)

    def said(self, work: Path) -> str:
        """Return what a command said, once."""
        file = self.folder / f"{work.name}.said"
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        file.unlink(missing_ok=True)
        return text

    def look(self, work: Path) -> Any:
        """Return the output as another process reads it."""
        result = self.folder / f"{work.name}.seen"
        process = os.fork()
        if process == 0:
            code = 1
            try:
                result.write_text(json.dumps(content(work)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert wait_for(process) == 0, f"the output in {work} cannot be read"
        seen = json.loads(result.read_text())
        result.unlink()
        return seen

    def calls(self) -> int:
        """Return how many calls on files an undisturbed run makes, at most of any start."""
        counts = []
        for base in self.bases:
            work = self.place(base)
            self.run(work, self.family.command)
            calls, modules = json.loads((self.folder / f"{work.name}.calls").read_text())
            counts.append(calls)
            shutil.rmtree(work)
            warm(modules)
        return max(counts)

    def strike(self, kind: str, place: int, turn: int) -> list[str]:
        """Strike once, and return what went wrong."""
        base, old = self.bases[turn % len(self.bases)], self.old[turn % len(self.bases)]
        work = self.place(base)
        what, error = FAULTS[kind]
        code, output = self.run(work, self.family.command, (place, what, error))
        problems = []
        if "Traceback" in output or code not in (0, 2, 130, -9):
            problems.append(f"ends with {code}: {output[-700:]}")
        return [f"{kind} at call {place}: {words}" for words in problems + self.aftermath(work, old)]

    def aftermath(self, work: Path, old: Any) -> list[str]:
        """Check what a strike left, and that the same command finishes."""
        problems = []
        seen, code, after = self.look_and_finish(work)
        if not self.whole(seen, old):
            problems.append(f"neither old nor new: {str(seen)[:200]}")
        if code != 0 and not (self.family.once and seen == self.new and code == 2):
            problems.append(f"the same command ends with {code}: {self.said(work)[-700:]}")
        elif after != self.new:
            problems.append("the same command ends otherwise than an undisturbed one")
        elif listing(work) != self.listed:
            problems.append(f"lies around: {sorted(set(listing(work)) ^ set(self.listed))}")
        if not problems:
            shutil.rmtree(work)
            self.said(work)
        return problems

    def look_and_finish(self, work: Path) -> tuple[Any, int, Any]:
        """Return the output that a strike left, how the same command ends, and the output then.

        One process does all three: most of what a strike costs is the start of processes.
        """
        answer = self.folder / f"{work.name}.after"

        def look_run_look(inputs: Path) -> None:
            seen = content(work)
            code = _carry_out(self.family.command, inputs)
            answer.write_text(json.dumps([seen, code, content(work)]))

        _, said = self.run(work, look_run_look)
        assert answer.exists(), f"the output in {work} cannot be read: {said[-700:]}"
        seen, code, after = json.loads(answer.read_text())
        answer.unlink()
        if code:
            (self.folder / f"{work.name}.said").write_text(said)
        return seen, code, after

    def whole(self, seen: Any, old: Any) -> bool:
        """Return whether an output is the old or the new one, or whole rows of the new one where it grows."""
        if seen in (old, self.new):
            return True
        if self.family.clears:
            return set(seen) <= {*old, *self.new}
        return self.family.grows and all(
            part == new[: len(part)] for part, new in zip(seen, self.new, strict=True)
        )

    def meet(self, place: int, turn: int) -> list[str]:
        """Stop a writer amid its work, read its output, let a second writer come, and let the first go on."""
        base, old = self.bases[turn % len(self.bases)], self.old[turn % len(self.bases)]
        work = self.place(base)
        first = self.fork(work, self.family.command, (place, STOP, 0))
        _, status = os.waitpid(first, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return []  # it was through before
        os.kill(first, signal.SIGSTOP)
        second = self.fork(work, self.family.command, (0, COUNT, 0))
        ends_within(second, 0.3)  # it is refused at once, or waits for the first
        os.kill(first, signal.SIGCONT)
        codes = [wait_for(first), wait_for(second)]
        message, problems = self.said(work), []
        if "Traceback" in message or 0 not in codes or set(codes) > {0, 2}:
            problems.append(f"two at once end with {codes}: {message[-700:]}")
        return [f"two writers at call {place}: {words}" for words in problems + self.aftermath(work, old)]

    def peek(self, place: int, turn: int) -> list[str]:
        """Read the output while its writer stands still amid its work."""
        base, old = self.bases[turn % len(self.bases)], self.old[turn % len(self.bases)]
        work = self.place(base)
        first = self.fork(work, self.family.command, (place, STOP, 0))
        _, status = os.waitpid(first, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return []
        copy = self.folder / f"{work.name}-seen"
        reader = os.fork()
        if reader == 0:
            os._exit(self._reads(work, copy))
        ends_within(reader, 0.3)
        os.kill(first, signal.SIGCONT)
        codes = [wait_for(reader), wait_for(first)]
        problems = [] if codes == [0, 0] else [f"a reader and its writer end with {codes}"]
        seen = json.loads(copy.read_text()) if copy.exists() else None
        if seen is not None and not self.whole(seen, old):
            problems.append(f"a reader sees neither old nor new: {str(seen)[:200]}")
        copy.unlink(missing_ok=True)
        return [f"a reader at call {place}: {words}" for words in problems + self.aftermath(work, old)]

    def _reads(self, work: Path, copy: Path) -> int:
        try:
            copy.write_text(json.dumps(content(work)))
        except BaseException:
            traceback.print_exc()
            return 1
        return 0

    def read_only(self) -> list[str]:
        """Run in a place that takes nothing."""
        base, old = self.bases[-1], self.old[-1]
        work = self.place(base)
        before = listing(work)
        code, output = self.run(work, self.family.command, (1, EVER, errno.EROFS))
        problems = [] if code == 2 and "Traceback" not in output else [f"ends with {code}: {output[-700:]}"]
        if listing(work) != before:
            problems.append(f"leaves {sorted(set(listing(work)) - set(before))}")
        return [f"a read-only folder: {words}" for words in problems + self.aftermath(work, old)]


def _carry_out(words: list[str] | Callable[[Path], None], inputs: Path) -> int:
    from transship.cli import main
    from transship.errors import TransshipError

    if callable(words):
        try:
            words(inputs)
        except (OSError, TransshipError) as error:  # what a program would see
            print(error)
            return 2
        return 0

    try:
        main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        if qdrant := sys.modules.get("transship.verbs.translate.stores.qdrant"):
            qdrant.close_clients()  # as at the end of a process
    return 0


def places(calls: int, count: int, rng: random.Random) -> Iterator[int]:
    """Yield call numbers spread over the whole of a command's writing."""
    for part in range(count):
        low, high = 1 + part * calls // count, 1 + (part + 1) * calls // count
        yield rng.randrange(low, max(low + 1, high))


def attack(striker: Striker, each: int, rng: random.Random) -> Outcome:
    """Strike a family in every way."""
    outcome = Outcome(striker.calls())
    for kind in FAULTS:
        for turn, place in enumerate(places(outcome.calls, each, rng)):
            outcome.strikes[kind] += 1
            outcome.problems += _safely(lambda k=kind, p=place, t=turn: striker.strike(k, p, t))
    for turn, place in enumerate(places(outcome.calls, max(1, each // 5), rng)):
        for kind, way in (("two writers", striker.meet), ("a reader", striker.peek)):
            if striker.family.clears and kind == "a reader":
                continue
            outcome.strikes[kind] += 1
            outcome.problems += _safely(lambda w=way, p=place, t=turn: w(p, t))
    if not striker.family.grows:
        outcome.strikes["read-only"] += 1
        outcome.problems += _safely(striker.read_only)
    return outcome


def _safely(work: Callable[[], list[str]]) -> list[str]:
    try:
        return work()
    except AssertionError as error:
        return [str(error)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--each", type=int, default=50, help="strikes of each of the four kinds")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            settings = {"LD_PRELOAD": str(build(Path(folder))), "OMP_NUM_THREADS": "1"}
            environ = {**os.environ, **settings, "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=environ, check=False).returncode)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(strike_all(Path(folder), given.families, given.each, given.seed))


def strike_all(folder: Path, names: list[str], each: int, seed: int) -> int:
    """Strike the families named, or all; print one line each, and what went wrong."""
    warm()
    inputs = folder / "inputs"
    inputs.mkdir()
    maker = os.fork()  # what computes may start threads, which no fork survives
    if maker == 0:
        code = 1
        try:
            environment(folder)
            os.dup2(os.open(folder / "made.txt", os.O_WRONLY | os.O_CREAT), 1)
            make_inputs(inputs, {name.split()[0] for name in names or families(inputs)})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if wait_for(maker):
        return 1
    known, failed = families(inputs), 0
    for number, name in enumerate(names or known):
        place, begun = folder / f"family-{number}", time.monotonic()
        place.mkdir()
        outcome = Outcome()
        try:
            outcome = attack(Striker(place, inputs, known[name]), each, random.Random(f"{seed} {name}"))
        except AssertionError as error:
            outcome.problems.append(f"undisturbed: {error}")
        shutil.rmtree(place, ignore_errors=True)
        struck = ", ".join(f"{count} {kind}" for kind, count in outcome.strikes.items())
        seconds = time.monotonic() - begun
        print(
            f"{name}: {sum(outcome.strikes.values())} faults over {outcome.calls} calls ({struck}): "
            f"{len(outcome.problems)} lost or left, {seconds:.0f} s",
            flush=True,
        )
        for problem in outcome.problems:
            print("  ", problem, flush=True)
        failed += bool(outcome.problems)
    return int(failed > 0)


if __name__ == "__main__":
    main()
