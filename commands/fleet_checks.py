"""What `doctor` looks at for a `nats://` ledger: the stream's promises, the servers' flushing, who may do what."""

from __future__ import annotations

import os

from commands.findings import NOTE, OK, PROBLEM, Finding
from commands.sync import fleet_store
from ledger.canonical import load
from ledger.errors import GatebookError
from ledger.jetstream import NoStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.access import Ledger
    from ledger.replica import FleetStore

MONITOR_PORT = 8222


def check_fleet(ledger: Ledger) -> list[Finding]:
    """Everything about the cluster behind `ledger`, as far as this user may see it; never raises for what it finds.

    Raises:
        Usage: a ledger of files.
    """
    store = fleet_store(ledger)
    try:
        if store.offline:
            store.follow()
        info = store.stream.info()
    except NoStream:
        return [Finding("fleet", PROBLEM, f"there is no stream {store.stream.name}", "see `gatebook sync`")]
    except GatebookError as error:
        mend = "reading goes on from the replica; writing is refused until the cluster answers"
        return [Finding("fleet", PROBLEM, str(error), mend)]
    return [
        _replication(info),
        *_stream(store, info),
        _voids(store),
        _memory(ledger),
        *_flushing(store),
        *_permissions(store),
        *_bucket(store),
        *_secrets(store),
    ]


def _section(value: dict[str, object], name: str) -> dict[str, object]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _replication(info: dict[str, object]) -> Finding:
    replicas = _section(info, "config").get("num_replicas")
    followers = _section(info, "cluster").get("replicas")
    peers = [peer for peer in followers if isinstance(peer, dict)] if isinstance(followers, list) else []
    if not isinstance(replicas, int) or replicas < 3:
        return Finding(
            "replicas",
            NOTE,
            f"R{replicas}: one server holds every event; its disk is the ledger",
            "on a cluster of three: `nats stream edit NAME --replicas 3` and the same for OBJ_NAME, by an administrator",
        )
    late = [str(peer.get("name")) for peer in peers if not peer.get("current") or peer.get("offline")]
    if late:
        return Finding(
            "replicas", NOTE, f"R{replicas}, not current: {', '.join(late)}", "look at those servers"
        )
    return Finding("replicas", OK, f"R{replicas}, all current (replicated)")


def _stream(store: FleetStore, info: dict[str, object]) -> list[Finding]:
    """Every setting by which events could be dropped, changed or acknowledged before they are stored."""
    config, state = _section(info, "config"), _section(info, "state")
    wanted = store.stream.config(0)
    wanted.pop("num_replicas")
    wanted["persist_mode"] = None
    wrong = [
        f"{name} is {config.get(name)!r}, not {value!r}"
        for name, value in wanted.items()
        if config.get(name, value if name == "persist_mode" else None) not in (value, "default")
        and not (value in (0, -1, False) and not config.get(name))
    ]
    extra = [
        name for name in ("mirror", "sources", "subject_transform", "republish", "sealed") if config.get(name)
    ]
    found = wrong + [f"{name} is set" for name in extra]
    findings = [
        Finding("stream", PROBLEM, "; ".join(found), "an administrator sets it as docs/scale.md says")
        if found
        else Finding("stream", OK, "keeps every message, in file storage, without deletion or purge")
    ]
    removed = state.get("num_deleted")
    first = state.get("first_seq")
    if removed or (isinstance(first, int) and first > 1):
        findings.append(
            Finding("stream", PROBLEM, "messages were taken out of it (verdict gap)", "see `gatebook sync`")
        )
    return findings


def _voids(store: FleetStore) -> Finding:
    if not store.voids:
        return Finding("void messages", OK, "none")
    return Finding(
        "void messages",
        NOTE,
        f"{store.voids} messages in the stream are no extension of the chain and count for nothing",
        f"find out who publishes to {store.stream.subject.decode()} besides gatebook",
    )


def _memory(ledger: Ledger) -> Finding:
    try:
        ledger.check_memory(ledger.store.reader())
    except GatebookError as error:
        return Finding("head memory", PROBLEM, str(error))
    return Finding(
        "head memory", OK, f"the cluster has all that this machine saw, up to {ledger.store.head().seq}"
    )


def _monitors(store: FleetStore) -> list[str]:
    given = os.environ.get("GATEBOOK_NATS_MONITOR")
    if given:
        return [url.strip().rstrip("/") for url in given.split(",") if url.strip()]
    return [f"http://{f'[{host}]' if ':' in host else host}:{MONITOR_PORT}" for host, _ in store.link.servers]


