"""What could not be used: each picture counted once, said once, and too many refused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from vitrail.config import InputError
from vitrail.data.batches import BadPicture

log = logging.getLogger("vitrail")


class Ledger:
    """The pictures of a set that could not be used."""

    def __init__(self, name: str, total: int | None, allowed: float = 0.1) -> None:
        self._name, self._total, self._allowed = name, total, allowed
        self.bad: dict[str, BadPicture] = {}
        """Each one by its name."""

    def note(self, pictures: Iterable[BadPicture]) -> None:
        """Count pictures; refuse when more of the set than allowed turn out to be bad."""
        for picture in pictures:
            if not self.bad:
                first = f"{picture.where}: {picture.reason}"
                log.warning("%s; such pictures are left out and counted", first)
            self.bad[picture.where] = picture
        if self._total and len(self.bad) > self._allowed * self._total:
            raise InputError(
                f"{self.summary()}, more than the {self._allowed:.0%} that are allowed; see "
                f"'vitrail data check', whose --fix writes a list to skip, or allow more"
            )

    def summary(self) -> str:
        """Say how many pictures could not be used, and why."""
        kinds = Counter(picture.kind for picture in self.bad.values()).most_common()
        why = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
        total = f" of {self._total:,}" if self._total else ""
        count = f"{len(self.bad):,}{total} pictures"
        return f"{self._name}: {count} could not be used" + (f" ({why})" if why else "")
