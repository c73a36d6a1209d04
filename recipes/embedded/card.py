"""The model card: what the embedded model is, what it was trained on, what it can do, and what it cannot.

Its figures come from the evaluation, never from a hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NOTICE = """\
The embedded model is small: it answers calls to small businesses, in English, about what its role says, and
nothing else. Use --model nvidia/personaplex-7b-v1 for open conversation.
"""

CARD = """\
# The embedded model

A small PersonaPlex in the published layout: {lm_parameters:.1f} million parameters in the language model,
{codec_parameters:.1f} million in the codec. It is there so that `personaplex convert` works at once,
without a download, and so that tests and demonstrations are about speech.

**What it does.** It answers the telephone of a small business. It greets, says its name, its business,
the opening hours, the address and a price, takes an order or an appointment for a day of the week, says
how one can pay, thanks and says goodbye; how often it does so rightly, the table below tells. Its role
must be written like PersonaPlex's own service roles:

    You work for Golden Bakery which is a bakery and your name is Monica. Information: Open from seven to
    six thirty. Address: twelve Garden Street. An apple pie costs eleven dollars.

Two voices are packaged, `female` and `male`; another voice prompt comes out as the one that it resembles.

**What it does not do.** It holds no open conversation, knows no facts outside its role, and speaks
English alone. Numbers in roles must be spelt, and one item has a price. It was trained on synthetic
speech alone: real voices, accents and rooms may be too much for it, and nothing that it does says how
good the published model is.

**What it was trained on.** Speech by flite (voices slt and rms for agents; kal16, slt and rms for users)
and by espeak-ng (several accents and some fifty variants, for users), of sentences from a grammar; first
names from the Faker package. No recording of a person was used. `python -m recipes.embedded` makes it on
two CPU cores.

## How good it is

{summary} The callers' voices and phrasings were never met in training, and half of the roles hold only
values that were not met either. Every call went through `personaplex convert` with its default sampling.
In brackets: Wilson's 95 % intervals.

| measure | reached | goal |
|---|---|---|
{table}

`python -m recipes.embedded.evaluate` repeats it.
"""

GOALS = {
    "reply of the right kind": 0.80,
    "facts right, values seen in training": 0.80,
    "facts right, values unseen in training": 0.60,
    "exactly the expected reply": None,
    "recogniser hears what the text says": 0.85,
    "quiet while the user talks": 0.95,
    "the prompted voice": 0.98,
}


def rows(report: dict[str, Any]) -> list[str]:
    """The table's rows."""
    told = []
    for share in report["shares"]:
        goal = GOALS[share["measure"]]
        interval = f"{share['from']:.1%} to {share['to']:.1%}, {share['right']} of {share['of']}"
        reached = f"{share['share']:.1%} ({interval})"
        told.append(f"| {share['measure']} | {reached} | {f'{goal:.0%}' if goal else ''} |")
    latency = report["median_latency_seconds"]
    told.append(f"| median latency | {'none' if latency is None else f'{latency:.2f} s'} | under 0.6 s |")
    whole_run = f"real-time factor of the whole run, {report['batch_size']} slots"
    told.append(f"| {whole_run} | {report['real_time_factor']:.2f} | under 0.3 |")
    return told


def write(work: Path, model: Path, lm_parameters: int, codec_parameters: int) -> None:
    """Write `MODEL_CARD.md` beside the weights, with the figures of the test part."""
    report = json.loads((work / "evaluation-test.json").read_text())
    card = CARD.format(
        lm_parameters=lm_parameters / 1e6,
        codec_parameters=codec_parameters / 1e6,
        summary=f"{report['n_turns']} turns in {report['n_calls']} calls.",
        table="\n".join(rows(report)),
    )
    (model / "MODEL_CARD.md").write_bytes(card.encode())
