"""A fusion on disk: a model folder, a folder per task, and what the next `add` needs.

    OUT/config.json, model.safetensors, tokenizer …   the merged backbone: from_pretrained(OUT)
    OUT/tasks/NAME/                                   the task's model: from_pretrained(OUT/tasks/NAME); its
                                                      backbone file is one file for all tasks (a hard link)
    OUT/fusion.json                                   base, method, tasks, what was measured
    OUT/state/GROUP.safetensors                       the method's state, float32
    OUT/heads/NAME.safetensors                        every kind of head
    OUT/inputs/NAME/                                  kept inputs, where allowed

The folder is written beside its target and exchanged in one step: a kill leaves the old one.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from torch import Tensor

from transship.activations import parameter_names
from transship.atomic import atomic_folder, recover
from transship.checkpoints import Checkpoint, Input, ModelCard, TensorPlan, copied, write_file
from transship.checkpoints.card import as_json
from transship.checkpoints.write import carried_files, with_dtype, write_checkpoint
from transship.data import load as load_data
from transship.errors import CheckpointError, OutputError, TransshipError
from transship.geometry.maps import read_arrays, write_arrays
from transship.verbs.merge.fusion.disk import CheckpointOrigin, TaskFiles
from transship.verbs.merge.fusion.evaluate import StepReport
from transship.verbs.merge.fusion.inputs import read_kept, write_kept
from transship.verbs.merge.fusion.task import Task
from transship.verbs.merge.maths.states import State, Vector
from transship.verbs.merge.tasks.folder import link, write_task
from transship.verbs.merge.tasks.heads import HEAD_KINDS, HeadKind, LinearHead
from transship.verbs.merge.tasks.rows import TestRows, task_rows

if TYPE_CHECKING:
    from transship.verbs.merge.fusion.engine import Fusion

FORMAT, VERSION = "transship.fusion", 1
BACKBONE = "backbone.safetensors"


def save(fusion: "Fusion", folder: Path, *, force: bool) -> Path:
    """Write a fusion whose base is on disk."""
    origin = fusion.origin
    if not isinstance(origin, CheckpointOrigin):
        raise OutputError(
            "its base was given in memory",
            where=str(folder),
            fix="save fusion.parameters yourself, or give the base as a folder",
        )
    with atomic_folder(folder, force=force, needs=_bytes(fusion, origin)) as place:
        try:
            if fusion.tasks:
                _write_model(place, fusion, origin)
                _write_tasks(place, fusion, origin)
            _write_state(place, fusion)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OutputError(
                f"writing stopped ({reason})",
                where=str(folder),
                fix="free some space, or choose another disk",
            ) from error
        except SafetensorError as error:
            raise OutputError(
                f"writing stopped ({error})", where=str(folder), fix="free some space, or choose another disk"
            ) from error
    for task in fusion.tasks:
        _rest_on(task, folder, origin)
    return folder


def load(folder: Path, **opening: Any) -> "Fusion":
    """Return the fusion in `folder`."""
    from transship.verbs.merge.fusion.engine import Fusion

    about = read_about(folder)
    origin = CheckpointOrigin(about["base"]["name"], **opening)
    if origin.fingerprint() != about["base"]["sha256"]:
        raise CheckpointError(
            "it is not the base that this fusion was started with",
            where=origin.name,
            fix="put the old base back, or start another fusion",
        )
    fusion = Fusion(origin, **about["choices"])
    origin.names = tuple(about["backbone"])
    fusion.strength = about["strength"]
    fusion.history = [StepReport(**step) for step in about["history"]]
    fusion.state = _read_state(folder, about["groups"])
    fusion.restore_tasks([_read_task(folder, origin, entry, fusion.choices.seed) for entry in about["tasks"]])
    return fusion


def read_about(folder: Path) -> dict[str, Any]:
    """Return `fusion.json`, checked."""
    recover(folder)
    file = folder / "fusion.json"
    if not file.is_file():
        raise CheckpointError(
            "it is no fusion", where=str(folder), fix="make one with `transship merge start OUT --base B`"
        )
    try:
        about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError("fusion.json is no JSON", where=str(folder), fix="start again") from error
    if about.get("format") != FORMAT or int(about.get("version", 0)) > VERSION:
        raise CheckpointError(
            f"fusion.json is of format {about.get('format')} {about.get('version')}",
            where=str(folder),
            fix="use the version of transship that wrote it",
        )
    return about


def kept_bytes(folder: Path) -> dict[str, int]:
    """Return part → bytes: model, tasks (each file once), state, heads, and kept inputs by task."""
    seen: set[int] = set()

    def size(paths: Iterable[Path]) -> int:
        total = 0
        for path in paths:
            found = path.stat()
            if path.is_file() and found.st_ino not in seen:
                seen.add(found.st_ino)
                total += found.st_size
        return total

    parts = {
        "model": size(folder.glob("*.safetensors")),
        "tasks": size((folder / "tasks").rglob("*")),
        "state": size((folder / "state").rglob("*")),
        "heads": size((folder / "heads").rglob("*")),
    }
    for place in sorted((folder / "inputs").glob("*")):
        parts[f"inputs of {place.name}"] = size(place.rglob("*"))
    return parts


def _about(fusion: "Fusion") -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "base": {"name": _resolved(fusion.origin.name), "sha256": fusion.origin.fingerprint()},
        "choices": fusion.choices.as_dict(),
        "strength": fusion.strength,
        "backbone": list(fusion.origin.names),
        "groups": list(fusion.state),
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
            for task in fusion.tasks
        ],
        "history": [step.as_dict() for step in fusion.history],
    }


def _write_state(place: Path, fusion: "Fusion") -> None:
    for group, vector in fusion.state.items():
        (place / "state").mkdir(exist_ok=True)
        tensors = {name: tensor.detach() for name, tensor in vector.items()}
        _save(place / "state" / f"{group}.safetensors", tensors, group)
    (place / "fusion.json").write_text(as_json(_about(fusion)), encoding="utf-8")


def _save(path: Path, tensors: Mapping[str, Tensor], what: str) -> None:
    write_arrays(path, tensors, {"format": FORMAT, "version": str(VERSION), "holds": what})


def _read_state(folder: Path, groups: Sequence[str]) -> State:
    return {
        group: read_arrays(folder / "state" / f"{group}.safetensors", FORMAT, VERSION)[0] for group in groups
    }


def _write_model(place: Path, fusion: "Fusion", origin: CheckpointOrigin) -> None:
    """Write the merged backbone as the base's own folder would have it."""
    merged = fusion.parameters
    stored = parameter_names(origin.loaded, origin.checkpoint)
    values = {stored[name]: tensor for name, tensor in merged.items() if name in stored}
    plans = [
        plan._replace(producer=_keeping(values[plan.name])) if plan.name in values else plan
        for plan in copied(origin.checkpoint)
    ]
    inside = place / "model"
    write_checkpoint(inside, plans, like=origin.checkpoint, card=_card(fusion), sync=False)
    for path in list(inside.iterdir()):
        path.rename(place / path.name)
    inside.rmdir()


