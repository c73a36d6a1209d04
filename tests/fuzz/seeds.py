"""`python -m tests.fuzz.seeds`: the corpus's seeds, small files of every kind that comes in at a door.

What is made by hand is the same bytes every time. What a library makes (some write the time of day into their
files, or a version) is made only where it is missing.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.fuzz import CORPUS

PCM, MS_ADPCM, FLOAT, MULAW, EXTENSIBLE = 1, 2, 3, 7, 0xFFFE
EVERYTHING = 0xFFFFFFFF
GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")
"""Behind a format's tag, what makes a GUID of it in WAVE_FORMAT_EXTENSIBLE."""


def main() -> None:
    """Write the seeds that can be made again, and those of libraries that are missing."""
    for name, content in by_hand().items():
        write(CORPUS / name, content)
    for name, content in by_library():
        if not (CORPUS / name).exists():
            write(CORPUS / name, content)


def write(path: Path, content: bytes) -> None:
    """A file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def by_hand() -> dict[str, bytes]:
    """DOOR/NAME -> bytes, the same every time."""
    return {
        **{f"audio/{name}.wav": content for name, content in {**valid_wavs(), **odd_wavs()}.items()},
        **{f"manifest/{name}": text.encode() for name, text in MANIFESTS.items()},
        "manifest/latin1.csv": "path,text_prompt\na.wav,Gr\xfc\xdfe\n".encode("latin-1"),
        **{f"config/{name}": text.encode("utf-8", "surrogatepass") for name, text in CONFIGS.items()},
        **{f"dump/{name}": content for name, content in dumps().items()},
    }


def by_library() -> Iterator[tuple[str, bytes]]:
    """DOOR/NAME -> bytes, of every format that libsndfile writes and of torch's two."""
    for name, content in library_audio():
        yield f"audio/{name}", content
    for name, content in voices():
        yield f"voice/{name}.pt", content


# ---- audio ----


def tone(n_samples: int = 240, n_channels: int = 1) -> npt.NDArray[np.int16]:
    """Something that is no silence, of whole numbers only: the same on every machine. [T, channels]"""
    steps = np.arange(n_samples * n_channels) * 2654435761 % 40009 - 20004
    return steps.astype("<i2").reshape(n_samples, n_channels)


def chunk(name: bytes, body: bytes, size: int | None = None) -> bytes:
    """A RIFF chunk, padded to an even length. size: what its header says, if not the truth."""
    return name + struct.pack("<I", len(body) if size is None else size) + body + b"\0" * (len(body) % 2)


def riff(*chunks: bytes, size: int | None = None) -> bytes:
    """A WAV file of chunks."""
    return chunk(b"RIFF", b"WAVE" + b"".join(chunks), size)


def layout(
    tag: int = PCM, n_channels: int = 1, rate: int = 24000, bits: int = 16, extra: bytes | None = None
) -> bytes:
    """A `fmt ` chunk."""
    step = n_channels * bits // 8 & 0xFFFF
    body = struct.pack("<HHIIHH", tag, n_channels, rate, rate * step & EVERYTHING, step, bits)
    return chunk(b"fmt ", body if extra is None else body + struct.pack("<H", len(extra)) + extra)


def extensible(tag: int = PCM, bits: int = 16, mask: int = 3) -> bytes:
    """What follows `fmt ` in WAVE_FORMAT_EXTENSIBLE."""
    return struct.pack("<HIH", bits, mask, tag) + GUID_TAIL


def data(content: bytes | None = None, size: int | None = None) -> bytes:
    """A `data` chunk; 10 ms of 16-bit mono by default."""
    return chunk(b"data", tone().tobytes() if content is None else content, size)


def floats(values: Sequence[float], *, double: bool = False) -> bytes:
    """A data chunk of floats."""
    return data(np.array(values, "<f8" if double else "<f4").tobytes())


