"""Where a model is and whether its files are whole: the embedded one, a directory, or a Hub repository."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from personaplex_cli.config.facts import expected_tensors
from personaplex_cli.config.load import LoadedConfig, load_config
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.digest import file_sha256
from personaplex_cli.errors import ConfigError, ModelError, SettingsError
from personaplex_cli.model.voices import ARCHIVE, FOLDER, Voices

EMBEDDED_NAME = "embedded"
EMBEDDED = Path(__file__).parent.parent / "embedded"
PUBLISHED = "nvidia/personaplex-7b-v1"

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer_spm_32k_3.model"
NOTICE = "NOTICE.txt"
CONFIGS = ("config.json", "config.yaml", "config.yml")

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
SHARD_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*\.safetensors", re.ASCII)

SHA256 = re.compile(r"[0-9a-f]{64}")
WRONG_SIZE = "Consistency check failed"
"""How the Hub's library begins its complaint; it has no class for it."""
BROKEN_OFF = ("ChunkedEncodingError", "ReadTimeout")
"""Errors of the library that the Hub's library calls, which is none of ours."""
DAMAGED = (
    "the download arrived damaged and was removed; run again. If that does not help, something on the way "
    "changes it: get the files by another way, and name their directory"
)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

MAX_HEADER_BYTES = 100_000_000
MAX_NOTICE_CHARACTERS = 4_000
WHOLE_BYTES = 1_000_000
BLOCK_BYTES = 4_096
N_BLOCKS = 64


@dataclass(frozen=True)
class Checkpoint:
    """A model whose files are all there and whole, as far as can be seen without reading them."""

    name: str
    """As the user named it."""
    folder: Path
    loaded: LoadedConfig
    weights: tuple[Path, ...]
    """The LM's safetensors files, in order of their names."""
    mimi: Path
    tokenizer: Path
    voices: Voices
    fingerprint: str
    """The same for the same files, wherever they are; without the config."""
    notice: str | None
    """What the model's maker wants to be shown at every run."""

    @property
    def config(self) -> PersonaPlexConfig:
        """The config tree."""
        return self.loaded.config


def open_checkpoint(
    model: str, *, config: Path | None = None, overrides: Sequence[str] = (), revision: str | None = None
) -> Checkpoint:
    """Find a model: `embedded`, a directory (never touches the network), or `org/name` on the Hub.

    `config` takes the place of the folder's own. All that is wrong with the files goes in one ModelError.
    """
    local = local_folder(model)
    if local is None:
        folder = fetch(model, revision, config, overrides)
    elif revision is not None:
        raise SettingsError(
            f"revision {revision}: only a model of the Hub has revisions; {model} is a local one"
        )
    else:
        folder = local
    try:
        return open_folder(model, folder, config, overrides)
    except OSError as error:
        raise ModelError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from error


def local_folder(model: str) -> Path | None:
    """The folder that is meant, or None if a repository of the Hub is."""
    if model == EMBEDDED_NAME:
        return EMBEDDED
    try:
        path = Path(model).expanduser()
        if model and path.is_dir():
            return path
        if path.exists() and model:
            raise ModelError(f"{model}: is a file; name the model's folder")
    except (OSError, RuntimeError, ValueError):
        raise ModelError(f"{model!r}: no such directory, or none that can be read") from None
    if HUB_NAME.fullmatch(model):
        return None
    raise ModelError(
        f"{model!r}: no such directory (a model is a directory, `{EMBEDDED_NAME}`, or `org/name` on the Hub)"
    )


# ---- the files of a folder ----


