"""The engine against the reference's results, a slow version, moshi's LMGen, and itself in other batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch
from moshi.models.lm import LMGen, LMModel
from moshi.utils.compile import no_compile
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from personaplex_cli.config.load import load_config
from personaplex_cli.config.tree import PAD, PersonaPlexConfig
from personaplex_cli.engine import slots as slots_room
from personaplex_cli.engine import step as step_room
from personaplex_cli.engine.generate import generate
from personaplex_cli.engine.graph import StepGraphs
from personaplex_cli.engine.sampling import Draws
from personaplex_cli.engine.slots import PROMPTS_KEPT, Slots
from personaplex_cli.engine.step import Block, read_prompt
from personaplex_cli.engine.turns import FREE, Prompt, Reply, Turn, lay_out
from personaplex_cli.model.lm import Lm
from personaplex_cli.model.ring import (
    KeysAndValues,
    joined,
    masked_reach,
    read_shared,
    rounded_reaches,
    weighed_attention,
)
from personaplex_cli.model.transformer import rotate, rotation
from personaplex_cli.model.weights import load_lm
from personaplex_cli.prompt import Voice, load_voice, make_prompt
from personaplex_cli.settings import Sampling
from tests import reference
from tests.conftest import CPU, GOLDEN, random_lm

GREEDY = Sampling(greedy=True)


@dataclass
class Case:
    """One golden LM folder."""

    folder: Path
    config: PersonaPlexConfig
    lm: Lm
    inputs: dict[str, Tensor]
    expected: dict[str, Tensor]

    def prompt(self, voice: str) -> Prompt:
        codes = self.inputs["voice_codes"]
        given = Voice(codes.shape[1], codes=codes)
        kept = given if voice == "codes" else load_voice(self.folder / "voice.pt", self.config)
        return make_prompt(kept, self.inputs["text_prompt_tokens"].tolist(), self.config)

    def turn(self, voice: str) -> Turn:
        return lay_out(self.prompt(voice), self.inputs["user_codes"], self.config, name=voice)


@pytest.fixture(scope="module", params=["lm_sixteen_sets", "lm_eight_sets"])
def case(request: pytest.FixtureRequest) -> Case:
    folder = GOLDEN / request.param
    config = load_config(folder).config
    lm = load_lm([folder / "model.safetensors"], config, dtype=torch.float32, device=CPU)
    tables = (load_file(folder / f"{name}.safetensors") for name in ("inputs", "expected"))
    return Case(folder, config, lm, *tables)


def replies(lm: Lm, turns: list[Turn], n_slots: int, sampling: Sampling = GREEDY) -> dict[int, Tensor]:
    """Tokens by the turns' places in the list."""
    place = {turn: index for index, turn in enumerate(turns)}
    return {place[r.turn]: r.tokens for r in generate(lm, turns, n_slots=n_slots, sampling=sampling)}


# --- golden ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("voice", "name"), [("codes", "tokens"), ("pt", "tokens_from_voice_pt")])
def test_tokens_are_the_references_over_all_frames(case: Case, voice: str, name: str) -> None:
    """150 frames behind a prompt of 47, in a window of 64: the ring wraps twice."""
    tokens = replies(case.lm, [case.turn(voice)], n_slots=1)[0]
    expected = case.expected[name][:9]
    assert tokens.shape == (9, 150)
    # The reference's column i is frame i - 1; its column 0 is the prompt's last silence frame.
    assert torch.equal(tokens[:, :-1], expected[:, 1:])
    assert expected[:, 0].tolist() == [PAD, *case.config.mimi_config.silence_codes]


@dataclass
class Heard:
    """What passed through some of the LM's modules, step by step."""

    hidden: list[Tensor] = field(default_factory=list)
    text_logits: list[Tensor] = field(default_factory=list)
    audio_logits: list[list[Tensor]] = field(default_factory=lambda: [[] for _ in range(8)])


@contextmanager
def overheard(lm: Lm) -> Iterator[Heard]:
    heard = Heard()
    modules = [(lm.text_linear, heard.text_logits), *zip(lm.linears, heard.audio_logits, strict=True)]
    hooks = [
        module.register_forward_hook(lambda _m, _i, out, to=to: to.append(out)) for module, to in modules
    ]
    hooks.append(lm.text_linear.register_forward_hook(lambda _m, given, _o: heard.hidden.append(given[0])))
    yield heard
    for hook in hooks:
        hook.remove()