def valid_wavs() -> dict[str, bytes]:
    """One WAV of every kind that people have; each can be read."""
    pcm = tone()
    wide = pcm.astype("<i4") << 16
    notes = chunk(b"LIST", b"INFO" + chunk(b"INAM", b"a tone\0") + chunk(b"ISFT", b"by hand\0"))
    broadcast = chunk(b"bext", b"a tone".ljust(602, b"\0"))
    ds64 = chunk(b"ds64", struct.pack("<QQQI", 572, len(pcm.tobytes()), len(pcm), 0))
    fact = chunk(b"fact", struct.pack("<I", len(pcm)))
    scaled = (pcm / 32768).ravel()
    return {
        "pcm16": riff(layout(), data()),
        "pcm8_at_8000": riff(layout(rate=8000, bits=8), data((pcm // 256 + 128).astype("u1").tobytes())),
        "pcm24": riff(layout(bits=24), data(wide.view("u1").reshape(-1, 4)[:, 1:].tobytes())),
        "pcm32_at_48000": riff(layout(rate=48000, bits=32), data(wide.tobytes())),
        "float32": riff(layout(FLOAT, bits=32), fact, floats(list(scaled))),
        "float64_at_44100": riff(layout(FLOAT, rate=44100, bits=64), fact, floats(list(scaled), double=True)),
        "mulaw_at_8000": riff(layout(MULAW, rate=8000, bits=8, extra=b""), fact, data(pcm.tobytes()[:240])),
        "ms_adpcm": adpcm(),
        "stereo": riff(layout(n_channels=2), data(tone(n_channels=2).tobytes())),
        "six_channels": riff(layout(n_channels=6), data(tone(120, 6).tobytes())),
        "extensible": riff(layout(EXTENSIBLE, 2, extra=extensible()), data(tone(n_channels=2).tobytes())),
        "extensible_float": riff(
            layout(EXTENSIBLE, bits=32, extra=extensible(FLOAT, 32, 4)), fact, floats(list(scaled))
        ),
        "list_before_data": riff(layout(), notes, data()),
        "list_after_data": riff(layout(), data(), notes),
        "bext_and_junk": riff(broadcast, chunk(b"JUNK", b"\0" * 28), layout(), data()),
        "cues_and_sampler": riff(layout(), cues(), chunk(b"smpl", struct.pack("<15I", *range(15))), data()),
        "rf64": chunk(b"RF64", b"WAVE" + ds64 + layout() + data(size=EVERYTHING), EVERYTHING),
        "a_voice_of_half_a_second": riff(layout(rate=4000, bits=8), data(tone(1000).tobytes())),
    }


def adpcm() -> bytes:
    """MS ADPCM, two blocks of 256 bytes, with the seven standard pairs of coefficients."""
    pairs = [(256, 0), (512, -256), (0, 0), (192, 64), (240, 0), (460, -208), (392, -232)]
    extra = struct.pack("<HH", 500, len(pairs)) + b"".join(struct.pack("<hh", *pair) for pair in pairs)
    head = struct.pack("<HHIIHH", MS_ADPCM, 1, 24000, 12288, 256, 4) + struct.pack("<H", len(extra)) + extra
    block = struct.pack("<Bhhh", 0, 16, 100, 50) + tone(125).tobytes()[:249]
    return riff(chunk(b"fmt ", head), chunk(b"fact", struct.pack("<I", 1000)), data(block * 2))


def cues() -> bytes:
    """One cue point."""
    return chunk(b"cue ", struct.pack("<IIIIIII", 1, 1, 0, int.from_bytes(b"data", "little"), 0, 0, 0))


def odd_wavs() -> dict[str, bytes]:
    """WAVs whose header or samples are wrong, or strange."""
    whole = riff(layout(), data())
    wild = {"nan": float("nan"), "inf": float("inf"), "huge": 3e38, "thousands": 20000.0, "tiny": 1e-45}
    rates = {"0": 0, "1": 1, "7": 7, "23999": 23999, "2_to_31": 2**31 - 1, "2_to_32": 2**32 - 1}
    return {
        "empty": b"",
        "four_bytes": b"RIFF",
        "header_only": riff(layout()),
        "no_samples": riff(layout(), data(b"")),
        "no_fmt": riff(data()),
        "data_size_0": riff(layout(), data(size=0)),
        "data_size_everything": riff(layout(), data(size=EVERYTHING), size=EVERYTHING),
        "data_size_2_to_31": riff(layout(), data(size=2**31)),
        "riff_size_0": riff(layout(), data(), size=0),
        "rf64_without_ds64": chunk(b"RF64", b"WAVE" + layout() + data(size=EVERYTHING), EVERYTHING),
        "rf64_of_2_to_60_samples": chunk(
            b"RF64",
            b"WAVE" + chunk(b"ds64", struct.pack("<QQQI", 2**62, 2**61, 2**60, 0)) + layout() + data(),
            EVERYTHING,
        ),
        "big_endian": b"RIFX" + whole[4:],
        "cut_in_the_data": whole[:-101],
        "cut_in_the_header": whole[:30],
        "odd_length": riff(layout(), data(tone().tobytes()[:-1])),
        "chunk_longer_than_the_file": riff(chunk(b"LIST", b"INFO", 2**31), layout(), data()),
        "two_data_chunks": riff(layout(), data(), data()),
        "two_fmt_chunks": riff(layout(), layout(n_channels=2), data()),
        "silence": riff(layout(rate=4000, bits=8), data(b"\x80" * 2000)),
        "no_channels": riff(layout(n_channels=0), data()),
        "65535_channels": riff(layout(n_channels=65535), data()),
        "1024_channels": riff(layout(n_channels=1024), data()),
        "0_bits": riff(layout(bits=0), data()),
        "64_bits": riff(layout(bits=64), data()),
        "unknown_format": riff(layout(0x1234), data()),
        "extensible_of_nothing": riff(layout(EXTENSIBLE, extra=b""), data()),
        "adpcm_without_coefficients": riff(layout(MS_ADPCM, bits=4, extra=b"\0\0\0\0"), data()),
        **{f"rate_{name}": riff(layout(rate=rate), data()) for name, rate in rates.items()},
        **{f"samples_{name}": one_wild_sample(value) for name, value in wild.items()},
        "samples_huge_stereo": riff(layout(FLOAT, 2, bits=32), floats([3e38, 3e38] * 60)),
        "samples_huge_at_48000": riff(layout(FLOAT, rate=48000, bits=32), floats([3.4e38, -3.4e38] * 60)),
        "samples_double_huge": riff(layout(FLOAT, bits=64), floats([1e300] * 60, double=True)),
        "voice_with_a_huge_sample": riff(
            layout(FLOAT, rate=1000, bits=32), floats([0.1, -0.1] * 250 + [1e38] + [0.1] * 100)
        ),
    }


def one_wild_sample(value: float) -> bytes:
    """A float WAV, quiet but for one sample."""
    return riff(layout(FLOAT, bits=32), floats([0.1] * 50 + [value] + [0.1] * 50))


def library_audio() -> Iterator[tuple[str, bytes]]:
    """Every format that libsndfile writes; of the common ones every coding."""
    import soundfile

    samples = tone(160) / 32768
    for kind in soundfile.available_formats().keys() - {"SD2"}:  # It writes a second file beside the first.
        codings = list(soundfile.available_subtypes(kind))
        usual = soundfile.default_subtype(kind) or codings[-1]
        for coding in codings if kind in ("WAV", "AIFF", "CAF", "FLAC", "OGG", "W64", "AU") else [usual]:
            buffer = io.BytesIO()
            try:
                soundfile.write(buffer, samples, 24000, coding, format=kind)
            except (
                soundfile.LibsndfileError
            ):  # SD2 needs a second file; some codings have a rate of their own.
                continue
            yield f"{kind.lower()}_{coding.lower()}.{kind.lower()}", buffer.getvalue()


# ---- manifests ----

MANIFESTS: Mapping[str, str] = {
    "plain.jsonl": '{"path": "a.wav"}\n{"path": "./a.wav", "output": "b", "seed": 7, "channel": "mix"}\n',
    "all_columns.jsonl": '{"path": "a.wav", "voice_prompt": "voice.wav", "text_prompt": "Be kind.", '
    '"seed": -1, "output": "x/y.wav", "channel": 1}\n\n{"path": "a.wav", "voice_prompt": "NATF2"}',
    "faulty.jsonl": '{"path": "none.wav"}\n{"path": 5}\n[1]\n{"path": "inner"}\n{"seed": 1.5}\n'
    '{"path": "a.wav", "output": "../up"}\n{"pth": "a.wav"}\n{"path": "a.wav", "channel": -1}\n{broken',
    "odd_values.jsonl": '{"path": "a.wav", "seed": 1e999}\n{"path": "a.wav", "seed": true}\n'
    '{"path": "a.wav", "output": "/"}\n{"path": "a.wav", "output": "..."}\n{"path": "\\ud800.wav"}\n'
    '{"path": "a.wav\\u0000"}\n{"path": "a.wav", "output": "C:\\\\x"}\n{"path": null}\n'
    '{"path": "a.wav", "text_prompt": "\\ud800"}\n{"path": "a.wav", "channel": "\\u0663"}\n',
    "deep.jsonl": "[" * 2000 + "\n",
    "long_number.jsonl": '{"path": "a.wav", "seed": ' + "9" * 3500 + "}\n",
    "twice.jsonl": '{"path": "b", "path": "a.wav", "output": ".wav"}\r\n{"path": "a.wav", "output": "x/"}',
    "line_signs.jsonl": '{"path": "a\u2028b.wav", "pa\u2029th": "\x85"}\n',
    "marked.jsonl": '\ufeff{"path": "a.wav"}\n',
    "plain.csv": "path,seed,output,channel\na.wav,7,x/1,mix\na.wav,,,\n\n./a.wav, 8 ,2,0\n",
    "quoted.csv": 'path,text_prompt\n"a.wav","two\nlines, and ""quotes"""\r\n',
    "faulty.csv": "path,sed,path\nnone.wav,1\na.wav,2,3,4,5\n",
    "open_quote.csv": 'path,text_prompt\na.wav,"never closed\n',
    "no_header.csv": "a.wav\n",
    "spaces.csv": " path , output \n a.wav ,  \n",
    "nul.csv": "path\na\0.wav\n",
    "returns.csv": "path,seed\ra.wav,1\ra.wav,2\r",
    "blank.csv": "\n , \n",
}

# ---- configs ----

SMALL = {"hidden_size": 4, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 2}
CONFIGS: Mapping[str, str] = {
    "empty.yaml": "",
    "nothing.json": "{}",
    "small.json": json.dumps({"temporal_config": SMALL, "torch_dtype": "bfloat16"}, indent=1),
    "small.yaml": "temporal_config:\n" + "".join(f"  {key}: {value}\n" for key, value in SMALL.items()),
    "codec.json": '{"mimi_config": {"codec": {"seanet": {"ratios": [8, 6]}, "quantizer": {"n_q": 8, '
    '"bins": 2048}, "transformer": {}}, "mimi_name": "mimi.safetensors"}}',
    "set": "temporal_config.rope_theta=1e4",
    "set_section": "mimi_config={frame_rate: 25, samples_per_frame: 960}",
    "set_nothing": "=",
    "set_into_a_value": "mimi_name.x=1",
    "faulty.yaml": "temporal_config: {hiden_size: 4, head_dim: two}\nmimi_config: 5\ntext_vocab_size: 2\n",
    "contradictions.yaml": "temporal_config: {hidden_size: 5}\naudio_vocab_size: 7\nnum_audio_codebooks: 3\n",
    "numbers.yaml": "temporal_config: {rope_theta: .inf, hidden_size: 0x10, head_dim: 0o7}\n"
    "text_vocab_size: 99999999999999999999\n",
    "anchors.yaml": "a: &a [1, 2]\nb: *a\nc: &c {x: *a, y: *a}\nd: [*c, *c]\n",
    "contains_itself.yaml": "a: &a [*a]\n",
    "bomb.yaml": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "tags.yaml": "!!python/object/apply:os.system ['true']\n",
    "odd_keys.yaml": "1: 2\n? [a, b]\n: c\nnull: 3\na.b: 4\n",
    "twice.json": '{"mimi_name": "a", "mimi_name": "b"}',
    "lists.json": '{"mimi_config": {"silence_codes": [1, 2, "x"], "sine_codes": null}}',
    "constants.json": '{"temporal_config": {"rope_theta": NaN, "rms_norm_eps": -Infinity}}',
    "half_a_pair.json": '{"mimi_name": "\\ud800"}',
    "names.json": '{"mimi_name": "../x", "mimi_config": {"mimi_name": ""}}',
    "deep.json": '{"a":' * 600 + "1" + "}" * 600,
    "deep.yaml": "[" * 600,
    "rope.json": '{"temporal_config": {"rope_scaling": {"rope_type": "default"}, "rope_theta": 1e4}}',
    "long_number.json": '{"text_vocab_size": ' + "9" * 3500 + "}",
    "long_number.yaml": "text_vocab_size: " + "9" * 3500,
    "marked.yaml": "\ufefftext_vocab_size: 32000\n",
    "documents.yaml": "--- {}\n--- {}\n",
    "directive.yaml": "%YAML 1.2\n---\n{}\n",
    "surrogate.yaml": "mimi_name: \ud800\n",
    "escapes.yaml": 'mimi_name: "\\ud800\\x00\\u2028"\n',
}

# ---- dumps ----


def dumps() -> dict[str, bytes]:
    """Token dumps, whole and faulty."""
    n_frames = 3
    members: dict[str, Any] = {
        "schema": "personaplex-tokens/1",
        "audio_vocab_size": "2048",
        "source": "a.wav",
    }
    text, codes = np.arange(3, dtype="<i4"), np.arange(24, dtype="<i2").reshape(8, n_frames)
    whole = safetensors(members, text=text, agent=codes, user=codes)
    nothing: dict[str, npt.NDArray[Any]] = {"text": text[:0], "agent": codes[:, :0], "user": codes[:, :0]}
    return {
        "whole": whole,
        "no_frames": safetensors(members, **nothing),
        "no_codebooks": safetensors(members, text=text, agent=codes[:0], user=codes[:0]),
        "without_audio_vocab_size": safetensors(
            {"schema": members["schema"]}, text=text, agent=codes, user=codes
        ),
        "odd_audio_vocab_size": safetensors(
            {**members, "audio_vocab_size": "1e3"}, text=text, agent=codes, user=codes
        ),
        "long_audio_vocab_size": safetensors(
            {**members, "audio_vocab_size": "9" * 3000},
            text=text[:1],
            agent=codes[:1, :1],
            user=codes[:1, :1],
        ),
        "codes_too_high": safetensors(
            {**members, "audio_vocab_size": "5"}, text=text, agent=codes, user=codes
        ),
        "negative": safetensors(members, text=-text, agent=-codes, user=codes),
        "other_shapes": safetensors(members, text=text[:2], agent=codes, user=codes[:4]),
        "other_types": safetensors(members, text=codes[0], agent=text, user=codes),
        "missing": safetensors(members, text=text),
        "other_schema": safetensors({"schema": "x\ny"}, text=text, agent=codes, user=codes),
        "no_metadata": safetensors({}, text=text, agent=codes, user=codes),
        "cut": whole[:-7],
        "cut_in_the_header": whole[:50],
        "header_of_2_to_60": struct.pack("<Q", 2**60) + whole[8:],
        "header_only": struct.pack("<Q", 2) + b"{}",
        "empty": b"",
    }


def safetensors(members: Mapping[str, Any], **tensors: npt.NDArray[Any]) -> bytes:
    """The safetensors format, without its library's random order."""
    kinds = {"int32": "I32", "int16": "I16"}
    header: dict[str, object] = {"__metadata__": dict(members)}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        kind = kinds[tensor.dtype.name]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.tobytes() for tensor in tensors.values())


# ---- voices ----


def voices() -> Iterator[tuple[str, bytes]]:
    """`.pt` files for `doors.small_config`, whole and faulty, in torch's two formats."""
    import torch

    embeddings = torch.arange(12.0).reshape(3, 1, 1, 4)
    cache = torch.arange(17 * 4).reshape(1, 17, 4)
    nan = torch.full((3, 1, 1, 4), float("nan"))
    vast = torch.zeros(4).expand(1 << 40, 1, 1, 4)
    wide_cache = torch.zeros(1, dtype=torch.long).expand(1, 17, 1 << 40)
    held: dict[str, object] = {
        "whole": {"embeddings": embeddings, "cache": cache},
        "half_precision": {"embeddings": embeddings.to(torch.bfloat16), "cache": cache.to(torch.int32)},
        "parameter": {"embeddings": torch.nn.Parameter(embeddings), "cache": cache},
        "more_keys": OrderedDict(embeddings=embeddings, cache=cache, note="x", n=[1, 2.5, None]),
        "one_frame": {"embeddings": embeddings[:0], "cache": cache},
        "middle_of_nothing": {"embeddings": embeddings.new_zeros(3, 0, 1, 4), "cache": cache},
        "middle_of_two": {"embeddings": embeddings.new_zeros(3, 2, 1, 4), "cache": cache},
        "cache_of_nothing": {"embeddings": embeddings, "cache": cache[:0]},
        "cache_too_short": {"embeddings": embeddings, "cache": cache[:, :, :1]},
        "cache_of_floats": {"embeddings": embeddings, "cache": cache + 0.5},
        "cache_of_truths": {"embeddings": embeddings, "cache": cache > 5},
        "cache_complex": {"embeddings": embeddings, "cache": cache.to(torch.complex64)},
        "cache_too_high": {"embeddings": embeddings, "cache": cache + 100_000},
        "embeddings_nan": {"embeddings": nan, "cache": cache},
        "embeddings_of_numbers": {"embeddings": embeddings.long(), "cache": cache},
        "embeddings_complex": {"embeddings": embeddings.to(torch.complex64), "cache": cache},
        "embeddings_sparse": {"embeddings": embeddings.to_sparse(), "cache": cache},
        "embeddings_quantized": {
            "embeddings": torch.quantize_per_tensor(embeddings, 0.1, 0, torch.quint8), "cache": cache
        },
        "embeddings_on_no_device": {"embeddings": embeddings.to("meta"), "cache": cache},
        "embeddings_without_end": {"embeddings": vast, "cache": cache},
        "cache_without_end": {"embeddings": embeddings, "cache": wide_cache},
        "a_tensor": embeddings,
        "a_list": [embeddings, cache],
        "a_number": 5,
        "texts": {"embeddings": "x", "cache": "y"},
    }  # fmt: skip
    for name, content in held.items():
        yield name, saved(content)
        if name in ("whole", "more_keys", "cache_of_nothing", "embeddings_without_end"):
            yield f"{name}_old_format", saved(content, _use_new_zipfile_serialization=False)
    yield "plain_pickle", pickle.dumps({"embeddings": [1.0], "cache": [2]}, protocol=2)
    yield "hostile_pickle", b"cos\nsystem\n(S'true'\ntR."
    yield "cut", saved(held["whole"])[:700]
    yield "empty", b""


def saved(content: object, **options: Any) -> bytes:
    """What torch.save writes."""
    import torch

    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
