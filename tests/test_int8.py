"""int8: exact whole-number products by two ways, rows that feel no other, loading, quality; bfloat16."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from personaplex_cli.config.facts import is_linear, weight_bytes
from personaplex_cli.config.load import load_config
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.generate import generate
from personaplex_cli.engine.turns import Reply, Turn, lay_out
from personaplex_cli.errors import SettingsError
from personaplex_cli.model import linear as linear_room
from personaplex_cli.model.device import choose_dtype
from personaplex_cli.model.linear import (
    Int8Weight,
    linear,
    onednn_is_exact,
    packed_product,
    plain_product,
    quantise,
    quantise_activations,
    widened_product,
)
from personaplex_cli.model.lm import Lm
from personaplex_cli.model.weights import build_lm, load_lm
from personaplex_cli.prompt import Voice, make_prompt
from personaplex_cli.settings import Sampling
from tests import quality
from tests.conftest import CPU, GOLDEN
from tests.helpers import converted, record
from tests.test_weights import memory_in

EIGHT = GOLDEN / "lm_eight_sets"
PRODUCTS = [
    pytest.param(
        packed_product, marks=pytest.mark.skipif(not onednn_is_exact(), reason="no oneDNN with VNNI here")
    ),
    widened_product,
    plain_product,
]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.fixture(params=PRODUCTS)
def weight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Int8Weight:
    """[320, 1056] in each kind of product: neither number is a whole number of blocks."""
    monkeypatch.setattr(linear_room, "exact_product", request.param)
    return Int8Weight(noise(320, 1056))


# --- products --------------------------------------------------------------------------------------


def test_a_product_is_what_whole_numbers_say(weight: Int8Weight) -> None:
    """The second way: sums of integers in 64 bits, scaled afterwards."""
    x = noise(7, 1056, seed=1)
    numbers, scales = quantise(noise(320, 1056))
    activations, row_scales = quantise_activations(x)
    sums = (activations.long() - 128) @ numbers.long().T
    expected = (sums.float() * scales) * row_scales
    assert torch.equal(weight.product(x), expected.bfloat16())


def test_a_product_is_near_the_float_one(weight: Int8Weight) -> None:
    x = noise(7, 1056, seed=1)
    exact = x.float() @ noise(320, 1056).float().T
    assert float((weight.product(x).float() - exact).norm() / exact.norm()) < 0.015


@pytest.mark.parametrize("n_rows", [1, 2, 5, 16, 33])
def test_a_row_does_not_feel_how_many_there_are(weight: Int8Weight, n_rows: int) -> None:
    x = noise(40, 1056, seed=2)
    assert torch.equal(weight.product(x[:n_rows]), weight.product(x)[:n_rows])


@pytest.mark.parametrize("neighbour", [1e30, 0.0, float("inf"), float("nan")])
def test_a_row_does_not_feel_what_its_neighbours_are(weight: Int8Weight, neighbour: float) -> None:
    x = noise(5, 1056, seed=3)
    among = x.clone()
    among[2] = neighbour
    others = [0, 1, 3, 4]
    assert torch.equal(weight.product(among)[others], weight.product(x)[others])


def test_zeros_stay_zeros(weight: Int8Weight) -> None:
    assert not weight.product(torch.zeros(3, 1056)).any()
    assert not Int8Weight(torch.zeros(8, 16)).product(torch.ones(2, 16)).any()


def test_frames_of_a_prompt_are_rows_too(weight: Int8Weight) -> None:
    x = noise(2, 3, 1056, seed=4)
    assert torch.equal(weight.product(x), weight.product(x.flatten(0, 1)).view(2, 3, 320))


def test_numbers_are_rounded_to_the_nearest() -> None:
    activations, scales = quantise_activations(torch.tensor([[127.0, 0.4, 0.6, -0.4, -0.6, -127.0]]))
    assert activations.tolist() == [[255, 128, 129, 128, 127, 1]]
    assert scales.tolist() == [[1.0]]
    numbers, _ = quantise(torch.tensor([[-127.0, 0.4, 0.6, 126.6]]))
    assert numbers.tolist() == [[-127, 0, 1, 127]]


def test_step_sets_that_are_stacked_have_products_of_their_own() -> None:
    stacked, x = noise(24, 32), noise(2, 32, seed=1)
    weight = Int8Weight(stacked, n_sets=3)
    for step in range(3):
        alone = Int8Weight(stacked[8 * step : 8 * step + 8])
        assert torch.equal(weight.product(x, step), alone.product(x))


def test_without_onednn_and_vnni_numbers_are_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    x, fast = noise(3, 64, seed=1), Int8Weight(noise(16, 64))
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert not onednn_is_exact()
    for other in ("packed_product", "plain_product"):
        monkeypatch.setattr(linear_room, other, None)
    assert torch.equal(Int8Weight(noise(16, 64)).product(x), fast.product(x))


def test_widened_sums_are_whole_where_they_are_largest() -> None:
    numbers = torch.full((2, 22528), 127, dtype=torch.int8)
    numbers[1] = -127
    # 0 stands for -128, which not even a row that is no number goes beyond.
    for activation in (0, 1, 255):
        sums = widened_product(numbers, torch.ones(2))(torch.full((1, 22528), activation, dtype=torch.uint8))
        whole = (activation - 128) * 127 * 22528
        assert sums.tolist() == [[float(np.float32(whole)), float(np.float32(-whole))]]


# --- bfloat16 on a CPU that has no products in it ---------------------------------------------------


@pytest.mark.parametrize("n_rows", [1, 3, 4, 40])
def test_a_product_in_bfloat16_is_rounded_once(monkeypatch: pytest.MonkeyPatch, n_rows: int) -> None:
    monkeypatch.setattr(linear_room, "is_slow_in_bfloat16", lambda: True)
    x, weight = noise(n_rows, 1056, seed=1), noise(2 * 320, 1056)
    out = linear(x, weight, step=1, n_sets=2)
    assert out.dtype == torch.bfloat16
    exact = x.double() @ weight[320:].double().T
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-4)


def test_only_many_rows_in_bfloat16_are_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    widened = []
    monkeypatch.setattr(linear_room, "linear_in_float32", lambda x, _: widened.append(x.shape))
    for slow in (True, False):
        monkeypatch.setattr(linear_room, "is_slow_in_bfloat16", lambda slow=slow: slow)
        for x in (noise(3, 64), noise(4, 64), noise(4, 64).float(), noise(2, 2, 64)):
            linear(x, noise(16, 64).to(x.dtype))
    assert widened == [(4, 64), (2, 2, 64)]


@pytest.mark.gpu
@pytest.mark.parametrize("n_rows", [1, 16, 40])
def test_a_gpu_multiplies_as_the_cpu_does(n_rows: int) -> None:
    x, weight = noise(n_rows, 1056, seed=1), noise(320, 1056)
    on_gpu = Int8Weight(weight.cuda()).product(x.cuda())
    torch.testing.assert_close(on_gpu.cpu(), Int8Weight(weight).product(x), rtol=0.01, atol=1e-3)


# --- the model -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def config() -> PersonaPlexConfig:
    return load_config(EIGHT).config


@pytest.fixture(scope="module")
def lm(config: PersonaPlexConfig) -> Lm:
    return load_lm([EIGHT / "model.safetensors"], config, dtype=torch.int8, device=CPU)


def test_weights_of_products_are_in_int8_and_all_else_in_bfloat16(lm: Lm) -> None:
    held = load_file(EIGHT / "model.safetensors")
    left = lm.state_dict()
    assert left.keys() == {name for name in held if not is_linear(name)}
    assert all(torch.equal(tensor, held[name].bfloat16()) for name, tensor in left.items())
    assert lm.dtype == torch.bfloat16


def test_every_product_is_with_its_own_weight(lm: Lm) -> None:
    """Against float32, with each step set of the depformer."""
    held = load_file(EIGHT / "model.safetensors")
    names = [name for name in held if is_linear(name)]
    exact = load_lm([EIGHT / "model.safetensors"], lm.config, dtype=torch.float32, device=CPU)
    pairs = list(zip(lm.linear_weights(), exact.linear_weights(), strict=True))
    assert len(pairs) == len(names)
    for (ours, n_sets), (theirs, n_others) in pairs:
        assert isinstance(ours, Int8Weight)
        assert (ours.shape, n_sets) == (theirs.shape, n_others)
        x = noise(4, ours.shape[1])
        for step in range(n_sets):
            found = linear_room.linear(x.float(), ours, step, n_sets)
            expected = linear_room.linear(x.float(), theirs, step, n_sets)
            assert float((found - expected).norm() / expected.norm()) < 0.03


def test_memory_is_reckoned_as_it_is_held(lm: Lm, config: PersonaPlexConfig) -> None:
    tables = sum(tensor.nbytes for tensor in lm.state_dict().values())
    products = sum(weight.nbytes for weight, _ in lm.linear_weights())
    assert weight_bytes(config, "int8") == tables + products


def turns(config: PersonaPlexConfig, n_turns: int) -> list[Turn]:
    codes = torch.randint(0, 64, (8, 200), generator=torch.Generator().manual_seed(5))
    prompt = make_prompt(Voice(9, codes=codes[:, :9]), [5, 6, 7], config)
    return [
        lay_out(prompt, codes[:, 10 * key : 10 * key + 20], config, name=f"{key}") for key in range(n_turns)
    ]


def test_a_reply_is_the_same_alone_and_in_company(lm: Lm, config: PersonaPlexConfig) -> None:
    company = turns(config, 3)

    def replies(some: list[Turn]) -> dict[str, list[list[int]]]:
        answered = generate(lm, some, n_slots=3, sampling=Sampling())
        return {reply.turn.name: reply.tokens.tolist() for reply in answered if isinstance(reply, Reply)}

    together = replies(company)
    assert len(together) == 3
    assert all(replies([turn])[turn.name] == together[turn.name] for turn in company)


def test_weights_can_be_made_instead_of_read(config: PersonaPlexConfig) -> None:
    lm = build_lm(config, lambda _, shape: torch.full(shape, 1 / 64), dtype=torch.int8, device=CPU)
    assert all(isinstance(weight, Int8Weight) for weight, _ in lm.linear_weights())
    with torch.inference_mode():
        assert bool(lm.text_logits(noise(2, 48)).isfinite().all())


def test_what_was_quantised_does_not_stay_mapped(tmp_path: Path) -> None:
    """150 MB of bfloat16: half of it is held, and of the file only what is not copied may be resident."""
    changes = ["hidden_size=1536", "head_dim=384", "intermediate_size=4096"]
    config = load_config(EIGHT, [f"temporal_config.{change}" for change in changes]).config
    with torch.device("meta"):
        lm = Lm(config)
    path = tmp_path / "m.safetensors"
    save_file({name: torch.zeros(like.shape).bfloat16() for name, like in lm.state_dict().items()}, path)
    assert path.stat().st_size > 150e6
    before = memory_in("RssFile")
    loaded = load_lm([path], config, dtype=torch.int8, device=CPU)
    assert memory_in("RssFile") - before < 0.2 * path.stat().st_size
    assert loaded.dtype == torch.bfloat16


def test_where_there_is_no_such_product_int8_is_refused(config: PersonaPlexConfig) -> None:
    with pytest.raises(SettingsError, match="--dtype int8: there is no such product on mps; use --dtype bf"):
        choose_dtype("int8", torch.device("mps"), config)
    assert choose_dtype("int8", CPU, config) == "int8"


def test_convert_answers_in_int8_and_says_so(tmp_path: Path) -> None:
    source = record(tmp_path / "a.wav")
    options = ["--model", GOLDEN / "checkpoint", "--text-prompt", "", "--dtype", "int8", "--quiet"]
    converted(source, tmp_path / "out", *options)
    assert json.loads((tmp_path / "out" / "a.json").read_text(encoding="utf-8"))["dtype"] == "int8"


# --- quality ---------------------------------------------------------------------------------------


def test_teacher_forcing_in_float32_says_what_float32_has_said() -> None:
    """The table of tokens that all types read is the one that the model saw."""
    config = load_config(EIGHT).config
    turn = quality.golden_turn(EIGHT, config)
    exact = quality.load(EIGHT, config, "float32")
    said = quality.greedy(exact, turn)
    columns = quality.columns_of(turn, said, config)
    text, codes = quality.logits(exact, columns, turn.prompt.n_frames - 1)
    drawn = columns[turn.prompt.n_frames :, : 1 + codes.shape[1]]
    live = turn.live[: 1 + codes.shape[1], 1 : 1 + len(drawn)].T < 0
    heard = torch.cat([text.argmax(-1)[:, None], codes.argmax(-1)], dim=1)
    assert torch.equal(heard[live], drawn[live])


@pytest.mark.parametrize("model", quality.MODELS)
def test_quality_is_what_was_measured(model: str) -> None:
    """With room: measured were errors of 0.03 and 0.07, equal tokens of 0.97 and 0.91, in the worst model."""
    *_, int8 = quality.rows(model)
    assert int8.dtype == "int8"
    assert int8.text_error < 0.05
    assert int8.code_error < 0.1
    assert int8.text_top1 > 0.9
    assert int8.code_top1 > 0.85
