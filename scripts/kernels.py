#!/usr/bin/env python3
"""Run the tests with the kernels of several processors: `python scripts/kernels.py [--only NAME] [PYTEST …]`.

torch, MKL, oneDNN, OpenBLAS and numpy each have several sets of kernels and choose by the processor.
The sets round differently, and training carries the difference on. With variables of the environment, a
machine uses the kernels of older ones. Every round also draws its own order of tests and hash seed.
The script prints the tests whose outcome differs between rounds. Its exit code is 1 if any test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
TESTS = ("-n", "2", "--dist", "worksteal", "-m", "not tutorial", "-q")

# numpy takes names of features that it was built to choose among, and warns about all others
NUMPY_NEWEST = (
    "AVX512F",
    "AVX512CD",
    "AVX512_SKX",
    "AVX512_CLX",
    "AVX512_CNL",
    "AVX512_ICL",
    "AVX512_SPR",
    "X86_V4",
)
NUMPY_ALL = ("AVX2", "FMA3", "X86_V3", *NUMPY_NEWEST)


@dataclass(frozen=True)
class Kernels:
    """What to set, so that the libraries use the kernels of a processor with these instructions.

    Attributes:
        needs: Features that the processor must have, by numpy's names.
        variables: Variables of the environment, but for numpy's.
        without: Features that numpy is to leave unused, where it would choose by them.
    """

    needs: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()


SETS = {
    "native": Kernels(),
    "torch-default": Kernels(variables={"ATEN_CPU_CAPABILITY": "default"}),
    "sse": Kernels(
        ("SSE42",),
        {
            "ATEN_CPU_CAPABILITY": "default",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "MKL_CBWR": "COMPATIBLE",  # where the processor is no Intel, MKL reads only this
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "OPENBLAS_CORETYPE": "Nehalem",
        },
        NUMPY_ALL,
    ),
    "avx2": Kernels(
        ("AVX2", "FMA3"),
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "MKL_CBWR": "AVX2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "OPENBLAS_CORETYPE": "Haswell",
        },
        NUMPY_NEWEST,
    ),
    "avx512": Kernels(
        ("AVX512_SKX",),
        {
            "ATEN_CPU_CAPABILITY": "avx512",
            "MKL_ENABLE_INSTRUCTIONS": "AVX512",
            "MKL_CBWR": "AVX512",
            "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
            "OPENBLAS_CORETYPE": "SkylakeX",
        },
    ),
}

# every set, and one as well as two threads for the machine's own and for the oldest
ROUNDS = tuple(
    (f"{name}, {threads} thread{'s' * (threads > 1)}", name, threads)
    for name, threads in (
        ("native", 1),
        ("sse", 1),
        ("avx2", 2),
        ("torch-default", 1),
        ("avx512", 2),
        ("sse", 2),
    )
)

FEATURES = """
import json
try:
    from numpy._core import _multiarray_umath as core
except ImportError:
    from numpy.core import _multiarray_umath as core
print(json.dumps([[name for name, here in core.__cpu_features__.items() if here], core.__cpu_dispatch__]))
"""

# each library says by itself what it uses; MKL and oneDNN only in their first lines of a verbose run
IN_USE = """
import ctypes, json, os
import numpy, scipy.linalg, threadpoolctl, torch
try:
    from numpy._core import _multiarray_umath as core
except ImportError:
    from numpy.core import _multiarray_umath as core
