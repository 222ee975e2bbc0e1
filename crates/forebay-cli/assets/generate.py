"""Draws the pictures that `forebay demo` embeds: four classes, six formats, 200x150, always the same pixels.

Run it from anywhere with Pillow and NumPy installed; it overwrites the pictures beside it. They are committed, so
nobody needs to: the encoders of another Pillow give other bytes of the same pictures.
"""

from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 200, 150
HERE = Path(__file__).parent
Y, X = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)


def mask(kind: str, rng: np.random.Generator) -> np.ndarray:
    """The pattern of a class, from 0 to 1, at a random size and place."""
    period = rng.uniform(18, 34)
    cx, cy = rng.uniform(60, 140), rng.uniform(45, 105)
    angle = rng.uniform(0, np.pi)
    along = X * np.cos(angle) + Y * np.sin(angle)
    across = Y * np.cos(angle) - X * np.sin(angle)
    wave = {
        "checks": np.sin(along * 2 * np.pi / period) * np.sin(across * 2 * np.pi / period),
        "dots": np.cos(X * 2 * np.pi / period) + np.cos(Y * 2 * np.pi / period) - 0.6,
        "rings": np.sin(np.hypot(X - cx, Y - cy) * 2 * np.pi / period),
        "stripes": np.sin(along * 2 * np.pi / period),
    }[kind]
    return np.clip(wave * 6 + 0.5, 0, 1)


def draw(kind: str, number: int, noise: float) -> Image.Image:
    """One picture: the pattern in one colour on a gradient of two others, with a little grain."""
    rng = np.random.default_rng([sum(kind.encode()), number])
    top, bottom, ink = rng.uniform(20, 235, (3, 3))
    ground = top + (bottom - top) * (Y / HEIGHT)[..., None]
    pixels = ground + (ink - ground) * mask(kind, rng)[..., None]
    pixels = pixels + rng.normal(0, 1, pixels.shape) * noise
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))


def main() -> None:
    """Draws all of them."""
    for kind in ("checks", "dots", "rings", "stripes"):
        draw(kind, 0, 2).save(HERE / f"{kind}-0.jpg", quality=70)
        draw(kind, 1, 2).save(HERE / f"{kind}-1.jpg", quality=70, progressive=True)
        draw(kind, 2, 2).convert("L").save(HERE / f"{kind}-2.jpg", quality=70)
    few = {"colors": 16, "dither": Image.Dither.NONE}
    draw("checks", 3, 0).quantize(**few).save(HERE / "checks-3.png", optimize=True)
    draw("checks", 4, 0).quantize(**few).save(HERE / "checks-4.bmp")
    draw("dots", 3, 0).save(HERE / "dots-3.png", optimize=True)
    draw("dots", 4, 0).quantize(**few).save(HERE / "dots-4.gif")
    draw("rings", 3, 2).save(HERE / "rings-3.webp", quality=80)
    draw("rings", 4, 0).quantize(**few).convert("RGB").save(HERE / "rings-4.tif", compression="tiff_lzw")
    draw("stripes", 3, 0).quantize(**few).convert("L").save(HERE / "stripes-3.png", optimize=True)
    draw("stripes", 4, 2).save(HERE / "stripes-4.webp", quality=80)


if __name__ == "__main__":
    main()
