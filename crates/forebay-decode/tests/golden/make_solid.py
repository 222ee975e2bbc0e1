"""Makes tests/golden/solid: pictures of one colour in as few bytes as an encoder can, which are good all the same."""

from pathlib import Path

from PIL import Image

FOLDER = Path(__file__).parent / "solid"
FORMATS = {
    "baseline.jpg": {"quality": 75, "optimize": True},
    "progressive.jpg": {"quality": 75, "progressive": True, "optimize": True},
    "lossy.webp": {"quality": 0, "method": 6},
    "lossless.webp": {"lossless": True},
    "palette.gif": {},
    "palette.png": {"compress_level": 9},
    "grey.png": {"compress_level": 9},
}

FOLDER.mkdir(exist_ok=True)
for name, options in FORMATS.items():
    mode = {"grey": "1", "palette": "P"}.get(name.split(".")[0], "RGB")
    Image.new(mode, (2000, 1500), 0).save(FOLDER / name, **options)
