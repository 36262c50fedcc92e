"""Finding and decoding image files, with Pillow and NumPy alone: pixels are uint8 arrays [3, height, width]."""

from recollect.pictures.decoding import decode_image, find_suffix, read_content, read_file, read_size, upright
from recollect.pictures.files import SUFFIXES, class_pictures, find_images, is_litter, list_pictures, refuse_missing

__all__ = [
    "SUFFIXES",
    "class_pictures",
    "decode_image",
    "find_images",
    "find_suffix",
    "is_litter",
    "list_pictures",
    "read_content",
    "read_file",
    "read_size",
    "refuse_missing",
    "upright",
]
