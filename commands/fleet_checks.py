"""What `doctor` looks at for a `nats://` ledger: the stream's promises, the servers' flushing, who may do what."""

from __future__ import annotations

import os

from commands.findings import NOTE, OK, PROBLEM, Finding
from commands.sync import fleet_store
from ledger.canonical import load
from ledger.errors import GatebookError, Unavailable
from ledger.jetstream import NoStream, Stream, read_answer
from ledger.leftovers import erased_on_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.access import Ledger
    from ledger.replica import FleetStore

MONITOR_PORT = 8222
MAX_VARZ = 1 << 20


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
    except Unavailable as error:
        mend = "reading goes on from the replica; writing is refused until the cluster answers"
        return [Finding("fleet", PROBLEM, str(error), mend)]
    except GatebookError as error:
        return [Finding("fleet", PROBLEM, str(error), "reading goes on from the replica; writing is refused")]
    return [
        _replication(store.stream.name, info),
        *_stream(store, info),
        _voids(store),
        *_flushing(store, info),
        *_permissions(store),
        *_bucket(store, info),
        *_secrets(store),
    ]


def _section(value: dict[str, object], name: str) -> dict[str, object]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _replication(name: str, info: dict[str, object]) -> Finding:
    replicas = _section(info, "config").get("num_replicas")
    followers = _section(info, "cluster").get("replicas")
    peers = [peer for peer in followers if isinstance(peer, dict)] if isinstance(followers, list) else []
    if not isinstance(replicas, int) or replicas < 3:
        return Finding(
            "replicas",
            NOTE,
            f"R{replicas}: one server holds every event; its disk is the ledger",
            f"on a cluster of three: `nats stream edit {name} --replicas 3` and the same for OBJ_{name}, by an administrator",
        )
    late = [str(peer.get("name")) for peer in peers if not peer.get("current") or peer.get("offline")]
    gone = [str(peer.get("name")) for peer in peers if peer.get("offline")]
    if 2 * len(gone) >= replicas:
        lost = f"R{replicas}, offline: {', '.join(gone)}: no majority is left, so nothing can be recorded"
        return Finding("replicas", PROBLEM, lost, "start those servers again")
    if late:
        return Finding(
            "replicas", NOTE, f"R{replicas}, not current: {', '.join(late)}", "look at those servers"
        )
    return Finding("replicas", OK, f"R{replicas}, all current (replicated)")


# What a stream must not do, whatever else an administrator chose for it; by a header a publisher could ask for the first three.
_NEVER = (
    "allow_msg_ttl", "allow_msg_counter", "allow_msg_schedules", "mirror", "sources", "subject_transform", "republish",
    "sealed", "first_seq",
)  # fmt: skip
_LIMITS = ("max_bytes", "max_msgs", "max_msg_size")


def _settings(wanted: dict[str, object], config: dict[str, object]) -> list[str]:
    """Every setting by which events or contents could be dropped, changed or acknowledged before they are stored."""
    wanted = {**wanted, "persist_mode": None}
    del wanted["num_replicas"]
    wrong = [
        f"{name} is {config.get(name)!r}, not {value!r}"
        for name, value in wanted.items()
        if config.get(name, value if name == "persist_mode" else None) not in (value, "default")
        and not (value in (0, -1, False) and not config.get(name))
    ]
    limited = [
        f"{name} is {config[name]!r}"
        for name in _LIMITS
        if name not in wanted and config.get(name) not in (None, -1)
    ]
    return wrong + limited + [f"{name} is set" for name in _NEVER if config.get(name)]


def _stream(store: FleetStore, info: dict[str, object]) -> list[Finding]:
    found = _settings(store.stream.config(0), _section(info, "config"))
    findings = [
        Finding("stream", PROBLEM, "; ".join(found), "an administrator sets it as docs/scale.md says")
        if found
        else Finding("stream", OK, "keeps every message, in file storage, without deletion or purge")
    ]
    state = _section(info, "state")
    first = state.get("first_seq")
    if state.get("num_deleted") or (isinstance(first, int) and first > 1):
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


def _monitors(store: FleetStore) -> list[str]:
    given = os.environ.get("GATEBOOK_NATS_MONITOR")
    if given:
        return [url.strip().rstrip("/") for url in given.split(",") if url.strip()]
    hosts = dict.fromkeys(host for host, _ in store.link.servers)
    return [f"http://{f'[{host}]' if ':' in host else host}:{MONITOR_PORT}" for host in hosts]


def _varz(url: str) -> dict[str, object] | None:
    """What a server's monitoring port says of it; None where nothing of the kind answers."""
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with urlopen(f"{url}/varz", timeout=1) as answer:  # noqa: S310 - http of the monitoring port
            seen = load(answer.read(MAX_VARZ))
    except (OSError, ValueError, HTTPException, GatebookError):
        return None
    return seen if isinstance(seen, dict) else None


