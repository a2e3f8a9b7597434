"""`completion`: shell completion for bash, zsh and fish, generated from the same records that parse (contract page ledger)."""

from __future__ import annotations

from commands.context import Context, say
from commands.flags import GLOBAL, Args, Command, Word
from ledger.errors import Usage

SHELLS = ("bash", "zsh", "fish")
_CHOICES = {"--log-format": ("console", "json"), "--log-level": ("debug", "info", "warning", "error")}


def _groups() -> dict[str, list[str]]:
    """The first words that need a second, with their second words."""
    from commands.table import COMMANDS

    found: dict[str, list[str]] = {}
    for name in COMMANDS:
        first, _, second = name.partition(" ")
        if second:
            found.setdefault(first, []).append(second)
    return found


def _first_word(name: str) -> str:
    """What a command's first argument may be, where that is a closed set; nothing where it is not."""
    from commands.entry import load

    words = load(name).words
    return " ".join(words[0].offers()) if words else ""


def _offers() -> list[str]:
    """The function `_gatebook_offers COMMAND BEFORE BEGUN`, in what bash and zsh have in common: what may stand here.

    It prints nothing where a file name or free text belongs.
    """
    from commands.entry import load
    from commands.table import COMMANDS

    firsts = sorted({name.split()[0] for name in COMMANDS})
    options, choices, words = [], [], []
    for name in COMMANDS:
        flags = load(name).flags
        valued = " ".join(flag.name for flag in flags if flag.metavar is not None)
        switches = " ".join([flag.name for flag in flags if flag.metavar is None] + ["--help"])
        options.append(f"  '{name}') valued='{valued}' switches='{switches}' ;;")
        choices += [
            f"  '{name} {f.name}') echo '{' '.join(f.choices)}'; return ;;" for f in flags if f.choices
        ]
        offered = _first_word(name)
        words += [f"  '{name} {name.split()[-1]}') echo '{offered}'; return ;;"] if offered else []
    for name, values in _CHOICES.items():
        choices.append(f"  *' {name}') echo '{' '.join(values)}'; return ;;")
    return [
        "_gatebook_offers() {",
        "  local valued= switches=",
        "  case $1 in",
        f"  '') valued='{' '.join(GLOBAL)}' switches='--version --help' ;;",
        *options,
        "  esac",
        '  case "$1 $2" in',
        *choices,
        "  esac",
        '  case " $valued " in *" $2 "*) return ;; esac',
        '  case $3 in -*) echo "$valued $switches"; return ;; esac',
        '  case "$1 $2" in',
        *words,
        "  esac",
        '  case "$1:$3" in',
        f"  :*) echo '{' '.join(firsts)}' ;;",
        *(f"  {first}:*) echo '{' '.join(inner)}' ;;" for first, inner in _groups().items()),
        "  esac",
        "}",
    ]


def _first_words(size: str, item: str) -> list[str]:
    """Shell lines that leave in `command` the one or two words of the command that stand before the cursor."""
    return [
        f"  while [ $index -lt {size} ]; do",
        f"    item={item}",
        "    index=$((index + 1))",
        "    case $item in",
        f"    {'|'.join(GLOBAL)})",
        f"      [ \"{item}\" = '=' ] && index=$((index + 1))",
        "      index=$((index + 1)) ;;",
        "    -*) ;;",
        '    *) command="$command${command:+ }$item"',
        f"      case $command in {'|'.join(_groups())}) ;; *) break ;; esac ;;",
        "    esac",
        "  done",
    ]


def _bash() -> str:
    return "\n".join(
        [
            "# gatebook completion for bash: source <(gatebook completion bash)",
            *_offers(),
            "_gatebook() {",
            "  local command= item= index=1 begun=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}",
            *_first_words("$COMP_CWORD", "${COMP_WORDS[index]}"),
            '  COMPREPLY=($(compgen -W "$(_gatebook_offers "$command" "$before" "$begun")" -- "$begun"))',
            "}",
            "complete -o default -F _gatebook gatebook",
        ]
    )


def _zsh() -> str:
    return "\n".join(
        [
            "#compdef gatebook",
            "# gatebook completion for zsh, after compinit: source <(gatebook completion zsh)",
            "# or keep it as _gatebook in a folder of $fpath",
            *_offers(),
            "_gatebook() {",
            "  local command= item= index=2 begun=$words[CURRENT] before=$words[CURRENT-1]",
            "  local -a offers",
            *_first_words("$CURRENT", "$words[index]"),
            '  offers=(${=$(_gatebook_offers "$command" "$before" "$begun")})',
            "  if (( $#offers )); then compadd -- $offers; else _files; fi",
            "}",
            'if [ "$funcstack[1]" = _gatebook ]; then _gatebook "$@"; else compdef _gatebook gatebook; fi',
        ]
    )


def _fish() -> str:
    from commands.entry import load
    from commands.table import COMMANDS

    groups = _groups()
    lines = [
        "# gatebook completion for fish: gatebook completion fish | source",
        "function __gatebook_command",
        "  set -l words (commandline -opc)[2..]",
        "  set -l found",
        "  while set -q words[1]",
        "    switch $words[1]",
        f"      case {' '.join(GLOBAL)}",
        "        set -e words[1]",
        "      case '-*'",
        "      case '*'",
        "        set -a found $words[1]",
        f'        contains -- "$found" {" ".join(groups)}; or break',
        "    end",
        "    set -e words[1]",
        "  end",
        '  echo "$found"',
        "end",
    ]

    def offer(command: str, rest: str) -> None:
        lines.append(f"complete -c gatebook -n 'test (__gatebook_command) = \"{command}\"' {rest}")

    offer("", "-f")
    for name in GLOBAL:
        values = _CHOICES.get(name)
        offer("", f"-l {name[2:]} -x -a '{' '.join(values)}'" if values else f"-l {name[2:]} -r")
    offer("", "-l version")
    for first in sorted({name.split()[0] for name in COMMANDS}):
        offer("", f"-a {first} -d {_quoted(COMMANDS[first][1] if first in COMMANDS else f'{first} …')}")
    for first in groups:
        offer(first, "-f")
    for name, (_, text) in COMMANDS.items():
        first, _, second = name.partition(" ")
        if second:
            offer(first, f"-a {second} -d {_quoted(text)}")
        for flag in load(name).flags:
            kind = "-s" if len(flag.name) == 2 else "-l"
            value = f"-x -a '{' '.join(flag.choices)}'" if flag.choices else "-r -F" if flag.metavar else ""
            offer(name, f"{kind} {flag.name.lstrip('-')} {value} -d {_quoted(flag.help)}")
        offer(name, "-l help")
        if offered := _first_word(name):
            offer(name, f"-n 'test (commandline -opc)[-1] = {name.split()[-1]}' -f -a '{offered}'")
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
        "Prints a completion script: bash, zsh or fish. Load it in the shell's start file:\n"
        "source <(gatebook completion bash), the same for zsh (after compinit), gatebook completion fish | source.",
        words=(Word("SHELL", "bash, zsh or fish", offers=lambda: SHELLS),),
        example="gatebook completion bash",
    )
}
