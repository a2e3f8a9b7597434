"""Which writes are prose or comments only: fail-closed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.sessions.fast_replay import eligible

PY = 'def f(x):\n    """Doc."""\n    return x  # note\n'
GO = "package a\n\n// F adds.\nfunc F(x int) int {\n\treturn x + 1 // note\n}\n"


@pytest.mark.parametrize(
    ("path", "old", "new", "answer"),
    [
        ("README.md", "a", "b", True),
        ("docs/new.rst", None, "b", True),
        ("docs/old.md", "a", None, False),
        ("src/a.py", PY, PY.replace("note", "a better note"), True),
        ("src/a.py", PY, PY.replace("Doc.", "What it does."), True),
        ("src/a.py", PY, PY.replace("    return", "\n    return"), True),
        ("src/a.py", PY, PY.replace("return x", "return x + 1"), False),
        ("src/a.py", PY, PY.replace("return x  # note", "return x  # type: ignore"), False),
        ("src/a.py", PY.replace("note", "noqa: E501"), PY, False),
        ("src/a.py", "#!/usr/bin/python\n" + PY, "#!/usr/bin/env python\n" + PY, False),
        ("src/a.py", PY, PY.replace("Doc.", ">>> f(1)\n    1"), False),
        ("src/a.py", PY + "print(f.__doc__)\n", PY.replace("Doc", "Dog") + "print(f.__doc__)\n", False),
        ("src/a.py", PY, PY.replace('"""Doc."""', '"""Doc."""; "x"'), False),
        ("src/a.py", PY, "def f(:\n", False),
        ("src/a.py", None, PY, False),
        ("src/a.py", 'x = "a"\n', 'x = "b"\n', False),
        ("src/a.py", 'x = 1\n"a"\n', 'x = 1\n"b"\n', False),
        ("src/a.go", GO, GO.replace("note", "better"), True),
        ("src/a.go", GO, GO.replace("// F adds.", "// F adds one.\n// Always."), True),
        ("src/a.go", GO, GO.replace("+ 1", "+ 2"), False),
        ("src/a.go", GO, GO.replace("return x + 1", "return /*\n*/ x + 1"), False),
        ("src/a.go", GO, "//go:build linux\n" + GO, False),
        ("src/a.go", GO, GO.replace("// F adds.", "//nolint:all"), False),
        ("src/a.go", 'import "C"\n' + GO, 'import "C"\n' + GO.replace("note", "n"), False),
        ("src/a.go", 'x := "// no"\n', 'x := "// yes"\n', False),
        ("src/a.go", "x := `// no`\n", "x := `// yes`\n", False),
        ("src/a.js", "// a\n", "// b\n", False),
        ("src/a.rs", "// a\n", "// b\n", False),
        ("Makefile", "# a\n", "# b\n", False),
        ("a.json", "{}", "{} ", False),
        ("a.yaml", "# a", "# b", False),
        ("tests/test_a.py", PY, PY.replace("note", "x"), False),
        ("tests/README.md", "a", "b", False),
        ("src/a_test.go", GO, GO.replace("note", "x"), False),
        ("src/a.spec.md", "a", "b", False),
        ("skills/x/notes.md", "a", "b", False),
        ("SKILL.md", "a", "b", False),
        ("CLAUDE.md", "a", "b", False),
        ("docs/protocol/x.md", "a", "b", False),
        ("requirements.txt", "a", "b", False),
        ("requirements-dev.txt", "a", "b", False),
        ("requirements/base.txt", "a", "b", False),
        ("dev_constraints.txt", "a", "b", False),
        ("docs/requirements.md", "a", "b", True),
        (".review-loop/config.md", "a", "b", False),
        (".cursor/rules.md", "a", "b", False),
        ("src/a.py", "# /// script\n# dependencies = ['a']\n# ///\n" + PY, "# /// script\n# dependencies = ['b']\n# ///\n" + PY, False),
        ("src/a.py", PY + "getdoc(f)\n", PY.replace("Doc", "Dog") + "getdoc(f)\n", False),
        ("src/a.py", "# cython: boundscheck=True\n" + PY, "# cython: boundscheck=False\n" + PY, False),
        ("src/a.go", GO, "// +kubebuilder:object:root=true\n" + GO, False),
        ("src/a.go", GO, GO.replace("// F adds.", "//revive:disable"), False),
        ("src/a.md", "a\0", "b", False),
    ],
)  # fmt: skip
def test_eligible(path, old, new, answer):
    encode = lambda text: None if text is None else text.encode()  # noqa: E731
    assert eligible(path, encode(old), encode(new)) is answer


def test_bytes_that_are_not_utf_8_are_not_eligible():
    assert not eligible("a.md", b"a", b"\xff")


@given(st.text(alphabet="x=1+()# \n'\":", max_size=30), st.text(alphabet="x=1+()# \n'\":", max_size=30))
def test_eligible_python_compiles_to_the_same_program(old, new):
    if eligible("a.py", old.encode(), new.encode()):
        strip = lambda text: compile(text, "a", "exec", optimize=2)  # noqa: E731
        assert strip(old).co_code == strip(new).co_code
        assert strip(old).co_names == strip(new).co_names
