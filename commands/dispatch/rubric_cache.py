"""Parsed rubrics, kept by content under the user's cache directory, so that a step need not import a YAML reader."""

from __future__ import annotations

import os

from ledger.canonical import encode, load
from ledger.errors import GatebookError, Invalid

# Part of every key: raise it when a file's text would be read to another document than before.
_READING = b"gatebook rubric reading 1"
MAX_BYTES = 1024 * 1024


def place_of(raw: bytes, suffix: str) -> str:
    """The cache file of the rubric text `raw` of format `suffix`."""
    from blake3 import blake3

    key = blake3(b"\0".join((_READING, suffix.encode("utf-8", "surrogateescape"), raw))).hexdigest()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "gatebook", f"rubric-{key}.json")


def recall(place: str) -> object:
    """The document kept at `place`, or None: absent, damaged, or writable by somebody else is all the same."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        facts = os.fstat(descriptor)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o7777 != 0o600 or facts.st_size > MAX_BYTES:
            return None
        return load(os.read(descriptor, MAX_BYTES))
    except (OSError, GatebookError):
        return None
    finally:
        os.close(descriptor)


def remember(place: str, document: object) -> None:
    """Keep `document` at `place`; a cache that cannot be written is no error."""
    try:
        text = encode(document)
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        os.chmod(os.path.dirname(place), 0o700)
        _write(f"{place}.{os.getpid()}", text, place)
    except (OSError, ValueError, Invalid):
        return


def _write(temporary: str, text: bytes, place: str) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, text)
        os.rename(temporary, place)
    except OSError:
        os.unlink(temporary)
    finally:
        os.close(descriptor)
