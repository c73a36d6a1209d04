"""What both trainings share: two workers that average their gradients, a schedule, averaged weights,
checkpoints.

Two processes of one thread each are faster on two cores than one process of two threads, and lose less when
something else wants a core.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, multiprocessing, nn

from personaplex_cli.model.device import has_bfloat16_products

HALF = torch.bfloat16 if has_bfloat16_products() else torch.float32
"""In which numbers products are made: the faster ones."""


def in_workers(n_workers: int, work: Callable[..., None], *args: Any) -> None:
    """Run `work(rank, *args)` in so many processes that can reach each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(begin, (n_workers, port, work, args), nprocs=n_workers)


def begin(rank: int, n_workers: int, port: int, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    """One worker's start."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    distributed.init_process_group("gloo", rank=rank, world_size=n_workers)
    work(rank, *args)
    distributed.destroy_process_group()


class Training:
    """One training: parameters, their average over time, the step that it has reached, and its log."""

    def __init__(
        self,
        name: str,
        folder: Path,
        n_steps: int,
        rate: float,
        betas: tuple[float, float],
        clip: float,
        first: int = 0,
    ) -> None:
        """`first`: the step to begin with; those before it count as made elsewhere."""
        self.name, self.folder, self.n_steps, self.rate, self.betas = name, folder, n_steps, rate, betas
        self.clip = clip
        self.first = self.step = first
        self.modules: dict[str, nn.Module] = {}
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.n_summed = 0
        self.began = time.monotonic()

    def take(self, **modules: nn.Module) -> None:
        """What is trained. Continues where an earlier run of this training was stopped."""
        self.modules = modules
        self.parameters = [p for module in modules.values() for p in module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=self.rate, betas=self.betas, weight_decay=1e-3)
        self.average = [p.detach().clone() for p in self.parameters]
        if self.path.exists():
            saved = torch.load(self.path, weights_only=True)
            for name, module in modules.items():
                module.load_state_dict(saved["modules"][name])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.average = saved["average"]
            self.step = saved["step"]

    @property
    def path(self) -> Path:
        """The checkpoint to continue from."""
        return self.folder / f"{self.name}.training.pt"

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return self.step / self.n_steps

    @property
    def done(self) -> bool:
        """Whether all steps have been made."""
        return self.step >= self.n_steps

    def update(self, loss: Tensor, **told: Tensor) -> None:
        """One step of the optimizer on the gradients of all workers."""
        warm = min(1.0, (self.step - self.first + 1) / 150)
        rate = self.rate * warm * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * self.progress)))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        loss.backward()
        shared(self.parameters)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip)
        if torch.isfinite(norm):
            self.optimizer.step()
        self.step += 1
        decay = min(0.998, (self.step - self.first) / (self.step - self.first + 20))
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - decay)
        for key, value in {"loss": loss, **told}.items():
            self.sums[key] += float(value.detach())
        self.n_summed += 1

    def log(self, every: int) -> None:
        """A line of figures, and a checkpoint, now and then."""
        if self.step % every and not self.done:
            return
        figures = {key: round(value / self.n_summed, 4) for key, value in self.sums.items()}
        self.sums.clear()
        self.n_summed = 0
        if distributed.get_rank() == 0:
            line = {"step": self.step, "seconds": round(time.monotonic() - self.began), **figures}
            with (self.folder / f"{self.name}.log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            print(self.name, line, flush=True)
            if self.step % (10 * every) == 0 or self.done:
                self.save()

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        state = {
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "step": self.step,
        }
        part = self.path.with_suffix(".part")
        torch.save(state, part)
        part.replace(self.path)

    def averaged(self) -> dict[str, dict[str, Tensor]]:
        """The modules' states with the averaged parameters."""
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.average, strict=True):
                parameter.copy_(average)
        return {name: module.state_dict() for name, module in self.modules.items()}


def shared(parameters: Iterable[Tensor]) -> None:
    """Gradients become the mean over the workers."""
    parameters = list(parameters)
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    parts = flat.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)
