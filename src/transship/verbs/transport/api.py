"""Move a fine-tune to another base model: plan, prepare, apply, measure."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transship import folders
from transship.progress import Progress, duration, keeping, quiet
from transship.registry import build_method
from transship.verbs.transport.auto import choose_method
from transship.verbs.transport.finishing import check_finish, cost_of, finish_transport
from transship.verbs.transport.measure import check, measure
from transship.verbs.transport.pace import Budget
from transship.verbs.transport.plan import Plan
from transship.verbs.transport.protocol import TransportMethod
from transship.verbs.transport.request import Request, make_plan
from transship.verbs.transport.result import Result
from transship.verbs.transport.runner import apply
from transship.verbs.transport.settings import Opening, Roles, Settings
from transship.verbs.transport.statistics import prepare


def transport(
    source: Any,
    tuned: Any,
    target: Any,
    *,
    data: Any,
    method: str | TransportMethod = "auto",
    options: Mapping[str, Any] | None = None,
    keep: Any = None,
    test: Any = None,
    original: Any = None,
    warm_start: int = 0,
    roles: Roles | str | dict[str, str] = "all",
    prepared: str | Path | None = None,
    device: str = "auto",
    device_map: Any = None,
    dtype: str | None = None,
    preprocess: Any = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Result:
    """Move what `tuned` learned on top of `source` to `target`.

    Args:
        source: the base of the fine-tune: a folder, a hub id, an nn.Module or a LoadedModel.
        tuned: the fine-tune, likewise, or a LoRA adapter folder.
        target: the model that the fine-tune moves to.
        data: unlabelled inputs of the task (a Dataset, a path, or inputs in memory); labels, where there are
            any, choose the strength on a validation part. Test rows are never read.
        method: a registered name, a method, or `auto`.
        options: the method's parameters, when it is given by name.
        keep: inputs of the target's own domain, so that a carried head keeps what the target could do.
        test: labelled rows that nothing is chosen on; the result's `measured` then says how good the
            fine-tuned source, the untouched and the transported target are there.
        original: labelled rows of the target's own domain, measured with the target's own head beside them.
        warm_start: fine-tune the untouched and the transported target on the labels of the calibration inputs
            for so many steps, and measure both on the test rows along the way.
        roles: `all`, `paper`, or choices by role (`Roles`).
        prepared: a folder for the statistics; a killed run goes on there, and later runs reuse them.
        device: where models run.
        device_map: how they are spread over devices instead; see `load_model`.
        dtype: the dtype they run in.
        preprocess: for modules: raw inputs → the model's arguments.
        trust_remote_code: run code that a model's repository carries.
        allow_pickle: read .bin files too.
        progress: called with (what, done, total).
        **settings: fields of `Settings`.
    """
    request = Request(
        source=source,
        tuned=tuned,
        target=target,
        data=data,
        method=as_method(method, options),
        settings=Settings(roles=Roles.parse(roles), **settings),
        opening=Opening(
            device=device,
            device_map=device_map,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
            preprocess=preprocess,
        ),
        keep=keep,
        test=test,
        original=original,
        warm_start=warm_start,
        prepared=prepared,
    )
    plan = make_plan(request)
    check_finish(plan)
    return carry_out(plan, progress=progress or quiet)


def carry_out(plan: Plan, *, progress: Progress = quiet) -> Result:
    """Do what a plan says: with its method or the best of several, measured where it has rows for that."""
    budget = Budget.of(plan.settings.budget)
    with keeping("statistics", plan.folder):
        if plan.method is None:
            result, prepared = choose_method(plan, progress=progress)
        else:
            prepared = prepare(plan, plan.method, progress=progress)
            result = apply(plan, prepared, plan.method, progress=progress)
        if note := _no_time_to_finish(plan, budget):
            result = dataclasses.replace(result, notes=[*result.notes, note])
        else:
            result = finish_transport(plan, prepared, result, progress=progress)
        result, rows = check(plan, result), plan.measured_on
        return result if rows is None else measure(plan, prepared, result, rows, progress=progress)


def _no_time_to_finish(plan: Plan, budget: Budget) -> str:
    """Say that a finish which nobody asked for would take longer than the budget leaves, if so."""
    if budget.end is None or plan.settings.finish != "auto" or (cost := cost_of(plan)) is None:
        return ""
    if budget.allows(cost.seconds):
        return ""
    takes, minutes = duration(cost.seconds), duration(60.0 * (plan.settings.budget or 0.0))
    return (
        f"it was not finished: that may take {takes}, and the budget of {minutes} leaves less; --finish "
        "weights does it all the same"
    )


def as_method(
    method: str | TransportMethod, options: Mapping[str, Any] | None = None
) -> TransportMethod | None:
    """Return the method of a name with its parameters; None for `auto`."""
    if isinstance(method, TransportMethod) or method == "auto":
        return method if isinstance(method, TransportMethod) else None
    named: TransportMethod = build_method("transport", method, options)
    return named


def default_prepared() -> Path:
    """Return where statistics are kept while a transport runs, so that a killed one goes on."""
    return folders.cache("transport")
