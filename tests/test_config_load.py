"""Reading and writing the tree: sources, faults with their lines, round trips."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from personaplex_cli.config.load import config_hash, load_config, render_config, render_schema
from personaplex_cli.config.tree import HeliumConfig, PersonaPlexConfig
from personaplex_cli.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden"
PUBLISHED = PersonaPlexConfig()


def written(folder: Path, text: str, name: str = "c.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def refusal(source: Path | None, *overrides: str) -> list[str]:
    """The lines of the one message that refuses a source, without the folder of its file."""
    with pytest.raises(ConfigError) as refused:
        load_config(source, overrides)
    message = refused.value.message
    return (message.replace(f"{source.parent}{os.sep}", "") if source is not None else message).split("\n")


# ---- sources ----


def test_no_source_means_the_published_model() -> None:
    loaded = load_config(None)
    assert loaded.config == PUBLISHED
    assert set(loaded.origins.values()) == {"default"}


@pytest.mark.parametrize("text", [None, "{}"])
def test_a_folder_whose_config_is_empty_or_absent_means_the_defaults(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        written(tmp_path, text, "config.json")
    assert load_config(tmp_path).config == PUBLISHED


def test_a_folders_config_is_json_or_else_yaml(tmp_path: Path) -> None:
    changed = written(tmp_path, "temporal_config: {rope_theta: 5}", "config.yaml")
    assert load_config(tmp_path).origins["temporal_config.rope_theta"] == f"{changed}:1"
    written(tmp_path, "{}", "config.json")
    assert load_config(tmp_path).config == PUBLISHED


def test_every_value_has_a_source(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "# a comment\ntemporal_config:\n  num_hidden_layers: 2\n\n"
        "mimi_config:\n  sine_codes: [0, 1, 2, 3, 4, 5,\n    6, 7]\n",
    )
    loaded = load_config(file, ["temporal_config.rope_theta=5", "depformer_config={num_hidden_layers: 1}"])
    given_ = {key: origin for key, origin in loaded.origins.items() if origin != "default"}
    assert given_ == {
        "temporal_config.num_hidden_layers": f"{file}:3",
        "mimi_config.sine_codes": f"{file}:6",
        "temporal_config.rope_theta": "--set",
        "depformer_config.num_hidden_layers": "--set",
    }
    assert "mimi_config.codec" in loaded.origins
    assert loaded.config.mimi_config.sine_codes == (0, 1, 2, 3, 4, 5, 6, 7)


def test_lines_of_json_are_those_of_an_editor() -> None:
    file = GOLDEN / "checkpoint" / "config.json"
    lines = file.read_text().split("\n")
    loaded = load_config(file.parent)
    named = [(key, origin) for key, origin in loaded.origins.items() if origin != "default"]
    assert len(named) > 30
    for key, origin in named:
        path, _, line = origin.rpartition(":")
        assert path == str(file)
        assert f'"{key.rpartition(".")[2]}":' in lines[int(line) - 1]


def test_keys_of_json_that_look_like_structure_keep_their_lines(tmp_path: Path) -> None:
    text = (
        '{\n\t"mimi_config": {"codec": {\n\t"seanet": {"a\\"}{,": ["x", {"y": 1}, "z"],\n "b": 2},'
        '\n\n"quantizer": {},"transformer": {}}}}'
    )
    loaded = load_config(written(tmp_path, text, "c.json"))
    lines = {key[18:]: origin[-1] for key, origin in loaded.origins.items() if "codec" in key}
    assert lines == {"seanet": "3", "quantizer": "6", "transformer": "6"}
    assert loaded.config.mimi_config.codec is not None
    assert loaded.config.mimi_config.codec.seanet == {'a"}{,': ["x", {"y": 1}, "z"], "b": 2}


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(b"\xef\xbb\xbf{}")
    assert load_config(file).config == PUBLISHED


def test_plain_values_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = "temporal_config: {rms_norm_eps: 1e-6, rope_theta: 2E4}\nmimi_name: 2024-01-01\n"
    config = load_config(written(tmp_path, text)).config
    assert (config.temporal_config.rms_norm_eps, config.temporal_config.rope_theta) == (1e-6, 20000.0)
    assert config.mimi_name == "2024-01-01"


def test_anchors_are_followed(tmp_path: Path) -> None:
    text = "mimi_config: {silence_codes: &z [0, 0, 0, 0, 0, 0, 0, 0], sine_codes: *z}"
    assert load_config(written(tmp_path, text)).config.mimi_config.sine_codes == (0,) * 8


# ---- --set ----


def test_a_later_set_wins_and_a_section_is_merged_into(tmp_path: Path) -> None:
    file = written(tmp_path, "temporal_config: {num_hidden_layers: 9, intermediate_size: 9}")
    config = load_config(
        file,
        [
            "temporal_config={num_hidden_layers: 2}",
            "temporal_config.rope_theta=1",
            "temporal_config.rope_theta=2.5",
        ],
    ).config
    assert config.temporal_config == HeliumConfig(num_hidden_layers=2, intermediate_size=9, rope_theta=2.5)


def test_set_reaches_into_the_codecs_arguments() -> None:
    loaded = load_config(
        GOLDEN / "checkpoint",
        ["mimi_config.codec.seanet.n_filters=8", "mimi_config.codec.quantizer.x=[1, a]"],
    )
    codec = loaded.config.mimi_config.codec
    assert codec is not None
    assert (codec.seanet["n_filters"], codec.seanet["norm"]) == (8, "none")
    assert codec.quantizer["x"] == [1, "a"]
    assert loaded.origins["mimi_config.codec.seanet"] == "--set"
    assert loaded.origins["mimi_config.codec.transformer"] != "--set"


def test_set_can_make_and_unmake_a_codec() -> None:
    made = load_config(None, ["mimi_config.codec={seanet: {a: 1}, quantizer: {}, transformer: {}}"])
    assert made.config.mimi_config.codec is not None
    assert made.origins["mimi_config.codec.seanet"] == made.origins["mimi_config.codec.quantizer"] == "--set"
    unmade = load_config(GOLDEN / "checkpoint", ["mimi_config.codec="])
    assert unmade.config.mimi_config.codec is None
    assert unmade.origins["mimi_config.codec"] == "--set"


def test_wrong_sets_are_refused_together() -> None:
    assert refusal(
        None,
        "nothing",
        "=3",
        "a..b=3",
        "temporal_config.hidden_size=[",
        "temporal_config.num_hidden_layers=!!python/name:os.system x",
        "temporal_config.rope_theta=no",
        "text_vocab_size.x=3",
        "temporl_config.hidden_size=3",
    ) == [
        "the config: cannot be used",
        "  - --set: 'nothing': must be KEY=VALUE, as in temporal_config.num_hidden_layers=2",
        "  - --set: '=3': must be KEY=VALUE, as in temporal_config.num_hidden_layers=2",
        "  - --set: 'a..b=3': must be KEY=VALUE, as in temporal_config.num_hidden_layers=2",
        "  - --set: temporal_config.hidden_size=[: is not YAML:"
        " expected the node content, but found '<stream end>'",
        "  - --set: temporal_config.num_hidden_layers=!!python/name:os.system x: the value:"
        " the tag tag:yaml.org,2002:python/name:os.system is refused: plain values only",
        '  - --set: temporal_config.rope_theta: must be a number, not "no"',
        '  - --set: text_vocab_size: must be a whole number, not {"x": 3}',
        "  - --set: temporl_config: unknown key (did you mean temporal_config?)",
    ]


def test_a_key_that_the_locale_cannot_read_is_refused() -> None:
    (fault,) = refusal(None, "\udcd0=1")[1:]
    assert fault.endswith(": is not text in this locale's encoding")


def test_set_inside_a_value_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "text_vocab_size: 32000")
    assert refusal(file, "text_vocab_size.x=3")[1:] == [
        "  - --set: text_vocab_size.x: text_vocab_size is a value, not a section"
    ]


# ---- faults ----


FAULTY = """\
temporal_config:
  hidden_sise: 48
  num_hidden_layers: "3"
  head_dim: 127
  use_cache: 1
