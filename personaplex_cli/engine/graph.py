"""A step of all slots as a CUDA graph: the host lays out the next inputs and says "again".

A step of many small kernels costs more to launch than to compute; a graph is launched at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from personaplex_cli.engine.sampling import Draws
from personaplex_cli.engine.step import Block, columns_read, step
from personaplex_cli.model.device import is_out_of_memory
from personaplex_cli.model.lm import Lm
from personaplex_cli.model.ring import KVRing, RingStep, masked_reach

Work: TypeAlias = Callable[[], Tensor]
Captured: TypeAlias = tuple[Tensor, Callable[[], object]]
"""Where a step's output will stand, and what runs the step once more."""
WARM_UPS = 3


class StepGraphs:
    """One graph for each length of the ring that is read, made when it is first needed.

    The inputs stand in tensors that stay where they are: columns, forced [B, 17], positions [B], keys
    [B, n_draws]. A step may run more than once on the same inputs: it writes the same again.
    """

    def __init__(self, lm: Lm, ring: KVRing, n_slots: int, draws: Draws) -> None:
        def table(*width: int) -> Tensor:
            return torch.zeros(n_slots, *width, dtype=torch.long, device=lm.device)

        self.lm, self.ring, self.draws = lm, ring, draws
        n_streams = lm.config.n_streams
        self.columns, self.forced = table(n_streams), table(n_streams)
        self.positions, self.keys = table(), table(draws.n_draws)
        self.captured: dict[tuple[int, int], Captured] = {}
        self.pool = None if lm.device.type != "cuda" else torch.cuda.graph_pool_handle()

    @torch.inference_mode()
    def run_block(self, columns: Tensor, block: Block) -> Tensor:
        """Take all slots through a block, as `step.run_block` does."""
        self.columns.copy_(columns)
        filled = []
        for forced, positions, keys, n_visible in zip(
            block.forced, block.positions, block.keys, block.n_visible, strict=True
        ):
            self.forced.copy_(forced)
            self.positions.copy_(positions)
            self.keys.copy_(keys)
            output, again = self.graph(columns_read(self.ring, n_visible))
            again()
            self.columns.copy_(output)
            filled.append(output.clone())
        return torch.stack(filled)

    def graph(self, n_columns: int) -> Captured:
        """The step that reads `n_columns` of the ring. A ring that has grown stands elsewhere."""
        key = (self.ring.n_columns, n_columns)
        if key not in self.captured:
            self.captured = {kept: made for kept, made in self.captured.items() if kept[0] == key[0]}
            self.captured[key] = self.capture(lambda: self.work(n_columns))
        return self.captured[key]

    def work(self, n_columns: int) -> Tensor:
        """One step on what stands in the inputs. -> [B, 17]"""
        memory = RingStep(self.ring, self.positions, masked_reach(self.positions, n_columns))
        return step(self.lm, self.columns, self.positions, memory, self.forced, self.keys, self.draws)

    def capture(self, work: Work) -> Captured:
        """A graph where there is a GPU."""
        return self.record_or_run(work) if self.lm.device.type == "cuda" else run_again(work)

    def record_or_run(self, work: Work) -> Captured:
        """Record a step; where that cannot be, it is run kernel by kernel, and said."""
        try:
            return self.record(work)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            warnings.warn(f"no CUDA graph of a step can be made, so it will be slower: {error}", stacklevel=2)
            return run_again(work)

    def record(self, work: Work) -> Captured:
        """A CUDA graph. It is warmed up on a stream of its own, as torch asks for."""
        aside = torch.cuda.Stream(self.lm.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self.lm.device))
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream(self.lm.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            output = work()
        return output, graph.replay


def run_again(work: Work) -> Captured:
    """The same without a graph."""
    output = work().clone()
    return output, lambda: output.copy_(work())
