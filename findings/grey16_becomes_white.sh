#!/bin/sh
# Guess: convert("RGB") of a PNG image in 16 bits of grey scales its values to 8 bits, as viewers do, and
# as Pillow itself does with 16 bits of colour, whose upper byte counts.
# Really: values are cut off at 255, which is nearly black: all above it becomes white.
# Why users meet it: X-rays and depth maps are such images, and transformers' load_image, and so each of
# its image pipelines, ends in convert("RGB"). A model is trained on a white sheet, without a warning.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
python3 -m venv venv
venv/bin/pip install --quiet pillow==13.0.0

venv/bin/python - <<'END'
import struct
import zlib

from PIL import Image


def write(name, kind, values):
    """A PNG file of one row in 16 bits: kind 0 is grey, 2 is colour."""
    def chunk(tag, data):
        return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))
    channels = 3 if kind == 2 else 1
    row = b"\0" + struct.pack(f">{len(values) * channels}H", *(v for v in values for _ in range(channels)))
    with open(name, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" +
                   chunk(b"IHDR", struct.pack(">IIBBBBB", len(values), 1, 16, kind, 0, 0, 0)) +
                   chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b""))


values = [0, 300, 20000, 65535]
write("grey.png", 0, values)
write("colour.png", 2, values)
grey = [Image.open("grey.png").convert("RGB").getpixel((x, 0))[0] for x in range(4)]
colour = [Image.open("colour.png").convert("RGB").getpixel((x, 0))[0] for x in range(4)]
print("16 bits:", values)
print("of colour, converted:", colour)
print("of grey, converted:  ", grey)
same = colour == [0, 1, 78, 255] and grey == [0, 255, 255, 255]
assert same
print("As described: 16 bits of grey are cut off at 255.")
END
