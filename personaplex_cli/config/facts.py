"""What follows from the tree without any weights: the checkpoint's names and shapes, bytes of memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from personaplex_cli.config.tree import HeliumConfig, PersonaPlexConfig, PersonaPlexDepformerConfig

Shape = tuple[int, ...]

BYTES_OF: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 2}
"""Bytes of one number of the states and tables, by the type's name: beside int8 weights they are bfloat16."""
INT8_BYTES, SCALE_BYTES = 1, 4


def expected_tensors(config: PersonaPlexConfig, n_step_sets: int | None = None) -> dict[str, Shape]:
    """Names and shapes of the LM checkpoint in the published layout. `n_step_sets` None = dep_q."""
    n_sets = config.depformer_config.dep_q if n_step_sets is None else n_step_sets
    return {**dict(_temporal_tensors(config)), **dict(_depformer_tensors(config, n_sets))}


def n_parameters(config: PersonaPlexConfig, n_step_sets: int | None = None) -> int:
    """Numbers in the LM checkpoint."""
    return sum(math.prod(shape) for shape in expected_tensors(config, n_step_sets).values())


def weight_bytes(config: PersonaPlexConfig, dtype_name: str, n_step_sets: int | None = None) -> int:
    """Bytes of the LM's weights in memory. In int8 are those of products, with a float32 scale a row."""
    tensors = expected_tensors(config, n_step_sets)
    return sum(_tensor_bytes(name, shape, dtype_name) for name, shape in tensors.items())


def is_linear(name: str) -> bool:
    """Whether a tensor of the checkpoint is a weight of products: neither a table nor a norm."""
    return "emb." not in name and not name.endswith(".alpha")


def is_stacked(name: str) -> bool:
    """Whether a tensor of the checkpoint holds the step sets of the depformer along its rows."""
    return name.startswith("depformer.") and ".self_attn." in name


def kv_bytes_per_frame(config: PersonaPlexConfig, dtype_name: str) -> int:
    """Bytes of the temporal transformer's keys and values for one frame of one slot."""
    temporal = config.temporal_config
    return 2 * temporal.num_hidden_layers * temporal.hidden_size * BYTES_OF[dtype_name]


def memory_bytes(config: PersonaPlexConfig, dtype_name: str, batch_size: int, n_frames: int) -> int:
    """Bytes of the LM at work: weights with the active step sets only, and the rings' columns in use."""
    n_columns = min(n_frames, config.ring_columns)
    weights = weight_bytes(config, dtype_name, config.depformer_config.num_active_codebooks)
    return weights + batch_size * n_columns * kv_bytes_per_frame(config, dtype_name)


def frames_of(config: PersonaPlexConfig, audio_seconds: float) -> int:
    """Frames that hold so many seconds, the last one perhaps in part."""
    # Integers from here on: a quotient of floats can fall on the wrong side of a whole frame.
    n_samples = round(audio_seconds * config.sample_rate)
    return -(-n_samples // config.samples_per_frame)


def _tensor_bytes(name: str, shape: Shape, dtype_name: str) -> int:
    n_numbers = math.prod(shape)
    if dtype_name == "int8" and is_linear(name):
        return n_numbers * INT8_BYTES + shape[0] * SCALE_BYTES
    return n_numbers * BYTES_OF[dtype_name]


def _temporal_tensors(config: PersonaPlexConfig) -> Iterator[tuple[str, Shape]]:
    temporal = config.temporal_config
    width = temporal.hidden_size
    for layer in range(temporal.num_hidden_layers):
        name = f"transformer.layers.{layer}"
        yield from _attention_tensors(name, temporal, n_sets=1)
        yield from _gating_tensors(f"{name}.gating", temporal)
    yield "out_norm.alpha", (1, 1, width)
    yield "text_emb.weight", (config.text_embedding_rows, width)
    yield "text_linear.weight", (config.text_vocab_size, width)
    for stream in range(config.num_audio_codebooks):
        yield f"emb.{stream}.weight", (config.audio_vocab_size + 1, width)


def _depformer_tensors(config: PersonaPlexConfig, n_sets: int) -> Iterator[tuple[str, Shape]]:
    depformer = config.depformer_config
    width = depformer.hidden_size
    yield "depformer_text_emb.weight", (config.text_embedding_rows, width)
    for step in range(n_sets):
        yield f"depformer_in.{step}.weight", (width, config.temporal_config.hidden_size)
        yield f"linears.{step}.weight", (depformer.card, width)
    # The first inner step gets the text token; each later one the code before it.
    for step in range(n_sets - 1):
        yield f"depformer_emb.{step}.weight", (depformer.card + 1, width)
    for layer in range(depformer.num_hidden_layers):
        name = f"depformer.layers.{layer}"
        yield from _attention_tensors(name, depformer, n_sets)
        for step in range(n_sets):
            yield from _gating_tensors(f"{name}.gating.{step}", depformer)


def _attention_tensors(
    name: str, section: HeliumConfig | PersonaPlexDepformerConfig, n_sets: int
) -> Iterator[tuple[str, Shape]]:
    """A layer's norms and its attention, whose step sets are stacked along the rows."""
    width = section.hidden_size
    yield f"{name}.norm1.alpha", (1, 1, width)
    yield f"{name}.norm2.alpha", (1, 1, width)
    yield f"{name}.self_attn.in_proj_weight", (n_sets * 3 * width, width)
    yield f"{name}.self_attn.out_proj.weight", (n_sets * width, width)


def _gating_tensors(
    name: str, section: HeliumConfig | PersonaPlexDepformerConfig
) -> Iterator[tuple[str, Shape]]:
    """A gated MLP: gate and value stacked on the way in."""
    yield f"{name}.linear_in.weight", (2 * section.intermediate_size, section.hidden_size)
    yield f"{name}.linear_out.weight", (section.hidden_size, section.intermediate_size)
