"""Security preflight (3.7): tracked files that are surely secrets or dumps, and what `.gitignore` should cover.

Contract `review-sessions`, Security. Names only; contents are the business of other tools.
"""

from __future__ import annotations

import os
import re

from commands.git import PLAIN_PATHSPECS, Git, quote_path
from ledger.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SAMPLE = re.compile(r"\.(?:example|sample)(?:\.[^/]*)?$")
_ANY = re.compile(r"(?!)")

# (kind, what is flagged, what is exempt), over the lower-cased path.
_RULES = (
    ("keys", re.compile(r"\.(?:pem|key|crt|cert|cer|p12|pfx|jks|keystore|ppk|asc|gpg|pgp)$"), _ANY),
    ("environment", re.compile(r"(?:^|/)\.env[^/]*$|\.env$"), _SAMPLE),
    ("secrets", re.compile(r"(?:credential|secret|api[-_.]?key|auth[-_.]?token|passwd|shadow)[^/]*$"), _SAMPLE),
    ("ssh", re.compile(r"(?:^|/)id_(?:rsa|dsa|ecdsa|ed25519)[^/]*$"), _ANY),
    ("cloud", re.compile(r"(?:^|/)service-account[^/]*\.json$|(?:^|/)\.(?:aws|gcloud)/"), _ANY),
    ("databases", re.compile(r"\.(?:sqlite3?|db|dump|sql\.gz)$"), _ANY),
    ("terraform", re.compile(r"\.(?:tfstate|tfvars)(?:$|\.[^/]*$)|(?:^|/)\.terraform/"), re.compile(r"\.(?:example|sample)$")),
    ("source-maps", re.compile(r"\.map$"), _ANY),
    ("logs", re.compile(r"\.log$|(?:^|/)logs/"), _ANY),
)  # fmt: skip


class Category:
    """Patterns that `.gitignore` should hold, each with a path that it must ignore; `ask`: never added silently."""

    __slots__ = ("ask", "kept", "name", "patterns", "title")

    def __init__(
        self,
        name: str,
        title: str,
        patterns: Sequence[tuple[str, str]],
        *,
        kept: Sequence[str] = (),
        ask: bool = False,
    ) -> None:
        self.name = name
        self.title = title
        self.patterns = tuple(patterns)
        self.kept = tuple(kept)
        self.ask = ask


def _extensions(*names: str) -> list[tuple[str, str]]:
    return [(f"*.{name}", f"probe.{name}") for name in names]


CATEGORIES = (
    Category(
        "environment", "Environment files", [(".env", ".env"), (".env.*", ".env.probe"), ("*.env", "probe.env")],
        kept=("!.env.example", "!.env.sample"),
    ),
    Category("keys", "Keys and certificates", _extensions("pem", "key", "crt", "cert", "cer", "p12", "pfx", "jks", "keystore")),
    Category(
        "ssh", "SSH keys",
        [(f"id_{kind}*", f"id_{kind}") for kind in ("rsa", "dsa", "ecdsa", "ed25519")] + _extensions("ppk"),
    ),
    Category("pgp", "PGP keys", _extensions("asc", "gpg", "pgp")),
    Category(
        "cloud-credentials", "Cloud credentials",
        [("*credentials*", "credentials"), ("service-account*.json", "service-account-x.json"),
         (".aws/", ".aws/probe"), (".gcloud/", ".gcloud/probe")],
        kept=("!*credentials.example*", "!*credentials.sample*"), ask=True,
    ),
    Category(
        "generic-secrets", "Secrets", [("*secret*", "secret"), ("secrets.*", "secrets.probe")],
        kept=("!*secret.example*", "!*secret.sample*", "!secrets.example*", "!secrets.sample*"), ask=True,
    ),
    Category(
        "databases", "Databases and dumps",
        [*_extensions("sqlite", "sqlite3", "db", "dump"), ("*.sql.gz", "probe.sql.gz")],
    ),
    Category("source-maps", "Source maps", _extensions("map")),
    Category(
        "terraform", "Terraform",
        [("*.tfstate", "probe.tfstate"), ("*.tfstate.*", "probe.tfstate.probe"), ("*.tfvars", "probe.tfvars"),
         (".terraform/", ".terraform/probe")],
        kept=("!*.tfvars.example",),
    ),
    Category("logs", "Logs", [("*.log", "probe.log"), ("logs/", "logs/probe")]),
)  # fmt: skip


def kind_of_secret(path: str) -> str | None:
    """The kind under which a tracked path is flagged; None when it is not."""
    lowered = path.lower()
    for kind, flagged, exempt in _RULES:
        if flagged.search(lowered) and not exempt.search(lowered):
            return kind
    return None


def flagged_paths(git: Git) -> dict[str, str]:
    """Every tracked or staged path that is flagged, with its kind."""
    found: dict[str, str] = {}
    for raw in git.run(["ls-files", "-z"]).split(b"\0"):
        if raw:
            # Not as `quote_path` writes it: a name that is not UTF-8 would end in a quotation mark.
            kind = kind_of_secret(raw.decode("utf-8", "surrogateescape"))
            if kind:
                found[quote_path(raw)] = kind
    return found


def gaps(git: Git) -> dict[str, tuple[str, ...]]:
    """Category -> its patterns whose probe no `.gitignore` covers, all categories in one call.

    `.git/info/exclude` does not count: it stays on this machine, and nobody else's clone has it.
    """
    probes = {probe: (c.name, pattern) for c in CATEGORIES for pattern, probe in c.patterns}
    out = git.run(
        ["-c", f"core.excludesFile={os.devnull}", "check-ignore", "--no-index", "-v", "-z", "--stdin"],
        input=b"".join(probe.encode() + b"\0" for probe in probes),
        accept=(0, 1),
        env=PLAIN_PATHSPECS,
    )
    fields = out.split(b"\0")  # source, line number, pattern, path
    covered = {
        path.decode()
        for source, pattern, path in zip(fields[::4], fields[2::4], fields[3::4], strict=False)
        if source.endswith(b".gitignore") and not pattern.startswith(b"!")
    }
    found: dict[str, list[str]] = {}
    for probe, (name, pattern) in probes.items():
        if probe not in covered:
            found.setdefault(name, []).append(pattern)
    return {name: tuple(patterns) for name, patterns in found.items()}


def tracked_matches(git: Git, patterns: Iterable[str]) -> tuple[str, ...]:
    """The tracked paths that these ignore patterns would match; a later `!` pattern keeps what it names."""
    arguments: list[str] = [f"--exclude={pattern}" for pattern in patterns]
    out = git.run(["ls-files", "-z", "--cached", "--ignored", *arguments])
    return tuple(quote_path(raw) for raw in out.split(b"\0") if raw)


def with_patterns(root: str, added: dict[str, tuple[str, ...]]) -> tuple[bytes, int]:
    """`.gitignore` with the patterns appended, grouped under their category's title; its content and permission bits."""
    path = os.path.join(root, ".gitignore")
    if os.path.islink(path) or os.path.isdir(path):
        raise Refused(".gitignore is not a regular file: make it one, then scan again")
    try:
        with open(path, "rb") as file:
            before = file.read()
        mode = os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        before, mode = b"", 0o644
    lines = []
    for category in CATEGORIES:
        if category.name in added:
            lines += [f"# {category.title}", *added[category.name], *category.kept, ""]
    joint = b"" if not before else b"\n" if before.endswith(b"\n") else b"\n\n"
    return before + joint + "\n".join(lines).encode(), mode
