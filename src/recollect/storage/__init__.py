"""Files and folders that are safe against crashes and untrusted content.

Every write goes to a new file under a random name that is then renamed; no symbolic link is followed when writing or
deleting; JSON is read with a schema and a size limit. `storage.tensors`, which needs torch, is imported separately.
"""

from recollect.storage.documents import read_json, seal, seal_matches, write_json
from recollect.storage.files import UNFINISHED, LinkError, append_line, refuse_links, sync, write_bytes, write_text
from recollect.storage.lock import LOCK_NAME, LockedError, lock_folder

__all__ = [
    "LOCK_NAME",
    "UNFINISHED",
    "LinkError",
    "LockedError",
    "append_line",
    "lock_folder",
    "read_json",
    "refuse_links",
    "seal",
    "seal_matches",
    "sync",
    "write_bytes",
    "write_json",
    "write_text",
]
