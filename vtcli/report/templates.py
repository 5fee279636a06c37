"""Templates and assets of the pages (``vtcli/report/page``). Everything that a template prints is escaped."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vtcli.store import codec


@functools.cache
def _environment() -> Environment:
    made = Environment(loader=PackageLoader("vtcli.report", "page"), autoescape=True, undefined=StrictUndefined)
    made.filters["encoded"] = lambda value: json.dumps(codec.encode(value))
    return made


def render(name: str, **values: object) -> str:
    """The template ``name`` with its values, the style sheet and the viewer's script."""
    own = {"style": Markup(asset("style.css")), "script": Markup(asset("browse.js"))}  # noqa: S704  our own files
    return _environment().get_template(name).render(**own, **values)


@functools.cache
def asset(name: str) -> str:
    """The text of a file."""
    return (resources.files("vtcli.report") / "page" / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """A source expression of a content security policy, which allows exactly this script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