torch.mm(torch.ones(64, 64), torch.ones(64, 64))
torch.nn.functional.conv2d(torch.ones(2, 3, 20, 20), torch.ones(90, 3, 3, 3))
ctypes.CDLL(None).fflush(None)
pools = threadpoolctl.threadpool_info()
blas = {pool["architecture"] for pool in pools if pool["internal_api"] == "openblas"}
print()
print("IN_USE", json.dumps({
    "torch": torch.backends.cpu.get_cpu_capability(),
    "openblas": sorted(blas),
    "numpy": [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]],
    "threads": torch.get_num_threads(),
}))
"""


def in_use(environment: dict[str, str]) -> dict[str, object]:
    """Return the kernels that each library says it uses in a process of this environment."""
    verbose = {"MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
    lines = subprocess.run(
        [sys.executable, "-c", IN_USE], env=environment | verbose, text=True, capture_output=True, check=True
    ).stdout.splitlines()
    uses: dict[str, object] = json.loads(
        next(line for line in lines if line.startswith("IN_USE ")).split(" ", 1)[1]
    )
    for library, begins, before, after in (
        ("mkl", "MKL_VERBOSE oneMKL", "64 architecture ", ", Lnx"),
        ("onednn", "onednn_verbose,v1,info,cpu,isa:", "isa:", "\n"),
    ):
        line = next((line for line in lines if line.startswith(begins)), f"{before}not in this torch")
        uses[library] = line.split(before, 1)[1].split(after)[0]
    return uses


def environment(kernels: Kernels) -> dict[str, str] | None:
    """Return the variables to set for these kernels, or nothing where the processor cannot run them."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return None if kernels.needs else dict(kernels.variables)
    # what is switched off already would be missing among the features, and be on again
    plain = {name: value for name, value in os.environ.items() if name != "NPY_DISABLE_CPU_FEATURES"}
    asked = subprocess.run(
        [sys.executable, "-c", FEATURES], env=plain, text=True, capture_output=True, check=True
    )
    here, chosen_among = json.loads(asked.stdout)
    if not set(kernels.needs) <= set(here):
        return None
    disabled = [name for name in kernels.without if name in here and name in chosen_among]
    return dict(kernels.variables) | ({"NPY_DISABLE_CPU_FEATURES": " ".join(disabled)} if disabled else {})


def another() -> dict[str, str]:
    """Return variables for other kernels than the machine's own; none where kernels are chosen already."""
    names = {name for kernels in SETS.values() for name in kernels.variables} | {"NPY_DISABLE_CPU_FEATURES"}
    return {} if names & set(os.environ) else environment(SETS["sse"]) or {}


def outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of every test in a file of JUnit's format."""
    by_name = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        by_name[f"{case.get('classname')}::{case.get('name')}"] = (
            "failed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"
        )
    return by_name


def compare(rounds: dict[str, dict[str, str]]) -> list[str]:
    """Return a line for every test that fails somewhere or does not end alike everywhere."""
    tests = sorted({test for results in rounds.values() for test in results})
    lines = []
    for test in tests:
        ends = {name: results.get(test, "not run") for name, results in rounds.items()}
        if len(set(ends.values())) > 1 or "failed" in ends.values():
            lines.append(f"{test}: " + ", ".join(f"{end} ({name})" for name, end in ends.items()))
    return lines


def main() -> None:
    """Run the rounds one after another and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=SETS, help="run the rounds of this set of kernels only"
    )
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(2**32), help="draws all seeds"
    )
    arguments, tests = parser.parse_known_args()
    draw = random.Random(arguments.seed)
    rounds, failed = {}, False
    print(f"seed {arguments.seed}", flush=True)
    for title, name, threads in ROUNDS:
        seed = draw.randrange(2**32)
        if arguments.only and name not in arguments.only:
            continue
        variables = environment(SETS[name])
        if variables is None:
            print(f"\n=== {title}: skipped, this processor cannot run it", flush=True)
            continue
        ours = os.environ | variables | {"OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": str(seed)}
        print(f"\n=== {title}, order and hash seed {seed}: {in_use(ours)}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", *(tests or TESTS)]
            command += [f"--order-seed={seed}", f"--junit-xml={report}"]
            code = subprocess.run(command, cwd=ROOT, env=ours).returncode
            failed |= code != 0
            rounds[title] = outcomes(report) if report.is_file() else {}
    differing = compare(rounds)
    print(f"\n=== {len(rounds)} rounds, {len(differing)} tests that fail or differ", *differing, sep="\n")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