def test_hidden_states_and_logits_are_the_references(case: Case) -> None:
    """Code logits reach 38 in these models and the reference's own rounding is 7e-5 there (the next test), so
    they get a relative allowance of 1e-5 beside the absolute one of 1e-4."""
    with overheard(case.lm) as heard:
        replies(case.lm, [case.turn("codes")], n_slots=1)
    for row, step in enumerate(case.expected["selected_steps"].tolist()):
        close(heard.hidden[step][0], case.expected["hidden"][row])
        close(heard.text_logits[step][0], case.expected["text_logits"][row])
        for k in range(8):
            close(heard.audio_logits[k][step][0], case.expected["audio_logits"][row, k], relative=1e-5)


def test_without_rounding_of_ours_all_logits_are_within_1e_4(case: Case) -> None:
    """The same mathematics in float64, where what is left is the reference's rounding."""
    exact = load_lm([case.folder / "model.safetensors"], case.config, dtype=torch.float64, device=CPU)
    with overheard(exact) as heard:
        tokens = replies(exact, [case.turn("codes")], n_slots=1)[0]
    assert torch.equal(tokens[:, :-1], case.expected["tokens"][:9, 1:])
    for row, step in enumerate(case.expected["selected_steps"].tolist()):
        close(heard.hidden[step][0], case.expected["hidden"][row])
        close(heard.text_logits[step][0], case.expected["text_logits"][row])
        for k in range(8):
            close(heard.audio_logits[k][step][0], case.expected["audio_logits"][row, k])


def close(ours: Tensor, expected: Tensor, relative: float = 0.0) -> None:
    torch.testing.assert_close(ours.float(), expected, atol=1e-4, rtol=relative)


def test_sixteen_step_sets_can_be_loaded_too_and_change_nothing() -> None:
    folder = GOLDEN / "lm_sixteen_sets"
    config = load_config(folder).config
    whole, active = (
        load_lm([folder / "model.safetensors"], config, dtype=torch.float32, device=CPU, n_steps=n)
        for n in (16, None)
    )
    assert len(whole.linears) == 16
    assert len(active.linears) == 8
    codes = torch.randint(0, 64, (8, 30), generator=torch.Generator().manual_seed(0))
    turn = lay_out(make_prompt(Voice(3, codes=codes[:, :3]), [], config), codes, config)
    assert torch.equal(replies(whole, [turn], 1)[0], replies(active, [turn], 1)[0])


# --- second ways -----------------------------------------------------------------------------------


def some_turns(config: PersonaPlexConfig, lengths: list[int]) -> list[Turn]:
    """Turns of these lengths with two personas in turn."""
    dice = torch.Generator().manual_seed(11)
    codes = torch.randint(0, 64, (8, 1000), generator=dice)
    personas = [
        make_prompt(Voice(9, codes=codes[:, :9]), list(range(20, 31)), config),
        make_prompt(Voice(0), [5, 6, 7], config),
    ]
    return [
        lay_out(personas[key % 2], codes[:, key : key + n], config, name=f"{key}.wav", seed=4)
        for key, n in enumerate(lengths)
    ]


def test_a_reply_is_what_the_slow_obvious_version_says(tiny_config: PersonaPlexConfig, tiny_lm: Lm) -> None:
    """Prompt of 32, reply of 45: past the window of 64."""
    (turn,) = some_turns(tiny_config, [45])
    table = turn.prompt.forced
    given = [
        [int(table[s, f + d]) for f in range(turn.prompt.n_frames)] for s, d in enumerate(reference.DELAYS)
    ]
    user = turn.live[9:]
    spoken = [[int(user[k, 1 + reference.DELAYS[9 + k] + f]) for f in range(45)] for k in range(8)]
    expected = reference.greedy_reply(tiny_lm.state_dict(), tiny_config, given, spoken)
    assert replies(tiny_lm, [turn], 1)[0].tolist() == expected


