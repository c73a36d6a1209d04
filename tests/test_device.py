"""Device, number type and batch size: what is chosen for the user, and what is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from personaplex_cli import studio as studio_module
from personaplex_cli.config.facts import kv_bytes_per_frame, weight_bytes
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.slots import PROMPTS_KEPT, columns_for
from personaplex_cli.errors import SettingsError
from personaplex_cli.model import device
from personaplex_cli.model.checkpoint import open_checkpoint
from personaplex_cli.model.device import (
    DTYPES,
    choose_decode_dtype,
    choose_device,
    choose_dtype,
    free_bytes,
    free_on_host,
)
from personaplex_cli.prompt import load_voice
from personaplex_cli.settings import Device, DeviceName, DtypeName
from personaplex_cli.studio import CODEC_BYTES, MEMORY_SHARE, MOST_SLOTS, Demand, Studio
from tests.conftest import GOLDEN, UNTRAINED
from tests.helpers import converted, personaplex, record_all, whole_replies

PUBLISHED = PersonaPlexConfig()
CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


def let_there_be(monkeypatch: pytest.MonkeyPatch, *, cuda: bool = False, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_takes_a_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, chosen: str
) -> None:
    let_there_be(monkeypatch, cuda=cuda, mps=mps)
    assert choose_device("auto").type == chosen
    assert choose_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, name: DeviceName
) -> None:
    let_there_be(monkeypatch)
    with pytest.raises(SettingsError) as caught:
        choose_device(name)
    assert caught.value.message == (
        f"--device {name}: torch sees no such device here; use --device cpu, or auto"
    )


@pytest.mark.parametrize("where", [CPU, CUDA, MPS])
def test_auto_is_bfloat16_but_float32_for_small_models_on_a_cpu(
    where: torch.device, golden_config: PersonaPlexConfig
) -> None:
    assert choose_dtype("auto", where, PUBLISHED) == "bfloat16"
    assert choose_dtype("auto", where, golden_config) == ("float32" if where == CPU else "bfloat16")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_named_number_type_is_taken(name: DtypeName) -> None:
    assert choose_dtype(name, CPU, PUBLISHED) == name
    assert str(DTYPES[name]) == f"torch.{name}"


def test_free_memory_is_less_than_the_machine_has() -> None:
    assert 0 < free_bytes(CPU) <= 1 << 50


def test_the_tightest_limit_counts_and_page_cache_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = {
        "/proc/meminfo": "MemTotal: 64 kB\nMemAvailable:    50 kB\nHugePages_Total:       0\n",
        "/sys/fs/cgroup/memory.max": "30000\n",
        "/sys/fs/cgroup/memory.current": "25000\n",
        "/sys/fs/cgroup/memory.stat": "anon 9000\nactive_file 4000\ninactive_file 11000\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": "12\n",
        "/sys/fs/cgroup/memory/memory.stat": "total_active_file 0\ntotal_inactive_file 0\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda path: reports[str(path)])
    assert list(free_on_host()) == [51200, 20000, 9223372036854771700]
    assert free_bytes(CPU) == 20000
    reports["/sys/fs/cgroup/memory.max"] = "max\n"
    assert free_bytes(CPU) == 51200
    reports["/sys/fs/cgroup/memory.max"] = "5\n"
    assert free_bytes(CPU) == 0


def test_without_any_report_half_of_what_is_built_in_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_report(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", no_report)
    monkeypatch.setattr(device.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert free_bytes(CPU) == 2_048_000


@pytest.mark.parametrize(
    ("dtype", "device", "has_bfloat16", "decode_dtype"),
    [
        ("float32", "cpu", True, "float32"),
        ("bfloat16", "cpu", True, "bfloat16"),
        ("int8", "cpu", True, "bfloat16"),
        ("bfloat16", "cpu", False, "float32"),
        ("bfloat16", "cuda", False, "bfloat16"),
        ("float32", "cuda", True, "float32"),
        ("bfloat16", "mps", True, "float32"),
    ],
)
def test_replies_become_audio_exactly_where_the_model_is_exact_and_faster_elsewhere(
    monkeypatch: pytest.MonkeyPatch, dtype: str, device: str, has_bfloat16: bool, decode_dtype: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bfloat16, raising=False)
    assert choose_decode_dtype(dtype, torch.device(device)) == decode_dtype


def studio_with(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> Studio:
    monkeypatch.setattr(studio_module, "free_bytes", lambda _: n_bytes)
    return Studio(open_checkpoint(str(GOLDEN / "checkpoint")), Device("cpu", "float32"))


def bytes_for(studio: Studio, n_slots: int, n_columns: int, n_prompt_columns: int = 0) -> int:
    """Free memory in which exactly so many slots find room, with so much of prompts."""
    weights = weight_bytes(studio.config, "float32", 8)
    frame = kv_bytes_per_frame(studio.config, "float32")
    return int(
        (weights + CODEC_BYTES + frame * ((n_slots + 0.5) * n_columns + n_prompt_columns)) / MEMORY_SHARE
    )


def long(n_jobs: int = 1000, n_personas: int = 1) -> Demand:
    """More than the golden model's ring of 63 columns holds, behind prompts of 41 frames."""
    return Demand(n_jobs, n_personas, n_prompt_frames=41, n_frames=5000)


