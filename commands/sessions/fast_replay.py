"""Which writes may skip the whole replay: prose, comments and docstrings only, decided by tokenizers, fail-closed.

Contract `review-sessions`, Stages. Text that agents obey, tests, and comments that tools obey count as code.
"""

from __future__ import annotations

import re

_PROSE = (".md", ".markdown", ".rst", ".txt")
_OBEYED_NAMES = frozenset(
    {"skill.md", "agents.md", "claude.md", "gemini.md", "cmakelists.txt", "robots.txt", "runtime.txt"}
)
_OBEYED_FOLDERS = frozenset({"agents", "skills", "prompts", "commands", "protocol"})
# Compiled by `re` at their first use: most steps of a session need none of them.
_TEST = r"(?:^|/)(?:tests?|testing|spec|specs|__tests__|testdata|fixtures)/|(?:^|/)(?:test_[^/]*|conftest\.py)$|[._-](?:test|tests|spec)\.[^/]+$"
_DIRECTIVE = (
    r"(?i)^#!|coding[:=]|type:|noqa|pragma|fmt:|pylint|mypy|pyright|ruff|isort|nosec|yapf|flake8|go:|\+build|nolint|export\b|cgo|lint:"
    r"|eslint|prettier|istanbul|@ts-|>>>|doctest|pyre-|pytype:|cython:|distutils:|nosem|nosonar|noinspection|skipcq|DO NOT EDIT"
)
_PACKAGES = r"(?:^|[/._-])(?:requirements|constraints)(?:[/._-].*)?\.txt$"  # what is installed
_SCRIPT_METADATA = r"(?m)^# /// [\w-]+$"  # what is installed, too
_GO_DIRECTIVE = r"//[a-z0-9]+:[a-z0-9]|//\s*\+[a-z]"


def eligible(path: str, old: bytes | None, new: bytes | None) -> bool:
    """Whether a change of this file is prose, comments or metadata only. `old` None: created; `new` None: deleted."""
    lowered = path.lower()
    if new is None or re.search(_TEST, lowered):
        return False
    try:
        before, after = (old or b"").decode("utf-8"), new.decode("utf-8")
    except UnicodeDecodeError:
        return False
    if "\0" in before + after:
        return False
    if lowered.endswith(_PROSE):
        return not _obeyed(lowered)
    if old is None:
        return False
    if lowered.endswith(".py"):
        return _same(_python_code, before, after)
    if lowered.endswith(".go"):
        return _same(_go_code, before, after)
    return False


def _obeyed(path: str) -> bool:
    """Whether an agent or a tool does what this text says; what is hidden (`.github/`, `.review-loop/`) is a tool's."""
    *folders, name = path.split("/")
    hidden = any(part.startswith(".") for part in (*folders, name))
    packages = re.search(_PACKAGES, path) is not None
    return hidden or packages or name in _OBEYED_NAMES or bool(_OBEYED_FOLDERS & set(folders))


class _NotCode(Exception):
    """The tokenizer cannot say; then it is code."""


def _same(code: object, before: str, after: str) -> bool:
    assert callable(code)
    try:
        old_code, old_directives = code(before)
        new_code, new_directives = code(after)
    except (_NotCode, SyntaxError, ValueError, RecursionError):
        return False
    return bool(old_code == new_code and old_directives == new_directives)


def _python_code(text: str) -> tuple[str, list[str]]:
    """The syntax tree without docstrings, and the comments that tools obey."""
    import ast
    import io
    import tokenize

    if "__doc__" in text or "getdoc" in text:
        raise _NotCode  # a docstring that the program reads
    if re.search(_SCRIPT_METADATA, text):
        raise _NotCode
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            doc = ast.get_docstring(node, clean=False)
            if doc is not None:
                if ">>>" in doc:
                    raise _NotCode  # a doctest
                node.body[0] = ast.Pass()
    directives = [
        token.line.strip()
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and re.search(_DIRECTIVE, token.string)
    ]
    return ast.dump(tree), directives


_GO_PIECE = r"(?s)//[^\n]*|/\*.*?\*/|`[^`]*`|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|\n|[ \t\r]+|[\w]+|."


def _go_code(text: str) -> tuple[list[str], list[str]]:
    """The tokens without comments (a line's end counts: Go ends statements there), and the comments that tools obey."""
    if 'import "C"' in text or re.search(r'^\s*"C"\s*$', text, re.MULTILINE):
        raise _NotCode  # cgo compiles a comment
    tokens: list[str] = []
    directives: list[str] = []
    for match in re.finditer(_GO_PIECE, text):
        token = match.group()
        if token.startswith(("//", "/*")):
            if (
                re.search(_DIRECTIVE, token)
                or re.match(_GO_DIRECTIVE, token)
                or token.startswith(("//line", "/*line"))
            ):
                directives.append(token)
            if "\n" in token:
                tokens.append("\n")
        elif token in ('"', "'", "`"):
            raise _NotCode  # an unclosed literal
        elif not token.isspace():
            tokens.append(token)
        elif "\n" in token and tokens and tokens[-1] != "\n":
            tokens.append("\n")
    return [t for i, t in enumerate(tokens) if t != "\n" or (i and tokens[i - 1] != "\n")], directives
