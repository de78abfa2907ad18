"""Batches of files: each is one Spark job, and one commit that a run which ends early has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Batches:
    """Numbers of batches from `number` on, of which none has more files or bytes than it may."""

    number: int
    max_files: int
    max_bytes: int
    files: int = 0
    size: int = 0

    def of_file(self, size: int) -> int:
        """The batch of the next file, of so many bytes."""
        if self.files and (self.files == self.max_files or self.size + size > self.max_bytes):
            self.number, self.files, self.size = self.number + 1, 0, 0
        self.files, self.size = self.files + 1, self.size + size
        return self.number
