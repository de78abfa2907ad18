"""Check whether the patterns of `tables.include` match existing tables."""

from __future__ import annotations

from fnmatch import fnmatchcase

from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.config import FeedConfig


def unmatched_patterns(feed: FeedConfig, history: History) -> list[str]:
    """Return a sentence for each pattern that matches no table that the feed has ever seen, by any of its names; none
    as long as it has seen no table."""
    names = {str(name) for version in history.versions for name in (version.name, version.previous_name) if name}
    tables = sorted(name for name in names if not name.endswith("."))
    if not tables:
        return []
    patterns = feed.tables.include
    return [_sentence(p, tables) for p in patterns if not any(fnmatchcase(name, p) for name in tables)]


def _sentence(pattern: str, tables: list[str]) -> str:
    alike = [name for name in tables if fnmatchcase(name.lower(), pattern.lower())]
    said = f"the pattern {pattern} of tables.include matches none of the {len(tables)} tables that were seen"
    if not alike:
        return said
    others = "" if len(alike) == 1 else f", and {len(alike) - 1} more"
    return f"{said}; {alike[0]} differs in letter case{others}"
