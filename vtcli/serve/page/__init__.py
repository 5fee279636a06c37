"""The page at ``/``: one HTML document with its style and script inside, and the policy that allows only these.

It shares the report's style, and the report's viewer draws its trajectories on the server. It imports only the standard
library and must not know a model or a rollout: the script asks the server.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Page:
    """The document and its response headers."""

    text: str
    headers: Mapping[str, str]


@functools.cache
def page() -> Page:
    """Returns the page, assembled from its files."""
    here, report = resources.files(__name__), resources.files("vtcli.report") / "page"
    style = (report / "style.css").read_text("utf-8") + (here / "page.css").read_text("utf-8")
    script = (here / "page.js").read_text("utf-8")
    text = (here / "index.html").read_text("utf-8").replace("/*style*/", style).replace("/*script*/", script)
    # By hash and not 'unsafe-inline': a script that a model's text smuggled into the page would not run.
    allowed = [
        "default-src 'none'",
        f"script-src '{_hash(script)}'",
        f"style-src '{_hash(style)}'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    ]
    headers = {"Content-Security-Policy": "; ".join(allowed), "X-Content-Type-Options": "nosniff"}
    return Page(text, headers | {"Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"})


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
