"""Official archives: found unpacked or packed under a data root, or downloaded once with their published hash.

Members are read straight from the archive; nothing is unpacked to disk.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zipfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from recollect.errors import UserError

CHUNK = 1 << 20
MAX_BYTES = 1 << 30  # of one member; the largest of the official archives has 153 MB


@dataclass(frozen=True)
class Archive:
    """A published archive: where it is, its hash, and the folder it unpacks to."""

    filename: str
    folder: str
    md5: str
    urls: tuple[str, ...]


class Files(ABC):
    """The files of an archive or of its unpacked folder, by name relative to that folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def names(self) -> list[str]: ...

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the files do."""

    @abstractmethod
    def _read(self, name: str) -> bytes: ...

    def read(self, name: str) -> bytes:
        try:
            return self._read(name)
        except (KeyError, OSError, EOFError, zipfile.BadZipFile, tarfile.TarError) as error:
            raise UserError(
                f"{self.path}: cannot read {name} ({error}); the archive is incomplete or corrupt: "
                "delete it and fetch it again"
            ) from error


class Folder(Files):
    """An unpacked archive."""

    def names(self) -> list[str]:
        return sorted(p.relative_to(self.path).as_posix() for p in self.path.rglob("*") if p.is_file())

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(str(self.path.resolve()).encode(), digest_size=8)
        for name in self.names():
            status = (self.path / name).stat()
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def _read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


class Tar(Files):
    """A tar archive, compressed or not."""

    def __init__(self, path: Path, folder: str, md5: str) -> None:
        super().__init__(path)
        self._folder, self._md5 = folder, md5
        self._tar = tarfile.open(path)  # noqa: SIM115 - held open for reading members
        self._members = {member.name: member for member in self._tar.getmembers() if member.isfile()}

    def names(self) -> list[str]:
        return sorted(name.removeprefix(f"{self._folder}/") for name in self._members)

    def fingerprint(self) -> str:
        return self._md5

    def _read(self, name: str) -> bytes:
        member = self._members[f"{self._folder}/{name}"]
        _check_size(member.size)
        stream = self._tar.extractfile(member)
        assert stream is not None
        return stream.read()


class Zip(Files):
    """A zip archive."""

    def __init__(self, path: Path, folder: str, md5: str) -> None:
        super().__init__(path)
        self._folder, self._md5 = folder, md5
        self._zip = zipfile.ZipFile(path)

    def names(self) -> list[str]:
        prefix = f"{self._folder}/"
        return sorted(n.removeprefix(prefix) for n in self._zip.namelist() if not n.endswith("/"))

    def fingerprint(self) -> str:
        return self._md5

    def _read(self, name: str) -> bytes:
        member = self._zip.getinfo(f"{self._folder}/{name}")
        _check_size(member.file_size)
        return self._zip.read(member)


def data_folder() -> Path:
    """Where downloads and decoded arrays are kept: $RECOLLECT_DATA, or the user's cache folder."""
    import pooch

    given = os.environ.get("RECOLLECT_DATA")
    return Path(given) if given else Path(pooch.os_cache("recollect"))


def open_archive(archive: Archive, data_root: Path | None) -> Files:
    """The archive's files: from `data_root` where one is given, else downloaded."""
    if data_root is None:
        return _open(_download(archive), archive)
    if not data_root.is_dir():
        raise UserError(f"--data-root {data_root} is not a folder")
    for candidate in (data_root / archive.folder, data_root / archive.filename):
        if candidate.is_dir():
            return Folder(candidate)
        if candidate.is_file():
            return _open(candidate, archive)
    raise UserError(
        f"found neither {archive.folder}/ nor {archive.filename} in {data_root}; "
        "put one there, or leave --data-root out to download it"
    )


def _open(path: Path, archive: Archive) -> Files:
    if _md5(path) != archive.md5:
        raise UserError(
            f"{path} is not the published archive (its MD5 is not {archive.md5}): it is incomplete or "
            "corrupt; delete it and fetch it again"
        )
    kind = Zip if path.suffix == ".zip" else Tar
    try:
        return kind(path, archive.folder, archive.md5)
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be opened ({error}); delete it and fetch it again") from error


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _download(archive: Archive) -> Path:
    """Fetch with pooch, which writes aside and renames; mirrors are tried in turn, those of the user first."""
    import pooch
    import requests

    mirrors = [m.rstrip("/") for m in os.environ.get("RECOLLECT_MIRRORS", "").split() if m]
    problems: list[str] = []
    for url in (*(f"{mirror}/{archive.filename}" for mirror in mirrors), *archive.urls):
        bar = _Bar(f"downloading {archive.filename}")
        try:
            path = pooch.retrieve(
                url,
                f"md5:{archive.md5}",
                fname=archive.filename,
                path=data_folder() / "archives",
                downloader=pooch.HTTPDownloader(progressbar=bar, timeout=30),
            )
            return Path(path)
        except (requests.RequestException, ValueError, OSError) as error:
            problems.append(f"{url}: {type(error).__name__}")
        finally:
            bar.close()
    raise UserError(
        f"could not download {archive.filename} ({'; '.join(problems)}); fetch it elsewhere and give its "
        "folder as --data-root, or name a mirror in RECOLLECT_MIRRORS"
    )


class _Bar:
    """A rich progress bar behind the tqdm-like face that pooch asks for."""

    def __init__(self, title: str) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        )
        self._task = self._progress.add_task(title, total=None)
        self._total: float | None = None

    @property
    def total(self) -> float | None:
        return self._total

    @total.setter
    def total(self, value: float) -> None:
        self._total = value
        self._progress.update(self._task, total=value)
        self._progress.start()

    def update(self, amount: float) -> None:
        self._progress.advance(self._task, amount)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_BYTES:
        raise OSError(f"it would unpack to {num_bytes} bytes, more than {MAX_BYTES}")
