"""The front door: flags -> settings and jobs, outcomes -> exit code. A thin translator, quick to answer.

Rooms that take time to enter (pydantic, rich, torch) are imported inside the commands.
"""

from __future__ import annotations

import errno
import gc
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

from personaplex_cli import __version__
from personaplex_cli.errors import PersonaplexError, SettingsError
from personaplex_cli.settings import DeviceName, DtypeName, Timeline, WeightsDtypeName

SOME_FAILED = 1
BY_SIGNAL = 128  # what a shell adds to the number of the signal that ended a program
MAX_SECONDS = 1e9
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
MODEL_VARIABLE = "PERSONAPLEX_MODEL"
CLOSED_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


class Stopped(KeyboardInterrupt):
    """A signal asks us to end: we clean up as for Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.number = number


class FrontDoor(TyperGroup):
    """The one place where our errors become a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and end as its error says."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except PersonaplexError as error:
            from personaplex_cli.console import show_error

            show_error(error.message)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as interrupt:
            number = interrupt.number if isinstance(interrupt, Stopped) else signal.SIGINT
            with suppress(OSError):  # The terminal may be gone.
                sys.stderr.write(f"stopped by {signal.Signals(number).name}\n")
            raise typer.Exit(BY_SIGNAL + number) from interrupt
        except BrokenPipeError as error:
            _drop_output()
            raise typer.Exit(CLOSED_PIPE) from error
        return result


app = typer.Typer(
    cls=FrontDoor,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Batch converter for PersonaPlex: recordings of one side of a conversation in, spoken replies out.",
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"personaplex {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
]
ConfigSource = Annotated[
    Path | None,
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="A .yaml or .json file, or a model's folder (its config.json). Left out: the published model.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        show_default=False,
        help="Change one value, as in temporal_config.num_hidden_layers=2. VALUE is YAML. Can be repeated.",
    ),
]
OutputFormat = Annotated[
    Literal["tree", "yaml", "json", "schema"],
    typer.Option(
        "--format", help="tree: for people; yaml, json: loads again; schema: the JSON Schema, for editors."
    ),
]
InspectedDtype = Annotated[WeightsDtypeName, typer.Option("--dtype", help="Number type to reckon memory in.")]
InspectedBatch = Annotated[int, typer.Option("--batch-size", min=1, help="Slots to reckon memory for.")]
InspectedSeconds = Annotated[
    float, typer.Option("--seconds", min=0.0, help="Length of prompt and input to reckon memory for.")
]


@app.callback()
def personaplex(version: Version = False) -> None:
    """Take the options that stand before a command."""


@app.command("inspect-config")
def inspect_config(
    source: ConfigSource = None,
    overrides: Overrides = None,
    output_format: OutputFormat = "tree",
    dtype: InspectedDtype = "bfloat16",
    batch_size: InspectedBatch = 16,
    seconds: InspectedSeconds = 60.0,
) -> None:
    """Show a model's config with the source of every value, and what follows from it. Needs no weights."""
    from personaplex_cli.config.load import load_config, render_config, render_schema

    if not seconds < MAX_SECONDS:
        raise SettingsError(f"--seconds {seconds}: must be a length below {MAX_SECONDS:g}")
    loaded = load_config(source, overrides or ())
    if output_format == "schema":
        sys.stdout.write(render_schema())
    elif output_format == "tree":
        from personaplex_cli.console import show_config

        show_config(loaded, dtype, batch_size, audio_seconds=seconds)
    else:
        sys.stdout.write(render_config(loaded.config, output_format))


