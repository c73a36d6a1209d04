"""The config tree: every number that the weights fix, checked at birth, and what follows from them.

Names, nesting and defaults are those of vllm-omni's PersonaPlex config, so a file written for one loads in
the other. The defaults are the published model: its own `config.json` says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

END_OF_PADDING = 0
"""Text id: the padding ends here, a word begins with the next id."""
BOS = 1
"""Text id: begin of sequence."""
EOS = 2
"""Text id: end of sequence; it does not end a reply."""
PAD = 3
"""Text id: no new text in this frame."""

MIMI_NAME = "tokenizer-e351c8d8-checkpoint125.safetensors"
"""The published Mimi's file name."""

# Hugging Face writes these into every config.json, and deployments add switches; none describes the weights.
_BOOKKEEPING_KEYS = """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _experts_implementation _name_or_path add_cross_attention architectures attn_implementation auto_map
    bad_words_ids base_model_pp_plan base_model_tp_plan begin_suppress_tokens bos_token_id
    chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id depformer_cuda_graphs
    diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id id2label
    initializer_range is_decoder is_encoder_decoder label2id length_penalty max_length mimi_cuda_graphs
    mimi_decode_tf32 min_length no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences
    output_attentions output_hidden_states output_scores pad_token_id prefix problem_type pruned_heads
    quantization_config remove_invalid_values repetition_penalty return_dict return_dict_in_generate
    sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder
    tie_word_embeddings tokenizer_class top_k top_p torch_dtype torchscript transformers_version
    transformers_weights typical_p use_bfloat16 use_cache
"""
BOOKKEEPING = frozenset(_BOOKKEEPING_KEYS.split())

# A bound on every count keeps a slip of the finger from filling the memory with names and sums.
MAX_COUNT = 1_000_000
Count = Annotated[int, Field(gt=0, le=MAX_COUNT)]
PositiveNumber = Annotated[float, Field(gt=0)]
# YAML and JSON have lists only, so the outer type is lenient where its members are strict.
Codes = Annotated[tuple[StrictInt, ...], Field(strict=False)]
OnlyFalse = Annotated[bool, Field(json_schema_extra={"const": False})]


def _inside_the_model(name: str) -> str:
    path = PurePosixPath(name)
    if not name or "\\" in name or "\0" in name or path.is_absolute() or ".." in path.parts:
        raise PydanticCustomError("file_name", "must be the name of a file inside the model's folder")
    return name


FileName = Annotated[str, AfterValidator(_inside_the_model)]


class Contradiction(NamedTuple):
    """Values that cannot be true together: their dotted keys, and what is wrong."""

    keys: tuple[str, ...]
    problem: str


class Frozen(BaseModel):
    """A section of the tree: immutable, strictly typed, no unknown keys."""

    # "model_" is pydantic's own namespace by default, but model_type is Hugging Face's name.
    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def drop_bookkeeping(cls, data: Any) -> Any:
        """Leave out what Hugging Face writes for itself, unless it is a value of ours."""
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        return {
            key: value for key, value in data.items() if key in fields or not is_bookkeeping(key, value, data)
        }


def is_bookkeeping(key: object, value: object, section: dict[str, Any]) -> bool:
    """Whether a key that is no field says nothing about the weights."""
    if key in ("rope_scaling", "rope_parameters"):
        plain = {"rope_type": "default", "rope_theta": section.get("rope_theta", 10000.0)}
        return value is None or (isinstance(value, dict) and {**plain, **value} == plain)
    return key in BOOKKEEPING


class HeliumConfig(Frozen):
    """The temporal transformer: reads one column of tokens a frame."""

    model_type: Literal["helium"] = "helium"
    """Hugging Face's name for this section."""
    hidden_size: Count = 4096
    """Width: heads times head width."""
    num_hidden_layers: Count = 32
    """Layers."""
    num_attention_heads: Count = 32
    """Attention heads."""
    head_dim: Count = 128
    """Width of a head; even, because positions turn pairs of numbers."""
    num_key_value_heads: Count = 32
    """Key and value heads: as many as attention heads."""
    intermediate_size: Count = 11264
    """Inner width of the gated MLP, after the gate."""
    max_position_embeddings: Count = 3000
    """The context in frames, by its other name: equals sliding_window."""
    rope_theta: PositiveNumber = 10000.0
    """Base of the rotary positions."""
    rms_norm_eps: PositiveNumber = 1e-8
    """Added to the mean square, inside the root."""
    vocab_size: Count = 32000
    """Text ids that can be drawn: equals text_vocab_size."""
    sliding_window: Annotated[int, Field(ge=2, le=MAX_COUNT)] = 3000
    """The context in frames; the reference hides the oldest, so one less is seen."""
    hidden_act: Literal["silu"] = "silu"
    """The gate's activation."""
    attention_bias: OnlyFalse = False
    """The published layout has no biases."""
    mlp_bias: OnlyFalse = False
    """The published layout has no biases."""
    tie_word_embeddings: OnlyFalse = False
    """The published layout keeps the text table and the text head apart."""
    use_cache: bool = True
    """Inert: the converter always keeps keys and values."""


