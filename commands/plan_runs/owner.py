"""Who owns a run: the id of the agent session that this process belongs to (contract: Marker)."""

from __future__ import annotations

import os

from ledger.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def current_authorization_session(
    given: str | None = None, *, environ: Mapping[str, str] | None = None
) -> str:
    """CODEX_THREAD_ID, else CODEX_SESSION_ID, else `given` (`--session`, the id that the agent's hooks report).

    `Refused` when `given` differs from the environment's, and when there is neither: an id is never invented.
    """
    variables = os.environ if environ is None else environ
    own = variables.get("CODEX_THREAD_ID") or variables.get("CODEX_SESSION_ID") or None
    if own is not None and given is not None and own != given:
        raise Refused(f"--session {given} is not this session, which is {own}; leave --session out")
    found = own or given
    if not found or found.strip() != found or len(found) > 200 or not found.isprintable():
        raise Refused(
            "no session id here: run inside a Codex session (CODEX_THREAD_ID) or give --session as the agent's hooks report it"
        )
    return found


def agent_session(actor: str) -> str | None:
    """What says that this process belongs to an agent's session: an environment variable, or the actor; else None."""
    from projections.receipt_rules import AGENTS

    names = ("CODEX_THREAD_ID", "CODEX_SESSION_ID", "CLAUDECODE")
    found = next((name for name in names if os.environ.get(name)), None)
    return actor if found is None and actor.partition(":")[0] in AGENTS else found
