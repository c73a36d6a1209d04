"""The bench: what a step costs on this machine, part by part, and beside the least that it could cost.

Least = the step's linear layers alone, back to back, and its keys and values at the speed of the memory. All
of it is timed in turns, round after round, so that a machine whose speed changes changes all figures alike.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from personaplex_cli.audio.codec import Codec
from personaplex_cli.config.facts import (
    kv_bytes_per_frame,
    n_parameters,
    weight_bytes,
)
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.sampling import Draws, pick_token, settle
from personaplex_cli.engine.slots import STEPS_A_BLOCK, Slots, columns_for, frames_apart
from personaplex_cli.engine.step import reaches_of, read_prompt
from personaplex_cli.engine.turns import Prompt, Turn, add_delays, lay_out
from personaplex_cli.errors import SettingsError
from personaplex_cli.estimate import codec_seconds, random_lm, seconds_of, timed
from personaplex_cli.model.checkpoint import Checkpoint
from personaplex_cli.model.depformer import InnerMemory
from personaplex_cli.model.device import (
    DTYPES,
    choose_decode_dtype,
    choose_device,
    choose_dtype,
    free_bytes,
    release_memory,
)
from personaplex_cli.model.linear import Weight, linear
from personaplex_cli.model.lm import Lm
from personaplex_cli.model.ring import KeysAndValues, RingStep
from personaplex_cli.settings import Device, Sampling
from personaplex_cli.studio import Studio, shown

N_ROUNDS = 5
CODEC_FRAMES = 100
READ_BYTES = 1 << 30
"""What is read to measure the memory's speed: more than any cache holds."""
RANDOM = "random weights"
Work: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class Load:
    """What is timed: batch sizes, frames of the prompt, steps, where in a turn the first step stands, and how
    many personas the slots have among them."""

    batch_sizes: tuple[int, ...] = (1, 8, 16, 32)
    n_prompt_frames: int = 150
    n_frames: int = 20
    position: int | None = None
    """Frames before the first step, prompt included. None = just behind the prompt."""
    n_personas: int = 1

    def __post_init__(self) -> None:
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise SettingsError("--batch-size: must be whole numbers from 1 on, with commas between")
        if self.n_prompt_frames < 2 or self.n_frames < 1:
            raise SettingsError("--prompt-frames must be at least 2, --frames at least 1")
        if self.n_personas < 1:
            raise SettingsError("--personas must be at least 1")
        if self.position is not None and self.position < self.n_prompt_frames:
            raise SettingsError(f"--position {self.position}: must not be within the prompt")

    @property
    def n_rounds(self) -> int:
        """Rounds of steps, parts and bound."""
        return min(N_ROUNDS, self.n_frames)

    @property
    def steps_a_round(self) -> int:
        """Steps that are timed at once."""
        return -(-self.n_frames // self.n_rounds)

    @property
    def n_skipped(self) -> int:
        """Frames between the prompt and the first step."""
        return (self.position or self.n_prompt_frames) - self.n_prompt_frames

    @property
    def n_live_frames(self) -> int:
        """Of a turn that does not end while it is timed, wherever its slot begins."""
        return self.n_skipped + max(self.batch_sizes) + self.n_rounds * self.steps_a_round + STEPS_A_BLOCK


@dataclass(frozen=True)
class Subject:
    """What is put on the bench."""

    name: str
    config: PersonaPlexConfig
    device: torch.device
    dtype_name: str
    lm: Lm
    codec: Codec


@dataclass(frozen=True)
class Machine:
    """Where it was measured. bytes_per_second: of reading the device's memory."""

    device: str
    cores: int
    threads: int
    memory_bytes: int
    system: str
    python: str
    torch: str
    bytes_per_second: float


@dataclass(frozen=True)
class Model:
    """What was measured. linear_bytes: weights that every step reads."""

    name: str
    dtype: str
    layers: int
    parameters: int
    weight_bytes: int
    linear_bytes: int
    kv_bytes_per_frame: int


@dataclass(frozen=True)
class Row:
    """One batch size. Milliseconds of a prompt, of a step of all slots, or of one frame of audio."""

    batch_size: int
    position: int
    prompt_ms: float
    """Reading a prompt for a slot."""
    again_ms: float
    """The same for the next job of this persona."""
    step_ms: float
    """One step as `convert` makes it."""
    temporal_ms: float
    """Of it: embeddings, temporal transformer, text head."""
    depformer_ms: float
    """Of it: the inner steps with their heads."""
    draw_ms: float
    """Of it: drawing the tokens."""
    host_ms: float
    """Of it: laying out tables."""
    linear_ms: float
    """The step's linear layers alone."""
    kv_ms: float
    """Its keys and values at the memory's speed."""
    bound_ms: float
    """The last two together: a step cannot be faster."""
    step_over_bound: float
    encode_ms: float
    decode_ms: float
    codec_ms: float
    """The last two together."""
    frames_per_second: float
    """Of all slots, codec included."""
    lm_times_real_time: float
    times_real_time: float
    """Codec included."""
    peak_bytes: int


@dataclass(frozen=True)
class Report:
    """What came of it."""

    machine: Machine
    model: Model
    rows: tuple[Row, ...]


# ---- what is put on the bench ----


def subject_of(checkpoint: Checkpoint, device: Device) -> Subject:
    """A model with its own weights."""
    studio = Studio(checkpoint, device)
    return Subject(checkpoint.name, studio.config, studio.device, studio.dtype_name, studio.lm, studio.codec)


def random_subject(config: PersonaPlexConfig, device: Device) -> Subject:
    """A model of these sizes, made in place: right in its cost, and in nothing else."""
    where = choose_device(device.device)
    dtype_name = choose_dtype(device.dtype, where, config)
    n_bytes = weight_bytes(config, dtype_name, config.depformer_config.num_active_codebooks)
    if n_bytes > (free := free_bytes(where)):
        raise SettingsError(
            f"the weights take {shown(n_bytes)}, and {shown(free)} are free; "
            "use --dtype bfloat16, or fewer layers (--set temporal_config.num_hidden_layers=N)"
        )
    lm = random_lm(config, dtype_name, where)
    return Subject(RANDOM, config, where, dtype_name, lm, Codec(None, config.mimi_config, where))


def random_turns(config: PersonaPlexConfig, load: Load) -> list[Turn]:
    """Prompts of random tokens, one a persona, and a user who says random codes."""
    generator = torch.Generator().manual_seed(0)

    def tokens(n_rows: int, n_frames: int) -> Tensor:
        return torch.randint(config.audio_vocab_size, (n_rows, n_frames), generator=generator)

    user = tokens(config.n_codebooks, load.n_live_frames)
    turns = []
    for _ in range(load.n_personas):
        given = tokens(config.n_streams, load.n_prompt_frames)
        given[config.text].remainder_(config.text_vocab_size)
        prompt = Prompt(add_delays(given, config), load.n_prompt_frames)
        turns.append(lay_out(prompt, user, config))
    return turns


# ---- the measuring ----


@dataclass(frozen=True)
class Common:
    """What is the same at every batch size: turns, the memory's speed, and the codec's seconds a frame."""

    turns: list[Turn]
    bytes_per_second: float
    encode: float
    decode: float


def run_bench(subject: Subject, load: Load, on_row: Callable[[int], None] = lambda _: None) -> Report:
    """Measure every batch size. `on_row` hears which one begins."""
    turns = random_turns(subject.config, load)
    check_memory(subject, load, turns[0])
    decode_dtype = DTYPES[choose_decode_dtype(subject.dtype_name, subject.device)]
    common = Common(
        turns, read_speed(subject.device), *codec_seconds(subject.codec, decode_dtype, CODEC_FRAMES)
    )
    # What is done for the first time takes longer.
    read_prompt(subject.lm, turns[0].prompt)
    rows = []
    for batch_size in load.batch_sizes:
        on_row(batch_size)
        release_memory(subject.device)
        rows.append(measure_row(subject, load, common, batch_size))
    return Report(machine(subject.device, common.bytes_per_second), model(subject), tuple(rows))


def check_memory(subject: Subject, load: Load, turn: Turn) -> None:
    """Raises SettingsError for batches whose keys and values the memory cannot hold."""
    frame = kv_bytes_per_frame(subject.config, subject.dtype_name)
    n_apart = frames_apart(turn.prompt.n_frames, subject.device)
    columns = columns_for(turn.n_positions - n_apart, subject.config)
    for batch_size in load.batch_sizes:
        n_bytes = frame * (batch_size * columns + min(batch_size, load.n_personas) * n_apart)
        if n_bytes > (free := free_bytes(subject.device)):
            raise SettingsError(
                f"--batch-size {batch_size}: keys and values take {shown(n_bytes)}, {shown(free)} are free"
            )


@torch.inference_mode()
def measure_row(subject: Subject, load: Load, common: Common, batch_size: int) -> Row:
    """Everything at one batch size."""
    forget_peak(subject.device)
    slots = Slots(subject.lm, batch_size, Draws.of(Sampling(), subject.config))
    first = common.turns[0]
    slots.make_room(first)
    prompt, *again = [
        timed(partial(slots.sit, slot, first), subject.device) for slot in (0, *range(batch_size))
    ]
    take_seats(slots, common.turns)
    stand_at(slots, load.n_skipped)
    parts, position = Parts(slots), slots.occupied[0].position
    ms = median_ms(works_of(slots, parts, load), load.n_rounds, subject.device)
    step = ms["step"] / load.steps_a_round
    kv_bytes = parts.n_columns * kv_bytes_per_frame(subject.config, subject.dtype_name)
    kv = 1000 * kv_bytes / common.bytes_per_second
    encode, decode = 1000 * common.encode, 1000 * common.decode
    whole = step + batch_size * (encode + decode)
    frame_ms = 1000 / subject.config.frame_rate
    return Row(
        batch_size=batch_size,
        position=position,
        prompt_ms=1000 * prompt,
        again_ms=1000 * statistics.median(again),
        step_ms=step,
        temporal_ms=ms["temporal"],
        depformer_ms=ms["depformer"],
        draw_ms=ms["draw"],
        host_ms=ms["host"] / STEPS_A_BLOCK,
        linear_ms=ms["linear"],
        kv_ms=kv,
        bound_ms=ms["linear"] + kv,
        step_over_bound=step / (ms["linear"] + kv),
        encode_ms=encode,
        decode_ms=decode,
        codec_ms=encode + decode,
        frames_per_second=1000 * batch_size / whole,
        lm_times_real_time=batch_size * frame_ms / step,
        times_real_time=batch_size * frame_ms / whole,
        peak_bytes=peak_bytes(subject.device),
    )


def works_of(slots: Slots, parts: Parts, load: Load) -> dict[str, Work]:
    """What is timed in every round."""
    return {
        "step": partial(take_steps, slots, load.steps_a_round),
        "temporal": parts.temporal,
        "depformer": parts.depformer,
        "draw": parts.draw,
        "host": slots.next_block,
        "linear": linear_products(slots.lm, len(slots.seats)),
    }


def median_ms(works: dict[str, Work], n_rounds: int, device: torch.device) -> dict[str, float]:
    """Each once a round, after one that is not counted."""
    for work in works.values():
        work()
    rounds = [{name: timed(work, device) for name, work in works.items()} for _ in range(n_rounds)]
    return {name: 1000 * statistics.median(each[name] for each in rounds) for name in works}


def take_seats(slots: Slots, turns: list[Turn]) -> None:
    """Every slot takes one of the turns, in turns."""
    for slot, turn in zip(range(len(slots.seats)), cycle(turns), strict=False):
        slots.sit(slot, turn)


def stand_at(slots: Slots, n_skipped: int) -> None:
    """Let every slot stand a frame apart from the next, as in a run where turns begin and end at any time."""
    for slot, seat in enumerate(slots.occupied):
        seat.n_done = n_skipped + slot


def take_steps(slots: Slots, n_steps: int) -> None:
    """Some steps, as `convert` makes them."""
    drawn = slots.run(slots.next_block(n_steps))
    for _ in slots.retire(drawn):
        raise AssertionError("no turn ends on the bench")


class Parts:
    """The parts of a step, each to be run alone, on what the slots hold when the parts are made."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.lm, self.draws = slots, slots.lm, slots.draws
        block = slots.next_block(1).to(self.lm.device)
        self.columns = slots.columns
        self.forced, self.keys = block.forced[0], block.keys[0]
        self.positions, self.frames = block.positions[0], block.frames[0]
        self.n_visible, self.shared = block.n_visible[0], block.shared[0]
        self.hidden = self.hear()
        self.logits = [self.lm.text_logits(self.hidden), *self.inner_steps()]

    @property
    def n_columns(self) -> int:
        """Columns that a step reads: of rings, and of prompts that stand apart."""
        prompts: dict[KeysAndValues, int] = {}
        for shared in self.shared:
            prompts[shared.past] = max(shared.n_columns, prompts.get(shared.past, 0))
        return sum(self.n_visible) + sum(prompts.values())

    def hear(self) -> Tensor:
        """[B, D]"""
        ring = self.slots.ring
        reaches = reaches_of(self.lm, ring, self.frames, self.n_visible)
        memory = RingStep(ring, self.frames, reaches, self.shared)
        return self.lm.hear(self.lm.embed(self.columns)[:, None], self.positions[:, None], memory)[:, 0]

    def inner_steps(self) -> Iterator[Tensor]:
        """Logits [B, V] of each, as if codes were given."""
        memory, previous = InnerMemory(self.lm.depformer, self.hidden), self.columns[:, 0]
        for inner_step in range(self.draws.n_codebooks):
            yield self.lm.code_logits(inner_step, self.hidden, previous, memory)
            previous = self.columns[:, 1 + inner_step]

    def temporal(self) -> None:
        """Embeddings, temporal transformer, text head."""
        self.lm.text_logits(self.hear())

    def depformer(self) -> None:
        """All inner steps."""
        for _ in self.inner_steps():
            pass

    def draw(self) -> None:
        """All draws."""
        for index, logits in enumerate(self.logits):
            draw = self.draws.code if index else self.draws.text
            settle(pick_token(logits, self.keys[:, index], draw), self.forced[:, index])


@dataclass(frozen=True)
class LinearLayer:
    """One of a step's products: a weight [out, in], or the part of a stacked one that an inner step uses."""

    weight: Weight
    n_in: int
    n_out: int
    inner_step: int = 0
    n_sets: int = 1

    def __call__(self, rows: Tensor) -> Tensor:
        """[B, in] -> [B, out]"""
        return linear(rows, self.weight, self.inner_step, self.n_sets)


def linear_layers(lm: Lm) -> Iterator[LinearLayer]:
    """Every product of a step: all layers, all inner steps, all heads."""
    for weight, n_sets in lm.linear_weights():
        n_rows, n_in = weight.shape
        for inner_step in range(n_sets):
            yield LinearLayer(weight, n_in, n_rows // n_sets, inner_step, n_sets)


def linear_products(lm: Lm, batch_size: int) -> Callable[[], None]:
    """The step's linear layers alone, back to back, on random rows."""
    layers = list(linear_layers(lm))
    rows = {
        n_in: torch.randn(batch_size, n_in, device=lm.device).to(lm.dtype)
        for n_in in {layer.n_in for layer in layers}
    }

    def multiply() -> None:
        for layer in layers:
            layer(rows[layer.n_in])

    return multiply


def read_speed(device: torch.device) -> float:
    """Bytes a second at which the device's memory is read."""
    memory = torch.zeros(READ_BYTES // 4, device=device)
    seconds = seconds_of(lambda: memory.sum(), device)
    return READ_BYTES / seconds


# ---- where and what ----


def machine(device: torch.device, bytes_per_second: float) -> Machine:
    """This machine, without anything that names it."""
    on_gpu = device.type == "cuda"
    return Machine(
        device=torch.cuda.get_device_name(device) if on_gpu else cpu_name(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_bytes=torch.cuda.get_device_properties(device).total_memory if on_gpu else host_bytes(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        bytes_per_second=bytes_per_second,
    )


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def host_bytes() -> int:
    """Memory that is built in."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def model(subject: Subject) -> Model:
    """The subject in figures."""
    n_active = subject.config.depformer_config.num_active_codebooks
    return Model(
        name=subject.name,
        dtype=subject.dtype_name,
        layers=subject.config.temporal_config.num_hidden_layers,
        parameters=n_parameters(subject.config, n_active),
        weight_bytes=weight_bytes(subject.config, subject.dtype_name, n_active),
        linear_bytes=linear_bytes(subject),
        kv_bytes_per_frame=kv_bytes_per_frame(subject.config, subject.dtype_name),
    )


def linear_bytes(subject: Subject) -> int:
    """Of the weights that make products: every step reads them all."""
    a_number = 1 if subject.dtype_name == "int8" else subject.lm.dtype.itemsize
    return a_number * sum(weight.shape.numel() for weight, _ in subject.lm.linear_weights())


def forget_peak(device: torch.device) -> None:
    """Let the peak of the memory begin anew, where the system lets us."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """The most memory that was held: the GPU's, or this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, KeyError):
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return 1024 * int(status["VmHWM"].split()[0])
    # Kilobytes, but for macOS, which counts bytes. It never sinks.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
