"""Which skills can be found: `<skills>/<name>/SKILL.md`, named like its folder and finished (contract: Hand-off)."""

from __future__ import annotations

from commands.plan_runs.rooted import read_file
from ledger.errors import Invalid, Refused
from projections.approval_grammar import is_skill_name

_FILE_LIMIT = 4 << 20
SKELETON = "UNFILLED_SKELETON"


class SkillFolder:
    """The skills below one folder; `name in folder` is whether that skill is discoverable. No folder: none is."""

    __slots__ = ("root",)

    def __init__(self, root: str | None) -> None:
        self.root = root

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.why_not(name) is None

    def path(self, name: str) -> str:
        """Where the skill's file lies, or would lie."""
        return f"{self.root}/{name}/SKILL.md" if self.root else f"{name}/SKILL.md"

    def why_not(self, name: str) -> str | None:
        """None for a discoverable skill, else the one reason why it is not."""
        if self.root is None:
            return "no skills folder was given (--skills)"
        if not is_skill_name(name):
            return f"{name!r} is not a name of the form canvas-<name>"
        try:
            text = read_file(self.root, f"{name}/SKILL.md", limit=_FILE_LIMIT).decode("utf-8")
        except (Invalid, Refused) as error:
            return str(error)
        except UnicodeDecodeError:
            return f"{self.path(name)}: is not UTF-8"
        if SKELETON in text:
            return f"{self.path(name)}: still holds {SKELETON}"
        named = _frontmatter_names(text)
        if named != [name]:
            return f"{self.path(name)}: its frontmatter says name {', '.join(named) or '(none)'}, not {name}"
        return None


def _frontmatter_names(text: str) -> list[str]:
    """Every top-level `name` between the `---` lines that the file begins with.

    Read by lines and not as YAML: descriptions in the field are often prose that no YAML reader takes.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return []
    found: list[str] = []
    for line in lines[1:]:
        if line.rstrip() == "---":
            return found
        key, colon, value = line.partition(":")
        if colon and key.rstrip() == "name":
            value = value.split(" #", 1)[0].strip()
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            found.append(value)
    return []
