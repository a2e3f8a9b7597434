"""What blocks a request before anybody works on it, each with the code that its event carries."""

from __future__ import annotations

import os

from commands.dispatch.ceiling import Ceiling, canonical, ceiling_of, inside, missing_tool
from commands.dispatch.request import Request, listed
from ledger.errors import Refused


class Stop(Refused):
    """The request is blocked: `code` is one of `projections.dispatch.BLOCKED`, the message is a blocker for its result."""

    def __init__(self, code: str, *blockers: str) -> None:
        super().__init__("; ".join(blockers))
        self.code = code
        self.blockers = list(blockers)


def check_request(request: Request) -> Ceiling:
    """The ceiling of a request that nothing in itself blocks; Stop otherwise."""
    blockers = listed(request.blockers)
    if blockers:
        raise Stop("blockers", *(f"unresolved: {blocker}" for blocker in blockers))
    authority = request.authority
    if not os.path.isdir(authority.working_directory):
        raise Stop("directory", f"authority.working_directory {authority.working_directory!r} does not exist")
    try:
        ceiling = ceiling_of(authority.working_directory, authority.allowed_paths)
        for artifact in request.artifacts:
            if not ceiling.permits(canonical(artifact, ceiling.folder)):
                raise Refused(
                    f"artifact {artifact!r} lies outside authority.allowed_paths, so nobody may change it"
                )
        for target in listed(request.verification.fixed_target):
            if not inside(canonical(target, ceiling.folder), ceiling.folder):
                raise Refused(f"verification.fixed_target {target!r} leaves the working directory")
    except Refused as error:
        raise Stop("paths", str(error)) from None
    tool = missing_tool(authority.tools)
    if tool is not None:
        raise Stop("tools", f"authority.tools: {tool!r} is not available here")
    return ceiling


def oracle_files(request: Request, ceiling: Ceiling) -> list[str]:
    """The files of the working directory that the seam itself names, but for those the work must change."""
    import shlex

    seam = request.verification.seam
    try:
        words = shlex.split(seam) if isinstance(seam, str) else list(seam)
    except ValueError:
        words = str(seam).split()
    artifacts = [canonical(artifact, ceiling.folder) for artifact in request.artifacts]
    found = []
    for word in words:
        path = os.path.realpath(os.path.join(ceiling.folder, word))
        if (
            os.path.isfile(path)
            and inside(path, ceiling.folder)
            and not any(inside(path, artifact) for artifact in artifacts)
        ):
            found.append(os.path.relpath(path, ceiling.folder))
    return sorted(set(found))
