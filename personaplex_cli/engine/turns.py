"""Turns: everything that is known beforehand, as one table of tokens by stream and position.

A given token of frame f stands at position f + delay of its stream, and positions up to the delay hold
"nothing yet", so frame 0 is lost (as in the reference). What the model draws stands where it was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from personaplex_cli.config.tree import PersonaPlexConfig

FREE = -2
"""In a table: to be drawn. (-1 is the reference's zero token: it embeds to the zero vector.)"""


@dataclass(frozen=True, eq=False)
class Prompt:
    """A persona as forced columns. Equal only to itself, so that it can be a key.

    forced [17, P + max delay]: tokens by position; FREE where only the turn will tell.
    embeddings [E, D]: stands in for the tokens of positions 0..E-1, or None.
    """

    forced: Tensor
    n_frames: int
    embeddings: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Turn:
    """A prompt and what the user says after it. Equal only to itself, so that it can be a key.

    live [17, F + 1 + max delay]: tokens by position, from P - 1, the last position that the prompt fills.
    """

    name: str
    seed: int
    prompt: Prompt
    live: Tensor

    @property
    def n_frames(self) -> int:
        """F: the frames of the user's audio, and of the reply."""
        return self.n_steps - 1

    @property
    def n_steps(self) -> int:
        """Live steps. One more than frames: the delayed codes of the last frame come a position later."""
        return self.live.shape[1] - 1

    @property
    def n_positions(self) -> int:
        """Columns that are read, prompt included."""
        return self.prompt.n_frames + self.n_frames


@dataclass(frozen=True, eq=False)
class Reply:
    """What was drawn, frame f beside the user's frame f. tokens [9, F]: text, agent codes."""

    turn: Turn
    tokens: Tensor


@dataclass(frozen=True, eq=False)
class Unanswered:
    """A turn that the memory does not hold, even alone."""

    turn: Turn


def initial_column(config: PersonaPlexConfig) -> Tensor:
    """ "Nothing yet" in every stream. [17]"""
    column = torch.full((config.n_streams,), config.audio_initial)
    column[config.text] = config.text_initial
    return column


def add_delays(given: Tensor, config: PersonaPlexConfig) -> Tensor:
    """Tokens by frame -> tokens by position, FREE past each stream's end. [17, F] -> [17, F + max delay]"""
    n_frames = given.shape[1]
    delayed = torch.full((config.n_streams, n_frames + max(config.delays)), FREE)
    initial = initial_column(config)
    for stream, delay in enumerate(config.delays):
        delayed[stream, delay : delay + n_frames] = given[stream]
        delayed[stream, : delay + 1] = initial[stream]
    return delayed


def remove_delays(drawn: Tensor, config: PersonaPlexConfig) -> Tensor:
    """Line the streams up again, so that one column is one moment. [9, F + max delay] -> [9, F]"""
    delays = config.delays[: drawn.shape[0]]
    n_frames = drawn.shape[1] - max(delays)
    return torch.stack([drawn[row, delay : delay + n_frames] for row, delay in enumerate(delays)])


def on_stream_timeline(reply: Reply, config: PersonaPlexConfig) -> Tensor:
    """The reply as the reference puts it: one frame late, behind the prompt's last frame. -> [9, F]"""
    n_rows, n_frames = reply.tokens.shape
    before = remove_delays(reply.turn.live[:n_rows, : 1 + max(config.delays)], config)
    return torch.cat([before, reply.tokens], dim=1)[:, :n_frames]


def user_codes(turn: Turn, config: PersonaPlexConfig) -> Tensor:
    """What the user says in a turn: the inverse of `lay_out`. -> [8, F]"""
    delays = config.delays[config.user]
    begins = [1 + delay for delay in delays]
    rows = zip(turn.live[config.user], begins, strict=True)
    return torch.stack([row[begin : begin + turn.n_frames] for row, begin in rows])


def lay_out(
    prompt: Prompt, user_codes: Tensor, config: PersonaPlexConfig, *, name: str = "", seed: int = 0
) -> Turn:
    """Put the user's codes behind a prompt. user_codes [8, F]"""
    n_frames, overhang = user_codes.shape[1], max(config.delays)
    live = torch.full((config.n_streams, n_frames + 1 + overhang), FREE)
    live[:, : 1 + overhang] = prompt.forced[:, prompt.n_frames - 1 :]
    for row, stream in enumerate(range(*config.user.indices(config.n_streams))):
        begin = 1 + config.delays[stream]
        live[stream, begin : begin + n_frames] = user_codes[row]
        # Nobody hears what the user says past the end, but the table must hold tokens there.
        live[stream, begin + n_frames :] = config.audio_initial
    return Turn(name, seed, prompt, live)