def moshi_twin(lm: Lm) -> LMModel:
    """PyPI moshi's LMModel with the same weights; its window is a ring that shows all it holds."""
    temporal, dep = lm.config.temporal_config, lm.config.depformer_config
    twin = LMModel(
        delays=list(lm.config.delays),
        n_q=16,
        dep_q=8,
        card=lm.config.audio_vocab_size,
        text_card=lm.config.text_vocab_size,
        dim=temporal.hidden_size,
        num_heads=temporal.num_attention_heads,
        num_layers=temporal.num_hidden_layers,
        hidden_scale=1.5 * temporal.intermediate_size / temporal.hidden_size,  # type: ignore[arg-type]
        norm="rms_norm_f32",
        context=lm.config.ring_columns,
        max_period=10000,
        gating="silu",
        positional_embedding="rope",
        depformer_dim=dep.hidden_size,
        depformer_dim_feedforward=3 * dep.intermediate_size // 2,
        depformer_num_heads=dep.num_attention_heads,
        depformer_num_layers=dep.num_hidden_layers,
        depformer_multi_linear=True,
        depformer_weights_per_step=True,
        depformer_pos_emb="none",
        depformer_gating="silu",
        depformer_context=8,
        layer_scale=None,
        depformer_layer_scale=None,
        device="cpu",
        dtype=torch.float32,
    )
    twin.load_state_dict(dict(lm.state_dict()))
    return twin.eval()


def moshi_reply(twin: LMModel, turn: Turn) -> Tensor:
    """The same turn through moshi's own step loop, given tokens forced through its hooks. -> [9, F]"""
    prompt, live = turn.prompt, turn.live
    forced = torch.cat([prompt.forced[:, : prompt.n_frames - 1], live], dim=1)
    position = 0

    def force_text(token: Tensor) -> None:
        given = forced[0, position + 1]
        if given != FREE:
            token[:] = given

    def force_codes(tokens: Tensor) -> None:
        given = forced[1:9, position + 1]
        tokens[0] = torch.where(given == FREE, tokens[0], given)

    generator = LMGen(twin, use_sampling=False, on_text_hook=force_text, on_audio_hook=force_codes)
    out = []
    with torch.no_grad(), no_compile(), generator.streaming(1):
        for position in range(turn.n_positions):
            # moshi delays the user's codes itself: give it frames.
            frame = [
                forced[9 + k, min(position + d, forced.shape[1] - 1)]
                for k, d in enumerate(reference.DELAYS[9:])
            ]
            drawn = generator.step(torch.tensor(frame)[None, :, None])
            out.append(drawn)
    frames = torch.stack([step[0, :, 0] for step in out if step is not None], dim=1)
    return frames[:, -turn.n_frames :]


def test_tokens_are_those_of_moshis_own_lmgen(tiny_config: PersonaPlexConfig) -> None:
    """An independent implementation with other random weights. Its depformer sees its own draws, not the
    forced ones, so only the first live step, whose codes 1-7 are forced and drop out, may differ inside."""
    for seed in (1, 2):
        lm = random_lm(tiny_config, seed)
        twin = moshi_twin(lm)
        for turn in some_turns(tiny_config, [60, 47]):
            ours = replies(lm, [turn], 1)[0]
            theirs = moshi_reply(twin, turn)
            assert torch.equal(ours, theirs)


# --- independence ----------------------------------------------------------------------------------

LENGTHS = [5, 70, 1, 33, 90, 12, 40, 2, 64, 63, 65]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["greedy", "sampled"])
@pytest.mark.parametrize("n_slots", [2, 3, 8])
def test_a_reply_is_bit_for_bit_the_same_alone_and_in_any_company(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm, n_slots: int, sampling: Sampling
) -> None:
    """More turns than slots: they are refilled in mid-run. Logits too, not only tokens."""
    turns = some_turns(tiny_config, LENGTHS)
    together = replies(tiny_lm, turns, n_slots, sampling)
    assert sorted(together) == list(range(len(LENGTHS)))
    backwards = replies(tiny_lm, turns[::-1], n_slots, sampling)
    for place, turn in enumerate(turns):
        alone = replies(tiny_lm, [turn], n_slots, sampling)[0]
        assert torch.equal(together[place], alone)
        assert torch.equal(backwards[len(turns) - 1 - place], alone)
        assert alone.shape == (9, turn.n_frames)