def _write_tasks(place: Path, fusion: "Fusion", origin: CheckpointOrigin) -> None:
    merged = fusion.parameters
    stored = parameter_names(origin.loaded, origin.checkpoint)
    dtypes = {name: origin.checkpoint.info(stored[name]).dtype for name in merged if name in stored}
    written: dict[tuple[str, ...], Path] = {}
    for task in fusion.tasks:
        (place / "heads").mkdir(exist_ok=True)
        tensors = {}
        for kind, head in task.heads.items():
            tensors[f"{kind}.weight"] = head.weight
            if head.bias is not None:
                tensors[f"{kind}.bias"] = head.bias
        _save(place / "heads" / f"{task.name}.safetensors", tensors, task.name)
        _keep_inputs(place / "inputs" / task.name, task)
        if task.files is None:
            continue
        files: TaskFiles = task.files()
        target = place / "tasks" / task.name
        target.mkdir(parents=True)
        names = tuple(files.backbone.values())
        if names not in written:
            written[names] = target / BACKBONE
            write_file(written[names], _backbone_plans(files, merged, dtypes))
        plans = _head_plans(files, fusion.head(task.name) if task.heads else None)
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


def _keep_inputs(target: Path, task: Task) -> None:
    """Write kept inputs, or link to those that lie in the fusion's folder already."""
    if task.inputs_in is not None:
        shutil.copytree(task.inputs_in, target, copy_function=link)
        return
    kept = task.keeper()
    if kept is not None and len(kept):
        write_kept(target, kept)