def open_folder(name: str, folder: Path, config: Path | None, overrides: Sequence[str]) -> Checkpoint:
    """Check the files of a folder, all of them before the first complaint."""
    loaded = folder_config(folder, config, overrides)
    weights = weight_files(folder)
    mimi, tokenizer = folder / loaded.config.resolved_mimi_name, folder / TOKENIZER
    faults = [*optional_faults(folder), *file_faults([*weights, mimi, tokenizer])]
    faults = faults or [*foreign_weights(weights, loaded.config)]
    if faults:
        headline = f"{named(name, folder)}: not a whole PersonaPlex model:"
        raise ModelError("\n".join([ModelError.listing(headline, faults).message, *advice(name, folder)]))
    return Checkpoint(
        name=name,
        folder=folder,
        loaded=loaded,
        weights=weights,
        mimi=mimi,
        tokenizer=tokenizer,
        voices=Voices(folder),
        fingerprint=fingerprint([*weights, mimi, tokenizer]),
        notice=read_notice(folder),
    )


def folder_config(folder: Path, config: Path | None, overrides: Sequence[str]) -> LoadedConfig:
    """The folder's tree, or that of `config`; another model's config is told as such."""
    try:
        return load_config(config or folder, overrides)
    except ConfigError as error:
        stranger = None if config else foreign_type(folder)
        if stranger is None:
            raise
        raise ModelError(f"{folder}: another model's folder? {stranger}") from error


def foreign_type(folder: Path) -> str | None:
    """What config.json says about itself, if that is not PersonaPlex."""
    try:
        config = json.loads((folder / CONFIGS[0]).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    kind = config.get("model_type", "personaplex") if isinstance(config, dict) else "personaplex"
    return None if kind == "personaplex" else f"{CONFIGS[0]} says model_type {kind!r}, not 'personaplex'"


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The one file, or the shards that the index names."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return (folder / WEIGHTS,)
    return tuple(folder / shard for shard in shard_names(index))


def shard_names(index: Path) -> list[str]:
    """The files that an index names; only plain names, since they become paths."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
        names = {str(name) for name in content["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{index}: not an index of weights (no weight_map can be read); download it again"
        ) from error
    hostile = sorted(name for name in names if not SHARD_NAME.fullmatch(name))
    if hostile or not names:
        raise ModelError(
            f"{index}: refused: it names {hostile}, but shards must be plain *.safetensors names"
        )
    return sorted(names)


def optional_faults(folder: Path) -> Iterator[str]:
    """Files that a model may lack, but not have in a broken state."""
    for name in (*CONFIGS, ARCHIVE):
        path = folder / name
        if path.is_symlink() and not path.exists():
            yield f"{name}: a link to a file that is not there"
    archive = folder / ARCHIVE
    if archive.is_file() and (fault := disguise(archive)):
        yield f"{ARCHIVE}: {fault}"


def file_faults(paths: Sequence[Path]) -> Iterator[str]:
    """What is wrong with the files, a line each."""
    for path in paths:
        if fault := file_fault(path):
            yield f"{path.name}: {fault}"


def file_fault(path: Path) -> str | None:
    """What is wrong with one file, or None. Contents are not read."""
    if not path.is_file():
        return "a link to a file that is not there" if path.is_symlink() else "missing"
    fault = disguise(path)
    if fault is None and path.suffix == ".safetensors":
        try:
            read_header(path)
        except ValueError as error:
            return str(error)
    return fault


def disguise(path: Path) -> str | None:
    """What a file is instead of itself, by its first bytes, or None."""
    with path.open("rb") as file:
        head = file.read(64).lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the file itself (`git lfs pull` gets it)"
    if head.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "a web page, not the file itself"
    return None if path.stat().st_size else "empty"


def read_header(path: Path) -> tuple[bytes, list[int]]:
    """A safetensors file's header, and where in the file its tensors begin.

    ValueError says what is wrong with the file.
    """
    n_bytes = path.stat().st_size
    with path.open("rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        if n_bytes < 8 or n_header > MAX_HEADER_BYTES:
            raise ValueError("not a safetensors file")
        header = file.read(n_header)
    start = 8 + n_header
    try:
        spans = data_spans(json.loads(header)) if len(header) == n_header else [(0, 0)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("not a safetensors file") from None
    promised = start + max((end for _, end in spans), default=0)
    if n_bytes != promised:
        kind = "half downloaded" if n_bytes < promised else "too long"
        raise ValueError(f"{kind}: {n_bytes:,} bytes, its header promises {promised:,}")
    return header, sorted(start + begin for begin, _ in spans)


def data_spans(header: dict[str, Any]) -> list[tuple[int, int]]:
    """Where the tensors lie in the data, as the header says."""
    offsets = [tensor["data_offsets"] for name, tensor in header.items() if name != "__metadata__"]
    spans = [(int(begin), int(end)) for begin, end in offsets]
    if any(not 0 <= begin <= end for begin, end in spans):
        raise ValueError
    return spans


def foreign_weights(weights: Sequence[Path], config: PersonaPlexConfig) -> Iterator[str]:
    """The files' tensors, if none of them is PersonaPlex's. Single differences are told when it is loaded."""
    headers = (json.loads(read_header(path)[0]) for path in weights)
    found = {name for header in headers for name in header if name != "__metadata__"}
    if not found & expected_tensors(config).keys():
        some, files = ", ".join(sorted(found)[:3]), ", ".join(path.name for path in weights)
        yield f"{files}: another model's weights: of {len(found)} tensors ({some}...) none is PersonaPlex's"


def named(name: str, folder: Path) -> str:
    """The user's name of a model, and its folder where that is another thing."""
    return name if name == str(folder) else f"{name} ({folder})"


def advice(name: str, folder: Path) -> Iterator[str]:
    """What may have happened to a folder, and what to do."""
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    listed = ", ".join(found[:12]) + (f" and {len(found) - 12} more" if len(found) > 12 else "")
    yield f"In the folder: {listed}." if found else "The folder is empty."
    if stranger := foreign_type(folder):
        yield f"Another model's folder? {stranger}."
    from_hub = local_folder(name) is None
    # Not the whole folder: it may be a home or a disk, given by mistake.
    downloads = folder.parent.parent / "blobs" if from_hub else folder / ".cache" / "huggingface"
    if any(downloads.rglob("*.incomplete")) or any(folder.glob("*.incomplete")):
        yield "There are *.incomplete files: a download was interrupted; started again, it goes on."
    if name == EMBEDDED_NAME:
        yield "Install personaplex-cli again, or name another model."
    elif from_hub:
        yield (
            "Run again with the network: what is missing will be downloaded, if the repository has it. "
            f"What is broken must be deleted first (`hf download {name} FILE --force-download` does both)."
        )
    else:
        yield f"Download it again (the published model: `hf download {PUBLISHED} --local-dir {folder}`)."


def read_notice(folder: Path) -> str | None:
    """The notice without anything that a terminal would obey."""
    path = folder / NOTICE
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_NOTICE_CHARACTERS)
    return "".join(char for char in text if char.isprintable() or char == "\n").strip() or None


