"""Run the tests where little is as on a developer's machine: `python scripts/places.py [PYTEST ARGUMENT …]`.

One core; a home folder that does not exist and cannot be made; temporary files in a folder with blanks in its
name; files that nobody else may read (umask 077); 6 GB of memory at most; a locale of ASCII alone; a time
zone a day ahead; no git and no browser on PATH. `--user NAME` runs the tests as that user, which only root
can. The exit code is that of pytest, or 1 if the tests wrote into the checkout.
"""

from __future__ import annotations

import argparse
import os
import pwd
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# what could meet the machine: files, folders, commands and pages, with a part of every verb
TESTS = (
    *("-q", "-p", "no:cacheprovider", "-m", "not tutorial and not slow"),
    *(
        "tests/checkpoints",
        "tests/cli",
        "tests/data",
        "tests/docs/test_examples.py",
        "tests/report",
        "tests/suites",
    ),
    *("tests/test_atomic.py", "tests/test_numerics.py", "tests/test_progress.py", "tests/test_registry.py"),
    *("tests/verbs/merge", "tests/verbs/translate/test_stores.py", "tests/verbs/transport/test_api.py"),
)
# git, browsers and compilers are not among them
PROGRAMS = (
    "bash",
    "cat",
    "cp",
    "env",
    "kill",
    "ln",
    "ls",
    "mkdir",
    "mv",
    "printf",
    "rm",
    "sh",
    "sleep",
    "tail",
    "true",
)
MEMORY = 6 * 10**9  # bytes of a process that are no file
NOWHERE = "/proc/nowhere"  # not even root can make a folder there


def environment(folder: Path, other_user: bool) -> dict[str, str]:
    """Return the variables of another place, with its temporary files and its programs in a folder."""
    programs, temporary = folder / "programs", folder / "temporary files, with blanks"
    programs.mkdir()
    temporary.mkdir()
    for name in PROGRAMS:
        if path := shutil.which(name):
            (programs / name).symlink_to(path)
    # root's home is closed to others
    kept = Path(NOWHERE) if other_user else Path.home() / ".cache/transship"
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LC_", "LANG", "XDG_", "HF_"))
    }
    return ours | {
        "HOME": NOWHERE,
        "HYPOTHESIS_STORAGE_DIRECTORY": str(temporary / "hypothesis"),
        "LC_ALL": "C",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{programs}",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "0",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary),
        "TRANSSHIP_DATA": os.environ.get("TRANSSHIP_DATA", str(kept / "data")),
        "TRANSSHIP_MODELS": os.environ.get("TRANSSHIP_MODELS", str(kept / "models")),
        "TZ": "Pacific/Kiritimati",
    }


def little(core: int) -> None:
    """Leave this process one core and little memory."""
    os.sched_setaffinity(0, {core})
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def written(since: float) -> list[str]:
    """Return the files of the checkout that are newer than a time, but for caches of tools."""
    files = [(Path(at) / name).relative_to(ROOT) for at, _, names in os.walk(ROOT) for name in names]
    caches = (".", "__pycache__")
    ours = [file for file in files if not any(part.startswith(caches) for part in file.parts)]
    return sorted(str(file) for file in ours if (ROOT / file).lstat().st_mtime > since)


def main() -> None:
    """Run the tests, and say what they wrote into the checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--user", help="run as this user, which only root can")
    arguments, tests = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        place = environment(folder, bool(arguments.user))
        who: dict[str, int | list[int]] = {}
        if arguments.user:
            user = pwd.getpwnam(arguments.user)
            shutil.chown(place["TMPDIR"], user.pw_uid, user.pw_gid)
            who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        core = min(os.sched_getaffinity(0))
        begin = (folder / "programs").stat().st_mtime
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *(tests or TESTS)],
            cwd=ROOT,
            env=place,
            umask=0o077,
            preexec_fn=lambda: little(core),
            **who,
        )
    changed = written(begin)
    print(*(f"written into the checkout: {file}" for file in changed), sep="\n")
    sys.exit(done.returncode or bool(changed))


if __name__ == "__main__":
    main()
