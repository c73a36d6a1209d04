"""Loading: the published layout at full size, strictness, and one copy in memory."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from personaplex_cli.config.facts import expected_tensors
from personaplex_cli.config.load import load_config
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.errors import WeightsError
from personaplex_cli.model.lm import Lm
from personaplex_cli.model.weights import load_lm
from tests.conftest import CPU, GOLDEN

EIGHT = GOLDEN / "lm_eight_sets"


def load(folder: Path, config: PersonaPlexConfig, **kwargs: object) -> Lm:
    return load_lm(sorted(folder.glob("*.safetensors")), config, dtype=torch.float32, device=CPU, **kwargs)  # type: ignore[arg-type]


def shapes(lm: Lm) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in lm.state_dict().items()}


def test_the_full_size_model_has_the_published_names_and_shapes() -> None:
    """475 tensors and 8.37 B parameters, from the modules themselves and from a list written out by hand."""
    config = PersonaPlexConfig()
    with torch.device("meta"):
        lm = Lm(config, n_steps=16)
    found = shapes(lm)
    assert found == expected_tensors(config) == published_layout()
    assert len(found) == 475
    assert sum(tensor.numel() for tensor in lm.state_dict().values()) == 8_371_408_896


def published_layout() -> dict[str, tuple[int, ...]]:
    layout: dict[str, tuple[int, ...]] = {
        "out_norm.alpha": (1, 1, 4096),
        "text_emb.weight": (32001, 4096),
        "text_linear.weight": (32000, 4096),
        "depformer_text_emb.weight": (32001, 1024),
    }
    for i in range(32):
        layer = f"transformer.layers.{i}"
        layout[f"{layer}.self_attn.in_proj_weight"] = (12288, 4096)
        layout[f"{layer}.self_attn.out_proj.weight"] = (4096, 4096)
        layout[f"{layer}.gating.linear_in.weight"] = (22528, 4096)
        layout[f"{layer}.gating.linear_out.weight"] = (4096, 11264)
        layout[f"{layer}.norm1.alpha"] = layout[f"{layer}.norm2.alpha"] = (1, 1, 4096)
    for i in range(16):
        layout[f"emb.{i}.weight"] = (2049, 4096)
        layout[f"depformer_in.{i}.weight"] = (1024, 4096)
        layout[f"linears.{i}.weight"] = (2048, 1024)
    for i in range(15):
        layout[f"depformer_emb.{i}.weight"] = (2049, 1024)
    for i in range(6):
        layer = f"depformer.layers.{i}"
        layout[f"{layer}.self_attn.in_proj_weight"] = (16 * 3072, 1024)
        layout[f"{layer}.self_attn.out_proj.weight"] = (16 * 1024, 1024)
        layout[f"{layer}.norm1.alpha"] = layout[f"{layer}.norm2.alpha"] = (1, 1, 1024)
        for k in range(16):
            layout[f"{layer}.gating.{k}.linear_in.weight"] = (5632, 1024)
            layout[f"{layer}.gating.{k}.linear_out.weight"] = (1024, 2816)
    return layout


def test_only_the_active_step_sets_are_loaded() -> None:
    folder = GOLDEN / "lm_sixteen_sets"
    config = load_config(folder).config
    lm = load_lm([folder / "model.safetensors"], config, dtype=torch.float32, device=CPU)
    held = load_file(folder / "model.safetensors")
    assert shapes(lm) == expected_tensors(config, 8)
    name = "depformer.layers.1.self_attn.in_proj_weight"
    assert torch.equal(lm.state_dict()[name], held[name][: 8 * 96])
    assert not any(".gating.8." in name or name.startswith("linears.8") for name in lm.state_dict())


def test_every_value_arrives() -> None:
    config = load_config(EIGHT).config
    lm = load_lm([EIGHT / "model.safetensors"], config, dtype=torch.float32, device=CPU)
    held = load_file(EIGHT / "model.safetensors")
    assert all(torch.equal(tensor, held[name].float()) for name, tensor in lm.state_dict().items())
    assert not any(parameter.requires_grad or parameter.is_meta for parameter in lm.parameters())


def test_shards_give_the_same_model(tmp_path: Path) -> None:
    config = load_config(EIGHT).config
    held = load_file(EIGHT / "model.safetensors")
    names = sorted(held)
    save_file({name: held[name] for name in names[::2]}, tmp_path / "a.safetensors")
    save_file({name: held[name] for name in names[1::2]}, tmp_path / "b.safetensors")
    lm = load(tmp_path, config)
    assert all(torch.equal(tensor, held[name].float()) for name, tensor in lm.state_dict().items())


def test_a_tensor_that_stands_in_two_shards_is_refused(tmp_path: Path) -> None:
    held = load_file(EIGHT / "model.safetensors")
    save_file(held, tmp_path / "a.safetensors")
    save_file({"out_norm.alpha": held["out_norm.alpha"]}, tmp_path / "b.safetensors")
    with pytest.raises(WeightsError, match="1 tensors stand in two of its files"):
        load(tmp_path, load_config(EIGHT).config)


def test_an_error_lists_every_missing_unexpected_and_misshapen_name(tmp_path: Path) -> None:
    config = load_config(EIGHT).config
    held = load_file(EIGHT / "model.safetensors")
    del held["out_norm.alpha"], held["emb.3.weight"]
    held["text_linear.bias"] = torch.zeros(512)
    held["text_emb.weight"] = torch.zeros(7, 48)
    save_file(held, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as refusal:
        load(tmp_path, config)
    message = refusal.value.message
    assert "4 tensors differ" in message
    assert "give the tree that belongs to these weights (--config, --set), or download" in message
    assert "missing: out_norm.alpha [1, 1, 48]" in message
    assert "missing: emb.3.weight [65, 48]" in message
    assert "unexpected: text_linear.bias [512]" in message
    assert "shape: text_emb.weight is [7, 48], must be [513, 48]" in message


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"<html>404</html>")
    with pytest.raises(WeightsError, match=r"model\.safetensors: not a readable safetensors file"):
        load(tmp_path, load_config(EIGHT).config)


def test_weights_of_the_right_dtype_stay_memory_mapped(tmp_path: Path) -> None:
    """200 MB of weights: resident memory grows by far less, since nothing is copied."""
    changes = ["hidden_size=1024", "head_dim=256", "intermediate_size=2816"]
    config = load_config(EIGHT, [f"temporal_config.{change}" for change in changes]).config
    with torch.device("meta"):
        lm = Lm(config)
    save_file(
        {name: torch.zeros(like.shape) for name, like in lm.state_dict().items()}, tmp_path / "m.safetensors"
    )
    size = (tmp_path / "m.safetensors").stat().st_size
    before = memory_in("RssAnon")
    loaded = load(tmp_path, config)
    assert size > 150e6
    assert memory_in("RssAnon") - before < 0.1 * size
    assert loaded.dtype == torch.float32


def test_the_full_size_checkpoint_loads_without_a_copy(tmp_path: Path) -> None:
    """16.7 GB in the published layout as a file of holes: names, shapes, step sets and mapping are real."""
    config = PersonaPlexConfig()
    path = hollow_checkpoint(tmp_path / "model.safetensors", expected_tensors(config))
    assert path.stat().st_size > 16.7e9
    before = memory_in("RssAnon")
    lm = load_lm([path], config, dtype=torch.bfloat16, device=CPU)
    assert memory_in("RssAnon") - before < 0.2e9
    assert shapes(lm) == expected_tensors(config, 8)
    assert sum(weight.numel() for weight in lm.parameters()) == 7_687_729_152


def hollow_checkpoint(path: Path, layout: dict[str, tuple[int, ...]]) -> Path:
    """A safetensors file whose tensors are all zero and take no room on the disk."""
    header, end = {}, 0
    for name, shape in layout.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    if path.stat().st_blocks * 512 > 1e9:
        pytest.skip("this file system has no sparse files")
    return path


def memory_in(field: str) -> int:
    """Bytes of this process's memory by the system's own account: RssAnon = what no file backs."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc to tell mapped memory from copied memory")
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields[field].split()[0]) * 1024


def test_the_published_config_json_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert load_config(tmp_path).config == PersonaPlexConfig()
