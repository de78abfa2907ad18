"""Batches of files: each is one Spark job and one commit, which stays done when a run ends early."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Batches:
    """Assigns batch numbers from `number` on, so that no batch exceeds `max_files` or `max_bytes`."""

    number: int
    max_files: int
    max_bytes: int
    files: int = 0
    size: int = 0

    def of_file(self, size: int) -> int:
        """Return the batch of the next file of `size` bytes."""
        if self.files and (self.files == self.max_files or self.size + size > self.max_bytes):
            self.number, self.files, self.size = self.number + 1, 0, 0
        self.files, self.size = self.files + 1, self.size + size
        return self.number