def _read_task(folder: Path, origin: CheckpointOrigin, entry: Mapping[str, Any], seed: int) -> Task:
    tensors, _ = read_arrays(folder / "heads" / f"{entry['name']}.safetensors", FORMAT, VERSION)
    heads: dict[HeadKind, LinearHead] = {
        kind: LinearHead(tensors[f"{kind}.weight"], tensors.get(f"{kind}.bias"))
        for kind in HEAD_KINDS
        if f"{kind}.weight" in tensors
    }
    task = Task(
        entry["name"],
        entry["sha256"],
        entry["source"],
        opener=_nothing,
        keeper=_nothing,
        tester=_tester(entry, seed),
        heads=heads,
        norm=entry["norm"],
        individual=entry["individual"],
        label_names=tuple(entry["label_names"]),
        about=dict(entry["about"]),
    )
    _rest_on(task, folder, origin)
    return task


def _rest_on(task: Task, folder: Path, origin: CheckpointOrigin) -> None:
    """Let a task read what it needs from the fusion's folder, when it needs it."""
    from transship.verbs.merge.tasks.model import TaskModel

    # the task itself stays out of the functions: a cycle would keep the base alive until it is collected
    name, own = task.name, task.heads.get("own")
    place = folder / "tasks" / name
    if place.is_dir():
        task.opener = lambda: origin.restore(name, place, own)
        task.files = lambda: origin.files(place)
    else:
        task.opener = lambda: TaskModel(name, origin.model, {one: one for one in origin.names}, own)
        task.files = None
    inputs = folder / "inputs" / task.name
    task.keeper = lambda: read_kept(inputs)
    task.inputs_in = inputs if inputs.is_dir() else None


def _tester(entry: Mapping[str, Any], seed: int) -> Callable[[], TestRows | None]:
    reopen = entry["about"].get("test")

    def find() -> TestRows | None:
        if reopen is None:
            return None
        try:
            arguments = dict(reopen)
            split, most = arguments.pop("split", None), arguments.pop("rows", None)
            data = load_data(arguments.pop("reference"), **arguments)
            rows = task_rows(
                None if split is None else data,
                None,
                data if split is None else None,
                label_names=entry["label_names"],
                label_share=1.0,
                most=None,
                seed=seed,
                where=entry["name"],
                most_test=most,
            )
        except TransshipError:
            return None  # the data has gone: what was measured before stays
        return rows.test

    return find


def _bytes(fusion: "Fusion", origin: CheckpointOrigin) -> int:
    """Return about how many bytes will be written."""
    if not fusion.tasks:
        return 1 << 16
    state = sum(tensor.nbytes for vector in fusion.state.values() for tensor in vector.values())
    heads = sum(head.nbytes for task in fusion.tasks for head in task.heads.values())
    return 2 * origin.checkpoint.nbytes + state + 2 * heads


def _card(fusion: "Fusion") -> ModelCard:
    checkpoint: Checkpoint = fusion.origin.checkpoint  # type: ignore[attr-defined]
    return ModelCard(
        title=f"{len(fusion.tasks)} fine-tunes of {fusion.origin.name} in one",
        verb="merge",
        method=fusion.choices.method_name,
        summary="The merged backbone. Each task's model, with its head, is in the folder tasks.",
        parameters={**fusion.choices.options, "strength": fusion.strength},
        inputs=(
            Input.of("base", checkpoint),
            *(Input("tuned", task.source, task.fingerprint) for task in fusion.tasks),
        ),
        seed=fusion.choices.seed,
    )


def _keeping(tensor: Tensor) -> Callable[[], Tensor]:
    return lambda: tensor


def _resolved(reference: str) -> str:
    """Return a folder's full path, so that the fusion can be opened from everywhere; hub ids as they are."""
    path = Path(reference).expanduser()
    return str(path.resolve()) if path.exists() else reference


def _nothing() -> Any:
    return None
