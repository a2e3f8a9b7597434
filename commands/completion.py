"""`completion`: shell completion for bash, zsh and fish, generated from the same records that parse (contract page ledger)."""

from __future__ import annotations

from commands.context import Context, say
from commands.flags import Args, Command, Word
from ledger.errors import Usage

SHELLS = ("bash", "zsh", "fish")
_GLOBALS = "--ledger --actor --log-format --log-level --version --help"


def _flags() -> dict[str, list[str]]:
    from commands.entry import load
    from commands.table import COMMANDS

    found = {}
    for name in COMMANDS:
        command = load(name)
        found[name] = [flag.name for flag in command.flags] + ["--help"]
    return found


def _bash() -> str:
    from commands.table import COMMANDS

    firsts = sorted({name.split()[0] for name in COMMANDS})
    cases = []
    for name, flags in _flags().items():
        cases.append(f"    '{name}') words='{' '.join(flags)}' ;;")
    groups = []
    for first in firsts:
        inner = [name.split()[1] for name in COMMANDS if name.startswith(f"{first} ")]
        if inner:
            groups.append(f"    '{first}') words='{' '.join(inner)}' ;;")
    return "\n".join(
        [
            "# gatebook completion for bash: source <(gatebook completion bash)",
            "_gatebook() {",
            "  local current=${COMP_WORDS[COMP_CWORD]} words= command= item index",
            "  local -a given=()",
            "  for ((index = 1; index < COMP_CWORD; index++)); do",
            "    item=${COMP_WORDS[index]}",
            "    case $item in",
            "    --ledger|--actor|--log-format|--log-level) ((index++)) ;;",
            "    -*) ;;",
            '    *) given+=("$item") ;;',
            "    esac",
            "  done",
            '  command="${given[*]:0:2}"',
            "  case $command in",
            *cases,
            '    *) case "${given[0]}" in',
            *groups,
            "    " + "\n    ".join(line.strip() for line in cases if " " not in line.split("'")[1]),
            f"    '') words='{' '.join(firsts)} {_GLOBALS}' ;;",
            "    esac ;;",
            "  esac",
            '  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")',
            "  [[ ${#COMPREPLY[@]} -eq 0 ]] && compopt -o default",
            "}",
            "complete -F _gatebook gatebook",
        ]
    )


def _zsh() -> str:
    return (
        "#compdef gatebook\n# gatebook completion for zsh: source <(gatebook completion zsh)\nautoload -U +X bashcompinit && bashcompinit\n"
        + _bash()
    )


def _fish() -> str:
    from commands.table import COMMANDS

    lines = ["# gatebook completion for fish: gatebook completion fish | source", "complete -c gatebook -f"]
    firsts: dict[str, str] = {}
    for name, (_, text) in COMMANDS.items():
        firsts.setdefault(name.split()[0], text if " " not in name else f"{name.split()[0]} …")
    lines += [
        f"complete -c gatebook -n __fish_use_subcommand -a {first} -d {_quoted(text)}"
        for first, text in firsts.items()
    ]
    for name, flags in _flags().items():
        first, _, second = name.partition(" ")
        seen = f"__fish_seen_subcommand_from {first}"
        if second:
            lines.append(f"complete -c gatebook -n '{seen}' -a {second} -d {_quoted(COMMANDS[name][1])}")
            seen += f"; and __fish_seen_subcommand_from {second}"
        lines += [
            f"complete -c gatebook -n '{seen}' -l {flag.removeprefix('--')}"
            for flag in flags
            if flag.startswith("--")
        ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def run(args: Args, _context: Context) -> int:
    """Print the completion script of one shell."""
    if args.shell not in SHELLS:
        raise Usage(f"no completion for {args.shell!r}: {', '.join(SHELLS)}")
    say({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]())
    return 0


COMMANDS = {
    "completion": Command(
        run,
        "Prints a completion script: bash, zsh or fish.",
        words=(Word("SHELL", "bash, zsh or fish"),),
        example="gatebook completion bash",
    )
}