@pytest.mark.parametrize("n_slots", [1, 2, 7, 31])
def test_as_many_slots_are_taken_as_the_memory_holds(monkeypatch: pytest.MonkeyPatch, n_slots: int) -> None:
    studio = studio_with(monkeypatch, 0)
    studio = studio_with(monkeypatch, bytes_for(studio, n_slots, n_columns=63, n_prompt_columns=40))
    reckoning = studio.reckon(long())
    assert reckoning.n_slots == n_slots
    assert reckoning.line.startswith(f"batch size {n_slots} (cpu, float32): weights 1.70 MiB + {n_slots} x ")
    assert " keys and values + 1 x " in reckoning.line


def test_a_slot_with_a_persona_of_its_own_takes_a_prompt_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those that are kept for the jobs to come."""
    studio = studio_with(monkeypatch, 0)
    n_bytes = bytes_for(studio, 7, n_columns=63 + 40, n_prompt_columns=(PROMPTS_KEPT - 1) * 40)
    studio = studio_with(monkeypatch, n_bytes)
    assert studio.reckon(long(n_personas=1000)).n_slots == 7
    assert studio.reckon(long(n_personas=3)).n_slots > 12
    # On a GPU prompts are copied into the rings, which hold no more than the window.
    studio.device = torch.device("cuda")
    reckoning = studio.reckon(long(n_personas=1000))
    assert reckoning.n_slots == (7 * 103 + 51 - 40) // 63
    assert reckoning.line.count(f" + {PROMPTS_KEPT} x ") == 1


def test_no_more_slots_are_taken_than_there_are_jobs_or_than_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    studio = studio_with(monkeypatch, 1 << 40)
    assert studio.reckon(long(n_jobs=5)).n_slots == 5
    assert studio.reckon(long()).n_slots == MOST_SLOTS["cpu"]


def test_too_little_memory_for_one_slot_is_refused_with_the_reckoning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    studio = studio_with(monkeypatch, 1 << 30)
    with pytest.raises(SettingsError) as caught:
        studio.reckon(long(n_jobs=1))
    message = caught.value.message
    assert message.startswith("not enough memory: the weights take 1.70 MiB, 1 x 41 frames of prompts ")
    assert "a slot of 5001 frames" in message
    assert "1.00 GiB are free" in message
    assert "--batch-size" in message


def test_the_published_model_fits_where_it_is_known_to(monkeypatch: pytest.MonkeyPatch) -> None:
    studio = studio_with(monkeypatch, 139 << 30)
    studio.config = PUBLISHED
    studio.dtype_name = "bfloat16"
    # Weights 15.4 GB and codec 1.5 GB of the 134.3 GB that may be taken; a slot of 2,999 frames 1.57 GB,
    # one of 256 (20 s) 0.13 GB, and a prompt of 150 frames 0.08 GB for all.
    hours, seconds = (Demand(1000, 1, n_prompt_frames=150, n_frames=n) for n in (90_000, 250))
    assert (studio.device, studio.reckon(hours).n_slots) == (CPU, 32)
    monkeypatch.setitem(studio_module.MOST_SLOTS, "cpu", 1000)
    assert studio.reckon(hours).n_slots == 74
    assert studio.reckon(seconds).n_slots == 874


def test_a_batch_that_was_asked_for_shrinks_to_what_the_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    n_bytes = bytes_for(studio_with(monkeypatch, 0), 3, n_columns=63, n_prompt_columns=40)
    reckoning = studio_with(monkeypatch, n_bytes).reckon(long(), asked=16)
    assert reckoning.n_slots == 3
    assert reckoning.line.startswith("batch size 3, 16 do not fit (cpu, float32): ")


def short_of_memory(monkeypatch: pytest.MonkeyPatch, n_slots: float) -> None:
    """Let so many slots of 0.2 s with no prompt but its silences find room beside the embedded model."""
    checkpoint = open_checkpoint(str(UNTRAINED))
    monkeypatch.setattr(studio_module, "free_bytes", lambda _: 0)
    studio = Studio(checkpoint, Device("cpu"))
    slot = kv_bytes_per_frame(checkpoint.config, "float32") * columns_for(12 + 1, checkpoint.config)
    weights = weight_bytes(studio.config, "float32", studio.config.depformer_config.num_active_codebooks)
    n_bytes = int((weights + CODEC_BYTES + n_slots * slot) / MEMORY_SHARE)
    monkeypatch.setattr(studio_module, "free_bytes", lambda _: n_bytes)


WITHOUT_PERSONA = ("--voice-prompt", "none", "--text-prompt", "", "--device", "cpu")


def test_a_run_short_of_memory_takes_a_smaller_batch_and_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = record_all(tmp_path / "in", [0.2] * 5)
    short_of_memory(monkeypatch, 2.5)
    result = converted(folder, tmp_path / "out", *WITHOUT_PERSONA)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("batch size ")]
    assert line.startswith("batch size 2 (cpu, float32): ")
    assert len(whole_replies(tmp_path / "out")) == 5


def test_a_run_without_memory_for_one_file_ends_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = record_all(tmp_path / "in", [0.2])
    short_of_memory(monkeypatch, 0.5)
    result = personaplex("convert", folder, tmp_path / "out", *WITHOUT_PERSONA)
    assert result.exit_code == 2
    assert "error: not enough memory: the weights take " in result.stderr
    assert not (tmp_path / "out").exists()


def as_if_saved_on_a_gpu(voice: Path, target: Path) -> Path:
    """A copy whose tensors say that they were on a GPU."""
    with zipfile.ZipFile(voice) as held, zipfile.ZipFile(target, "w") as written:
        for member in held.infolist():
            # A pickled string is an X, its length in four bytes, and its letters.
            content = held.read(member).replace(b"X\3\0\0\0cpu", b"X\6\0\0\0cuda:0")
            written.writestr(member.filename, content)
    return target


def test_a_voice_that_was_saved_on_a_gpu_loads_on_a_cpu(
    tmp_path: Path, golden_config: PersonaPlexConfig
) -> None:
    original = GOLDEN / "checkpoint" / "voices" / "VOICE0.pt"
    path = as_if_saved_on_a_gpu(original, tmp_path / "VOICE0.pt")
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="on a CUDA device"):
            torch.load(path, weights_only=True)
    voice, same = load_voice(path, golden_config), load_voice(original, golden_config)
    assert voice.n_frames == same.n_frames
    for name in ("embeddings", "cache"):
        assert torch.equal(getattr(voice, name), getattr(same, name))
        assert getattr(voice, name).device == CPU
