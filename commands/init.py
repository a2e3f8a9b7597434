"""`init`: make a ledger, its keys and its trust (contract page ledger)."""

from __future__ import annotations

import os

from commands.context import Context, emit
from commands.flags import Args, Command, Flag
from ledger.errors import Usage


def _own_place(folder: str) -> str:
    """`folder`, or `.gatebook` in it where other things lie: a ledger closes its directory (0700) and hides it from git."""
    from ledger.access import FOLDER

    if os.path.basename(folder) == FOLDER or not os.path.isdir(folder):
        return folder
    names = os.listdir(folder)
    ours = any(name.startswith("ledger.") for name in names)
    return os.path.join(folder, FOLDER) if names and not ours else folder


def _named_place(named: str) -> str:
    """The directory that `--ledger` or the environment means."""
    from ledger.access import place_of_files

    folder = place_of_files(named)
    return _own_place(os.path.dirname(folder) if os.path.basename(folder) == "ledger.db" else folder)


def _found_place(args: Args, context: Context) -> str:
    """`.gatebook` here or in the common git directory; the other of the two where that is this place's ledger already.

    A second one would be hidden behind the first, or hide it: commands look at both places.
    """
    from ledger.access import FOLDER, git_common_dir, standing_at

    here = folder = os.getcwd()
    if args.git_dir:
        here, folder = git_common_dir(here)
    wanted = os.path.join(folder, FOLDER)
    stands = standing_at(here) or wanted
    if args.git_dir and stands != wanted:
        context.log().warning(f"--git-dir changed nothing: the ledger here is {stands}, and stays there")
    return stands


def run(args: Args, context: Context) -> int:
    """Make `.gatebook/` here (or where `--ledger` says, or in the common git directory); again: no change."""
    from ledger.access import create_ledger

    if args.single_key and args.signers is None:
        raise Usage("--single-key goes with --signers")
    if args.git_dir and context.ledger_given:
        raise Usage("--git-dir and --ledger both say where; give one")
    genesis: dict[str, object] = {}
    if args.signers is not None:
        from commands.authority.signers import NOBODY, nobody_signs, read_policy

        policy = read_policy(args.signers, single_key=args.single_key)
        import msgspec

        genesis["authority"] = msgspec.to_builtins(policy)
        if nobody_signs(policy):
            context.log().warning(NOBODY)
    named = None if args.git_dir else context.ledger_given or os.environ.get("GATEBOOK_LEDGER")
    if named and named.startswith("nats://"):
        from ledger.fleet import create_fleet

        return _reply(args, context, create_fleet(named, context.origin(), genesis))
    folder = _named_place(named) if named else _found_place(args, context)
    ledger, created = create_ledger(folder, context.origin(), genesis)
    head = ledger.store.head()
    ledger.close()
    reply: dict[str, object] = {
        "ledger_id": ledger.id,
        "path": ledger.folder,
        "created": created,
        "seq": head.seq,
        "hash": head.hash.hex(),
    }
    return _reply(args, context, reply)


def _reply(args: Args, context: Context, reply: dict[str, object]) -> int:
    emit(reply)
    if args.signers is not None and not reply["created"]:
        context.log().warning(
            f"the ledger was there before and keeps its policy: {args.signers} changed nothing; `gatebook authority show` "
            "says who signs, `gatebook authority require` changes it"
        )
    return 0


COMMANDS = {
    "init": Command(
        run,
        "Makes .gatebook/ here: the log, its lock, a .gitignore, keys in $XDG_STATE_HOME/gatebook, and the genesis event.\n"
        "Run again it changes nothing and prints the same ledger.",
        flags=(
            Flag(
                "--signers",
                "FILE",
                "OpenSSH public keys whose signature approvals will need (see docs/security.md)",
            ),
            Flag("--single-key", None, "accept a signers file with one key only"),
            Flag("--git-dir", None, "put it into the common git directory, out of reach of git clean"),
        ),
        example="gatebook init",
    )
}
