#!/usr/bin/env python3
"""Writes the images of this folder, and beside each NAME.rgb: its pixels as Pillow reads, turns,
converts and resizes them to 8 x 8, bilinear. Made with Pillow 13.0; test_image.c compares with
them.

    python3 tests/datasets/images/make.py
"""
import pathlib
import random

from PIL import Image, ImageOps

HERE = pathlib.Path(__file__).parent
SIZE, WIDTH, HEIGHT = 8, 19, 13


def picture(mode, channels, scale=1):
    """Waves and a little noise."""
    numbers = random.Random(7)
    image = Image.new(mode, (WIDTH, HEIGHT))
    for y in range(HEIGHT):
        for x in range(WIDTH):
            pixel = tuple(min(255, (x * (9 + 5 * c) + y * (17 - 3 * c) + numbers.randrange(40)) % 256) * scale
                          for c in range(channels))
            image.putpixel((x, y), pixel if channels > 1 else pixel[0])
    return image


def main():
    rgb, rgba, grey = picture("RGB", 3), picture("RGBA", 4), picture("L", 1)
    exif = Image.Exif()
    images = {
        "rgb.png": (rgb, {}), "rgba.png": (rgba, {}), "grey.png": (grey, {}),
        "grey_alpha.png": (picture("LA", 2), {}), "bits.png": (grey.convert("1"), {}),
        "palette.png": (rgb.quantize(17), {}), "palette_clear.png": (rgb.quantize(9), {"transparency": 3}),
        "grey16.png": (picture("I;16", 1, 3), {}),
        "rgb.jpg": (rgb, {"quality": 85}), "grey.jpg": (grey, {"quality": 85}),
        "cmyk.jpg": (picture("CMYK", 4), {"quality": 85}),
        "progressive.jpg": (rgb, {"quality": 60, "progressive": True}),
    }
    for turn in range(2, 9):
        exif[0x112] = turn
        images[f"turn{turn}.{'png' if turn % 2 else 'jpg'}"] = (rgb, {"exif": exif.tobytes()})
    for name, (image, options) in images.items():
        image.save(HERE / name, **options)
        read = ImageOps.exif_transpose(Image.open(HERE / name)).convert("RGB")
        small = read.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        (HERE / name).with_suffix((HERE / name).suffix + ".rgb").write_bytes(small.tobytes())


if __name__ == "__main__":
    main()
