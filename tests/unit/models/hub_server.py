"""As much of the Hugging Face hub's HTTP API as its client uses to fetch a model."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

__all__ = ["HubServer", "Repo", "hub_server"]


@dataclass
class Repo:
    """A repository: its files by revision."""

    revisions: dict[str, dict[str, bytes]]
    gated: bool = False
    """Everyone may see it; its files take a token."""

    def commit(self, revision: str) -> str | None:
        """The id that stands for a revision; a commit stands for itself."""
        for name, files in self.revisions.items():
            contents = sorted((path, _etag(data)) for path, data in files.items())
            commit = _etag(repr((name, contents)).encode())
            if revision in (name, commit):
                return commit
        return None

    def files(self, commit: str) -> dict[str, bytes]:
        return next(files for name, files in self.revisions.items() if self.commit(name) == commit)


@dataclass
class HubServer:
    repos: dict[str, Repo]
    token: str = "hf_right"
    url: str = ""
    requests: list[str] = field(default_factory=list)
    """`METHOD path` of each, in order."""
    broken: bool = False
    """Answers everything with 503."""

    def fetched(self) -> list[str]:
        """The names of the files whose contents were asked for."""
        downloads = (
            line.split("/resolve/")[1]
            for line in self.requests
            if "GET" in line[:3] and "/resolve/" in line
        )
        return sorted(path.split("/", 1)[1] for path in downloads)


@contextmanager
def hub_server(repos: dict[str, Repo]) -> Iterator[HubServer]:
    hub = HubServer(repos)

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: HubServer
    protocol_version = "HTTP/1.0"  # a connection for each request: none outlives the server

    def log_message(self, format: str, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.state.requests.append(f"{self.command} {path}")
        if self.state.broken:
            self._answer(503, b"{}")
        elif path.startswith("/api/models/"):
            self._api(path.removeprefix("/api/models/"))
        else:
            repo_id, _, rest = path.lstrip("/").partition("/resolve/")
            revision, _, name = rest.partition("/")
            self._file(repo_id, revision, name)

    def _api(self, path: str) -> None:
        org, name, *rest = path.split("/", 3)
        found = self._repo(f"{org}/{name}", rest[1] if rest else "main")
        if found is None:
            return
        repo, commit = found
        files = repo.files(commit)
        if rest and rest[0] == "tree":
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in files.items()
            ]
            self._answer(200, json.dumps(entries).encode())
            return
        info = {
            "id": f"{org}/{name}",
            "sha": commit,
            "private": False,
            "gated": "manual" if repo.gated else False,
            "siblings": [
                {"rfilename": name, "size": len(data), "blobId": _etag(data)}
                for name, data in files.items()
            ],
        }
        self._answer(200, json.dumps(info).encode())

    def _file(self, repo_id: str, revision: str, name: str) -> None:
        found = self._repo(repo_id, revision)
        if found is None:
            return
        repo, commit = found
        if repo.gated and self.headers["Authorization"] != f"Bearer {self.state.token}":
            self._answer(401, b"", {"X-Error-Code": "GatedRepo"})
            return
        data = repo.files(commit)[name]
        self._answer(200, data, {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": commit})

    def _repo(self, repo_id: str, revision: str) -> tuple[Repo, str] | None:
        repo = self.state.repos.get(repo_id)
        if repo is None:  # whether there is none or a private one, the hub does not tell
            self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            return None
        commit = repo.commit(revision)
        if commit is None:
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return None
        return repo, commit

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
