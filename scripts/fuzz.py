"""Read thousands of files that are nearly right: `python scripts/fuzz.py [--files N] [NAME …]`.

Every parser runs in a process of its own, so that one that ends its process is seen too. A file passes when
it is read, or refused in one sentence. A traceback, more than 5 seconds, or more memory than the limit is a
finding. hypothesis makes its file as small as it can, and it is kept in tests/fuzz/corpus, for `make test`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FUZZ = ROOT / "tests" / "fuzz"
CORPUS = FUZZ / "corpus"
SECONDS, MEMORY = 5, 10**9
sys.path.insert(0, str(FUZZ))


class Finding(Exception):  # noqa: N818 - what is looked for
    """A file on which a parser did what no parser may."""


def _late(number: int, frame: Any) -> None:
    raise Finding(f"more than {SECONDS} seconds")


def _peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def attempt(target: Any, data: bytes, folder: Path, counts: dict[str, int]) -> None:
    """Read one file; raise a Finding unless it is read or refused."""
    from transship.errors import TransshipError

    before = _peak()
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)  # of this process: another's load is no finding
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(None):
            warnings.simplefilter("ignore")
            target.read(data, folder)
        counts["read"] += 1
    except TransshipError as refusal:
        if not str(refusal).isprintable() and len(str(refusal)) > 2000:
            raise Finding("a refusal of more than one sentence") from refusal
        counts["refused"] += 1
    except Finding:
        raise
    except Exception as error:
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "transship" in frame.filename]
        place = f"{Path(ours[-1].filename).name}, {ours[-1].name}" if ours else "?"
        raise Finding(f"{type(error).__name__} in {place}") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if _peak() - before > MEMORY:
        raise Finding(f"{(_peak() - before) / 1e9:.1f} GB of memory")


def child(name: str, files: int, seconds: float, seed: int, current: Path) -> None:
    """Draw files for one parser until there were enough or the time is over; print what came of it."""
    import hypothesis
    import targets
    from hypothesis import HealthCheck, Phase

    from transship.outside import unpacking_at_most

    signal.signal(signal.SIGVTALRM, _late)
    target = targets.TARGETS[name]
    counts = {"read": 0, "refused": 0, "tried": 0}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place, unpacking_at_most(MEMORY // 2):
        folder = Path(place)
        valid = target.make(folder)
        for data in valid:
            attempt(target, data, folder, counts)
        by_name: dict[str, bytes] = {}

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=-(-files // target.count),
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=True,
        )
        @hypothesis.given(target.change(valid))
        def fuzz(data: bytes) -> None:
            if time.monotonic() - start > seconds:
                return
            counts["tried"] += 1
            current.write_bytes(data)
            try:
                attempt(target, data, folder, counts)
            except Finding as finding:
                by_name[str(finding)] = data
                raise

        try:
            fuzz()
        except BaseException:  # one finding, or a group of them
            if not by_name:
                raise
        for data in by_name.values():
            keep(name, data)
        spent = time.monotonic() - start
        counts = {name: number * target.count for name, number in counts.items()}
        print(json.dumps({**counts, "seconds": spent, "findings": sorted(by_name)}))


def keep(name: str, data: bytes) -> None:
    """Keep a file for `make test`."""
    place = CORPUS / name / hashlib.sha256(data).hexdigest()[:16]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)


def run(name: str, files: int, seconds: float, seed: int) -> dict[str, Any]:
    """Fuzz one parser in a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        current = Path(place) / "current"
        command = [
            sys.executable,
            __file__,
            "--child",
            name,
            str(files),
            str(seconds),
            str(seed),
            str(current),
        ]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=variables,
                timeout=20 * seconds + 600,
                check=False,
            )
            code, out, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            code, out, errors = -9, "", "it waited for ever"
        if code == 0:
            answer: dict[str, Any] = json.loads(out.splitlines()[-1])
            return answer
        if current.is_file():
            keep(name, current.read_bytes())
        return {
            "tried": 0,
            "read": 0,
            "refused": 0,
            "seconds": 0.0,
            "findings": [f"exit {code}: {errors[-1500:]}"],
        }


def main() -> None:
    """Fuzz the parsers that are named, or all of them, and print a line for each."""
    import targets

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="TARGET")
    parser.add_argument("--files", type=int, default=2000, help="files per parser")
    parser.add_argument("--seconds", type=float, default=120, help="the most time per parser")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    given = parser.parse_args()
    print(f"seed {given.seed}; at most {given.files} files and {given.seconds:g} s per parser")
    print(f"{'parser':20} {'files':>6} {'read':>6} {'refused':>8} {'seconds':>8}  findings")
    total = findings = 0
    for name in given.names or targets.TARGETS:
        if name == "page" and targets.chromium() is None:
            print(f"{name:20} left out: there is no Chromium here")
            continue
        got = run(name, given.files, given.seconds, given.seed)
        total, findings = total + got["tried"], findings + len(got["findings"])
        figures = f"{got['tried']:6} {got['read']:6} {got['refused']:8} {got['seconds']:8.0f}"
        print(f"{name:20} {figures}  {len(got['findings'])}", flush=True)
        for finding in got["findings"]:
            print(f"    {finding}", flush=True)
    print(f"{total} files, {findings} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]), Path(sys.argv[6]))
    else:
        main()
