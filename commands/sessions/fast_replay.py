"""Which writes may skip the whole replay: prose, comments and docstrings only, decided by tokenizers, fail-closed.

Contract `review-sessions`, Stages. Text that agents obey, tests, and comments that tools obey count as code.
"""

from __future__ import annotations

import re

_PROSE = (".md", ".markdown", ".rst", ".txt")
_OBEYED_NAMES = frozenset(
    {"skill.md", "agents.md", "claude.md", "gemini.md", "requirements.txt", "cmakelists.txt", "robots.txt"}
)
_OBEYED_FOLDERS = frozenset(
    {".claude", ".codex", ".github", "agents", "skills", "prompts", "commands", "protocol"}
)
# Compiled by `re` at their first use: most steps of a session need none of them.
_TEST = r"(?:^|/)(?:tests?|testing|spec|specs|__tests__|testdata|fixtures)/|(?:^|/)(?:test_[^/]*|conftest\.py)$|[._-](?:test|tests|spec)\.[^/]+$"
_DIRECTIVE = (
    r"(?i)^#!|coding[:=]|type:|noqa|pragma|fmt:|pylint|mypy|pyright|ruff|isort|nosec|yapf|flake8|go:|\+build|nolint|export\b|cgo|lint:"
    r"|eslint|prettier|istanbul|@ts-|>>>|doctest"
)


def eligible(path: str, old: bytes | None, new: bytes | None) -> bool:
    """Whether a change of this file is prose, comments or metadata only. `old` None: created; `new` None: deleted."""
    lowered = path.lower()
    name = lowered.rpartition("/")[2]
    if new is None or re.search(_TEST, lowered):
        return False
    try:
        before, after = (old or b"").decode("utf-8"), new.decode("utf-8")
    except UnicodeDecodeError:
        return False
    if "\0" in before + after:
        return False
    if lowered.endswith(_PROSE):
        return name not in _OBEYED_NAMES and not _OBEYED_FOLDERS & set(lowered.split("/")[:-1])
    if old is None:
        return False
    if lowered.endswith(".py"):
        return _same(_python_code, before, after)
    if lowered.endswith(".go"):
        return _same(_go_code, before, after)
    return False


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

    if "__doc__" in text:
        raise _NotCode  # a docstring that the program reads
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
            if re.search(_DIRECTIVE, token) or token.startswith(("//go:", "//line", "/*line")):
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