class PersonaPlexDepformerConfig(Frozen):
    """The depth transformer: draws a frame's codes one after another, each with weights of its own."""

    model_type: Literal["personaplex_depformer"] = "personaplex_depformer"
    """Hugging Face's name for this section."""
    hidden_size: Count = 1024
    """Width: heads times head width."""
    num_hidden_layers: Count = 6
    """Layers."""
    num_attention_heads: Count = 16
    """Attention heads."""
    head_dim: Count = 64
    """Width of a head."""
    num_key_value_heads: Count = 16
    """Key and value heads: as many as attention heads."""
    intermediate_size: Count = 2816
    """Inner width of the gated MLP, after the gate."""
    max_position_embeddings: Count = 8
    """Inert: an inner step sees all earlier ones."""
    dep_q: Count = 16
    """Step sets in the checkpoint: codes that could be drawn, the agent's first."""
    num_active_codebooks: Count = 8
    """Inner steps that run: the agent's codes."""
    card: Count = 2048
    """Codes that can be drawn in each codebook."""
    rope_theta: PositiveNumber = 10000.0
    """Inert: inner steps have no positions."""
    rms_norm_eps: PositiveNumber = 1e-8
    """Added to the mean square, inside the root."""
    hidden_act: Literal["silu"] = "silu"
    """The gate's activation."""
    attention_bias: OnlyFalse = False
    """The published layout has no biases."""
    mlp_bias: OnlyFalse = False
    """The published layout has no biases."""
    tie_word_embeddings: OnlyFalse = False
    """The published layout keeps tables and heads apart."""
    use_cache: bool = True
    """Inert."""


class MimiCodecConfig(Frozen):
    """Another codec than the published one: keyword arguments for moshi's classes."""

    seanet: dict[str, JsonValue]
    """Arguments of the convolutional encoder and decoder."""
    quantizer: dict[str, JsonValue]
    """Arguments of the split residual vector quantizer."""
    transformer: dict[str, JsonValue]
    """Arguments of the codec's transformers."""


class PersonaPlexMimiConfig(Frozen):
    """The codec: turns PCM into codes and codes into PCM, a frame at a time."""

    model_type: Literal["personaplex_mimi"] = "personaplex_mimi"
    """Hugging Face's name for this section."""
    sample_rate: Count = 24000
    """PCM samples a second (Hz)."""
    frame_rate: PositiveNumber = 12.5
    """Frames a second (Hz)."""
    samples_per_frame: Count = 1920
    """PCM samples in a frame: sample_rate / frame_rate."""
    num_codebooks: Count = 8
    """Codes a frame and speaker."""
    card: Count = 2048
    """Entries of a codebook."""
    num_channels: Annotated[int, Field(json_schema_extra={"const": 1})] = 1
    """Audio channels: mono only."""
    mimi_name: FileName | None = None
    """File name of the codec's weights inside the model's folder; null = the published one's."""
    silence_codes: Codes = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
    """A frame of silence as this codec's codes: the agent's side of a prompt without voice."""
    sine_codes: Codes = (430, 1268, 381, 1611, 1095, 1495, 56, 472)
    """A frame of a sine tone as this codec's codes: the user's side of a prompt."""
    codec: MimiCodecConfig | None = None
    """The codec's architecture; null = the published Mimi."""