mimi_config:
  num_channels: true
  codec: {seanet: {rate: .inf}, quantizer: {}}
  bogus: 1
  sine_codes: [1, 2.5, x]
  silence_codes: 7
hidden_size: 3
audio_vocab_size: -5
text_vocab_size: 31000
depformer_config: 5
"""
FAULTS = [
    "c.yaml: cannot be used",
    "  - c.yaml:2: temporal_config.hidden_sise: unknown key (did you mean hidden_size?)",
    '  - c.yaml:3: temporal_config.num_hidden_layers: must be a whole number, not "3"',
    "  - c.yaml:4: temporal_config.head_dim is 127, but rotary positions need an even number",
    "  - c.yaml:5: temporal_config.use_cache: must be true or false, not 1",
    "  - c.yaml:7: mimi_config.num_channels: must be a whole number, not true",
    "  - c.yaml:8: mimi_config.codec.seanet.rate: must be a finite number, not Infinity",
    "  - c.yaml:8: mimi_config.codec.transformer: is missing",
    "  - c.yaml:9: mimi_config.bogus: unknown key (known here: model_type, sample_rate, frame_rate,"
    " samples_per_frame, num_codebooks, card, num_channels, mimi_name, silence_codes, sine_codes, codec)",
    "  - c.yaml:10: mimi_config.sine_codes.1: must be a whole number, not 2.5",
    '  - c.yaml:10: mimi_config.sine_codes.2: must be a whole number, not "x"',
    "  - c.yaml:11: mimi_config.silence_codes: must be a list of whole numbers, not 7",
    "  - c.yaml:12: hidden_size: unknown key"
    " (did you mean temporal_config.hidden_size or depformer_config.hidden_size?)",
    "  - c.yaml:13: audio_vocab_size: must be greater than 0, not -5",
    "  - c.yaml:14: temporal_config.vocab_size is 32000, but text_vocab_size is 31000",
    "  - c.yaml:14: text_embedding_rows is 32001, but text_vocab_size 31000 + 1 = 31001",
    "  - c.yaml:15: depformer_config: must be a section (a mapping of keys to values), not 5",
]


def test_all_faults_of_a_yaml_file_are_listed_with_their_lines(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, FAULTY)) == FAULTS


def test_the_same_faults_are_found_in_json(tmp_path: Path) -> None:
    values = yaml.safe_load(FAULTY.replace(".inf", "1.5"))
    found = refusal(written(tmp_path, json.dumps(values, indent=1), "c.json"))
    problems = [fault.partition(": ")[2] for fault in found[1:]]
    expected = [fault.partition(": ")[2] for fault in FAULTS[1:] if "Infinity" not in fault]
    assert problems == expected
    assert found[1].startswith("  - c.json:3: temporal_config.hidden_sise")


def test_a_contradiction_names_every_place_that_takes_part(tmp_path: Path) -> None:
    file = written(tmp_path, "temporal_config:\n  head_dim: 64\n  hidden_size: 4095\n")
    assert refusal(file, "temporal_config.num_attention_heads=64", "depformer_config.dep_q=3") == [
        "c.yaml: cannot be used",
        "  - c.yaml:2, c.yaml:3, --set: temporal_config.hidden_size is 4095,"
        " but num_attention_heads 64 * head_dim 64 = 4096",
        "  - --set: temporal_config.num_key_value_heads is 32, but num_attention_heads is 64:"
        " grouped heads are not supported",
        "  - --set: depformer_config.dep_q is 3, less than num_active_codebooks 8",
    ]


def test_what_a_faulty_value_would_contradict_is_not_reported(tmp_path: Path) -> None:
    file = written(tmp_path, "temporal_config: {head_dim: 12, num_attention_heads: 4, hidden_sise: 48}")
    problems = refusal(file)[1:]
    assert len(problems) == 2
    assert "hidden_sise: unknown key" in problems[0]
    assert "num_key_value_heads is 32" in problems[1]


@pytest.mark.parametrize("name", ["c.yaml", "c.json"])
def test_a_key_written_twice_is_refused(tmp_path: Path, name: str) -> None:
    text = '{"temporal_config": {"hidden_size": 4096,\n"hidden_size": 4096}}'
    (fault,) = refusal(written(tmp_path, text, name))[1:]
    assert fault.startswith(f"  - {name}:2: temporal_config.hidden_size: is written twice")


def test_tags_are_refused_and_not_executed(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    text = f"mimi_name: !!python/object/apply:os.system ['touch {proof}']\ntext_vocab_size: !custom 5\n"
    assert refusal(written(tmp_path, text)) == [
        "c.yaml: cannot be used",
        "  - c.yaml:1: mimi_name: the tag tag:yaml.org,2002:python/object/apply:os.system is refused:"
        " plain values only",
        "  - c.yaml:2: text_vocab_size: the tag !custom is refused: plain values only",
    ]
    assert not proof.exists()


SYNTAX = [
    ("c.json", '{"text_vocab_size": 5,\n}', "c.json:2: is not JSON: "),
    ("c.json", "", "c.json:1: is not JSON: Expecting value (column 1)"),
    ("c.json", '{"mimi_name": NaN}', "c.json: is not JSON: NaN is not a JSON number"),
    ("c.json", f'{{"text_vocab_size": {"9" * 5000}}}', "c.json: is not JSON: Exceeds the limit"),
    ("c.json", r'{"\ud800": 1}', "c.json: has half of a surrogate pair as text"),
    ("c.json", "[" * 100_000, "c.json: is nested too deeply"),
    (
        "c.json",
        "[1]",
        "c.json: the top must be a mapping of keys to values, not a list ({} = all defaults)",
    ),
    ("c.yaml", "temporal_config:\n  a: [1\nb: 2", "c.yaml:3: is not YAML: "),
    ("c.yaml", "a: 1\n\tb: 2", "c.yaml:2: is not YAML: "),
    ("c.yaml", "a: \x01", "c.yaml: is not YAML: "),
    ("c.yaml", "a: 1\n---\nb: 2", "c.yaml:2: is not YAML: but found another document"),
    ("c.yaml", "a: *b", "c.yaml:1: is not YAML: found undefined alias 'b'"),
    ("c.yaml", "# nothing\n", "c.yaml: the top must be a mapping of keys to values, not nothing"),
    ("c.yaml", "just text", "c.yaml: the top must be a mapping of keys to values, not a str"),
    ("c.yaml", "!!set {a}", "c.yaml:1: the value: the tag tag:yaml.org,2002:set is refused"),
    ("c.yaml", "{" * 100_000, "c.yaml: is nested too deeply"),
    ("c.txt", "{}", "c.txt: a config is a .yaml or .json file, or a model's folder"),
]


@pytest.mark.parametrize(("name", "text", "message"), SYNTAX, ids=[message[:60] for *_, message in SYNTAX])
def test_a_file_that_is_no_config_is_refused_with_its_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (line,) = refusal(written(tmp_path, text, name))
    assert line.startswith(message)


def test_odd_yaml_is_refused(tmp_path: Path) -> None:
    text = "1: 2\n? [a]\n: 3\nmimi_config: &m\n  codec: *m\nmimi_name: !!bool maybe\n"
    assert refusal(written(tmp_path, text))[1:] == [
        "  - c.yaml:1: 1: a key must be text",
        "  - c.yaml:2: a collection: a key must be text",
        "  - c.yaml:4: mimi_config.codec: contains itself",
        "  - c.yaml:6: mimi_name: 'maybe' is not true or false",
    ]


def test_aliases_cannot_fill_the_memory(tmp_path: Path) -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    text = "\n".join(["a0: &a0 [1]", *levels])
    assert refusal(written(tmp_path, text)) == ["c.yaml: stands for more than 10000 values"]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml") == ["none.yaml: no such file or folder"]
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe")
    assert refusal(tmp_path / "bytes.yaml") == ["bytes.yaml: is not UTF-8 text (byte 3)"]


def test_an_unreadable_file_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(_file: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    file = written(tmp_path, "{}")
    monkeypatch.setattr(Path, "read_bytes", locked)
    assert refusal(file) == ["c.yaml: cannot be read: Permission denied"]


# ---- writing ----


@st.composite
def valid_trees(draw: st.DrawFn) -> PersonaPlexConfig:
    """Trees without contradictions, with everything else as odd as it may be."""
    count, number = st.integers(1, 50), st.floats(1e-30, 1e30)
    heads, head_dim, depth_heads, depth_dim = draw(count), 2 * draw(count), draw(count), draw(count)
    n_codebooks, card, texts, context = (
        draw(st.integers(1, 4)),
        draw(count),
        draw(st.integers(4, 50)),
        draw(count),
    )
    codes = st.lists(st.integers(0, card - 1), min_size=n_codebooks, max_size=n_codebooks)
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
        [
            "no",
            "1e-8",
            "0o17",
            "~",
            "2024-01-01",
            "5\n",
            "0x1f",
            "1_000",
            "<<",
            "=",
            ".inf",
            "1:30",
            "- a",
            "# a",
        ]
    )
    plain = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=6,
    )
    arguments = st.dictionaries(text.filter(lambda key: key not in ("n_q", "bins")), plain, max_size=3)
    codec = st.fixed_dictionaries({"seanet": arguments, "quantizer": arguments, "transformer": arguments})
    shared = {"rms_norm_eps": draw(number), "rope_theta": draw(number), "use_cache": draw(st.booleans())}
    return PersonaPlexConfig.model_validate(
        {
            "temporal_config": {
                **shared,
                "hidden_size": heads * head_dim,
                "num_attention_heads": heads,
                "num_key_value_heads": heads,
                "head_dim": head_dim,
                "max_position_embeddings": context + 1,
                "sliding_window": context + 1,
                "vocab_size": texts,
            },
            "depformer_config": {
                **shared,
                "hidden_size": depth_heads * depth_dim,
                "num_attention_heads": depth_heads,
                "num_key_value_heads": depth_heads,
                "head_dim": depth_dim,
                "dep_q": draw(st.integers(n_codebooks, 2 * n_codebooks)),
                "num_active_codebooks": n_codebooks,
                "card": card,
            },
            "mimi_config": {
                "num_codebooks": n_codebooks,
                "card": card,
                "silence_codes": draw(codes),
                "sine_codes": draw(codes),
                "mimi_name": draw(
                    st.none() | st.sampled_from(["mimi.safetensors", "1e-8", "no", "ключ", "a b: #c"])
                ),
                "codec": draw(st.none() | codec),
            },
            "text_vocab_size": texts,
            "text_embedding_rows": texts + 1,
            "audio_vocab_size": card,
            "num_audio_codebooks": 2 * n_codebooks,
        }
    )


@pytest.mark.parametrize("style", ["yaml", "json"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=valid_trees())
def test_what_is_written_loads_again(tmp_path: Path, style: Any, config: PersonaPlexConfig) -> None:
    text = render_config(config, style)
    assert text.isascii()
    loaded = load_config(written(tmp_path, text, f"c.{style}"))
    assert loaded.config == config
    assert config_hash(loaded.config) == config_hash(config)
    assert "default" not in loaded.origins.values()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=valid_trees())
def test_one_set_for_each_value_rebuilds_a_tree(config: PersonaPlexConfig) -> None:
    overrides = [
        f"{section}.{key}={json.dumps(value)}"
        for section in ("temporal_config", "depformer_config", "mimi_config")
        for key, value in config.model_dump(mode="json")[section].items()
        if section != "mimi_config" or key != "codec"
    ]
    tops = ("text_vocab_size", "text_embedding_rows", "audio_vocab_size", "num_audio_codebooks")
    overrides += [f"{key}={getattr(config, key)}" for key in tops]
    without_codec = config.mimi_config.model_copy(update={"codec": None})
    assert load_config(None, overrides).config == config.model_copy(update={"mimi_config": without_codec})


def test_json_names_the_type_of_every_section_as_hugging_face_does() -> None:
    values = json.loads(render_config(PUBLISHED, "json"))
    sections = ("temporal_config", "depformer_config", "mimi_config")
    types = [values["model_type"], *(values[section]["model_type"] for section in sections)]
    assert types == ["personaplex", "helium", "personaplex_depformer", "personaplex_mimi"]


def test_the_schema_names_and_describes_every_value_and_forbids_others() -> None:
    schema = json.loads(render_schema())
    sections = [schema, *(known for known in schema["$defs"].values() if "properties" in known)]
    assert [section["title"] for section in sections] == [
        "PersonaPlexConfig",
        "HeliumConfig",
        "MimiCodecConfig",
        "PersonaPlexDepformerConfig",
        "PersonaPlexMimiConfig",
    ]
    for section in sections:
        assert section["additionalProperties"] is False
        for key, value in section["properties"].items():
            assert value["description"], key
    assert schema["$defs"]["HeliumConfig"]["properties"]["attention_bias"]["const"] is False


def test_the_hash_tells_trees_apart_and_is_the_same_in_every_process() -> None:
    program = (
        "from personaplex_cli.config.load import *; from personaplex_cli.config.tree import *;"
        "print(config_hash(PersonaPlexConfig()))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == config_hash(PUBLISHED)
    assert len(config_hash(PUBLISHED)) == 64
    changed = load_config(None, ["mimi_config.sine_codes=[0, 0, 0, 0, 0, 0, 0, 0]"]).config
    assert config_hash(changed) != config_hash(PUBLISHED)
