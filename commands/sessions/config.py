"""`.review-loop/config.md`: `key: value` lines and `|` blocks (contract `review-sessions`, last paragraph).

What may run programs is read from the user's own file only: a cloned work tree cannot choose them (DESIGN, Views).
"""

from __future__ import annotations

import os

from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_SKIP_PATHS = ("**/SKILL.md", "docs/protocol/**", "tests/skills/contracts/**")

# The steps of 3.5 and 3.6 that `session run` may run a command for, from the user's file.
STEP_COMMANDS = (
    "static_analysis_command",
    "code_review_command",
    "simplify_command",
    "test_consolidation_command",
    "project_docs_command",
    "comments_command",
)


def _text(value: str) -> str:
    return value


def _word(value: str) -> str:
    if len(value.split()) > 1:
        raise ValueError("one word")
    return value


def _switch(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


def _count(value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:6]) <= 1000:
        raise ValueError("a whole number from 1 to 1000")
    return int(value)


def _percentage(value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 3 or int(value) > 100:
        raise ValueError("a whole number from 0 to 100")
    return int(value)


def _reviewer(value: str) -> str:
    if value not in ("claude", "codex"):
        raise ValueError("claude or codex")
    return value


def _list(value: str) -> list[str]:
    """A JSON list, a `- item` block, one item a line, or items with commas between."""
    text = value.strip()
    if text.startswith("["):
        import json

        try:
            items = json.loads(text)
        except ValueError:
            items = [part.strip().strip("\"'") for part in text[1:].removesuffix("]").split(",")]
            if not text.endswith("]"):
                raise ValueError("a list: the closing ] is missing") from None
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ValueError("a list of texts")
    elif "\n" in text:
        items = [line.strip().removeprefix("-").strip().strip("\"'") for line in text.split("\n")]
    else:
        items = [part.strip().removeprefix("- ").strip("\"'") for part in text.split(",")]
    return [item for item in items if item]


_SHARED: dict[str, Callable[[str], object]] = {
    "reviewer": _reviewer,
    "reviewer_model": _word,
    "judgment_model": _word,
    "cheap_model": _word,
    "executor_model": _word,
    "soft_limit_plan": _count,
    "soft_limit_exec": _count,
    "auto_commit": _switch,
    "commit_message_prefix": _text,
    "docs_file": _text,
    "handsfree": _switch,
    "review_focus": _text,
    "quality_focus": _text,
    "review_style": _text,
    "skip_quality_polish": _switch,
    "adversarial_gate_skip_paths": _list,
    "context_persist_threshold": _percentage,
}
_USER_ONLY: dict[str, Callable[[str], object]] = {
    "trusted_filters": _list,
    "lint_command": _text,
    "build_check_command": _text,
    **dict.fromkeys(STEP_COMMANDS, _text),
}


class Config:
    """The settings of a session; attributes have the keys' names. `warnings` names what was not understood."""

    def __init__(self) -> None:
        self.reviewer = "claude"
        self.reviewer_model = ""
        self.judgment_model = ""
        self.cheap_model = ""
        self.executor_model = ""
        self.soft_limit_plan = 3
        self.soft_limit_exec = 3
        self.auto_commit = False
        self.commit_message_prefix = "feat"
        self.docs_file = ""
        self.handsfree = False
        self.review_focus = ""
        self.quality_focus = ""
        self.review_style = ""
        self.skip_quality_polish = False
        self.adversarial_gate_skip_paths = list(DEFAULT_SKIP_PATHS)
        self.context_persist_threshold = 70
        self.trusted_filters: list[str] = []
        self.lint_command = ""
        self.build_check_command = ""
        self.static_analysis_command = ""
        self.code_review_command = ""
        self.simplify_command = ""
        self.test_consolidation_command = ""
        self.project_docs_command = ""
        self.comments_command = ""
        self.warnings: list[str] = []

    @property
    def model(self) -> str:
        """The executor's model: `executor_model` unless `inherit`, else `judgment_model`, else '' (omitted)."""
        if self.executor_model and self.executor_model != "inherit":
            return self.executor_model
        return self.judgment_model


def load_config(root: str) -> Config:
    """The user's file, then the work tree's over it.

    Raises:
        Invalid: a value that is not what its key takes; an unreadable file. Unknown keys only warn.
    """
    config = Config()
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    _apply(config, os.path.join(home, "gatebook", "config.md"), {**_SHARED, **_USER_ONLY})
    _apply(config, os.path.join(root, ".review-loop", "config.md"), _SHARED)
    return config


def _apply(config: Config, path: str, known: dict[str, Callable[[str], object]]) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(1 << 20)
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    for number, key, value in parse_config(text):
        if key in known:
            try:
                setattr(config, key, known[key](value))
            except ValueError as error:
                raise Invalid(f"{path}, line {number}: {key} must be {error}, not {value[:60]!r}") from None
        elif key in _USER_ONLY:
            config.warnings.append(
                f"{path}, line {number}: {key} counts only in the user's own configuration"
            )
        else:
            config.warnings.append(f"{path}, line {number}: unknown key {key[:60]!r}")


def parse_config(text: str) -> list[tuple[int, str, str]]:
    """(line number, key, value) of each setting; headings, comments, fences and prose are passed over.

    A value of `|` takes the indented lines after it, their common indent removed; an empty value takes `- item`
    lines. A known key in another spelling is given as it is written, so that it can be warned about.
    """
    lines = text.split("\n")
    found: list[tuple[int, str, str]] = []
    i = 0
    while i < len(lines):
        line = lines[i].rstrip("\r")
        i += 1
        bare = line.removeprefix("- ").strip("\ufeff")
        key, colon, value = bare.partition(":")
        if not colon or not (_is_key(key) or _meant(key)):
            continue
        value = value.strip()
        if value.startswith("#") or value.partition(" #")[0].rstrip() in ("|", "|-", "|+", ""):
            block, end = _block(lines, i, bullets=not value.startswith("|"))
            found.append((i, key, block))
            i = end
        else:
            found.append((i, key, _unquote(value)))
    return found


def _is_key(key: str) -> bool:
    return (
        bool(key)
        and key[0].isalpha()
        and key.isascii()
        and key.replace("_", "a").isalnum()
        and key == key.lower()
    )


def _meant(key: str) -> bool:
    """Whether this is a known key in capitals, with hyphens, or indented."""
    known = key.strip().lower().replace("-", "_")
    return known in _SHARED or known in _USER_ONLY


def _unquote(value: str) -> str:
    """A value without its quotes and without a `#` comment after it."""
    if value[0] in "\"'":
        end = value.find(value[0], 1)
        after = value[end + 1 :].strip() if end > 0 else "no end"
        if not after or after.startswith("#"):
            return value[1:end]
    if value.startswith("#"):
        return ""
    return value.split(" #", maxsplit=1)[0].rstrip()


def _block(lines: list[str], start: int, *, bullets: bool) -> tuple[str, int]:
    end = start
    while end < len(lines):
        line = lines[end].rstrip("\r")
        if (
            line.strip()
            and line[0] not in " \t"
            and not (bullets and line.startswith("- ") and ":" not in line)
        ):
            break
        end += 1
    taken = [line.rstrip("\r") for line in lines[start:end]]
    indent = min((len(x) - len(x.lstrip()) for x in taken if x.strip()), default=0)
    return "\n".join(x[indent:] for x in taken).strip("\n"), end
