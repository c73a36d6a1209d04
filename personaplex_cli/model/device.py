"""Where the arithmetic is done: device, dtype, and the memory that is there."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from personaplex_cli.config.facts import n_parameters
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.errors import SettingsError
from personaplex_cli.settings import DeviceName, DtypeName

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}
CGROUPS = [
    ("/sys/fs/cgroup", "memory.max", "memory.current", ("active_file", "inactive_file")),
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
]
"""Control groups, versions 2 and 1: folder, limit, use, and what of it is page cache, given back freely."""
MEMORY_WORDS = ("can't allocate memory", "out of memory", "ALLOC_FAILED")
"""How torch's allocators (CPU; CUDA and MPS; cuBLAS) complain in an error that has no type of its own."""
INT8_DEVICES = ("cpu", "cuda")
LARGE_MODEL = 1_000_000_000
"""Parameters from which `auto` means bfloat16 on a CPU: there the memory is the bottleneck."""


def choose_device(name: DeviceName) -> torch.device:
    """`auto` takes a GPU where there is one."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(device for device, is_there in there.items() if is_there))
    if not there[name]:
        raise SettingsError(f"--device {name}: torch sees no such device here; use --device cpu, or auto")
    return torch.device(name)


def choose_dtype(name: DtypeName, device: torch.device, config: PersonaPlexConfig) -> str:
    """`auto` is bfloat16, but float32 for small models on a CPU. The name, for records; see DTYPES."""
    if name == "int8" and device.type not in INT8_DEVICES:
        raise SettingsError(f"--dtype int8: there is no such product on {device.type}; use --dtype bfloat16")
    if name != "auto":
        return name
    small = device.type == "cpu" and n_parameters(config) < LARGE_MODEL
    return "float32" if small else "bfloat16"


def choose_decode_dtype(dtype_name: str, device: torch.device) -> str:
    """In which numbers replies become audio: exactly where the LM is exact, else in the faster ones."""
    fast = device.type != "cpu" or has_bfloat16_products()
    return "bfloat16" if fast and dtype_name != "float32" and device.type != "mps" else "float32"


def has_bfloat16_products() -> bool:
    """Whether this machine's CPU multiplies bfloat16 faster than float32; where it does not, far slower."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


def free_bytes(device: torch.device) -> int:
    """Memory that can be taken now: the GPU's, or the machine's within the limits of a container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(free_on_host())


def free_on_host() -> Iterator[int]:
    """What each limit leaves: the machine, and the control group where there is one."""
    try:
        meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        yield int(meminfo["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        # No such report (macOS): half of what is built in.
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    for folder, limit, used, cached in CGROUPS:
        try:
            report = dict(line.split() for line in (Path(folder) / "memory.stat").read_text().splitlines())
            taken = int((Path(folder) / used).read_text()) - sum(int(report[name]) for name in cached)
            yield max(0, int((Path(folder) / limit).read_text()) - taken)
        except (OSError, ValueError, KeyError):
            continue


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was asked for and not there: with less work it may be enough."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in MEMORY_WORDS)


def release_memory(device: torch.device) -> None:
    """Give back what nothing holds any longer."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
