"""Images that could not be used: each counted once, and too many of them an error."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from vitrail.config import InputError
from vitrail.data.dataset import UnreadableImage

log = logging.getLogger("vitrail")


class UnreadableImages:
    """The images of a dataset that could not be used, over all epochs or evaluations of it.

    `total` is how many images the dataset has; where it is unknown, any number may be unreadable.
    With several processes, give each of them what all have met, so that all stop together.
    """

    def __init__(self, name: str, total: int | None, allowed: float = 0.1) -> None:
        self._name, self._total, self._allowed = name, total, allowed
        self.bad: dict[str, UnreadableImage] = {}
        """Each one by its name."""

    def note(self, images: Iterable[UnreadableImage]) -> None:
        """Count images that were not counted yet; raise InputError if they are too many."""
        for image in images:
            if not self.bad:
                log.warning(
                    "%s: %s; such images are skipped and counted", image.where, image.reason
                )
            self.bad.setdefault(image.where, image)
        if self._total and len(self.bad) > self._allowed * self._total:
            lacking = [bad.reason for bad in self.bad.values() if bad.kind == "missing package"]
            advice = lacking or [
                "'vitrail data check --fix' lists them so that they are left out, and "
                "max_unreadable allows more"
            ]
            raise InputError(
                f"{self.summary()}, more than the {self._allowed:.0%} that are allowed; {advice[0]}"
            )

    def summary(self) -> str:
        """Say how many images could not be used, and why."""
        kinds = Counter(image.kind for image in self.bad.values()).most_common()
        why = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
        total = f" of {self._total:,}" if self._total else ""
        noun = "image" if len(self.bad) == (self._total or 1) == 1 else "images"
        count = f"{len(self.bad):,}{total} {noun}"
        return f"{self._name}: {count} could not be used" + (f" ({why})" if why else "")
