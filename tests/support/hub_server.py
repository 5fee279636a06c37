"""A real HTTP server that speaks as much of the hub's protocol as downloads and uploads need, well or badly."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repo:
    """Files of one repository. ``lies``: files of which other bytes are sent than the listing's digest is of;
    ``sends`` are bytes that are sent in place of those that are listed."""

    files: dict[str, bytes] = field(default_factory=dict)
    licence: str | None = "mit"
    gated: bool = False
    lies: set[str] = field(default_factory=set)
    sends: dict[str, bytes] = field(default_factory=dict)
    private: bool | None = None
    commit: str = COMMIT


class HubServer:
    """``repos`` are by kind and name: ``datasets/OWNER/NAME``. ``budget`` is how many bytes of files are sent before
    every connection breaks (None: all), ``busy`` how many files are answered by 429 first. ``sent`` counts bytes by
    file, and ``ranges`` keeps what was asked for."""

    def __init__(self, **repos: Repo) -> None:
        self.repos: dict[str, Repo] = dict(repos)
        self.budget: int | None = None
        self.busy = 0
        self.ranged = True  # False: every answer is the whole file
        self.sent, self.ranges = dict[str, int](), list[str | None]()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> HubServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub._get(self)

            do_HEAD = do_GET  # noqa: N815

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                hub._post(self, urlsplit(self.path).path, data)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _get(self, handler: Any) -> None:
        path = unquote(urlsplit(handler.path).path)
        if match := re.fullmatch(r"/api/(datasets|models)/([\w.-]+/[\w.-]+)(?:/revision/(\w+))?", path):
            return self._info(handler, f"{match[1]}/{match[2]}", match[3])
        if match := re.fullmatch(r"/api/(datasets|models)/([\w.-]+/[\w.-]+)/tree/(\w+)", path):
            repo = self.repos[f"{match[1]}/{match[2]}"]
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": _blob(data), "lfs": _large(data)}
                for name, data in repo.files.items()
            ]
            return _json(handler, tree)
        if match := re.fullmatch(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/(\w+)/(.+)", path):
            return self._file(handler, f"{match[1] or 'models/'}{match[2]}", match[4])
        return _json(handler, {"error": "not found"}, 404)

    def _info(self, handler: Any, name: str, revision: str | None) -> None:
        repo = self.repos.get(name)
        if repo is None or revision not in (None, "main", repo.commit):
            code = "RepoNotFound" if repo is None else "RevisionNotFound"
            return _json(handler, {"error": code}, 404, {"X-Error-Code": code})
        if repo.gated:
            return _json(handler, {"error": "gated"}, 403, {"X-Error-Code": "GatedRepo"})
        listed = [
            {"rfilename": path, "size": len(data), "blobId": _blob(data), "lfs": _large(data)}
            for path, data in repo.files.items()
        ]
        card = {"license": repo.licence} if repo.licence else {}
        owner = name.split("/", 1)[1]
        info = {"id": owner, "sha": repo.commit, "siblings": listed, "cardData": card, "tags": []}
        return _json(handler, info if repo.private is None else info | {"private": repo.private})

    def _file(self, handler: Any, name: str, path: str) -> None:
        repo = self.repos[name]
        data = repo.files.get(path)
        if data is None:
            return _json(handler, {"error": "not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        etag = hashlib.sha256(data).hexdigest()
        if handler.command == "GET" and self.busy:
            self.busy -= 1
            return _json(handler, {"error": "slow down"}, 429, {"Retry-After": "0"})
        if path in repo.lies:
            data = bytes(len(data))
        data = repo.sends.get(path, data)
        wanted, begin = handler.headers.get("Range"), 0
        if self.ranged and wanted and (match := re.fullmatch(r"bytes=(\d+)-", wanted)):
            begin = min(int(match[1]), len(data))
        handler.send_response(206 if begin else 200)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": repo.commit, "Accept-Ranges": "bytes"}
        headers |= {"X-Linked-Size": str(len(data)), "Content-Length": str(len(data) - begin)}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        for key, value in headers.items():
            handler.send_header(key, value)
        handler.end_headers()
        if handler.command == "HEAD":
            return None
        self.ranges.append(wanted)
        part = data[begin:]
        if self.budget is not None:
            part = part[: self.budget]
            self.budget -= len(part)
            handler.close_connection = True
        self.sent[path] = self.sent.get(path, 0) + len(part)
        handler.wfile.write(part)
        return None

    def _post(self, handler: Any, path: str, data: bytes) -> None:
        if not (handler.headers.get("Authorization") or "").startswith("Bearer "):
            return _json(handler, {"error": "Invalid username or password."}, 401)
        if path == "/api/repos/create":
            asked = json.loads(data)
            name = f"{asked['type']}s/{asked['organization']}/{asked['name']}"
            self.repos.setdefault(name, Repo(private=asked.get("visibility") == "private"))
            return _json(handler, {"url": f"{self.url}/{asked['organization']}/{asked['name']}"})
        if path == "/api/validate-yaml":
            return _json(handler, {"errors": [], "warnings": []})
        if match := re.fullmatch(r"/api/(?:datasets|models)/(.+)/preupload/main", path):
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(data)["files"]
            ]
            return _json(handler, {"files": files})
        if match := re.fullmatch(r"/api/((?:datasets|models)/.+)/commit/main", path):
            for line in data.splitlines():
                value = json.loads(line)
                if value["key"] == "file":
                    self.repos[match[1]].files[value["value"]["path"]] = base64.b64decode(value["value"]["content"])
            return _json(
                handler,
                {
                    "success": True,
                    "commitOid": COMMIT,
                    "commitUrl": f"{self.url}/{match[1].split('/', 1)[1]}/commit/{COMMIT}",
                },
            )
        return _json(handler, {"error": "not found"}, 404)


def _blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _large(data: bytes) -> dict[str, Any] | None:
    """As the hub stores it: files of some size as large ones."""
    sha = hashlib.sha256(data).hexdigest()
    return {"sha256": sha, "oid": sha, "size": len(data), "pointerSize": 130} if len(data) > 20 else None


def _json(handler: Any, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
    data = json.dumps(value).encode()
    handler.send_response(status)
    for key, each in {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}.items():
        handler.send_header(key, each)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)
