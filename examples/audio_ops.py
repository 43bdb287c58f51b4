"""Operators on sound, for every kind of interpreter: arrays of the standard library in, out.

A signal is an ``array('d')`` of samples between -1 and 1, or a NumPy array where NumPy can be
imported; both dispatch to CPU, NumPy's by the DLPack protocol, and the result has the type of the
argument. 16-bit samples come as bytes, a memoryview or an ``array('h')``. A ``Shape`` stands for a
signal of which only the length is wanted: it dispatches to Meta, and no sample is computed.

    mdispatch verify examples.audio_ops
    python examples/audio_ops.py
"""

from __future__ import annotations

import math
import sys
import wave
from array import array
from pathlib import Path
from typing import Any
from zlib import crc32

import mdispatch as md

DATA = Path(__file__).parent / "data"


class Shape:
    """How many samples a signal has, and in which format; not the samples."""

    __slots__ = ("format", "length")

    def __init__(self, length: int, format: str = "d") -> None:
        self.length = length
        self.format = format

    def __repr__(self) -> str:
        return f"Shape({self.length}, {self.format!r})"


for each in (array, bytes, memoryview):
    md.register_type(each, "CPU")
md.register_type(Shape, "Meta")

library = md.Library("audio", "DEF")
library.define("decode(Tensor pcm) -> Tensor")
library.define("encode(Tensor samples) -> Tensor")
library.define("gain(Tensor samples, float decibels) -> Tensor")
library.define("mix(Tensor[] tracks, *, float[]? weights=None) -> Tensor")
library.define("fir(Tensor samples, float[] taps) -> Tensor")
library.define("resample(Tensor samples, int source_rate, int target_rate) -> Tensor")
library.define("downsample(Tensor samples, int source_rate, int target_rate) -> Tensor")
library.define("rms(Tensor samples) -> float")
library.define("peak(Tensor samples) -> float")


def _floats(samples: Any) -> list[float]:
    """The samples as Python's floats, which array, memoryview and NumPy all make by ``tolist``."""
    numbers: list[float] = samples.tolist()
    return numbers


def _like(samples: Any, values: list[float]) -> Any:
    """The values in an array of the type of ``samples``."""
    namespace = getattr(samples, "__array_namespace__", None)
    return array("d", values) if namespace is None else namespace().asarray(values)


# --- kernels that compute --------------------------------------------------------------------


@library.impl("decode", dispatch_key="CPU")
def decode(pcm: bytes | memoryview | array[int]) -> array[float]:
    """From 16-bit little-endian samples."""
    words = array("h", bytes(pcm))
    if sys.byteorder == "big":
        words.byteswap()
    return array("d", (word / 32768 for word in words))


@library.impl("encode", dispatch_key="CPU")
def encode(samples: Any) -> bytes:
    """To 16-bit little-endian samples; what is too loud is clipped."""
    scaled = (round(value * 32768) for value in _floats(samples))
    words = array("h", (max(-32768, min(32767, value)) for value in scaled))
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


@library.impl("gain", dispatch_key="CPU")
def gain(samples: Any, decibels: float) -> Any:
    factor = 10 ** (decibels / 20)
    return _like(samples, [value * factor for value in _floats(samples)])


@library.impl("mix", dispatch_key="CPU")
def mix(tracks: list[Any], *, weights: list[float] | None) -> Any:
    """The weighted sum, as long as the longest track. Without weights, the mean."""
    weights = _weights(tracks, weights)
    mixed = [0.0] * max(len(track) for track in tracks)
    for track, weight in zip(tracks, weights, strict=True):
        for i, value in enumerate(_floats(track)):
            mixed[i] += weight * value
    return _like(tracks[0], mixed)


@library.impl("fir", dispatch_key="CPU")
def fir(samples: Any, taps: list[float]) -> Any:
    """Convolution with the taps, as long as the signal and not delayed by the taps' half."""
    half = len(taps) // 2
    padded = [0.0] * (len(taps) - 1 - half) + _floats(samples) + [0.0] * half
    turned = taps[::-1]
    return _like(
        samples,
        [
            math.fsum(map(float.__mul__, turned, padded[i : i + len(taps)]))
            for i in range(len(samples))
        ],
    )


