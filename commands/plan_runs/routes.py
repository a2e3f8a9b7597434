"""The route resolver: which skill an assignment goes to (contract: Hand-off, Routes and Delivery policy).

One resolver for parse, approve, next and execute; nobody keeps a mapping of their own.
"""

from __future__ import annotations

from ledger.errors import Invalid
from projections.approval_grammar import is_skill_name
from projections.result_keys import identity_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SKIP = "canvas-skip"
_ONLINE = frozenset(
    (
        "online_upload",
        "online_text_entry",
        "online_url",
        "media_recording",
        "student_annotation",
        "online_quiz",
    )
)
_FILE_LIMIT = 1 << 20
_SUB_ROUTER_SECONDS = 60


class Resolution(str):
    """A resolved skill's name; `reason` says why it is `canvas-skip` (None for a route's own choice)."""

    __slots__ = ("reason",)
    reason: str | None

    def __new__(cls, skill: str, reason: str | None = None) -> Resolution:  # noqa: PYI034 - `Self` costs the typing import
        """The name as text that also knows its reason."""
        found = super().__new__(cls, skill)
        found.reason = reason
        return found

    @property
    def skill(self) -> str:
        """The bare name."""
        return str(self)


class SubRouterError(Invalid):
    """A family's sub-router failed, or named something that is no skill: the item gets an `error` result."""


def load_routes(path: str) -> dict[str, Any]:
    """The routes file (`.toml`, else YAML) as `{"routes": {...}, "aliases": {...}}`; `Invalid` where it is malformed."""
    import os.path

    from commands.plan_runs.rooted import read_file

    folder, name = os.path.split(os.path.abspath(path))
    raw = read_file(folder, name, limit=_FILE_LIMIT)
    document = _parse_toml(raw, path) if path.endswith(".toml") else _parse_yaml(raw, path)
    return check_routes(document, path)


