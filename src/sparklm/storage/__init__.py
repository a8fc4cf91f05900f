"""Files, wherever they are: one small interface over local disks, HDFS, S3 and memory.

`Folder` (folder.py) names a place and reads and writes whole files in it. A file that can be seen is complete. A store
that is away is waited for (retrying.py); its errors are a line (trouble.py). `LiveFile` (live.py) only informs. What is
no regular file is refused before it is read (regular.py). `owning` (lease.py) keeps a folder for one process at a time.
"""

from sparklm.storage.address import is_answering, new_run_name, split_url, store_of
from sparklm.storage.filesystems import open_filesystem, open_remote
from sparklm.storage.folder import Folder, describe_damage, read_record, split_address
from sparklm.storage.lease import Claim, check_held, is_bookkeeping, owning, still_owns, undoing
from sparklm.storage.live import Aside, LiveFile, read_live
from sparklm.storage.local import Buffer, hidden_path, write_local
from sparklm.storage.outputs import Output
from sparklm.storage.regular import open_regular, require_regular_file
from sparklm.storage.retrying import be_patient, current_patience, is_away, keep_trying, not_waiting, patience

__all__ = [
    "Aside",
    "Buffer",
    "Claim",
    "Folder",
    "LiveFile",
    "Output",
    "be_patient",
    "check_held",
    "current_patience",
    "describe_damage",
    "hidden_path",
    "is_answering",
    "is_away",
    "is_bookkeeping",
    "keep_trying",
    "new_run_name",
    "not_waiting",
    "open_filesystem",
    "open_regular",
    "open_remote",
    "owning",
    "patience",
    "read_live",
    "read_record",
    "require_regular_file",
    "split_address",
    "split_url",
    "still_owns",
    "store_of",
    "undoing",
    "write_local",
]
