"""What a folder keeps: every tensor, every stored sample, and whether given images are anywhere in it."""

from recollect.audit.files import files_of
from recollect.audit.inventory import Audit, Entry, Store, take_stock
from recollect.audit.pictures import read_images
from recollect.audit.purge import purge
from recollect.audit.search import Finding, Searcher

__all__ = ["Audit", "Entry", "Finding", "Searcher", "Store", "files_of", "purge", "read_images", "take_stock"]