def _parse_toml(raw: bytes, path: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise Invalid(f"{path}: is not TOML: {error}") from None


def _parse_yaml(raw: bytes, path: str) -> Any:
    import yaml

    try:
        # Anchors are how a small YAML file becomes a huge value; routes need none.
        for token in yaml.scan(raw):
            if isinstance(token, (yaml.AnchorToken, yaml.AliasToken)):
                raise Invalid(f"{path}: holds a YAML anchor or alias; write the value out")
        _refuse_yaml_duplicates(yaml.compose(raw, Loader=yaml.SafeLoader), path)
        return yaml.safe_load(raw)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Invalid(f"{path}: is not YAML: {' '.join(str(error).split())}") from None


def _refuse_yaml_duplicates(node: Any, path: str) -> None:
    import yaml

    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                raise Invalid(f"{path}: holds the key {key.value!r} twice (line {key.start_mark.line + 1})")
            seen.add(key.value)
            _refuse_yaml_duplicates(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_yaml_duplicates(value, path)


def check_routes(document: Any, path: str = "routes") -> dict[str, Any]:
    """`document` with its two tables, course ids as text; `Invalid` naming the entry that has the wrong shape."""
    if not isinstance(document, dict) or not isinstance(document.get("routes"), dict):
        raise Invalid(f"{path}: needs a table `routes` of course ids")
    aliases = document.get("aliases", {})
    if not isinstance(aliases, dict) or not all(
        isinstance(text, str) for pair in aliases.items() for text in pair
    ):
        raise Invalid(f"{path}: aliases is not a table of names to names")
    routes: dict[str, Any] = {}
    for course, route in document["routes"].items():
        _check_route(route, f"{path}: routes.{course}")
        routes[str(course)] = route
    return {"routes": routes, "aliases": aliases}


def _check_route(route: Any, where: str) -> None:
    if isinstance(route, str):
        return
    if not isinstance(route, dict) or not isinstance(route.get("skill"), str):
        raise Invalid(f"{where}: is neither a skill name nor a table with a `skill`")
    overrides = route.get("overrides", [])
    if not isinstance(overrides, list):
        raise Invalid(f"{where}: overrides is not a list")
    for place, override in enumerate(overrides, 1):
        if not (
            isinstance(override, dict)
            and isinstance(override.get("match"), dict)
            and isinstance(override.get("skill"), str)
        ):
            raise Invalid(f"{where}: override {place} needs a table `match` and a `skill`")
    router = route.get("sub_router")
    if router is not None and not (
        isinstance(router, str)
        or (isinstance(router, list) and router and all(isinstance(part, str) for part in router))
    ):
        raise Invalid(f"{where}: sub_router is neither a command line nor a list of its words")


def resolve_skill(
    route: Any,
    assignment: dict[str, Any],
    *,
    aliases: dict[str, str] | None = None,
    ask: bool = False,
) -> Resolution:
    """The skill for `assignment` under `route` (a skill name, a route's table, or None where the course has none).

    The delivery policy comes first: what cannot be handed in online resolves to `canvas-skip` whatever the route.
    With `ask` a route's sub-router is run (at hand-off only); it raises `SubRouterError` when it fails.
    """
    reason = delivery_reason(assignment)
    if reason is not None:
        return Resolution(SKIP, reason)
    if route is None:
        return Resolution(SKIP, "missing_route")
    name = route if isinstance(route, str) else _route_name(route, assignment, ask=ask)
    return _canonical(name, aliases or {})


def _route_name(route: dict[str, Any], assignment: dict[str, Any], *, ask: bool) -> str:
    for override in route.get("overrides", ()):
        if all(
            field in assignment and _matches(wanted, assignment[field])
            for field, wanted in override["match"].items()
        ):
            return str(override["skill"])
    router = route.get("sub_router")
    return ask_sub_router(router, assignment) if ask and router is not None else str(route["skill"])


def _matches(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, list):
        if not isinstance(found, list):
            return False
        return all(any(_matches(one, other) for other in found) for one in wanted) and all(
            any(_matches(other, one) for other in wanted) for one in found
        )
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    return bool(wanted == found)


def _canonical(name: str, aliases: dict[str, str]) -> Resolution:
    seen = {name}
    while name in aliases:
        name = aliases[name]
        if name in seen:
            return Resolution(SKIP, "unknown_route_skill")
        seen.add(name)
    return Resolution(name) if is_skill_name(name) else Resolution(SKIP, "unknown_route_skill")


def delivery_reason(assignment: dict[str, Any]) -> str | None:
    """Why an assignment cannot be handed in online (the contract's delivery policy, in its order), or None."""
    kinds = assignment.get("submission_types")
    if isinstance(kinds, str):
        kinds = [kinds] if kinds else []
    if not isinstance(kinds, list) or not kinds:
        return "missing_submission_type"
    if "on_paper" in kinds:
        return "on_paper"
    if "external_tool" in kinds:
        return "external_tool_unsupported"
    if all(kind in ("none", "not_graded") for kind in kinds):
        return "no_online_submission"
    if not any(isinstance(kind, str) and kind in _ONLINE for kind in kinds):
        return "unsupported_submission_type"
    if "online_quiz" in kinds and assignment.get("quiz_id") in (None, ""):
        return "new_quiz_or_missing_classic_quiz_id"
    return None


def ask_sub_router(command: str | list[str], assignment: dict[str, Any]) -> str:
    """The one name that the sub-router prints for `assignment` (JSON on its stdin); `SubRouterError` otherwise."""
    import json
    import shlex
    import subprocess

    try:
        words = shlex.split(command) if isinstance(command, str) else command
        done = subprocess.run(
            words,
            input=json.dumps(assignment, ensure_ascii=False).encode("utf-8"),
            capture_output=True,
            timeout=_SUB_ROUTER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SubRouterError(f"sub-router {words[0]}: no answer in {_SUB_ROUTER_SECONDS} s") from None
    except (OSError, IndexError, ValueError) as error:
        raise SubRouterError(f"sub-router {command!r}: cannot be run: {error}") from None
    if done.returncode != 0:
        raise SubRouterError(f"sub-router {words[0]}: exit {done.returncode}")
    name = done.stdout.decode("utf-8", "replace").strip()
    if not is_skill_name(name):
        raise SubRouterError(f"sub-router {words[0]}: answered {name[:80]!r}, which is no canvas-<name>")
    return name


class Resolver:
    """The routes of one file, applied: `of(assignment)` and what a swap's target becomes."""

    __slots__ = ("aliases", "routes")

    def __init__(self, document: dict[str, Any]) -> None:
        self.routes: dict[str, Any] = document["routes"]
        self.aliases: dict[str, str] = document["aliases"]

    def of(self, assignment: dict[str, Any], *, ask: bool = False) -> str:
        """The skill that the routes give `assignment`; with `ask` as the family's sub-router says."""
        route = self.routes.get(identity_text(assignment.get("course_id"), "course_id"))
        return resolve_skill(route, assignment, aliases=self.aliases, ask=ask).skill

    def of_swap(self, target: str, assignment: dict[str, Any]) -> str:
        """What a swap to `target` becomes for `assignment`; only a target that stays itself may be swapped to."""
        return resolve_skill(target, assignment, aliases=self.aliases).skill
