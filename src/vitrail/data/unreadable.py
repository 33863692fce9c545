"""What could not be used: each image counted once, said once, and too many refused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from vitrail.config import InputError
from vitrail.data.dataset import UnreadableImage

log = logging.getLogger("vitrail")


class UnreadableImages:
    """The images of a set that could not be used."""

    def __init__(self, name: str, total: int | None, allowed: float = 0.1) -> None:
        self._name, self._total, self._allowed = name, total, allowed
        self.bad: dict[str, UnreadableImage] = {}
        """Each one by its name or, in a stream, by what stays the same in each epoch."""

    def note(self, images: Iterable[UnreadableImage]) -> None:
        """Count images; refuse when more of the set than allowed turn out to be bad."""
        for image in images:
            if not self.bad:
                first = f"{image.where}: {image.reason}"
                log.warning("%s; such images are left out and counted", first)
            self.bad.setdefault(image.identity or image.where, image)
        if self._total and len(self.bad) > self._allowed * self._total:
            raise InputError(
                f"{self.summary()}, more than the {self._allowed:.0%} that are allowed; see "
                f"'vitrail data check', whose --fix writes a list to skip, or allow more"
            )

    def summary(self) -> str:
        """Say how many images could not be used, and why."""
        kinds = Counter(image.kind for image in self.bad.values()).most_common()
        why = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
        total = f" of {self._total:,}" if self._total else ""
        count = f"{len(self.bad):,}{total} images"
        return f"{self._name}: {count} could not be used" + (f" ({why})" if why else "")
