"""Lists what a folder contains, every tensor and every stored sample, and searches it for given images."""

from recollect.audit.files import list_files
from recollect.audit.inventory import Audit, Entry, Store, take_inventory
from recollect.audit.pictures import read_images
from recollect.audit.purge import purge
from recollect.audit.search import Finding, Searcher

__all__ = ["Audit", "Entry", "Finding", "Searcher", "Store", "list_files", "purge", "read_images", "take_inventory"]