class PersonaPlexConfig(Frozen):
    """The whole model. Contradictions between values are refused here, all in one message."""

    model_type: Literal["personaplex"] = "personaplex"
    """Hugging Face's name for this tree."""
    temporal_config: HeliumConfig = HeliumConfig()
    """The temporal transformer."""
    depformer_config: PersonaPlexDepformerConfig = PersonaPlexDepformerConfig()
    """The depth transformer."""
    mimi_config: PersonaPlexMimiConfig = PersonaPlexMimiConfig()
    """The codec."""
    text_vocab_size: Count = 32000
    """Text ids that can be drawn."""
    text_embedding_rows: Count = 32001
    """Rows of the text tables: one more, for "nothing yet"."""
    audio_vocab_size: Count = 2048
    """Codes that can be drawn in each codebook."""
    num_audio_codebooks: Count = 16
    """Codes in a column: the agent's and the user's."""
    mimi_name: FileName | None = None
    """A mirror of mimi_config.mimi_name; if set, it wins."""

    @model_validator(mode="before")
    @classmethod
    def empty_sections_are_defaults(cls, data: Any) -> Any:
        """Take null for a section as its defaults, as Hugging Face's configs do."""
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None or key not in SECTIONS}

    @model_validator(mode="after")
    def refuse_contradictions(self) -> PersonaPlexConfig:
        """Refuse values that cannot be true together, all of them at once."""
        found = list(contradictions(self))
        if found:
            message = "; ".join(problem for _, problem in found)
            raise PydanticCustomError("contradictions", "{message}", {"message": message, "found": found})
        return self

    @property
    def sample_rate(self) -> int:
        """PCM samples a second (Hz), of what is read and what is written."""
        return self.mimi_config.sample_rate

    @property
    def samples_per_frame(self) -> int:
        """PCM samples in a frame."""
        return self.mimi_config.samples_per_frame

    @property
    def frame_rate(self) -> float:
        """Frames a second (Hz)."""
        return self.mimi_config.frame_rate

    @property
    def n_codebooks(self) -> int:
        """Codes a frame and speaker."""
        return self.mimi_config.num_codebooks

    @property
    def n_streams(self) -> int:
        """Rows of a column of tokens: text, the agent's codes, the user's codes."""
        return 1 + self.num_audio_codebooks

    @property
    def text(self) -> int:
        """Row of the text among the streams."""
        return 0

    @property
    def agent(self) -> slice:
        """Rows of the agent's codes among the streams."""
        return slice(1, 1 + self.n_codebooks)

    @property
    def user(self) -> slice:
        """Rows of the user's codes among the streams."""
        return slice(1 + self.n_codebooks, self.n_streams)

    @property
    def delays(self) -> tuple[int, ...]:
        """Frames by which each stream lags, [n_streams]: by one, but not text and not a first codebook."""
        speaker = (0, *[1] * (self.n_codebooks - 1))
        return (0, *speaker, *speaker)

    @property
    def context(self) -> int:
        """Frames of the temporal transformer's window, as the checkpoint counts them."""
        return self.temporal_config.sliding_window

    @property
    def ring_columns(self) -> int:
        """Frames that a step sees, itself included: the reference hides the oldest slot of a full ring."""
        return self.context - 1

    @property
    def text_initial(self) -> int:
        """Text id for "nothing yet": the last row of the text tables."""
        return self.text_vocab_size

    @property
    def audio_initial(self) -> int:
        """Code for "nothing yet": the last row of the audio tables."""
        return self.audio_vocab_size

    @property
    def resolved_mimi_name(self) -> str:
        """File name of the codec's weights: the mirror on top, else the codec's own, else the published."""
        return self.mimi_name or self.mimi_config.mimi_name or MIMI_NAME


SECTIONS = ("temporal_config", "depformer_config", "mimi_config")


def contradictions(config: PersonaPlexConfig) -> Iterator[Contradiction]:
    """What cannot be true together in a tree whose values are each well-formed."""
    yield from _transformer_contradictions("temporal_config", config.temporal_config)
    yield from _temporal_contradictions(config)
    yield from _transformer_contradictions("depformer_config", config.depformer_config)
    yield from _codebook_contradictions(config)
    yield from _mimi_contradictions(config.mimi_config)


def _transformer_contradictions(
    name: str, section: HeliumConfig | PersonaPlexDepformerConfig
) -> Iterator[Contradiction]:
    width, heads, head_dim = section.hidden_size, section.num_attention_heads, section.head_dim
    if width != heads * head_dim:
        yield Contradiction(
            (f"{name}.hidden_size", f"{name}.num_attention_heads", f"{name}.head_dim"),
            f"{name}.hidden_size is {width}, but num_attention_heads {heads} * head_dim {head_dim} = "
            f"{heads * head_dim}",
        )
    if section.num_key_value_heads != heads:
        yield Contradiction(
            (f"{name}.num_key_value_heads", f"{name}.num_attention_heads"),
            f"{name}.num_key_value_heads is {section.num_key_value_heads}, but num_attention_heads is {heads}"
            ": grouped heads are not supported",
        )
    for switch in ("attention_bias", "mlp_bias", "tie_word_embeddings"):
        if getattr(section, switch):
            yield Contradiction((f"{name}.{switch}",), f"{name}.{switch} is true: only false is supported")


