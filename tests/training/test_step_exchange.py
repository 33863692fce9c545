"""What a step compiles, and how often processes exchange gradients in it."""

import warnings
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func  # pyright: ignore[reportPrivateImportUsage]
from torch import distributed as dist
from torch._dynamo.backends.common import aot_autograd
from torch.nn.parallel import DistributedDataParallel

from tests.cases import slow
from tests.forks import in_processes
from tests.training.trainers import PLAIN, QUIET, make, make_batches
from vitrail.data.transforms.augment import Augment
from vitrail.distributed import process_group
from vitrail.training.checkpoints.sharding import shard_model
from vitrail.training.loop import Trainer

SOFT = Augment(crop="whole", flip=0)


def test_model_loss_and_backward_are_compiled_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: dict[str, list[str]] = {"forward": [], "backward": []}

    def note(which: str) -> Any:
        def compile(graph: Any, inputs: Any) -> Any:
            graphs[which].append(" ".join(str(node.target) for node in graph.graph.nodes))
            return make_boxed_func(graph)

        return compile

    backend = aot_autograd(fw_compiler=note("forward"), bw_compiler=note("backward"))
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: plain(function, backend=backend))
    torch.compiler.reset()
    batch = make_batches(SOFT)[0]
    compiled, eager = make(PLAIN, compiled=True), make(PLAIN)
    ours, theirs = (trainer.step(0, batch, QUIET) for trainer in (compiled, eager))
    torch.compiler.reset()
    assert abs(ours.loss - theirs.loss) < 1e-5
    assert abs(ours.norm - theirs.norm) < 1e-4
    assert [len(each) for each in graphs.values()] == [1, 1]
    assert "_log_softmax" in graphs["forward"][0]  # the loss is in it
    assert "_log_softmax_backward" in graphs["backward"][0]
    for name in ("_local_scalar_dense", "item", "nonzero", "is_nonzero"):  # would stop a GPU
        assert all(name not in each.replace(".", " ").split() for (each,) in graphs.values())


@pytest.mark.parametrize("micro", [2, slow(6)])
@pytest.mark.parametrize("wrapper", ["ddp", "compiled ddp", "fsdp"])
def test_gradients_are_exchanged_once_a_step(wrapper: str, micro: int) -> None:
    def count() -> int:
        exchanged = [0]
        warnings.simplefilter("ignore")  # torch's own, of strides and of what it compiles
        plain = torch.compile
        torch.compile = lambda function: plain(function, backend="eager")
        with process_group("cpu") as processes:
            trainer = make(PLAIN, micro_batch=micro, compiled=wrapper == "compiled ddp")
            trainer._processes = processes
            if wrapper == "fsdp":
                shard_model(trainer.model, processes)
                _count_calls(exchanged)
            else:
                _count_buckets(trainer, exchanged)
            batch = make_batches(SOFT)[0]
            trainer.launch(0, batch, QUIET).read()
        return exchanged[0]

    ended = in_processes(count)
    assert [each.code for each in ended] == [0, 0], ended
    # DDP puts all gradients of this model into one bucket; FSDP has two blocks and the rest.
    assert [each.value for each in ended] == [3 if wrapper == "fsdp" else 1] * 2


def _count_buckets(trainer: Trainer, exchanged: list[int]) -> None:
    """Count what DDP exchanges, which is not seen by Python otherwise."""
    wrapped = DistributedDataParallel(trainer.model)

    def hook(
        state: Any,
        bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
    ) -> torch.futures.Future[torch.Tensor]:
        exchanged[0] += 1
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0])

    wrapped.register_comm_hook(None, hook)
    trainer._forward = wrapped


def _count_calls(exchanged: list[int]) -> None:
    """Count what FSDP exchanges; the function has two names, by torch's version."""
    names = ("reduce_scatter_single", "reduce_scatter_tensor")
    name = next(each for each in names if hasattr(dist, each))
    plain = getattr(dist, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        exchanged[0] += 1
        return plain(*arguments, **options)

    setattr(dist, name, counted)
