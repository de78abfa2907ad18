"""Text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under a header: the first to the left, the others to the right."""
    widths = [max(len(row[n]) for row in [header, *rows]) for n in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "  " + "  ".join(cells)

    return [line(header), "  " + "-" * (sum(widths) + 2 * (len(widths) - 1)), *(line(row) for row in rows)]


def faults(held: Mapping[str, str], quarantined: int, notes: Sequence[str]) -> list[str]:
    """What is held, quarantined or otherwise wrong, in words; nothing when all is well."""
    lines: list[str] = []
    if held:
        lines += ["", "  held at the last good cut:", *(f"    {table}: {why}" for table, why in sorted(held.items()))]
    if quarantined:
        lines += ["", f"  quarantined: {quarantined} rows (table quarantine, state open)"]
    return lines + [line for note in notes for line in ("", f"  note: {note}")]
