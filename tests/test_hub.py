"""Results go to the hub and come back, over a server that speaks as much of its protocol as is used."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transship.errors import OutputError
from transship.hub import Push

TOKEN = "hf_a-secret-of-the-test"


class Hub(ThreadingHTTPServer):
    """Repositories in memory: name → (private, files), and the objects that were uploaded apart."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.repositories: dict[str, tuple[bool, dict[str, bytes]]] = {}
        self.objects: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @staticmethod
    def revision(files: dict[str, bytes]) -> str:
        return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None: ...

    def reply(self, value: Any = None, status: int = 200, body: bytes | None = None, **headers: str) -> None:
        data = json.dumps(value).encode() if body is None else body
        self.send_response(status)
        for name, text in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.reply({"error": "no"}, 401, X_Error_Code="RepoNotFound")
        if path == "/api/whoami-v2":
            return self.reply({"name": "somebody", "type": "user"})
        for name, (private, files) in self.server.repositories.items():
            if path.startswith(f"/api/models/{name}"):
                if "/tree/" in path:
                    tree = [
                        {"type": "file", "path": file, "oid": "0", "size": len(files[file])} for file in files
                    ]
                    return self.reply(tree)
                listed = [{"rfilename": file} for file in sorted(files)]
                info = {"id": name, "private": private, "sha": self.server.revision(files)}
                return self.reply({**info, "siblings": listed, "tags": [], "downloads": 0})
            if path.startswith(f"/{name}/resolve/"):
                content = files[path.removeprefix(f"/{name}/resolve/").partition("/")[2]]
                tag = f'"{hashlib.sha1(content).hexdigest()}"'
                return self.reply(body=content, ETag=tag, X_Repo_Commit=self.server.revision(files))
        return self.reply({"error": "none"}, 404, X_Error_Code="RepoNotFound")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.server.objects[self.path.rpartition("/")[2]] = self.read()
        self.reply({})

    def do_POST(self) -> None:
        body, path = self.read(), urlsplit(self.path).path
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            private = asked.get("visibility") == "private" or asked.get("private") is True
            status = 409 if name in self.server.repositories else 200
            self.server.repositories.setdefault(name, (private, {".gitattributes": b""}))
            return self.reply({"url": f"{self.server.url}/{name}"}, status)
        if path == "/api/validate-yaml":
            return self.reply({"errors": [], "warnings": []})
        if "/preupload/" in path:
            modes = [
                {
                    "path": file["path"],
                    "shouldIgnore": False,
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                }
                for file in json.loads(body)["files"]
            ]
            return self.reply({"files": modes})
        if path.endswith("/objects/batch"):
            wanted = json.loads(body)["objects"]
            actions = [
                {**each, "actions": {"upload": {"href": f"{self.server.url}/put/{each['oid']}"}}}
                for each in wanted
            ]
            return self.reply({"transfer": "basic", "objects": actions})
        name = path.removeprefix("/api/models/").partition("/commit/")[0]
        _, files = self.server.repositories[name]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        oid = self.server.revision(files)
        return self.reply({"commitUrl": f"{self.server.url}/{name}/commit/{oid}", "commitOid": oid})


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[str, str]:
    values = np.random.default_rng(0).normal(size=(300, 8)).astype("f4")
    for name, rows in (("old", values), ("new", values @ np.linalg.qr(values[:8])[0])):
        table = {"id": [str(n) for n in range(300)], "vector": list(rows.astype("f4"))}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    return str(tmp_path / "old.parquet"), str(tmp_path / "new.parquet")


def run(hub: Hub, home: Path, *words: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """Run the command line; the client reads where the hub is once, when it is imported."""
    own = {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, "-m", "transship", *words],
        env={**os.environ, **own, "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
        cwd=home,
        check=False,
    )


def test_a_map_goes_to_the_hub_and_translates_from_there(hub: Hub, tmp_path: Path, pairs: tuple[str, str]):
    (tmp_path / "beside.txt").write_text("not to be uploaded")
    pushed = run(hub, tmp_path, "translate", "fit", *pairs, "map", "--push", "somebody/a-map")
    assert pushed.returncode == 0, pushed.stderr
    plan, *_ = [line for line in pushed.stderr.splitlines() if line.startswith("push:")]
    assert "all files of OUT go to somebody/a-map on 127.0.0.1 as somebody (private, new)" in plan
    private, files = hub.repositories["somebody/a-map"]
    written = {path.name for path in (tmp_path / "map").iterdir()} - {".written-by-transship"}
    assert private
    assert files.keys() - {".gitattributes"} == written
    assert files["map.safetensors"] == (tmp_path / "map/map.safetensors").read_bytes()
    assert f"pushed to somebody/a-map@{hub.revision(files)}" in pushed.stderr
    assert TOKEN not in pushed.stdout + pushed.stderr + "".join(map(str, files.values()))

    moved = run(hub, tmp_path, "translate", "apply", "somebody/a-map@main", pairs[0], "moved.parquet")
    assert moved.returncode == 0, moved.stderr
    here = run(hub, tmp_path, "translate", "apply", "map", pairs[0], "here.parquet")
    assert here.returncode == 0
    both = [
        pq.read_table(tmp_path / name)["vector"].to_pylist() for name in ("moved.parquet", "here.parquet")
    ]
    np.testing.assert_array_equal(*both)

    again = run(hub, tmp_path, "translate", "fit", *pairs, "map-2", "--push", "somebody/a-map")
    assert again.returncode == 2
    assert "somebody/a-map: it holds" in again.stderr
    assert not (tmp_path / "map-2").exists(), "what the hub would refuse is refused before the work"


def test_what_is_public_or_not_ours_is_refused_before_the_work(
    hub: Hub, tmp_path: Path, pairs: tuple[str, str]
):
    hub.repositories["somebody/open"] = (False, {".gitattributes": b""})
    words = ("translate", "fit", *pairs, "map")
    for given, reason in (
        (("--push", "somebody/open"), "everybody can see it; add --public"),
        (("--push", "../elsewhere"), "'../elsewhere' is no repository"),
        (("--public",), "nothing is uploaded"),
    ):
        refused = run(hub, tmp_path, *words, *given)
        assert (refused.returncode, reason in refused.stderr) == (2, True), refused.stderr
    stranger = run(hub, tmp_path, *words, "--push", "somebody/new", token="hf_wrong")
    assert stranger.returncode == 2
    assert "the hub does not take it (status 401)" in stranger.stderr
    assert "hf_wrong" not in stranger.stderr
    assert not (tmp_path / "map").exists()


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "secret").write_text("s")
    (tmp_path / "out/config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(OutputError, match=r"config\.json is a link out of"):
        Push("a/b").files(tmp_path / "out")
