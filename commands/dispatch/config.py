"""The user's own choice of executors and memory: `$XDG_CONFIG_HOME/gatebook/config.toml`, never a file of a work tree."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from projections import lean  # noqa: F401 - before msgspec

# isort: split
import msgspec
from msgspec import Meta, Struct

from ledger.errors import Refused

MAX_FILE = 256 * 1024
Argv = Annotated[tuple[str, ...], Meta(min_length=1)]


class ExecutorConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """A program that takes a HandoffPacket on stdin; `{model}` and `{effort}` in its arguments are filled in."""

    command: Argv
    enforces_paths: bool = False
    context_modes: tuple[Literal["fresh", "fork", "hybrid"], ...] = ("fresh",)


class NativeConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """What the native runtime can do."""

    enforces_paths: bool = False


class MemoryConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """An MCP server over stdio, and its tools: recall takes `query` and `scope`, capture `text` and `scope`."""

    command: Argv
    recall_tool: str
    capture_tool: str
    project_id: str = ""


class Config(Struct, frozen=True):
    """The parts of the file that dispatch reads; others' tables are theirs."""

    executors: dict[str, ExecutorConfig] = {}
    native: NativeConfig = NativeConfig()
    memory: MemoryConfig | None = None


def config_path() -> str:
    """Where the file would be."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "gatebook", "config.toml")


def load_config(work_tree: str) -> Config:
    """The user's configuration, the default where there is no file.

    Raises:
        Refused: the file lies in `work_tree` (canonical), may be written by others, or is malformed.
    """
    path = config_path()
    try:
        facts = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return Config()
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    from commands.dispatch.ceiling import inside

    if inside(os.path.realpath(path), work_tree):
        raise Refused(
            f"{path} lies in the working directory: programs to run come from the user's configuration only"
        )
    if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & 0o022:
        raise Refused(
            f"{path} may be written by others; `chmod go-w` it, or it names programs that are not yours"
        )
    if facts.st_size > MAX_FILE:
        raise Refused(f"{path} is larger than {MAX_FILE // 1024} KiB")
    return _parse(path)


def _parse(path: str) -> Config:
    import tomllib

    from commands.dispatch.rubric import check_endpoint_part
    from ledger.errors import Invalid

    try:
        with open(path, "rb") as file:
            found = msgspec.convert(tomllib.load(file), Config)
        for name in found.executors:
            check_endpoint_part(name, f"executors.{name}")
            if name in ("native", "current", "codex"):
                raise Invalid(f"executors.{name} is built in")
        return found
    except RecursionError:
        raise Refused(f"{path}: nested too deep") from None
    except (OSError, ValueError, Invalid) as error:  # TOML's, msgspec's and Unicode's errors are ValueErrors
        raise Refused(f"{path}: {error}") from None
