"""Makes the golden results of the transforms with Pillow and torchvision: `python make_ops.py`.

Writes `ops/data.bin` (all pictures and tensors, one after the other) and `ops/index.txt` (one line each: name, type,
width, height, channels). Pictures are interleaved bytes, tensors are planes of little-endian float32. Everything is
fixed, so running it twice gives the same files. `tests/it/ops.rs` has the same cases by name.
"""

import pathlib
import warnings

import numpy as np
import PIL
import PIL.Image
import torch
import torchvision
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

warnings.simplefilter("ignore")
HERE = pathlib.Path(__file__).parent / "ops"
FILTERS = ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]


def noise(width, height, channels, seed):
    """A smooth picture with noise and saturated places: rounding and clipping both show."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (3 + c) + c) * np.cos(y / (5 - c)) * 150 + 128 for c in range(channels)]
    pixels = np.stack(waves, axis=-1) + random.normal(0, 40, (height, width, channels))
    pixels = np.clip(pixels, 0, 255).astype(np.uint8)
    return PIL.Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])


def every_colour(step):
    """A picture of colours from the whole cube."""
    levels = np.array(sorted({*range(0, 256, step), 1, 127, 128, 254, 255}), dtype=np.uint8)
    cube = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(1, -1, 3)
    return PIL.Image.fromarray(np.ascontiguousarray(cube))


def cases():
    photo = noise(37, 29, 3, 1)
    grey = noise(21, 17, 1, 2)
    colours = every_colour(40)
    yield "photo", photo
    yield "grey", grey
    yield "colours", colours
    pixel = noise(1, 1, 3, 3)
    yield "pixel", pixel
    line = noise(64, 1, 3, 4)
    yield "line", line
    tall = noise(3, 150, 3, 5)
    yield "tall", tall

    for name in FILTERS:
        mode = InterpolationMode(name)
        yield f"resize {name} down", F.resize(photo, [13, 17], mode)
        yield f"resize {name} up", F.resize(photo, [33, 41], mode)
        yield f"resize {name} grey", F.resize(grey, [23, 11], mode)
        yield f"resize {name} line", F.resize(line, [3, 20], mode)
        yield f"resize {name} tall", F.resize(tall, [5, 9], mode)
    yield "resize pixel", F.resize(pixel, [4, 5], InterpolationMode.BICUBIC)
    yield "resize to pixel", F.resize(photo, [1, 1], InterpolationMode.BILINEAR)
    yield "resize edge", F.resize(photo, [20], InterpolationMode.BILINEAR)
    yield "resize edge max", F.resize(photo, [20], InterpolationMode.BILINEAR, max_size=22)
    yield "resize long edge", F.resize(photo, None, InterpolationMode.BILINEAR, max_size=30)
    yield "resize one way", F.resize(photo, [29, 12], InterpolationMode.BICUBIC)
    # The crop that RandomResizedCrop falls back to when no attempt fits: the middle.
    yield "resized crop", F.resized_crop(photo, 0, 11, 29, 14, [24, 24], InterpolationMode.BILINEAR)
    yield "center crop", F.center_crop(photo, [16, 16])
    yield "center crop odd", F.center_crop(photo, [12, 18])
    yield "center crop larger", F.center_crop(photo, [34, 40])
    yield "center crop one way", F.center_crop(photo, [40, 10])
    for mode in ["constant", "edge", "reflect", "symmetric"]:
        yield f"pad {mode}", F.pad(photo, [3, 5, 7, 2], fill=9, padding_mode=mode)
        yield f"pad {mode} wide", F.pad(noise(4, 3, 3, 6), [11], padding_mode=mode)
    yield "small", noise(4, 3, 3, 6)
    yield "pad fill", F.pad(photo, [2, 1], fill=[200.0, 10.0, 90.5])
    yield "flip horizontal", F.horizontal_flip(photo)
    yield "flip vertical", F.vertical_flip(photo)
    yield "grayscale 1", F.rgb_to_grayscale(colours, 1)
    yield "grayscale 3", F.rgb_to_grayscale(photo, 3)
    for factor in [0.0, 0.37, 1.0, 1.63]:
        yield f"brightness {factor}", F.adjust_brightness(photo, factor)
        yield f"contrast {factor}", F.adjust_contrast(photo, factor)
        yield f"saturation {factor}", F.adjust_saturation(photo, factor)
    yield "contrast grey", F.adjust_contrast(grey, 1.4)
    yield "saturation colours", F.adjust_saturation(colours, 2.5)
    for factor in [-0.5, -0.213, 0.0, 0.1, 0.5]:
        yield f"hue {factor}", F.adjust_hue(colours, factor)
    for kernel, sigma in [((3, 3), 0.6), ((5, 9), 2.0), ((23, 23), 1.3), ((7, 1), 0.1)]:
        yield f"blur {kernel[0]}x{kernel[1]} {sigma}", F.gaussian_blur(photo, list(kernel), [sigma, sigma])
    for name in ["nearest", "bilinear", "bicubic"]:
        mode = InterpolationMode(name)
        yield f"rotate {name} 31", F.rotate(photo, 31.0, mode, fill=[7, 80, 200])
        yield f"rotate {name} -77.5 expand", F.rotate(photo, -77.5, mode, expand=True)
        yield f"rotate {name} 10 center", F.rotate(photo, 10.0, mode, center=[4.0, 9.5])
        yield f"rotate {name} 90", F.rotate(photo, 90.0, mode)
        yield f"rotate {name} 270 expand", F.rotate(grey, 270.0, mode, expand=True)
        yield f"rotate {name} 180", F.rotate(grey, 180.0, mode)

    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    chip = noise(19, 13, 3, 7)
    yield "chip", chip
    unit = F.to_image(chip)
    yield "to tensor", torchvision.transforms.functional.to_tensor(chip)
    yield "to dtype scaled", F.to_dtype(unit, torch.float32, scale=True)
    normal = F.normalize(torchvision.transforms.functional.to_tensor(chip), mean, std)
    yield "normalize", normal
    yield "tensor grayscale", F.rgb_to_grayscale(normal, 1)
    yield "tensor pad reflect", F.pad(normal, [2, 3, 4, 1], padding_mode="reflect")
    yield "tensor center crop", F.center_crop(normal, [20, 10])


def main():
    lines = [f"# Pillow {PIL.__version__}, torchvision {torchvision.__version__}, torch {torch.__version__}"]
    data = b""
    for name, result in cases():
        if isinstance(result, PIL.Image.Image):
            array, kind = np.asarray(result), "u8"
            height, width, channels = (*array.shape, 1)[:3]
        else:
            array, kind = result.numpy().astype("<f4"), "f32"
            channels, height, width = array.shape
        lines.append("\t".join([name, kind, str(width), str(height), str(channels)]))
        data += array.tobytes()
    HERE.mkdir(exist_ok=True)
    (HERE / "index.txt").write_text("\n".join(lines) + "\n")
    (HERE / "data.bin").write_bytes(data)


if __name__ == "__main__":
    main()
