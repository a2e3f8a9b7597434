"""`export`, `import` and `backup`: the ledger elsewhere (contract page ledger)."""

from __future__ import annotations

import os
import sys

from commands.context import Context, emit
from commands.flags import Args, Command, Flag, Word
from ledger.errors import Conflict, Unavailable


def export(args: Args, context: Context) -> int:
    """Write the ledger as JSON lines to `--out F` (whole or not at all), or to stdout."""
    from commands.progress import Bar
    from ledger.archive import export as lines

    ledger = context.ledger()
    bar = Bar("exporting")
    if args.out is None:
        for line in lines(ledger, bar.callback()):
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        bar.close()
        return 0
    path = os.path.abspath(args.out)
    if os.path.lexists(path):
        raise Conflict(f"{path}: exists already: an export never replaces a file")
    temporary = f"{path}.{os.getpid()}.new"
    count = size = 0
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            for line in lines(ledger, bar.callback()):
                size += file.write(line)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}; there is no export") from None
    finally:
        bar.close()
        if os.path.lexists(temporary):
            os.unlink(temporary)
    emit({"path": path, "events": count - 1, "bytes": size})
    return 0


def import_(args: Args, _context: Context) -> int:
    """Make a read-only archive from an export."""
    from ledger.access import place_of_files
    from ledger.archive import default_folder, import_archive

    folder = place_of_files(args.to) if args.to is not None else default_folder(args.file)
    report, ledger_id = import_archive(args.file, folder)
    emit(
        {
            "ledger_id": ledger_id,
            "path": folder,
            "events": report.events,
            "head": {"seq": report.head_seq, "hash": report.head_hash.hex()},
            "archive": True,
        }
    )
    return 0


def backup(args: Args, context: Context) -> int:
    """Copy the ledger's file while others write, and verify the copy."""
    from commands.progress import Bar
    from ledger.archive import backup as copy

    bar = Bar("copying")
    try:
        report = copy(context.ledger(), args.file, bar.callback())
    finally:
        bar.close()
    emit(
        {"path": os.path.abspath(args.file), "head": {"seq": report.head_seq, "hash": report.head_hash.hex()}}
    )
    return 0


COMMANDS = {
    "export": Command(
        export,
        "The whole ledger as JSON lines, complete: `import` makes an archive of it that verifies to the same head hash.\n"
        "Redacted contents are not in it.",
        flags=(
            Flag("--format", "F", "the format", choices=("jsonl",)),
            Flag("--out", "F", "write to this file, which must not exist (default: stdout)"),
        ),
        example="gatebook export --out ledger.jsonl",
    ),
    "import": Command(
        import_,
        "Makes a read-only archive from an export, verified, whole or not at all. A bad line is named by its number.\n"
        "`resume --as-successor` turns an archive into a ledger that takes writes.",
        words=(Word("FILE", "an export"),),
        flags=(
            Flag(
                "--to",
                "DIR",
                "the archive's directory, which must not exist (default: FILE's name + .gatebook)",
            ),
        ),
        example="gatebook export --out ledger.jsonl\ngatebook import ledger.jsonl --to archive",
    ),
    "backup": Command(
        backup,
        "A consistent copy of the ledger while others write, verified before it gets its name. Contents over 512 KiB go\n"
        "to artifacts/ beside it.",
        words=(Word("FILE", "the copy; must not exist"),),
        example="gatebook backup ledger-copy.db",
    ),
}