def test_hidden_states_do_not_hear_their_neighbours(tiny_config: PersonaPlexConfig, tiny_lm: Lm) -> None:
    turns = some_turns(tiny_config, [30, 50, 41, 20])
    with overheard(tiny_lm) as together:
        replies(tiny_lm, turns, 4)
    for slot, turn in enumerate(turns):
        with overheard(tiny_lm) as alone:
            replies(tiny_lm, [turn], 4)
        for step in range(turn.n_steps):
            assert torch.equal(together.hidden[step][slot], alone.hidden[step][0])


def test_any_number_of_slots_gives_the_same_tokens(tiny_config: PersonaPlexConfig, tiny_lm: Lm) -> None:
    turns = some_turns(tiny_config, LENGTHS)
    one = replies(tiny_lm, turns, 1, Sampling())
    for n_slots in (2, 5, 16):
        many = replies(tiny_lm, turns, n_slots, Sampling())
        assert all(torch.equal(one[key], many[key]) for key in one)


def test_blocks_of_any_length_give_the_same_tokens(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = some_turns(tiny_config, LENGTHS)
    expected = replies(tiny_lm, turns, 3, Sampling())
    monkeypatch.setattr(slots_room, "STEPS_A_BLOCK", 1)
    monkeypatch.setattr(slots_room, "COLUMNS_A_GROWTH", 8)
    ours = replies(tiny_lm, turns, 3, Sampling())
    assert all(torch.equal(expected[key], ours[key]) for key in expected)


def test_masked_attention_agrees_with_the_exact_one(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU does, one call for all slots with their prompts in the rings, done on the CPU."""
    turns = some_turns(tiny_config, LENGTHS)
    expected = replies(tiny_lm, turns, 4)
    monkeypatch.setattr(slots_room, "frames_apart", lambda *_: 0)
    monkeypatch.setattr(
        step_room, "reaches_of", lambda _lm, ring, frames, _n: masked_reach(frames, ring.n_columns)
    )
    ours = replies(tiny_lm, turns, 4)
    assert all(torch.equal(expected[key], ours[key]) for key in expected)


def test_attention_that_is_rounded_up_agrees_with_the_exact_one(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a CPU does in half precision, done in float32."""
    turns = some_turns(tiny_config, LENGTHS)
    expected = replies(tiny_lm, turns, 4)
    monkeypatch.setattr(
        step_room,
        "reaches_of",
        lambda _lm, ring, frames, n_visible: rounded_reaches(frames, n_visible, 8, ring.n_columns),
    )
    ours = replies(tiny_lm, turns, 4)
    assert all(torch.equal(expected[key], ours[key]) for key in expected)


def test_in_half_precision_too_a_reply_is_the_same_in_any_company(tiny_config: PersonaPlexConfig) -> None:
    lm = random_lm(tiny_config, seed=0).to(torch.bfloat16)
    turns = some_turns(tiny_config, LENGTHS)
    together = replies(lm, turns, 3, Sampling())
    for place, turn in enumerate(turns):
        assert torch.equal(replies(lm, [turn], 3, Sampling())[0], together[place])


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_rows_turn_does_not_depend_on_the_rows_beside_it(n_threads: int) -> None:
    """At the published widths, where threads share the work and may end in the midst of a vector."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        x = torch.randn(20, 32, 1, 128, generator=torch.Generator().manual_seed(1))
        turns = rotation(torch.arange(20)[:, None] * 97, 128, 10000)
        together = rotate(x, turns)
        for row in range(20):
            assert torch.equal(rotate(x[row : row + 1], turns[:, row : row + 1]), together[row : row + 1])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("n_columns", [1, 7, 64, 149])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_a_slot_sees_of_a_shared_prompt_does_not_depend_on_who_shares_it(
    dtype: torch.dtype, n_columns: int
) -> None:
    """And it is what attention over prompt and ring at once says, in float64."""
    dice = torch.Generator().manual_seed(n_columns)
    query = torch.randn(70, 4, 1, 64, generator=dice).to(dtype)
    prompt = torch.randn(2, 1, 4, n_columns, 64, generator=dice).to(dtype)
    ring = torch.randn(2, 70, 4, 5, 64, generator=dice).to(dtype)
    before = read_shared(query, *prompt)
    live = weighed_attention(query, *ring)
    together = joined(before, live)
    for rows in ([3], [0, 69], list(range(20, 37)), list(range(1, 70))):
        alone = joined(read_shared(query[rows], *prompt), weighed_attention(query[rows], *ring[:, rows]))
        assert torch.equal(alone, together[rows])
    keys, values = torch.cat([prompt.expand(-1, 70, -1, -1, -1), ring], dim=3).double()
    expected = (query.double() @ keys.transpose(-1, -2) / 8).softmax(-1) @ values
    error = (together - expected).norm() / expected.norm()
    assert error < {torch.float32: 1e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}[dtype]


def test_a_step_that_is_run_again_on_new_inputs_gives_the_same_tokens(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Past the window of 63, with turns that come and go and a ring that grows.
    turns = some_turns(tiny_config, [70, 20, 30, 5])
    expected = replies(tiny_lm, turns, 2, Sampling())
    begin = Slots.__init__

    def begin_with_graphs(slots: Slots, lm: Lm, n_slots: int, draws: Draws) -> None:
        begin(slots, lm, n_slots, draws)
        slots.graphs = StepGraphs(lm, slots.ring, n_slots, draws)

    monkeypatch.setattr(Slots, "__init__", begin_with_graphs)
    monkeypatch.setattr(slots_room, "frames_apart", lambda *_: 0)
    monkeypatch.setattr(slots_room, "COLUMNS_A_GROWTH", 32)
    monkeypatch.setattr(step_room, "COLUMNS_A_READ", 16)
    ours = replies(tiny_lm, turns, 2, Sampling())
    assert all(torch.equal(expected[key], ours[key]) for key in expected)


def test_where_no_graph_can_be_made_the_step_is_run_as_it_is(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(tiny_lm, 2, Draws.of(Sampling(), tiny_config))
    graphs = StepGraphs(tiny_lm, slots.ring, 2, slots.draws)

    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(StepGraphs, "record", refuse)
    with pytest.warns(UserWarning, match="no CUDA graph of a step can be made, so it will be slower"):
        output, again = graphs.record_or_run(lambda: torch.ones(2))
    assert output.tolist() == [1, 1]
    again()


def test_nothing_that_an_empty_slot_holds_reaches_a_reply(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm
) -> None:
    """The rings of all slots are spoilt with NaN before anybody sits down."""
    turns = some_turns(tiny_config, [20, 70])
    expected = replies(tiny_lm, turns, 3)

    class Spoilt(slots_room.Slots):
        def make_room(self, turn: Turn) -> None:
            before = self.ring.n_columns
            super().make_room(turn)
            for layer in (*self.ring.keys, *self.ring.values):
                layer[:, :, before:] = torch.nan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("personaplex_cli.engine.generate.Slots", Spoilt)
        ours = replies(tiny_lm, turns, 3)
    assert all(torch.equal(expected[key], ours[key]) for key in expected)


# --- work that is not done -------------------------------------------------------------------------


def test_a_persona_is_read_once_and_in_one_pass(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Prompt] = []
    monkeypatch.setattr(
        slots_room, "read_prompt", lambda lm, prompt: read.append(prompt) or read_prompt(lm, prompt)
    )
    calls: list[int] = []
    hook = tiny_lm.transformer.register_forward_hook(lambda _m, given, _o: calls.append(given[0].shape[1]))
    turns = some_turns(tiny_config, [10] * 6)
    replies(tiny_lm, turns, 2)
    hook.remove()
    assert len(read) == 2
    assert sorted(n for n in calls if n > 1) == sorted({turn.prompt.n_frames - 1 for turn in turns})
    assert calls.count(1) == 3 * 11


def with_personas(config: PersonaPlexConfig, n_personas: int, n_turns: int) -> list[Turn]:
    """Turns of ten frames, whose personas take turns."""
    user = torch.zeros(8, 10, dtype=torch.long)
    personas = [make_prompt(Voice(0), [5, key], config) for key in range(n_personas)]
    return [lay_out(personas[key % n_personas], user, config, name=f"{key}") for key in range(n_turns)]


def test_what_somebody_still_shares_is_not_read_again(tiny_config: PersonaPlexConfig, tiny_lm: Lm) -> None:
    n_personas = PROMPTS_KEPT + 3
    slots = Slots(tiny_lm, 2 * n_personas, Draws.of(GREEDY, tiny_config))
    slots.admit(iter(with_personas(tiny_config, n_personas, 2 * n_personas)))
    shared = slots.next_block().shared[0]
    assert len(shared) == n_personas
    assert len({each.past for each in shared}) == n_personas
    assert len(slots.prompts.held) == n_personas
    del shared
    list(slots.retire(slots.run(slots.next_block())))
    assert len(slots.prompts.held) == PROMPTS_KEPT


def test_turns_that_begin_again_leave_their_prompts_memory_behind(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: WeakSet[KeysAndValues] = WeakSet()
    run, runs = Slots.run, []

    def remembered(lm: Lm, prompt: Prompt) -> KeysAndValues:
        past = read_prompt(lm, prompt)
        alive.add(past)
        return past

    def run_short_of_memory(slots: Slots, block: Block) -> Tensor:
        runs.append(len(alive))
        if len(runs) == 1:
            raise MemoryError
        return run(slots, block)

    monkeypatch.setattr(slots_room, "read_prompt", remembered)
    monkeypatch.setattr(Slots, "run", run_short_of_memory)
    turns = with_personas(tiny_config, 6, 6)
    assert len(list(generate(tiny_lm, turns, n_slots=6, sampling=GREEDY))) == 6
    # Three slots at first, and those that they had before.
    assert runs == [6, 3, 6]


def test_a_prompt_that_nobody_sees_any_more_is_let_go(tiny_config: PersonaPlexConfig, tiny_lm: Lm) -> None:
    (turn,) = some_turns(tiny_config, [90])
    slots = Slots(tiny_lm, 1, Draws.of(GREEDY, tiny_config))
    slots.admit(iter([turn]))
    (seat,) = slots.occupied
    seen = []
    while slots.occupied:
        seen.append(seat.past is not None)
        list(slots.retire(slots.run(slots.next_block())))
    # The window of 63 holds the prompt's last column until 63 steps have been made.
    assert seen == [True, True, False]


class NoWordToTheHost(TorchDispatchMode):
    """Fails where an operator would make the host wait for the device."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "_to_copy")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        to_host = name == "_to_copy" and "device" in (kwargs or {})
        assert name not in self.WAITING[:-1], f"{name} synchronises"
        assert not to_host, "a copy between host and device"
        return func(*args, **(kwargs or {}))


def test_the_host_hears_nothing_within_a_block(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(*args: Any) -> Tensor:
        with NoWordToTheHost():
            return step_room.run_block(*args)

    turns = some_turns(tiny_config, [40, 20])
    expected = replies(tiny_lm, turns, 2, Sampling())
    monkeypatch.setattr(slots_room, "run_block", watched)
    ours = replies(tiny_lm, turns, 2, Sampling())
    assert all(torch.equal(expected[key], ours[key]) for key in expected)
    with pytest.raises(AssertionError, match="synchronises"), NoWordToTheHost():
        torch.ones(1).item()


def test_prompt_frames_and_other_step_sets_cost_no_depformer_step(case: Case) -> None:
    with overheard(case.lm) as heard:
        replies(case.lm, [case.turn("codes")], 1)
    assert [len(logits) for logits in heard.audio_logits] == [151] * 8


def test_turns_are_taken_only_as_slots_fall_free(tiny_config: PersonaPlexConfig, tiny_lm: Lm) -> None:
    taken: list[str] = []

    def waiting() -> Iterator[Turn]:
        for turn in some_turns(tiny_config, [10] * 9):
            taken.append(turn.name)
            yield turn

    finished: list[Reply] = []
    for reply in generate(tiny_lm, waiting(), n_slots=2, sampling=GREEDY):
        finished.append(reply)
        assert len(taken) <= len(finished) + 2
    assert len(finished) == 9


def test_frames_are_counted_as_they_are_done(tiny_config: PersonaPlexConfig, tiny_lm: Lm) -> None:
    turns, counted = some_turns(tiny_config, [10, 20, 5]), []
    replies = generate(
        tiny_lm, turns, n_slots=2, sampling=GREEDY, on_frames=lambda *frames: counted.append(frames)
    )
    assert len(list(replies)) == 3
    n_frames, n_places = (sum(column) for column in zip(*counted, strict=True))
    assert n_frames == sum(turn.n_frames for turn in turns)
    # The second slot takes 20 frames while the first takes 10 and then 5; each has one step more.
    assert n_places == 2 * 21


def test_slots_are_rarely_idle_where_long_turns_come_first(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm
) -> None:
    chance = random.Random(200)
    lengths = sorted((round(chance.lognormvariate(3, 0.7)) + 1 for _ in range(200)), reverse=True)
    n_frames, n_places = 0, 0

    def count(frames: int, places: int) -> None:
        nonlocal n_frames, n_places
        n_frames += frames
        n_places += places

    turns = some_turns(tiny_config, lengths)
    assert len(list(generate(tiny_lm, turns, n_slots=16, sampling=GREEDY, on_frames=count))) == 200
    assert n_frames == sum(lengths)
    assert n_frames > 0.9 * n_places


def test_where_the_memory_runs_out_turns_begin_again_in_half_the_slots(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = some_turns(tiny_config, [40, 10, 20, 5, 30])
    expected = {reply.turn: reply for reply in generate(tiny_lm, turns, n_slots=4, sampling=GREEDY)}
    run, n_runs = Slots.run, 0

    def run_short_of_memory(slots: Slots, block: Block) -> Tensor:
        nonlocal n_runs
        n_runs += 1
        if n_runs in (3, 5):
            raise MemoryError
        return run(slots, block)

    monkeypatch.setattr(Slots, "run", run_short_of_memory)
    counted: list[int] = []
    shrunk: list[tuple[int, int]] = []
    replies = generate(
        tiny_lm,
        turns,
        n_slots=4,
        sampling=GREEDY,
        on_frames=lambda n_frames, _: counted.append(n_frames),
        on_shrink=lambda *sizes: shrunk.append(sizes),
    )
    answered = [(reply.turn, reply.tokens) for reply in replies if isinstance(reply, Reply)]
    assert [n_slots for n_slots, _ in shrunk] == [2, 1]
    assert sum(counted) == sum(turn.n_frames for turn in turns)
    assert len(answered) == len(turns)
    assert all(torch.equal(tokens, expected[turn].tokens) for turn, tokens in answered)


def test_an_error_that_is_no_want_of_memory_is_raised(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(Slots, "run", broken)
    replies = generate(tiny_lm, some_turns(tiny_config, [5]), n_slots=2, sampling=GREEDY)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        list(replies)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_float32(case: Case, dtype: torch.dtype) -> None:
    """Near ties flip, so tokens are not compared, but the first live step's logits, before any draw."""
    half = load_lm([case.folder / "model.safetensors"], case.config, dtype=dtype, device=CPU)
    with overheard(half) as heard:
        tokens = replies(half, [case.turn("codes")], 1)[0]
    expected = case.expected["text_logits"][0]
    assert tokens.shape == (9, 150)
    relative = (heard.text_logits[0][0].float() - expected).norm() / expected.norm()
    assert relative < (0.05 if dtype == torch.bfloat16 else 0.01)


@pytest.mark.gpu
def test_a_gpu_says_the_same_in_float32(case: Case) -> None:
    lm = load_lm(
        [case.folder / "model.safetensors"], case.config, dtype=torch.float32, device=torch.device("cuda")
    )
    tokens = replies(lm, [case.turn("codes"), case.turn("pt")], 3)
    assert torch.equal(tokens[0][:, :-1], case.expected["tokens"][:9, 1:])
    assert torch.equal(tokens[1][:, :-1], case.expected["tokens_from_voice_pt"][:9, 1:])


def test_what_is_kept_of_a_prompt_and_of_a_seat_is_no_view_of_more(
    tiny_config: PersonaPlexConfig, tiny_lm: Lm
) -> None:
    (turn,) = some_turns(tiny_config, [40])
    past = read_prompt(tiny_lm, turn.prompt)
    for kept in (*past.keys, *past.values):
        assert kept.untyped_storage().nbytes() == kept.nbytes
    slots = slots_room.Slots(tiny_lm, 8, Draws.of(GREEDY, tiny_config))
    slots.admit(iter([turn]))
    list(slots.retire(slots.run(slots.next_block())))
    (seat,) = slots.occupied
    assert all(drawn.untyped_storage().nbytes() == drawn.nbytes for drawn in seat.drawn)