# ---- the fingerprint ----


def fingerprint(paths: Sequence[Path]) -> str:
    """A hash of what the files are, the same in every folder: of sizes, headers and sampled contents."""
    digest = hashlib.sha256()
    for path in paths:
        n_bytes = path.stat().st_size
        digest.update(f"{n_bytes};".encode())
        with path.open("rb") as file:
            if n_bytes < WHOLE_BYTES:
                digest.update(file.read())
                continue
            header, offsets = sampled_places(path, n_bytes)
            digest.update(header)
            for offset in offsets:
                file.seek(offset)
                digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


def sampled_places(path: Path, n_bytes: int) -> tuple[bytes, list[int]]:
    """The header, and where to look: spread over the file, and where each tensor begins.

    A fine-tuned model may differ in a few tensors only; each of them is looked at.
    """
    header, tensors = read_header(path) if path.suffix == ".safetensors" else (b"", [])
    spread = [(n_bytes - BLOCK_BYTES) * index // (N_BLOCKS - 1) for index in range(N_BLOCKS)]
    return header, sorted({*spread, *tensors})


# ---- the Hub ----


def fetch(name: str, revision: str | None, config: Path | None, overrides: Sequence[str]) -> Path:
    """Download what we need of a repository, or find it in the Hub's cache; -> the folder.

    The weights come last: where they are cached, all else is, and can be used without the network.
    """
    folder = snapshot(name, revision, [*CONFIGS, NOTICE, INDEX, TOKENIZER, ARCHIVE, f"{FOLDER}/*"])
    mimi = folder_config(folder, config, overrides).config.resolved_mimi_name
    # The folder is named after the commit, so all parts are of one revision.
    snapshot(name, folder.name, [literal(mimi), WEIGHTS])
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        snapshot(name, folder.name, shard_names(folder / INDEX))
    return folder


def literal(name: str) -> str:
    """A file name as a pattern that matches nothing else."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def snapshot(name: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """The folder of a repository's revision in the Hub's cache, with the files that match."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    blobs = blobs_of(name)
    try:
        known = set(blobs.glob("*"))
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
        check_sums(name, set(blobs.glob("*")) - known)
    # What a Hub, a proxy or a download tool does wrong comes as any of these.
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        if WRONG_SIZE in str(error):
            # Of another file; the next run would go on behind it.
            remove(blobs.glob("*.incomplete"))
        raise ModelError(hub_trouble(name, revision, error)) from error
    return folder


def blobs_of(name: str) -> Path:
    """Where the Hub's cache keeps the contents of a repository's files."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "blobs")


def check_sums(name: str, blobs: Iterable[Path]) -> None:
    """Read what has just been downloaded, and remove what is damaged.

    A large file's blob bears its SHA-256 as its name.
    """
    damaged = [blob for blob in blobs if SHA256.fullmatch(blob.name) and file_sha256(blob) != blob.name]
    remove(damaged)
    if damaged:
        raise ModelError(f"{name}: {DAMAGED} (wrong checksum)")


def remove(paths: Iterable[Path]) -> None:
    """Delete files; another run may have done so."""
    for path in list(paths):
        path.unlink(missing_ok=True)


def hub_trouble(name: str, revision: str | None, error: BaseException) -> str:
    """A download's failure, and what to do about it."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for link in chain:
        if trouble := recognised_trouble(name, revision, link):
            return trouble
    detail = " ".join(str(chain[-1]).split())[:200]
    return (
        f"{name}: the Hub cannot be reached, and the model is not in its cache. Without a network, "
        f"name a directory that holds the model's files. ({type(chain[-1]).__name__}: {detail})"
    )


def recognised_trouble(name: str, revision: str | None, error: BaseException) -> str | None:
    """The message for an error that says clearly what it is, or None."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status = getattr(getattr(error, "response", None), "status_code", None)
    log_in = "log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, HFValidationError):
        return f"{name}: no such directory, and no name that the Hub could have"
    if isinstance(error, RevisionNotFoundError):
        return f"{name}: the repository has no revision {revision or 'main'!r}"
    if isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError):
        return (
            f"{name}: no such directory, and no such repository on the Hub; if it is a private one, {log_in}"
        )
    if isinstance(error, GatedRepoError) or status in (401, 403):
        return (
            f"{name}: the Hub refuses the download ({status}). If the repository is gated, accept its "
            f"licence on its page of the Hub; then {log_in} (with a token that may read gated repositories)."
        )
    if WRONG_SIZE in str(error):
        return f"{name}: {DAMAGED} (wrong size)"
    if type(error).__name__ in BROKEN_OFF:
        return f"{name}: the connection broke off or stalled; run again, and the download goes on"
    if status is not None:
        return f"{name}: the Hub answered {status}; try again later, or name a directory that holds the files"
    # An error that names a file is one of this machine; those of connections do not.
    if isinstance(error, OSError) and (error.filename is not None or error.errno in NO_SPACE):
        where = f"{error.strerror}: {error.filename or 'no file named'}"
        return f"{name}: the Hub's cache cannot be written ({where}); set HF_HOME to a folder with space"
    return None