def _temporal_contradictions(config: PersonaPlexConfig) -> Iterator[Contradiction]:
    temporal, n_texts, n_rows = config.temporal_config, config.text_vocab_size, config.text_embedding_rows
    if temporal.head_dim % 2:
        yield Contradiction(
            ("temporal_config.head_dim",),
            f"temporal_config.head_dim is {temporal.head_dim}, but rotary positions need an even number",
        )
    if temporal.max_position_embeddings != temporal.sliding_window:
        yield Contradiction(
            ("temporal_config.max_position_embeddings", "temporal_config.sliding_window"),
            f"temporal_config.max_position_embeddings is {temporal.max_position_embeddings}, "
            f"but sliding_window is {temporal.sliding_window}: both are the context",
        )
    if temporal.vocab_size != n_texts:
        yield Contradiction(
            ("temporal_config.vocab_size", "text_vocab_size"),
            f"temporal_config.vocab_size is {temporal.vocab_size}, but text_vocab_size is {n_texts}",
        )
    if n_texts <= PAD:
        yield Contradiction(
            ("text_vocab_size",),
            f"text_vocab_size is {n_texts}, but the ids up to {PAD} (PAD) have a fixed meaning",
        )
    if n_rows != n_texts + 1:
        yield Contradiction(
            ("text_embedding_rows", "text_vocab_size"),
            f"text_embedding_rows is {n_rows}, but text_vocab_size {n_texts} + 1 = {n_texts + 1}",
        )


def _codebook_contradictions(config: PersonaPlexConfig) -> Iterator[Contradiction]:
    dep_q, n_active = config.depformer_config.dep_q, config.depformer_config.num_active_codebooks
    n_codebooks, n_codes = config.n_codebooks, config.num_audio_codebooks
    if n_codes != 2 * n_codebooks:
        yield Contradiction(
            ("num_audio_codebooks", "mimi_config.num_codebooks"),
            f"num_audio_codebooks is {n_codes}, but two speakers * mimi_config.num_codebooks {n_codebooks} = "
            f"{2 * n_codebooks}",
        )
    if n_active != n_codebooks:
        yield Contradiction(
            ("depformer_config.num_active_codebooks", "mimi_config.num_codebooks"),
            f"depformer_config.num_active_codebooks is {n_active}, but the agent's codes are "
            f"mimi_config.num_codebooks = {n_codebooks}",
        )
    if dep_q < n_active:
        yield Contradiction(
            ("depformer_config.dep_q", "depformer_config.num_active_codebooks"),
            f"depformer_config.dep_q is {dep_q}, less than num_active_codebooks {n_active}",
        )
    if dep_q > n_codes:
        yield Contradiction(
            ("depformer_config.dep_q", "num_audio_codebooks"),
            f"depformer_config.dep_q is {dep_q}, more than num_audio_codebooks {n_codes}",
        )
    for key, card in (
        ("depformer_config.card", config.depformer_config.card),
        ("mimi_config.card", config.mimi_config.card),
    ):
        if card != config.audio_vocab_size:
            yield Contradiction(
                (key, "audio_vocab_size"),
                f"{key} is {card}, but audio_vocab_size is {config.audio_vocab_size}",
            )


def _mimi_contradictions(mimi: PersonaPlexMimiConfig) -> Iterator[Contradiction]:
    if mimi.samples_per_frame * mimi.frame_rate != mimi.sample_rate:
        yield Contradiction(
            ("mimi_config.samples_per_frame", "mimi_config.sample_rate", "mimi_config.frame_rate"),
            f"mimi_config.samples_per_frame is {mimi.samples_per_frame}, but sample_rate {mimi.sample_rate}"
            f" / frame_rate {mimi.frame_rate:g} = {mimi.sample_rate / mimi.frame_rate:g}",
        )
    if mimi.num_channels != 1:
        yield Contradiction(
            ("mimi_config.num_channels",),
            f"mimi_config.num_channels is {mimi.num_channels}: only 1 is supported",
        )
    for key in ("silence_codes", "sine_codes"):
        codes = getattr(mimi, key)
        if len(codes) != mimi.num_codebooks:
            yield Contradiction(
                (f"mimi_config.{key}", "mimi_config.num_codebooks"),
                f"mimi_config.{key} has {len(codes)} codes, but num_codebooks is {mimi.num_codebooks}",
            )
        outside = [code for code in codes if not 0 <= code < mimi.card]
        if outside:
            yield Contradiction(
                (f"mimi_config.{key}", "mimi_config.card"),
                f"mimi_config.{key} has {', '.join(map(str, outside))}, but codes go from 0 to card - 1"
                f" = {mimi.card - 1}",
            )
    if mimi.codec is not None:
        yield from _codec_contradictions(mimi, mimi.codec)


def _codec_contradictions(mimi: PersonaPlexMimiConfig, codec: MimiCodecConfig) -> Iterator[Contradiction]:
    n_q, bins = codec.quantizer.get("n_q"), codec.quantizer.get("bins")
    if isinstance(n_q, int) and n_q < mimi.num_codebooks:
        yield Contradiction(
            ("mimi_config.codec.quantizer", "mimi_config.num_codebooks"),
            f"mimi_config.codec.quantizer.n_q is {n_q}, less than num_codebooks {mimi.num_codebooks}",
        )
    if bins is not None and bins != mimi.card:
        yield Contradiction(
            ("mimi_config.codec.quantizer", "mimi_config.card"),
            f"mimi_config.codec.quantizer.bins is {bins}, but card is {mimi.card}",
        )