def _flushing(store: FleetStore, info: dict[str, object]) -> list[Finding]:
    """`sync_interval: always` on every server of the stream: only then does an acknowledgement survive power loss."""
    cluster = _section(info, "cluster")
    peers = cluster.get("replicas")
    unseen = {str(cluster.get("leader"))} if cluster.get("leader") else set()
    unseen |= (
        {str(peer.get("name")) for peer in peers if isinstance(peer, dict)}
        if isinstance(peers, list)
        else set()
    )
    findings, blind = [], []
    for url in _monitors(store):
        seen = _varz(url)
        if seen is None:
            blind.append(url)
            continue
        config = _section(_section(seen, "jetstream"), "config")
        name = str(seen.get("server_name") or url)
        unseen.discard(name)
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
    if blind or unseen:
        silent = f"; {', '.join(blind)} does not answer" if blind else ""
        findings.append(
            Finding(
                "flushing",
                NOTE,
                f"not seen: {', '.join(sorted(unseen)) or 'a server'}{silent}, so whether acknowledged events survive a "
                "power failure is not known",
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


def _may(permissions: dict[str, object], subject: str, verb: str = "publish") -> bool:
    rules = _section(permissions, verb)
    allow, deny = rules.get("allow"), rules.get("deny")
    if isinstance(deny, list) and any(subject_matches(str(each), subject) for each in deny):
        return False
    return not isinstance(allow, list) or any(subject_matches(str(each), subject) for each in allow)


def _lacking(permissions: dict[str, object], store: FleetStore) -> list[str]:
    """Which subjects a reader, or a writer, needs to publish to besides and may not."""
    name = store.stream.name
    needed = [
        f"$JS.API.{verb}.{stream}"
        for stream in (name, store.objects.stream)
        for verb in ("STREAM.INFO", "DIRECT.GET", "STREAM.MSG.GET")
    ]
    if _may(permissions, store.stream.subject.decode()):
        needed += [f"$O.{name}.C.>", f"$O.{name}.M.>"]
    return [subject for subject in needed if not _may(permissions, subject.replace(">", "x"))]


def _permissions(store: FleetStore) -> list[Finding]:
    """Who may publish is who may write; nobody who writes should be able to administer the stream."""
    try:
        answer = read_answer(store.link.request("$SYS.REQ.USER.INFO"))
    except GatebookError:
        return [
            Finding(
                "permissions",
                NOTE,
                "not seen: this user may not ask $SYS.REQ.USER.INFO",
                "docs/scale.md lists them",
            )
        ]
    permissions = _section(_section(answer, "data"), "permissions")
    subject, name, bucket = store.stream.subject.decode(), store.stream.name, store.objects.stream
    writes = _may(permissions, subject)
    findings = [Finding("permissions", OK, "this user may write" if writes else "this user may only read")]
    lacking = _lacking(permissions, store)
    if lacking:
        findings.append(
            Finding(
                "permissions",
                PROBLEM,
                f"this user may not publish to {', '.join(lacking)}",
                "an administrator allows what docs/scale.md lists",
            )
        )
    turn = f"{subject}.turn"
    if writes and not (_may(permissions, turn) and _may(permissions, turn, "subscribe")):
        findings.append(
            Finding(
                "permissions",
                NOTE,
                f"this user may not publish and subscribe to {turn}: under load it waits longer than others",
                "an administrator allows what docs/scale.md lists",
            )
        )
    if not writes and _may(permissions, f"$O.{name}.C.x"):
        findings.append(
            Finding(
                "permissions",
                NOTE,
                f"this user may not write, but may replace or erase contents ($O.{name}.>)",
                "give readers only the subjects that docs/scale.md lists",
            )
        )
    administers = [
        f"$JS.API.STREAM.{verb}.{stream}"
        for stream in (name, bucket)
        for verb in ("UPDATE", "DELETE", "PURGE", "RESTORE", "PEER.REMOVE")
        if _may(permissions, f"$JS.API.STREAM.{verb}.{stream}")
    ]
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


def _bucket(store: FleetStore, info: dict[str, object]) -> list[Finding]:
    """The bucket keeps contents as the stream keeps events; nothing erased on record is left in it."""
    try:
        seen = Stream(store.link, store.objects.stream).info()
        rows = store.query(
            "SELECT seq, json_extract(CAST(envelope AS TEXT), '$.content_digest') FROM events WHERE salt IS NULL AND "
            "json_extract(CAST(envelope AS TEXT), '$.content_digest') IS NOT NULL ORDER BY seq DESC LIMIT 1000"
        )
        recorded = erased_on_record(store.reader()) if rows else set()
        lost = [int(str(seq)) for seq, _ in rows if seq not in recorded]
        left = store.objects.get([str(digest) for seq, digest in rows if seq in recorded])
    except NoStream:
        none = f"there is no bucket {store.objects.bucket}: no content can be stored, and what lay in it is lost to new machines"
        return [
            Finding("contents", PROBLEM, none, "restore it from a backup; `gatebook init` makes an empty one")
        ]
    except GatebookError as error:
        return [Finding("contents", NOTE, f"not seen: {error}")]
    config = _section(seen, "config")
    wrong = _settings(store.objects.config(0), config)
    replicas, wanted = config.get("num_replicas"), _section(info, "config").get("num_replicas")
    if replicas != wanted:
        wrong.append(f"num_replicas is {replicas!r}, the stream's {wanted!r}")
    if wrong:
        mend = "an administrator sets it as docs/scale.md says"
        return [Finding("contents", PROBLEM, f"bucket {store.objects.bucket}: {'; '.join(wrong)}", mend)]
    if os.path.lexists(store.owed):
        late = "content that another machine erased may still stand in this replica's files: somebody reads an old snapshot"
        return [Finding("contents", PROBLEM, late, "end long reads (serve, export), then `gatebook sync`")]
    if lost:
        return [
            Finding(
                "contents",
                PROBLEM,
                f"{len(lost)} contents, the first of event {min(lost)}, are not here and were not erased on record: the bucket "
                "had lost them when this machine read it (verdict content-mismatch)",
                "restore the bucket, then `gatebook sync` with this replica moved away; or `gatebook redact` them",
            )
        ]
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
