"""What `recollect audit --against` finds and does not find, in the words of docs/reliability.md.

One test hides an image in each of these ways; another compares these lists with the page.
"""

FOUND_IN = (
    "a picture file of any name",
    "a picture file inside another file (PNG, JPEG, GIF, WebP, TIFF)",
    "the raw bytes of a file or of a tensor of any type",
    "the numbers of a tensor",
    "the real or imaginary parts of a complex tensor",
    "32-bit or 64-bit floating-point numbers in a file of any kind",
    "the characters of a tensor's name or of a safetensors file's metadata",
    "the characters of a text file",
    "decimal numbers in JSON or other text",
    "base64",
    "hexadecimal digits",
)
FOUND_AS = (
    "scaled or normalised",
    "with an offset of any size that leaves its pixels distinct",
    "inverted",
    "stored channel by channel",
    "stored pixel by pixel",
    "stored pixel by pixel with an alpha channel",
    "at any place in a longer sequence",
    "inside a larger picture up to 1024 pixels wide",
    "mirrored",
    "upside down",
    "shifted by up to 4 pixels",
    "with noise up to 2/255",
)
NOT_FOUND = (
    "compressed otherwise than as a picture file, or in a compressed archive",
    "encrypted",
    "encoded as text otherwise than above, or twice, or in numbers of more than 15 digits",
    "turned by 90 degrees",
    "resized",
    "blurred",
    "with its colours mixed, as in a conversion to grey",
    "with its brightness changed by a curve",
    "with its pixels in another order, or more than 4 numbers apart",
    "scattered over several tensors or files",
    "in the later frames of a picture file, or where it is fully transparent",
    "in a file other than safetensors as numbers of other types than above",
)
