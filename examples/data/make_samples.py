"""Makes the audio samples of this folder, mono, 16 bits, 8 kHz: always the same ones.

pluck.wav   two plucked strings, one after the other (Karplus and Strong's algorithm: a burst of
            noise goes round a delay line and loses its high tones)
voice.wav   three sung vowels: a train of pulses through two resonances each, and some breath

    python examples/data/make_samples.py [FOLDER]
"""

from __future__ import annotations

import math
import sys
import wave
from array import array
from pathlib import Path
from random import Random

RATE = 8000


def pluck(random: Random, frequency: float, seconds: float) -> list[float]:
    delay = [random.uniform(-1, 1) for _ in range(round(RATE / frequency))]
    samples = []
    for i in range(round(RATE * seconds)):
        place = i % len(delay)
        samples.append(delay[place])
        delay[place] = 0.498 * (delay[place] + delay[(place + 1) % len(delay)])
    return samples


def vowel(
    random: Random, pitch: float, formants: tuple[float, float], seconds: float
) -> list[float]:
    count = round(RATE * seconds)
    period = round(RATE / pitch)
    sound = [float(i % period == 0) + random.gauss(0, 0.01) for i in range(count)]
    for formant in formants:
        # A resonance: two poles at the formant's angle, a little inside the unit circle.
        radius = math.exp(-math.pi * 90 / RATE)
        feedback = 2 * radius * math.cos(2 * math.pi * formant / RATE)
        before = earlier = 0.0
        for i, value in enumerate(sound):
            now = value + feedback * before - radius * radius * earlier
            earlier, before = before, now
            sound[i] = now
    # Fade in and out, so that the vowels do not click.
    return [v * min(1.0, i / 200, (count - i) / 200) for i, v in enumerate(sound)]


def write(path: Path, samples: list[float]) -> None:
    loudest = max(abs(value) for value in samples)
    data = array("h", (round(28000 * value / loudest) for value in samples))
    if sys.byteorder == "big":
        data.byteswap()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(data.tobytes())


def main(folder: Path) -> None:
    random = Random(20)
    write(folder / "pluck.wav", pluck(random, 196.0, 0.4) + pluck(random, 293.7, 0.4))
    vowels = [(730.0, 1090.0), (270.0, 2290.0), (300.0, 870.0)]
    voice = [value for formants in vowels for value in vowel(random, 131.0, formants, 0.25)]
    write(folder / "voice.wav", voice)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
