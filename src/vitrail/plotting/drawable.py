"""Results that draw themselves in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from vitrail.result import Result

if TYPE_CHECKING:
    from vitrail.plotting.canvas import Plot


class Drawable(Result, ABC):
    """A result that can be drawn; matplotlib is imported when it is."""

    @abstractmethod
    def draw(self) -> Plot:
        """Draw the result."""

    def _repr_html_(self) -> str | None:
        """Show the figure in a notebook, or the numbers where matplotlib is not installed."""
        try:
            return self.draw()._repr_html_()
        except ImportError:
            return super()._repr_html_()
