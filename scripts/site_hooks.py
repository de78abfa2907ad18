"""What the site shows other than the host of the repository does: a hook of `mkdocs.yml`."""

from __future__ import annotations

import posixpath
import re
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links to files outside of docs/ become the path: the site does not have the files."""
    folder = posixpath.dirname(page.file.src_uri)

    def inside(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if not path.startswith("../"):
            return link[0]
        path = path.removeprefix("../")
        return text if path in text else f"{text} (`{path}`)"

    return re.sub(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)", inside, markdown)
