"""A fusion on disk: a model folder, a folder per task, and what the next `add` needs.

    OUT/config.json, model.safetensors, tokenizer …   the merged backbone: from_pretrained(OUT)
    OUT/tasks/NAME/                                   the task's model: from_pretrained(OUT/tasks/NAME); its
                                                      backbone file is one file for all tasks (a hard link)
    OUT/fusion.json                                   base, method, tasks, what was measured
    OUT/state/GROUP.safetensors                       the method's state, float32; what a finish added
    OUT/heads/NAME.safetensors                        every kind of head
    OUT/inputs/NAME/                                  kept inputs, where allowed

The folder is written beside its target and exchanged in one step: a kill leaves the old one.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from transship.activations import parameter_names
from transship.atomic import atomic_folder, recover
from transship.checkpoints import Input, ModelCard, TensorPlan, copied, write_file
from transship.checkpoints.card import as_json
from transship.checkpoints.claims import refuse_links_below
from transship.checkpoints.write import carried_files, with_dtype, write_checkpoint
from transship.errors import CheckpointError, OutputError
from transship.geometry.maps import read_arrays, write_arrays
from transship.outside import read_json
from transship.verbs.merge.fusion.choices import Choices
from transship.verbs.merge.fusion.disk import CheckpointOrigin
from transship.verbs.merge.fusion.measure import StepReport
from transship.verbs.merge.fusion.origin import FusionOrigin
from transship.verbs.merge.fusion.refresh import merged_backbone
from transship.verbs.merge.fusion.store import stored_task, test_rows, write_kept
from transship.verbs.merge.fusion.task import Fused, FusedTask, TaskFiles
from transship.verbs.merge.maths.states import Vector
from transship.verbs.merge.tasks.folder import link, write_task
from transship.verbs.merge.tasks.heads import FINISHED, HEAD_KINDS, LinearHead

FORMAT, VERSION = "transship.fusion", 1
BACKBONE = "backbone.safetensors"


def save(fused: Fused, origin: FusionOrigin, choices: Choices, folder: Path, *, force: bool) -> Fused:
    """Write a fusion whose base is on disk, and return it with its tasks read from the folder."""
    if not isinstance(origin, CheckpointOrigin):
        raise OutputError(
            "its base was given in memory",
            where=str(folder),
            fix="save fusion.parameters yourself, or give the base as a folder",
        )
    with atomic_folder(folder, force=force, needs=_bytes(fused, origin)) as place:
        try:
            if fused.tasks:
                base = origin.backbone(fused.names)
                merged = merged_backbone(fused, base, choices)
                _write_model(place, fused, merged, origin, choices)
                _write_tasks(place, fused, merged, origin, choices)
            _write_state(place, fused, record(fused, origin, choices))
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise OutputError(
                f"writing stopped ({reason})",
                where=str(folder),
                fix="free some space, or choose another disk",
            ) from error
    return replace(fused, tasks=tuple(_resting(task, folder, origin, fused.names) for task in fused.tasks))


def read(folder: Path, origin: CheckpointOrigin, about: Mapping[str, Any]) -> Fused:
    """Return the fusion in `folder`, of which `about` is the record."""
    for name in (*about["groups"], *(entry["name"] for entry in about["tasks"])):
        if name != Path(name).name or name in ("", ".", ".."):
            raise CheckpointError(
                f"fusion.json names the file {name!r} outside its folder",
                where=str(folder),
                fix="start again",
            )
    if origin.fingerprint() != about["base"]["sha256"]:
        raise CheckpointError(
            "it is not the base that this fusion was started with",
            where=origin.name,
            fix="put the old base back, or start another fusion",
        )
    names = tuple(about["backbone"])
    state = {
        group: read_arrays(folder / "state" / f"{group}.safetensors", FORMAT, VERSION)[0]
        for group in about["groups"]
    }
    seed = about["choices"]["seed"]
    tasks = tuple(_read_task(folder, origin, names, entry, seed) for entry in about["tasks"])
    history = tuple(StepReport(**step) for step in about["history"])
    finished: Vector = {}
    if about.get("finished"):
        finished = read_arrays(folder / "state" / f"{FINISHED}.safetensors", FORMAT, VERSION)[0]
    return Fused(names, state, about["strength"], tasks, history, finished)


def read_about(folder: Path) -> dict[str, Any]:
    """Return `fusion.json`, checked."""
    recover(folder)
    file = folder / "fusion.json"
    if not file.is_file():
        raise CheckpointError(
            "it is no fusion", where=str(folder), fix="make one with `transship merge start OUT --base B`"
        )
    refuse_links_below(folder)
    about: dict[str, Any] = read_json(file, "start again")
    if about.get("format") != FORMAT or about.get("version") not in range(VERSION + 1):
        raise CheckpointError(
            f"fusion.json is of format {about.get('format')} {about.get('version')}",
            where=str(folder),
            fix="use the version of transship that wrote it",
        )
    return about


def kept_bytes(folder: Path) -> dict[str, int]:
    """Return part → bytes: model, tasks (each file once), state, heads, and kept inputs by task."""
    counted: set[int] = set()

    def size(paths: Iterable[Path]) -> int:
        total = 0
        for path in paths:
            entry = path.stat()
            if path.is_file() and entry.st_ino not in counted:
                counted.add(entry.st_ino)
                total += entry.st_size
        return total

    parts = {
        "model": size(folder.glob("*.safetensors")),
        **{part: size((folder / part).rglob("*")) for part in ("tasks", "state", "heads")},
    }
    for place in sorted((folder / "inputs").glob("*")):
        parts[f"inputs of {place.name}"] = size(place.rglob("*"))
    return parts


def record(fused: Fused, origin: FusionOrigin, choices: Choices) -> dict[str, Any]:
    """Return what fusion.json holds."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "base": {"name": _resolved(origin.name), "sha256": origin.fingerprint()},
        "choices": choices.as_dict(),
        "strength": fused.strength,
        "backbone": list(fused.names),
        "groups": list(fused.state),
        "finished": bool(fused.finished),
        "tasks": [
            {
                "name": task.name,
                "source": task.source,
                "sha256": task.fingerprint,
                "norm": task.norm,
                "individual": task.individual,
                "classes": task.classes,
                "label_names": list(task.label_names),
                "about": task.about,
            }
            for task in fused.tasks
        ],
        "history": [asdict(step) for step in fused.history],
    }


