"""`scripts/kernels.py`: libraries use the kernels that are set; tests that end differently are named."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
# torch's names of its kernels, OpenBLAS's core, and the features that numpy leaves unused
SETS = {
    "sse": ({"DEFAULT", "NO AVX"}, "Nehalem", {"AVX2", "FMA3", "X86_V3", "AVX512F", "X86_V4"}),
    "avx2": ({"AVX2"}, "Haswell", {"AVX512F", "AVX512_SKX", "X86_V4"}),
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernels_script", ROOT / "scripts/kernels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels_script"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SETS)
def test_every_library_says_that_it_uses_the_kernels_which_were_set(script, name):
    variables = script.environment(script.SETS[name])
    if not variables:
        pytest.skip(f"this processor cannot run {name}")
    torch, openblas, numpy = SETS[name]
    uses = script.in_use(os.environ | variables | {"OMP_NUM_THREADS": "2"})
    assert uses["torch"] in torch
    assert uses["openblas"] == [openblas]
    assert not set(uses["numpy"]) & numpy
    assert uses["threads"] == 2
    assert "AVX-512" not in uses["mkl"]
    assert "AVX-512" not in uses["onednn"]
    if name == "sse":
        assert "AVX" not in uses["mkl"]
        assert "AVX" not in uses["onednn"]


def test_a_processor_that_lacks_an_instruction_is_told_by_no_variables(script):
    assert script.environment(script.Kernels(needs=("no such instruction",))) is None


def test_kernels_that_somebody_chose_stay(script, monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert script.another() == {}


def test_a_test_that_ends_differently_or_fails_is_named_with_its_rounds(script, tmp_path):
    report = tmp_path / "report.xml"
    cases = {"a": "", "b": "<failure/>", "c": "<skipped/>"}
    written = "".join(
        f'<testcase classname="tests" name="{name}">{end}</testcase>' for name, end in cases.items()
    )
    report.write_text(f"<testsuites><testsuite>{written}</testsuite></testsuites>", encoding="utf-8")
    other = script.outcomes(report)
    assert other == {"tests::a": "passed", "tests::b": "failed", "tests::c": "skipped"}
    native = {"tests::a": "passed", "tests::b": "passed", "tests::c": "skipped", "tests::d": "passed"}
    assert script.compare({"native": native, "sse": other}) == [
        "tests::b: passed (native), failed (sse)",
        "tests::d: passed (native), not run (sse)",
    ]