EXAMPLES = """
Examples:

personaplex convert question.wav replies/

personaplex convert recordings/ more/talk.flac replies/ --model nvidia/personaplex-7b-v1 --voice-prompt NATF2

find . -name '*.wav' -print0 | personaplex convert - replies/

A reply is as long as its recording: leave room for the answer with --pad-end.
"""

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE... OUT",
        show_default=False,
        help="Recordings, folders of them (subfolders are mirrored), .jsonl or .csv manifests, or - for "
        "paths on standard input; last the folder for the replies, or - for one WAV on standard output.",
    ),
]
ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        envvar=MODEL_VARIABLE,
        help="embedded (built in), a model's folder, or a Hub repository (nvidia/personaplex-7b-v1).",
    ),
]
Revision = Annotated[
    str | None, typer.Option(show_default=False, help="Branch, tag or commit of a Hub repository.")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", show_default=False, help="A config tree in place of the model's own config.json."
    ),
]
VoicePrompt = Annotated[
    str | None,
    typer.Option(
        show_default=False,
        help="The agent's voice: a name in the model (NATF2), a recording, or a .pt; none = no voice sample. "
        "Left out: the model's first voice.",
    ),
]
TextPrompt = Annotated[
    str | None,
    typer.Option(
        show_default=False, help="The agent's role, as text. Left out: a wise and friendly teacher."
    ),
]
TempAudio = Annotated[
    float, typer.Option(min=0.0, help="Temperature of the agent's codes; 0 = the likeliest.")
]
TempText = Annotated[float, typer.Option(min=0.0, help="Temperature of the agent's text; 0 = the likeliest.")]
TopkAudio = Annotated[int, typer.Option(min=0, help="Draw codes among so many of the likeliest; 0 = all.")]
TopkText = Annotated[int, typer.Option(min=0, help="Draw text among so many of the likeliest; 0 = all.")]
Greedy = Annotated[bool, typer.Option("--greedy", help="Always take the likeliest token.")]
Seed = Annotated[int, typer.Option(help="With a file's name, decides what is drawn for it.")]
ModelDevice = Annotated[DeviceName, typer.Option(help="auto takes a GPU where there is one.")]
ModelDtype = Annotated[
    DtypeName, typer.Option(help="Of the LM; auto = bfloat16, on a CPU float32 for small models.")
]
BatchSize = Annotated[
    str, typer.Option(metavar="N|auto", help="Files answered at once; auto = as many as the memory allows.")
]
WavTimeline = Annotated[
    Timeline,
    typer.Option(
        help="aligned: the reply beside the recording; stream: 80 ms later, as the reference tool writes it."
    ),
]
Stereo = Annotated[bool, typer.Option("--stereo", help="Write the recording left, the reply right.")]
Channel = Annotated[
    str, typer.Option(metavar="N|mix", help="Which channel is the user: a number from 0, or the mean of all.")
]
PadStart = Annotated[
    float, typer.Option(metavar="SECONDS", help="Silence before the recording; the reply is so much longer.")
]
PadEnd = Annotated[
    float, typer.Option(metavar="SECONDS", help="Silence after the recording, to leave the answer room.")
]
MaxDuration = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", show_default=False, help="Refuse recordings that are longer."),
]
FixNonfinite = Annotated[
    bool, typer.Option("--fix-nonfinite", help="Replace NaN and infinite samples by 0 and count them.")
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show what would be done, the memory and about the time; write nothing."),
]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first file that fails.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that are there.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Write every file's outcome to standard output, a JSON object a line.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show only failures, and the model's notice if it has one.")
]
Dumps = Annotated[
    list[Path],
    typer.Argument(
        metavar="DUMP... OUT", show_default=False, help="Token dumps, then the folder for the WAVs."
    ),
]
BenchModel = Annotated[
    str | None,
    typer.Option(
        "--model", show_default=False, help="As for convert; left out: embedded, unless --random-weights."
    ),
]
RandomWeights = Annotated[
    bool,
    typer.Option(
        "--random-weights",
        help="Needs no model: random weights of the sizes in --config and --set, or the published ones.",
    ),
]
BatchSizes = Annotated[
    str,
    typer.Option("--batch-size", metavar="N,N,...", help="Files answered at once, a row of figures each."),
]
Personas = Annotated[int, typer.Option(help="Different personas in the slots: those alike share a prompt.")]
PromptFrames = Annotated[int, typer.Option(help="Length of the prompt that is read.")]
BenchFrames = Annotated[int, typer.Option("--frames", help="Steps that are timed.")]
Position = Annotated[
    int | None,
    typer.Option(
        show_default=False, help="Frames before the first step, prompt included; left out: just the prompt."
    ),
]
BenchJson = Annotated[bool, typer.Option("--json", help="Write one JSON object in place of the table.")]


