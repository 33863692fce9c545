"""What a run calls between its steps, for parts of your own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from vitrail.training.loop import StepResult


class Callback:
    """Called by a run in every process; override what you need.

    `run` is the TrainingRun: its `model`, `config`, `trainer`, `processes` are there to be read.
    """

    constants: ClassVar[tuple[str, ...]] = ()
    """Attributes whose tensors never change, so that no checkpoint needs them."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: tensors, numbers and text, nested or not.

        It is saved with each checkpoint, from the first process.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned; `on_start` comes after."""

    def on_start(self, run: Any, step: int) -> None:
        """Begin, or resume after `step`."""

    def on_step(self, run: Any, result: StepResult) -> None:
        """See a step that was taken."""

    def on_evaluation(self, run: Any, step: int, values: Mapping[str, float]) -> None:
        """See what an evaluation found."""

    def on_save(self, run: Any, step: int) -> None:
        """See that a checkpoint was written."""

    def on_end(self, run: Any, step: int) -> None:
        """See the end, before the model folder is written."""