def _write_state(place: Path, fused: Fused, about: Mapping[str, Any]) -> None:
    finished: dict[str, Vector] = {FINISHED: fused.finished} if fused.finished else {}
    for group, vector in {**fused.state, **finished}.items():
        (place / "state").mkdir(exist_ok=True)
        _save(place / "state" / f"{group}.safetensors", vector, group)
    (place / "fusion.json").write_text(as_json(about), encoding="utf-8")


def _save(path: Path, tensors: Mapping[str, Tensor], what: str) -> None:
    write_arrays(path, tensors, {"format": FORMAT, "version": str(VERSION), "holds": what})


def _write_model(
    place: Path, fused: Fused, merged: Vector, origin: CheckpointOrigin, choices: Choices
) -> None:
    """Write the merged backbone as the base's own folder would have it."""
    stored = parameter_names(origin.loaded, origin.checkpoint)
    values = {stored[name]: tensor for name, tensor in merged.items() if name in stored}
    plans = [
        plan._replace(producer=_keeping(values[plan.name])) if plan.name in values else plan
        for plan in copied(origin.checkpoint)
    ]
    inside = place / "model"
    card = _card(fused, origin, choices)
    write_checkpoint(inside, plans, like=origin.checkpoint, card=card, sync=False)
    for path in list(inside.iterdir()):
        path.rename(place / path.name)
    inside.rmdir()


def _write_tasks(
    place: Path, fused: Fused, merged: Vector, origin: CheckpointOrigin, choices: Choices
) -> None:
    stored = parameter_names(origin.loaded, origin.checkpoint)
    dtypes = {name: origin.checkpoint.info(stored[name]).dtype for name in merged if name in stored}
    (place / "heads").mkdir()
    written: dict[tuple[str, ...], Path] = {}
    for task in fused.tasks:
        weights = {f"{kind}.weight": head.weight for kind, head in task.heads.items()}
        biases = {f"{kind}.bias": head.bias for kind, head in task.heads.items() if head.bias is not None}
        _save(place / "heads" / f"{task.name}.safetensors", weights | biases, task.name)
        _keep_inputs(place / "inputs" / task.name, task)
        files = task.store.files()
        if files is None:
            continue
        target = place / "tasks" / task.name
        target.mkdir(parents=True)
        names = tuple(files.backbone.values())
        if names not in written:
            written[names] = target / BACKBONE
            write_file(written[names], _backbone_plans(files, merged, dtypes))
        plans = _head_plans(files, task.head(*choices.answering) if task.heads else None)
        write_task(
            target,
            {BACKBONE: (written[names], names)},
            ("head.safetensors", plans),
            config=with_dtype(dict(files.checkpoint.config), files.checkpoint.dtype),
            total_size=sum(plan.nbytes(plan.dtype) for plan in plans),
        )
        for name, path in carried_files(files.checkpoint).items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)