@library.impl("resample", dispatch_key="CPU")
def resample(samples: Any, source_rate: int, target_rate: int) -> Any:
    """By linear interpolation."""
    values = _floats(samples)
    result = []
    for i in range(_resampled(len(values), source_rate, target_rate)):
        place, rest = divmod(i * source_rate, target_rate)
        after = values[min(place + 1, len(values) - 1)]
        result.append(values[place] + (after - values[place]) * rest / target_rate)
    return _like(samples, result)


@library.impl("rms", dispatch_key="CPU")
def rms(samples: Any) -> float:
    """The root of the mean square, 0 for a signal without samples."""
    values = _floats(samples)
    return math.sqrt(math.fsum(value * value for value in values) / max(1, len(values)))


@library.impl("peak", dispatch_key="CPU")
def peak(samples: Any) -> float:
    return max(map(abs, _floats(samples)), default=0.0)


# --- kernels that only know how long the result is -------------------------------------------


@library.impl("decode", dispatch_key="Meta")
def decode_meta(pcm: Shape) -> Shape:
    return Shape(pcm.length)


@library.impl("encode", dispatch_key="Meta")
def encode_meta(samples: Shape) -> Shape:
    return Shape(samples.length, "h")


@library.impl("gain", dispatch_key="Meta")
def gain_meta(samples: Shape, decibels: float) -> Shape:
    return samples


@library.impl("mix", dispatch_key="Meta")
def mix_meta(tracks: list[Shape], *, weights: list[float] | None) -> Shape:
    _weights(tracks, weights)
    return Shape(max(track.length for track in tracks))


@library.impl("fir", dispatch_key="Meta")
def fir_meta(samples: Shape, taps: list[float]) -> Shape:
    return samples


@library.impl("resample", dispatch_key="Meta")
def resample_meta(samples: Shape, source_rate: int, target_rate: int) -> Shape:
    return Shape(_resampled(samples.length, source_rate, target_rate))


# --- made of other operators: one kernel for all keys ----------------------------------------


@library.impl("downsample", dispatch_key="CompositeImplicitAutograd")
def downsample(samples: Any, source_rate: int, target_rate: int) -> Any:
    """Takes away what the lower rate cannot carry, then resamples."""
    audible = md.ops.audio.fir(samples, low_pass(0.45 * target_rate, source_rate))
    return md.ops.audio.resample(audible, source_rate, target_rate)


def low_pass(cutoff: float, rate: int, count: int = 31) -> list[float]:
    """Taps of a low-pass filter: a sinc under a Hann window, with a sum of 1."""
    taps = []
    for i in range(count):
        x = 2 * cutoff / rate * (i - count // 2)
        sinc = math.sin(math.pi * x) / (math.pi * x) if x else 1.0
        taps.append(sinc * (0.5 + 0.5 * math.cos(2 * math.pi * (i - count // 2) / (count + 1))))
    return [tap / math.fsum(taps) for tap in taps]


def _weights(tracks: list[Any], weights: list[float] | None) -> list[float]:
    if not tracks:
        raise ValueError("mix needs at least one track")
    if weights is None:
        return [1 / len(tracks)] * len(tracks)
    if len(weights) != len(tracks):
        raise ValueError(f"mix has {len(tracks)} tracks and {len(weights)} weights")
    return weights


def _resampled(length: int, source_rate: int, target_rate: int) -> int:
    if source_rate <= 0 or target_rate <= 0:
        raise ValueError(f"rates are positive, not {source_rate} and {target_rate}")
    return length * target_rate // source_rate


def load(name: str) -> tuple[memoryview, int]:
    """The 16-bit samples of a file in examples/data, and their rate."""
    with wave.open(str(DATA / name), "rb") as file:
        return memoryview(file.readframes(file.getnframes())), file.getframerate()


def job() -> str:
    """Mixes the two samples, halves their rate, and tells what came out of it."""
    audio = md.ops.audio
    (pluck, rate), (voice, _) = load("pluck.wav"), load("voice.wav")
    tracks = [audio.decode(pluck), audio.gain(audio.decode(voice), -6.0)]
    mixed = audio.downsample(audio.mix(tracks), rate, rate // 2)
    expected = audio.downsample(audio.mix([Shape(len(track)) for track in tracks]), rate, rate // 2)
    return (
        f"{len(mixed)} samples ({expected.length} by Meta), rms {audio.rms(mixed):.4f}, "
        f"peak {audio.peak(mixed):.4f}, CRC {crc32(audio.encode(mixed)):08x}"
    )


if __name__ == "__main__":
    from everywhere import run_everywhere

    run_everywhere("audio_ops")
