"""Pins what the verbs write, so that code can move and behaviour cannot: `python tests/pins/pin.py check`.

    python tests/pins/pin.py check [VERB…]         run the jobs, compare with the hashes kept beside this file
    python tests/pins/pin.py write [VERB…]         run the jobs and keep their hashes
    python tests/pins/pin.py run FOLDER [VERB…]    run the jobs and keep the files that they wrote
    python tests/pins/pin.py differ OLD NEW        how far the arrays of two such folders are apart

A job is a function of `tests/pins/<verb>_jobs.py`: `jobs(inputs, out)` yields a name and a function that
writes into `out / name`. Jobs use public names and commands only. Times, versions, model cards and pages are
no part of a hash; everything else is. Jobs run on the kernels that all processors have and on one thread.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PLAIN = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_NUM_THREADS": "1",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    "PYTHONHASHSEED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
# what differs between two runs of the same code, or says where it ran
VOLATILE = (
    *("seconds", "time", "created", "date", "version", "command", "folder", "path", "host", "memory", "peak"),
)
LEFT_OUT = {"README.md", ".gitattributes", ".gitignore"}


def verbs() -> list[str]:
    """Return the verbs that have jobs."""
    return sorted(file.name.removesuffix("_jobs.py") for file in HERE.glob("*_jobs.py"))


def run(verb: str, out: Path) -> dict[str, dict[str, str]]:
    """Run a verb's jobs in `out`; return the hash of every file by job and name."""
    spec = importlib.util.spec_from_file_location(f"pins_{verb}", HERE / f"{verb}_jobs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    inputs = out / "inputs"
    inputs.mkdir(parents=True)
    hashes = {}
    for name, job in module.jobs(inputs, out):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        job()
        hashes[name] = {where: digest(file, out) for where, file in files(out / name)}
        print(f"{verb}: {name}: {len(hashes[name])} files", file=sys.stderr, flush=True)
    return hashes


def files(place: Path) -> Iterator[tuple[str, Path]]:
    """Yield what counts of a job's output, by its name in it."""
    if place.is_file():
        yield place.name, place
        return
    for file in sorted(place.rglob("*")):
        if file.is_file() and file.name not in LEFT_OUT and file.suffix not in (".html", ".md", ".lock"):
            yield str(file.relative_to(place)), file


def digest(file: Path, root: Path) -> str:
    """Return the hash of a file without what may differ between two runs."""
    if file.suffix == ".json":
        return _hash(_steady(json.loads(file.read_text(encoding="utf-8")), root))
    if file.suffix == ".safetensors":
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        about = {key: _unfolded(text) for key, text in header.pop("__metadata__", {}).items()}
        return _hash([_steady(about, root), header, hashlib.sha256(content[8 + length :]).hexdigest()])
    return hashlib.sha256(file.read_bytes()).hexdigest()[:20]


def _unfolded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _steady(value: Any, root: Path) -> Any:
    if isinstance(value, dict):
        return {
            key: _steady(inner, root)
            for key, inner in value.items()
            if not any(word in key.lower() for word in VOLATILE)
        }
    if isinstance(value, list):
        return [_steady(inner, root) for inner in value]
    return value.replace(str(root), "").replace(root.name, "") if isinstance(value, str) else value


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:20]


def compare(verb: str, hashes: dict[str, dict[str, str]]) -> list[str]:
    """Return what differs from the hashes that are kept."""
    kept = json.loads((HERE / f"{verb}.json").read_text(encoding="utf-8"))
    lines = [f"{verb}: {name}: no such job any more" for name in kept if name not in hashes]
    for name, by_file in hashes.items():
        before = kept.get(name, {})
        for file in sorted(before.keys() | by_file.keys()):
            if before.get(file) != by_file.get(file):
                how = "is new" if file not in before else "is gone" if file not in by_file else "differs"
                lines.append(f"{verb}: {name}: {file} {how}")
    return lines


def differ(old: Path, new: Path) -> Iterator[str]:
    """Yield, for every array in two folders, how far it is apart."""
    for where, file in files(old):
        other = new / where
        if not other.is_file():
            yield f"{where}: gone"
            continue
        before, after = dict(_arrays(file)), dict(_arrays(other))
        for name in before.keys() | after.keys():
            if name not in before or name not in after or before[name].shape != after[name].shape:
                yield f"{where}: {name}: another array"
                continue
            apart = abs(before[name] - after[name]).max(initial=0.0)
            if apart:
                yield f"{where}: {name}: {apart:.3g} of {abs(before[name]).max():.3g}"


def _arrays(file: Path) -> Iterator[tuple[str, Any]]:
    import numpy as np

    if file.suffix == ".npy":
        yield "array", np.load(file).astype(np.float64)
    elif file.suffix == ".safetensors":
        from safetensors.torch import load_file

        for name, tensor in load_file(file).items():
            yield name, tensor.double().numpy()


def main(words: list[str]) -> None:
    """Do what the first word says."""
    action, rest = (words[0], words[1:]) if words else ("check", [])
    if action == "differ":
        print("\n".join(differ(Path(rest[0]), Path(rest[1]))))
        return
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as new:
        folder = Path(rest.pop(0)) if action == "run" else Path(new)
        for verb in rest or verbs():
            hashes = run(verb, folder.resolve() / verb)
            if action == "write":
                text = json.dumps(hashes, indent=1, sort_keys=True) + "\n"
                (HERE / f"{verb}.json").write_text(text, encoding="utf-8")
            elif action == "check":
                wrong += compare(verb, hashes)
    print("\n".join(wrong) if wrong else "nothing differs" if action == "check" else "done")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in PLAIN.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | PLAIN)
    main(sys.argv[1:])
