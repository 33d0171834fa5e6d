"""A warm interpreter: it imports the libraries once, and every command is a fork of it.

A test that kills, interrupts or launches commands needs real processes, and most of such a process's time is
the import of torch and transformers. `Warm.start` gives the same process without it: its own working folder,
environment, standard streams and exit code. `launch` does what `torchrun` does, by torch's own agent.
Commands that measure their start or their memory are started by `subprocess`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn


class Process:
    """A running command, as `subprocess.Popen` has it; its output goes to files, so that it never blocks."""

    def __init__(self, warm: Warm, words: list[str], pid: int, stdout: Path, stderr: Path) -> None:
        self.words, self.pid, self.returncode = words, pid, None
        self._warm, self._stdout, self._stderr = warm, stdout, stderr
        self._handle = os.pidfd_open(pid)

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(encoding="utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(encoding="utf-8", errors="replace")

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = 500) -> int:
        if self.returncode is None:
            if not select.select([self._handle], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.words, timeout)
            self.returncode = self._warm.ask({"wait": self.pid})
            os.close(self._handle)
        return self.returncode

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)


class Warm:
    """The interpreter, and the commands that it forks."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._count = 0
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )

    def start(
        self, *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, launch: int = 0
    ) -> Process:
        """Start `python words…` (`-m MODULE …`, `-c CODE …` or `FILE …`), `launch` times as one launch."""
        self._count += 1
        streams = [Path(self._folder.name) / f"{self._count}.{name}" for name in ("out", "err")]
        given = list(map(str, words))
        pid = self.ask(
            {
                "words": given,
                "cwd": str(cwd or Path.cwd()),
                "env": dict(os.environ if env is None else env),
                "streams": list(map(str, streams)),
                "launch": launch,
            }
        )
        return Process(self, given, pid, *streams)

    def run(self, *words: object, timeout: float = 500, **more: Any) -> Process:
        """Start a command and wait for its end."""
        process = self.start(*words, **more)
        try:
            process.wait(timeout)
        finally:
            process.kill()
        return process

    def ask(self, question: dict[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        answer: int = json.loads(self._server.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()
        self._folder.cleanup()


def serve() -> None:
    """Import what commands import, then fork at every question and answer with the number of the process."""
    import accelerate  # noqa: F401
    import peft  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import sklearn.linear_model  # noqa: F401
    import torch.distributed.run  # noqa: F401
    from transformers import AutoModel, BertForSequenceClassification, PreTrainedTokenizerFast  # noqa: F401

    import transship.cli
    import transship.verbs.transport  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing but answers goes to who asks
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                answers.close()
                _become(asked)
        answers.write(f"{answer}\n")
        answers.flush()


def _become(asked: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        for number, place in ((0, os.devnull), *zip((1, 2), asked["streams"], strict=True)):
            handle = os.open(place, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
            os.close(handle)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if asked["launch"]:
            _launch(asked["launch"], asked["words"])
        else:
            _run(asked["words"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        if code == -signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code)


def _run(words: list[str]) -> None:
    import runpy

    sys.path[0] = ""
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _launch(count: int, words: list[str]) -> None:
    """Do what `torchrun --standalone --nproc-per-node COUNT` does, with processes that are forks."""
    import uuid

    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(),
    )
    elastic_launch(config, _run)(words)


if __name__ == "__main__":
    serve()
