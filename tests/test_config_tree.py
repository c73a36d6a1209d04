"""The tree: what it refuses, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from personaplex_cli.config.tree import (
    BOS,
    END_OF_PADDING,
    EOS,
    PAD,
    HeliumConfig,
    PersonaPlexConfig,
    PersonaPlexMimiConfig,
)

PUBLISHED = PersonaPlexConfig()


def three_codebooks(**changes: Any) -> PersonaPlexConfig:
    """A valid tree with another number of everything that the derived facts depend on."""
    values: dict[str, Any] = {
        "temporal_config": {"max_position_embeddings": 50, "sliding_window": 50, "vocab_size": 90},
        "depformer_config": {"dep_q": 3, "num_active_codebooks": 3, "card": 10},
        "mimi_config": {
            "sample_rate": 16000,
            "frame_rate": 25,
            "samples_per_frame": 640,
            "num_codebooks": 3,
            "card": 10,
            "silence_codes": [1, 2, 3],
            "sine_codes": [4, 5, 6],
        },
        "text_vocab_size": 90,
        "text_embedding_rows": 91,
        "audio_vocab_size": 10,
        "num_audio_codebooks": 6,
    }
    return PersonaPlexConfig.model_validate({**values, **changes})


def test_the_defaults_are_the_published_model() -> None:
    assert (PUBLISHED.sample_rate, PUBLISHED.samples_per_frame, PUBLISHED.frame_rate) == (24000, 1920, 12.5)
    assert (PUBLISHED.n_streams, PUBLISHED.n_codebooks) == (17, 8)
    assert (PUBLISHED.text, PUBLISHED.agent, PUBLISHED.user) == (0, slice(1, 9), slice(9, 17))
    assert PUBLISHED.delays == (0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1)
    assert (PUBLISHED.context, PUBLISHED.ring_columns) == (3000, 2999)
    assert (PUBLISHED.text_initial, PUBLISHED.audio_initial) == (32000, 2048)
    assert PUBLISHED.mimi_config.silence_codes == (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
    assert PUBLISHED.mimi_config.sine_codes == (430, 1268, 381, 1611, 1095, 1495, 56, 472)
    assert (END_OF_PADDING, BOS, EOS, PAD) == (0, 1, 2, 3)


def test_derived_facts_follow_the_tree() -> None:
    config = three_codebooks()
    assert (config.sample_rate, config.samples_per_frame, config.frame_rate) == (16000, 640, 25.0)
    assert (config.n_streams, config.n_codebooks) == (7, 3)
    assert (config.agent, config.user) == (slice(1, 4), slice(4, 7))
    assert config.delays == (0, 0, 1, 1, 0, 1, 1)
    assert (config.context, config.ring_columns) == (50, 49)
    assert (config.text_initial, config.audio_initial) == (90, 10)


@pytest.mark.parametrize("config", [PUBLISHED, three_codebooks()])
def test_every_stream_has_one_delay_and_one_owner(config: PersonaPlexConfig) -> None:
    rows = list(range(config.n_streams))
    assert [config.text, *rows[config.agent], *rows[config.user]] == rows
    assert len(config.delays) == config.n_streams


def test_the_mirror_of_the_codecs_name_wins() -> None:
    inner = PersonaPlexMimiConfig(mimi_name="inner.safetensors")
    assert PUBLISHED.resolved_mimi_name == "tokenizer-e351c8d8-checkpoint125.safetensors"
    assert PersonaPlexConfig(mimi_config=inner).resolved_mimi_name == "inner.safetensors"
    assert (
        PersonaPlexConfig(mimi_config=inner, mimi_name="top.safetensors").resolved_mimi_name
        == "top.safetensors"
    )


@pytest.mark.parametrize("name", ["", "/etc/mimi", "../mimi", "a/../../mimi", "a\\b"])
def test_the_codecs_file_stays_inside_the_models_folder(name: str) -> None:
    with pytest.raises(ValidationError, match="inside the model's folder"):
        PersonaPlexConfig(mimi_name=name)


def test_the_tree_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        PUBLISHED.text_vocab_size = 5
    with pytest.raises(ValidationError, match="frozen"):
        PUBLISHED.temporal_config.hidden_size = 5


@pytest.mark.parametrize(
    "section",
    [
        {"hidden_size": "4096"},
        {"hidden_size": 4096.0},
        {"num_hidden_layers": True},
        {"rope_theta": "1e4"},
        {"rope_theta": True},
        {"use_cache": 1},
        {"attention_bias": 0},
        {"hidden_act": "gelu"},
        {"model_type": "llama"},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 10**9},
        {"rms_norm_eps": 0.0},
        {"rope_theta": float("inf")},
        {"sliding_window": 1},
    ],
)
def test_values_are_of_the_right_type_and_size(section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(section))):
        PersonaPlexConfig.model_validate({"temporal_config": section})


def test_a_whole_number_may_stand_for_a_number() -> None:
    assert PersonaPlexConfig.model_validate({"temporal_config": {"rope_theta": 10000}}) == PUBLISHED


def test_bookkeeping_of_hugging_face_is_dropped_at_every_level() -> None:
    bookkeeping = {
        "architectures": ["PersonaPlexTalkerForConditionalGeneration"],
        "transformers_version": "4.57.1",
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "mimi_cuda_graphs": True,
        "_name_or_path": "somewhere",
        "auto_map": None,
        "return_dict": True,
        "output_hidden_states": False,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "use_bfloat16": False,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    sections = ("temporal_config", "depformer_config", "mimi_config")
    values = {**bookkeeping, "tie_word_embeddings": True, **{name: dict(bookkeeping) for name in sections}}
    assert PersonaPlexConfig.model_validate(values) == PUBLISHED


def test_other_positions_than_the_models_are_not_bookkeeping() -> None:
    for changed in ({"rope_type": "yarn"}, {"rope_theta": 5.0}):
        with pytest.raises(ValidationError, match="rope_parameters"):
            PersonaPlexConfig.model_validate({"temporal_config": {"rope_parameters": changed}})


def test_an_empty_section_means_its_defaults() -> None:
    assert PersonaPlexConfig.model_validate({"temporal_config": None, "mimi_config": None}) == PUBLISHED


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"temporal_config": {"hidden_size": 4000}},
        "temporal_config.hidden_size is 4000, but num_attention_heads 32 * head_dim 128 = 4096",
    ),
    (
        {"depformer_config": {"head_dim": 32}},
        "depformer_config.hidden_size is 1024, but num_attention_heads 16 * head_dim 32 = 512",
    ),
    (
        {"temporal_config": {"num_key_value_heads": 8}},
        "temporal_config.num_key_value_heads is 8, but num_attention_heads is 32: grouped heads are not"
        " supported",
    ),
    (
        {"depformer_config": {"num_key_value_heads": 8}},
        "depformer_config.num_key_value_heads is 8, but num_attention_heads is 16: grouped heads are not"
        " supported",
    ),
    (
        {"temporal_config": {"attention_bias": True}},
        "temporal_config.attention_bias is true: only false is supported",
    ),
    ({"depformer_config": {"mlp_bias": True}}, "depformer_config.mlp_bias is true: only false is supported"),
    (
        {"temporal_config": {"tie_word_embeddings": True}},
        "temporal_config.tie_word_embeddings is true: only false is supported",
    ),
    (
        {"temporal_config": {"num_attention_heads": 4096, "num_key_value_heads": 4096, "head_dim": 1}},
        "temporal_config.head_dim is 1, but rotary positions need an even number",
    ),
    (
        {"temporal_config": {"sliding_window": 2000}},
        "temporal_config.max_position_embeddings is 3000, but sliding_window is 2000: both are the context",
    ),
    (
        {"temporal_config": {"vocab_size": 31999}},
        "temporal_config.vocab_size is 31999, but text_vocab_size is 32000",
    ),
    (
        {"text_vocab_size": 3, "text_embedding_rows": 4, "temporal_config": {"vocab_size": 3}},
        "text_vocab_size is 3, but the ids up to 3 (PAD) have a fixed meaning",
    ),
    ({"text_embedding_rows": 32000}, "text_embedding_rows is 32000, but text_vocab_size 32000 + 1 = 32001"),
    (
        {"num_audio_codebooks": 17},
        "num_audio_codebooks is 17, but two speakers * mimi_config.num_codebooks 8 = 16",
    ),
    (
        {"depformer_config": {"num_active_codebooks": 7}},
        "depformer_config.num_active_codebooks is 7, but the agent's codes are mimi_config.num_codebooks = 8",
    ),
    ({"depformer_config": {"dep_q": 7}}, "depformer_config.dep_q is 7, less than num_active_codebooks 8"),
    ({"depformer_config": {"dep_q": 17}}, "depformer_config.dep_q is 17, more than num_audio_codebooks 16"),
    ({"depformer_config": {"card": 1024}}, "depformer_config.card is 1024, but audio_vocab_size is 2048"),
    ({"mimi_config": {"card": 4096}}, "mimi_config.card is 4096, but audio_vocab_size is 2048"),
    (
        {"mimi_config": {"samples_per_frame": 960}},
        "mimi_config.samples_per_frame is 960, but sample_rate 24000 / frame_rate 12.5 = 1920",
    ),
    ({"mimi_config": {"num_channels": 2}}, "mimi_config.num_channels is 2: only 1 is supported"),
    ({"mimi_config": {"sine_codes": [1, 2]}}, "mimi_config.sine_codes has 2 codes, but num_codebooks is 8"),
    (
        {"mimi_config": {"silence_codes": [0, -1, 0, 0, 2048, 0, 0, 0]}},
        "mimi_config.silence_codes has -1, 2048, but codes go from 0 to card - 1 = 2047",
    ),
    (
        {"mimi_config": {"codec": {"seanet": {}, "quantizer": {"n_q": 4}, "transformer": {}}}},
        "mimi_config.codec.quantizer.n_q is 4, less than num_codebooks 8",
    ),
    (
        {"mimi_config": {"codec": {"seanet": {}, "quantizer": {"bins": 64}, "transformer": {}}}},
        "mimi_config.codec.quantizer.bins is 64, but card is 2048",
    ),
]


@pytest.mark.parametrize(
    ("values", "problem"), CONTRADICTIONS, ids=[problem for _, problem in CONTRADICTIONS]
)
def test_a_contradiction_is_refused_by_name(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        PersonaPlexConfig.model_validate(values)
    (error,) = refused.value.errors()
    assert problem in [text for _, text in error["ctx"]["found"]]


def test_all_contradictions_are_refused_at_once() -> None:
    values = {
        "temporal_config": {"hidden_size": 100, "sliding_window": 7},
        "depformer_config": {"dep_q": 2},
        "mimi_config": {"samples_per_frame": 1},
        "text_embedding_rows": 5,
    }
    with pytest.raises(ValidationError) as refused:
        PersonaPlexConfig.model_validate(values)
    (error,) = refused.value.errors()
    keys = [first for (first, *_), _ in error["ctx"]["found"]]
    assert keys == [
        "temporal_config.hidden_size",
        "temporal_config.max_position_embeddings",
        "text_embedding_rows",
        "depformer_config.dep_q",
        "mimi_config.samples_per_frame",
    ]


@pytest.mark.parametrize("n_step_sets", [8, 9, 16])
def test_a_checkpoint_may_hold_any_step_sets_from_the_agents_to_all(n_step_sets: int) -> None:
    config = PersonaPlexConfig.model_validate({"depformer_config": {"dep_q": n_step_sets}})
    assert config.depformer_config.dep_q == n_step_sets


def test_sections_can_be_given_as_values() -> None:
    temporal = HeliumConfig(hidden_size=8, num_attention_heads=2, num_key_value_heads=2, head_dim=4)
    assert PersonaPlexConfig(temporal_config=temporal).temporal_config.hidden_size == 8