@app.command(epilog=EXAMPLES)
def convert(
    paths: Paths,
    model: ModelName = "embedded",
    revision: Revision = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    voice_prompt: VoicePrompt = None,
    text_prompt: TextPrompt = None,
    temp_audio: TempAudio = 0.8,
    temp_text: TempText = 0.7,
    topk_audio: TopkAudio = 250,
    topk_text: TopkText = 25,
    greedy: Greedy = False,
    seed: Seed = 0,
    device: ModelDevice = "auto",
    dtype: ModelDtype = "auto",
    batch_size: BatchSize = "auto",
    timeline: WavTimeline = "aligned",
    stereo: Stereo = False,
    channel: Channel = "0",
    pad_start: PadStart = 0.0,
    pad_end: PadEnd = 0.0,
    max_duration: MaxDuration = None,
    fix_nonfinite: FixNonfinite = False,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    fail_fast: FailFast = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Answer recordings: for each a reply (WAV), its tokens and its transcript."""
    from personaplex_cli.console import RunWindow, show_forecast
    from personaplex_cli.files.jobs import plan_jobs
    from personaplex_cli.settings import DEFAULT_ROLE, Batching, Choices, Device, Persona, Sampling

    choices = Choices(
        Sampling(temp_text, temp_audio, topk_text, topk_audio, greedy),
        Batching(_batch_size(batch_size)),
        Device(device, dtype),
        timeline=timeline,
        stereo=stereo,
        channel=channel,
        pad_start_seconds=pad_start,
        pad_end_seconds=pad_end,
        overwrite=overwrite,
        fail_fast=fail_fast,
        fix_nonfinite=fix_nonfinite,
        longest_seconds=math.inf if max_duration is None else max_duration,
    )
    persona = Persona(voice_prompt, DEFAULT_ROLE if text_prompt is None else text_prompt)
    sources, out = _sources_and_out(paths)
    if out == "-" and as_json and not dry_run:
        raise SettingsError("--json and OUT = - both want standard output; give a folder for OUT")
    with _output_folder(out) as folder:
        plan = plan_jobs(sources, folder, persona=persona, seed=seed, stdin=sys.stdin.buffer)
        if out == "-" and len(plan.jobs) != 1:
            raise SettingsError(
                f"-: takes one reply, and there are {len(plan.jobs)} recordings; give a folder"
            )
        # torch is loaded here, after the checks.
        with _here_to_stay():
            from personaplex_cli.convert import convert as convert_plan
            from personaplex_cli.model.checkpoint import open_checkpoint
            from personaplex_cli.rehearse import rehearse

        checkpoint = open_checkpoint(model, config=config, overrides=overrides or (), revision=revision)
        if dry_run:
            forecast = rehearse(plan, checkpoint, choices)
            show_forecast(forecast, as_json=as_json)
            raise typer.Exit(0 if forecast.all_well else SOME_FAILED)
        with RunWindow(quiet=quiet, as_json=as_json) as window:
            if checkpoint.notice:
                window.say(checkpoint.notice)
            all_well = convert_plan(plan, checkpoint, choices, window)
        if out == "-" and all_well:
            with plan.jobs[0].wav.open("rb") as wav:
                shutil.copyfileobj(wav, sys.stdout.buffer)
    if not all_well:
        raise typer.Exit(SOME_FAILED)


@app.command()
def bench(
    model: BenchModel = None,
    random_weights: RandomWeights = False,
    revision: Revision = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    batch_size: BatchSizes = "1,8,16,32",
    prompt_frames: PromptFrames = 150,
    frames: BenchFrames = 20,
    position: Position = None,
    personas: Personas = 1,
    device: ModelDevice = "auto",
    dtype: ModelDtype = "auto",
    as_json: BenchJson = False,
) -> None:
    """Measure what a step costs here, part by part, and beside the least that it could cost."""
    if random_weights and (model or revision):
        raise SettingsError("--random-weights needs no model; its sizes are those of --config and --set")
    batch_sizes = _batch_sizes(batch_size)
    from personaplex_cli.bench import Load, random_subject, run_bench, subject_of
    from personaplex_cli.config.load import load_config
    from personaplex_cli.console import show_bench, show_remark
    from personaplex_cli.model.checkpoint import open_checkpoint
    from personaplex_cli.settings import Device

    load = Load(batch_sizes, prompt_frames, frames, position, personas)
    wanted = Device(device, dtype)
    if random_weights:
        subject = random_subject(load_config(config, overrides or ()).config, wanted)
    else:
        name = model or os.environ.get(MODEL_VARIABLE) or "embedded"
        checkpoint = open_checkpoint(name, config=config, overrides=overrides or (), revision=revision)
        subject = subject_of(checkpoint, wanted)
    report = run_bench(subject, load, lambda size: show_remark(f"batch size {size} ..."))
    show_bench(report, as_json=as_json)


@app.command()
def decode(
    dumps: Dumps,
    model: ModelName = "embedded",
    revision: Revision = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    device: ModelDevice = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Make the WAVs of token dumps again: the same bytes as convert's, on the aligned timeline."""
    if len(dumps) < 2:
        raise SettingsError("name the dumps, then the folder for their WAVs")
    from personaplex_cli.console import show_remark
    from personaplex_cli.decode import decode_dumps
    from personaplex_cli.model.checkpoint import open_checkpoint
    from personaplex_cli.settings import Device
    from personaplex_cli.studio import Studio

    checkpoint = open_checkpoint(model, config=config, overrides=overrides or (), revision=revision)
    studio = Studio(checkpoint, Device(device))
    written = decode_dumps(dumps[:-1], dumps[-1], studio, overwrite=overwrite)
    if checkpoint.notice:
        show_remark(checkpoint.notice)
    for wav in written:
        typer.echo(str(wav))


@contextmanager
def _here_to_stay() -> Iterator[None]:
    """What is imported stays to the end: it is not searched for garbage, which would take half a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _batch_size(written: str) -> int | None:
    if written == "auto":
        return None
    if not re.fullmatch("-?[0-9]{1,9}", written):
        raise SettingsError(f"--batch-size {written}: must be a number, or auto")
    return int(written)


def _batch_sizes(written: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in written.split(","))
    except ValueError:
        raise SettingsError(f"--batch-size {written}: must be numbers with commas between") from None


def _sources_and_out(paths: list[str]) -> tuple[list[str], str]:
    if len(paths) < 2:
        raise SettingsError(f"{paths[0]}: name the recordings, then the folder for the replies")
    if not paths[-1].strip():
        raise SettingsError("OUT is empty; to take this folder, write .")
    return paths[:-1], paths[-1]


@contextmanager
def _output_folder(out: str) -> Iterator[Path]:
    """OUT; for standard output a folder that is gone afterwards."""
    if out != "-":
        yield Path(out)
        return
    with TemporaryDirectory(prefix="personaplex-") as folder:
        yield Path(folder)


def _drop_output() -> None:
    """Let nothing more be written to a closed pipe, not even at the interpreter's end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _open_closed_streams() -> None:
    """Let standard streams that were closed (`>&-`) lead nowhere, or files of ours take their numbers."""
    handle = os.open(os.devnull, os.O_RDWR)
    while handle <= 2:
        handle = os.dup(handle)
    os.close(handle)
    for number, (name, mode) in enumerate([("stdin", "r"), ("stdout", "w"), ("stderr", "w")]):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _end_unwritable(error: OSError) -> NoReturn:
    """One message for a full disk behind standard output. Other errors are faults of ours, and raised."""
    # The error of a standard stream names no file.
    if error.filename is not None or error.errno not in UNWRITABLE:
        raise error
    from personaplex_cli.console import show_error

    _drop_output()
    with suppress(OSError):
        show_error(f"standard output cannot be written ({error.strerror}); send it elsewhere")
    sys.exit(SOME_FAILED)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped(number)


def main() -> None:
    """Run the command line. The console script and `python -m personaplex_cli` come in here."""
    _open_closed_streams()
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Where somebody has us ignore it (nohup), we do.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)
    for stream in (sys.stdout, sys.stderr):
        # A terminal of another encoding shows a stand-in for a letter that it lacks, and nothing fails.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="personaplex")
    except OSError as error:
        _end_unwritable(error)
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