def _backbone_plans(files: TaskFiles, merged: Vector, dtypes: Mapping[str, str]) -> list[TensorPlan]:
    return [
        TensorPlan(files.backbone[name], tuple(tensor.shape), dtypes.get(name, "float32"), _keeping(tensor))
        for name, tensor in merged.items()
        if name in files.backbone
    ]


def _head_plans(files: TaskFiles, head: LinearHead | None) -> list[TensorPlan]:
    values = dict(files.head)
    if head is not None and files.linear is not None:
        weight, bias = files.linear
        values[weight] = head.weight
        if bias is not None and head.bias is not None:
            values[bias] = head.bias
    return [
        TensorPlan(name, tuple(tensor.shape), files.dtypes[name], _keeping(tensor))
        for name, tensor in values.items()
    ]


def _keep_inputs(target: Path, task: FusedTask) -> None:
    """Write kept inputs, or link to those that lie in the fusion's folder already."""
    if task.store.inputs is None:
        kept = task.store.kept()
        if kept is not None and len(kept):
            write_kept(target, kept)
    elif task.store.inputs.is_dir():
        shutil.copytree(task.store.inputs, target, copy_function=link)


def _read_task(
    folder: Path, origin: CheckpointOrigin, names: tuple[str, ...], entry: Mapping[str, Any], seed: int
) -> FusedTask:
    tensors, _ = read_arrays(folder / "heads" / f"{entry['name']}.safetensors", FORMAT, VERSION)
    heads = {
        kind: LinearHead(tensors[f"{kind}.weight"], tensors.get(f"{kind}.bias"))
        for kind in HEAD_KINDS
        if f"{kind}.weight" in tensors
    }
    name, own = entry["name"], heads.get("own")
    return FusedTask(
        name,
        entry["sha256"],
        entry["source"],
        stored_task(origin, folder, name, own, names, lambda: test_rows(entry, seed)),
        heads,
        entry["norm"],
        entry["individual"],
        tuple(entry["label_names"]),
        dict(entry["about"]),
    )


def _resting(task: FusedTask, folder: Path, origin: CheckpointOrigin, names: tuple[str, ...]) -> FusedTask:
    """Return a task that reads what it needs from the fusion's folder."""
    own = task.heads.get("own")
    return replace(task, store=stored_task(origin, folder, task.name, own, names, task.store.test))


def _bytes(fused: Fused, origin: CheckpointOrigin) -> int:
    if not fused.tasks:
        return 1 << 16
    vectors = [*fused.state.values(), fused.finished]
    state = sum(tensor.nbytes for vector in vectors for tensor in vector.values())
    heads = sum(head.nbytes for task in fused.tasks for head in task.heads.values())
    return 2 * origin.checkpoint.nbytes + state + 2 * heads


def _card(fused: Fused, origin: CheckpointOrigin, choices: Choices) -> ModelCard:
    tuned = [Input("tuned", task.source, task.fingerprint) for task in fused.tasks]
    return ModelCard(
        title=f"{len(fused.tasks)} fine-tunes of {origin.name} in one",
        verb="merge",
        method=choices.method_name,
        summary="The merged backbone. Each task's model, with its head, is in the folder tasks.",
        parameters={**choices.options, "strength": fused.strength},
        inputs=(Input.of("base", origin.checkpoint), *tuned),
        seed=choices.seed,
    )


def _keeping(tensor: Tensor) -> Callable[[], Tensor]:
    return lambda: tensor


def _resolved(reference: str) -> str:
    """Return a folder's full path, so that the fusion can be opened from everywhere; hub ids as they are."""
    path = Path(reference).expanduser()
    return str(path.resolve()) if path.exists() else reference
