"""Delays and turns, against lists."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.turns import (
    FREE,
    Prompt,
    Reply,
    add_delays,
    initial_column,
    lay_out,
    on_stream_timeline,
    remove_delays,
    user_codes,
)
from tests import reference

CONFIG = PersonaPlexConfig()


def random_frames(n_frames: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 2048, (17, n_frames), generator=torch.Generator().manual_seed(seed))


@given(n_frames=st.integers(1, 30), seed=st.integers(0, 1000))
def test_delayed_tokens_stand_where_lists_put_them(n_frames: int, seed: int) -> None:
    frames = random_frames(n_frames, seed)
    expected = reference.delayed(frames.tolist(), initial_column(CONFIG).tolist())
    ours = [
        [None if token == FREE else token for token in row] for row in add_delays(frames, CONFIG).tolist()
    ]
    assert ours == expected


@given(n_frames=st.integers(2, 30), seed=st.integers(0, 1000))
def test_removing_delays_gives_the_frames_back_but_for_frame_0(n_frames: int, seed: int) -> None:
    frames = random_frames(n_frames, seed)
    again = remove_delays(add_delays(frames, CONFIG), CONFIG)
    assert torch.equal(again[:, 1:], frames[:, 1:])
    assert torch.equal(again[:, 0], initial_column(CONFIG))


@given(n_prompt=st.integers(2, 12), n_user=st.integers(1, 20), seed=st.integers(0, 1000))
def test_a_turn_is_the_delayed_table_of_prompt_and_user(n_prompt: int, n_user: int, seed: int) -> None:
    """Live columns begin at position P - 1; agent codebooks 1-7 of position P are still given."""
    frames, user = random_frames(n_prompt, seed), random_frames(n_user, seed + 1)[9:]
    turn = lay_out(Prompt(add_delays(frames, CONFIG), n_prompt), user, CONFIG)
    whole = torch.full((17, n_prompt + n_user), FREE)
    whole[:, :n_prompt] = frames
    whole[9:, n_prompt:] = user
    expected = add_delays(whole, CONFIG)[:, n_prompt - 1 :]
    # What the user would say past the end is never read; there a token stands in for FREE.
    heard = expected[9:] != FREE
    assert torch.equal(turn.live[:9], expected[:9])
    assert torch.equal(turn.live[9:][heard], expected[9:][heard])
    assert (turn.live[9:] != FREE).all()
    assert turn.live[:2, 1].tolist() == [FREE, FREE]
    assert turn.live[2:9, 1].tolist() == frames[2:9, -1].tolist()
    assert (turn.n_frames, turn.n_steps, turn.n_positions) == (n_user, n_user + 1, n_prompt + n_user)


@given(n_user=st.integers(1, 20), seed=st.integers(0, 1000))
def test_the_user_codes_come_out_of_a_turn_as_they_went_in(n_user: int, seed: int) -> None:
    user = random_frames(n_user, seed)[9:]
    turn = lay_out(Prompt(add_delays(random_frames(3, seed), CONFIG), 3), user, CONFIG)
    assert torch.equal(user_codes(turn, CONFIG), user)


def test_the_stream_timeline_is_one_frame_late_behind_the_prompts_last_frame() -> None:
    prompt, reply = random_frames(5, 1), random_frames(7, 2)[:9]
    turn = lay_out(Prompt(add_delays(prompt, CONFIG), 5), random_frames(7, 3)[9:], CONFIG)
    stream = on_stream_timeline(Reply(turn, reply), CONFIG)
    assert torch.equal(stream[:, 0], prompt[:9, -1])
    assert torch.equal(stream[:, 1:], reply[:, :-1])