def _flushing(store: FleetStore) -> list[Finding]:
    """`sync_interval: always` on every server: only then does an acknowledgement survive power loss."""
    from urllib.request import urlopen

    findings, blind = [], []
    for url in _monitors(store):
        try:
            with urlopen(f"{url}/varz", timeout=1) as answer:  # noqa: S310 - http of the monitoring port
                seen = load(answer.read())
        except (OSError, ValueError):
            blind.append(url)
            continue
        config = _section(_section(seen, "jetstream"), "config")
        name = str(seen.get("server_name") or url)
        if config.get("sync_always") is True:
            findings.append(Finding("flushing", OK, f"{name}: flushes each message before it acknowledges"))
        else:
            findings.append(
                Finding(
                    "flushing",
                    PROBLEM,
                    f"{name}: sync_interval is {_seconds(config.get('sync_interval'))}, so a power failure can lose "
                    "acknowledged events",
                    "in the server's configuration: jetstream { sync_interval: always }",
                )
            )
    if blind:
        findings.append(
            Finding(
                "flushing",
                NOTE,
                f"not seen: {', '.join(blind)} does not answer, so whether acknowledged events survive a power "
                "failure is not known",
                "ask the administrator for `sync_interval: always`, or name the monitoring ports: "
                "GATEBOOK_NATS_MONITOR=http://host:8222,…",
            )
        )
    return findings


def _seconds(value: object) -> str:
    return f"{value / 1_000_000_000:g} s" if isinstance(value, int) else "not always"


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether a NATS subject pattern (`*` one token, `>` the rest) covers `subject`."""
    wanted, given = pattern.split("."), subject.split(".")
    for place, word in enumerate(wanted):
        if word == ">":
            return len(given) > place
        if place >= len(given) or word not in ("*", given[place]):
            return False
    return len(wanted) == len(given)


def _may(permissions: dict[str, object], subject: str) -> bool:
    rules = _section(permissions, "publish")
    allow, deny = rules.get("allow"), rules.get("deny")
    if isinstance(deny, list) and any(subject_matches(str(each), subject) for each in deny):
        return False
    return not isinstance(allow, list) or any(subject_matches(str(each), subject) for each in allow)


def _permissions(store: FleetStore) -> list[Finding]:
    """Who may publish is who may write; nobody who writes should be able to administer the stream."""
    try:
        answer = load(store.link.request("$SYS.REQ.USER.INFO").payload)
    except (GatebookError, ValueError):
        return [
            Finding(
                "permissions",
                NOTE,
                "not seen: this user may not ask $SYS.REQ.USER.INFO",
                "docs/scale.md lists them",
            )
        ]
    permissions = _section(_section(answer, "data"), "permissions")
    name = store.stream.name
    bucket = store.objects.stream
    administers = [
        subject
        for subject in (
            *(
                f"$JS.API.STREAM.{verb}.{stream}"
                for stream in (name, bucket)
                for verb in ("UPDATE", "DELETE", "PURGE")
            ),
            *(f"$JS.API.STREAM.MSG.DELETE.{stream}" for stream in (name, bucket)),
            f"$JS.API.STREAM.RESTORE.{name}",
        )
        if _may(permissions, subject)
    ]
    writes = _may(permissions, store.stream.subject.decode())
    findings = [Finding("permissions", OK, "this user may write" if writes else "this user may only read")]
    if administers:
        findings.append(
            Finding(
                "permissions",
                NOTE,
                f"this user may also administer the stream ({administers[0]}): it could delete or replace the ledger; "
                "every replica that had it would see that, but it should not be possible",
                "give writers only the subjects that docs/scale.md lists",
            )
        )
    return findings


def _bucket(store: FleetStore) -> list[Finding]:
    """The bucket is there; nothing erased on record is left in it."""
    from ledger.jetstream import Stream

    try:
        Stream(store.link, store.objects.stream).info()
        rows = store.query(
            "SELECT json_extract(CAST(envelope AS TEXT), '$.content_digest') FROM events WHERE salt IS NULL AND "
            "json_extract(CAST(envelope AS TEXT), '$.content_digest') IS NOT NULL ORDER BY seq DESC LIMIT 1000"
        )
        left = store.objects.get([str(row[0]) for row in rows])
    except NoStream:
        return [
            Finding(
                "contents", PROBLEM, f"there is no bucket {store.objects.bucket}", "`gatebook init` makes it"
            )
        ]
    except GatebookError as error:
        return [Finding("contents", NOTE, f"not seen: {error}")]
    if left:
        return [
            Finding(
                "contents",
                PROBLEM,
                f"{len(left)} erased contents are still in the bucket",
                "`gatebook sync` on a machine that may write, with its replica moved away",
            )
        ]
    return [Finding("contents", OK, "nothing that was erased is left in the bucket")]


def _secrets(store: FleetStore) -> list[Finding]:
    loose = []
    for path in store.link.login.secret_files():
        try:
            if os.stat(path).st_mode & 0o077:
                loose.append(path)
        except OSError:
            continue
    if not loose:
        return []
    return [
        Finding("credentials", PROBLEM, f"others can read {', '.join(loose)}", f"chmod 600 {' '.join(loose)}")
    ]
