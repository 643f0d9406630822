"""The page that plays walks: one self-contained file, which works offline and from disk."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

PLACE = "/*WALKS*/"


def render(document: dict[str, Any]) -> str:
    """The page with `document` (see walks.py) inside."""
    template = files("netreduce.viewer").joinpath("page.html").read_text(encoding="utf-8")
    assert template.count(PLACE) == 1
    # A closing tag inside a string would end the script element early.
    return template.replace(PLACE, json.dumps(document, ensure_ascii=False).replace("</", "<\\/"))
