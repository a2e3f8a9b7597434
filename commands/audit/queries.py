"""The named forensic queries: SQL over the view `events`, with defaults for their parameters (docs/audit.md).

`data` is the event's canonical JSON; `clock` below is the clock as read (recorded_at less clock_behind). A parameter
that a user gives is text, which SQLite holds to be more than any number: where one is compared, it is cast.
"""

from __future__ import annotations


class Query:
    """One named query: what it answers, its SQL, its parameters' defaults, and a call as an example."""

    __slots__ = ("example", "params", "sql", "text")

    def __init__(
        self, text: str, sql: str, *, example: str, params: dict[str, str | int] | None = None
    ) -> None:
        self.text = text
        self.sql = " ".join(sql.split())
        self.example = example
        self.params = params or {}


NAMED: dict[str, Query] = {
    "approvals": Query(
        "who approved what: plans, dispatches, drift, receipts, authority, with principal where it was signed",
        """
        SELECT seq, recorded_at, actor, coalesce(json_extract(data, '$.principal'), '') AS principal, type, stream,
            coalesce(json_extract(data, '$.session_id'), '') AS session,
            coalesce(json_extract(data, '$.decisions'), json_extract(data, '$.actions'), json_extract(data, '$.what'), json_extract(data, '$.reason'), '') AS scope,
            coalesce(json_extract(data, '$.expires_at'), '') AS expires_at, redacted AS words_redacted
        FROM events
        WHERE type IN ('plan.approved', 'dispatch.approved', 'drift.accepted', 'receipt.issued', 'authority.changed')
        ORDER BY seq
        """,
        example="gatebook query approvals",
    ),
    "unused-receipts": Query(
        "receipts issued and never consumed nor revoked; expired says that they cannot be any more (param now)",
        """
        SELECT i.seq, i.recorded_at, i.actor, json_extract(i.data, '$.receipt_id') AS receipt, json_extract(i.data, '$.actions') AS actions,
            json_extract(i.data, '$.target_type') AS target_type, json_extract(i.data, '$.target_id') AS target,
            json_extract(i.data, '$.expires_at') AS expires_at,
            julianday(json_extract(i.data, '$.expires_at')) <= julianday(coalesce(utc(:now), :now)) OR i.seq < restored AS expired
        FROM events i, (SELECT coalesce(max(seq), 0) AS restored FROM events WHERE type = 'ledger.restored')
        WHERE i.type = 'receipt.issued' AND NOT EXISTS (
            SELECT 1 FROM events u WHERE u.stream = i.stream AND u.type IN ('receipt.consumed', 'receipt.revoked'))
        ORDER BY i.seq
        """,
        params={"now": "now"},
        example="gatebook query unused-receipts --param now=2026-12-01T00:00:00Z",
    ),
    "denials": Query(
        "what was refused, by type, reason and stream: how often, when first and last, how many were only counted",
        """
        SELECT type, json_extract(data, '$.type') AS refused, json_extract(data, '$.reason') AS reason, json_extract(data, '$.stream') AS stream,
            count(*) AS times, sum(coalesce(json_extract(data, '$.suppressed'), 0)) AS only_counted,
            min(recorded_at) AS first, max(recorded_at) AS last, max(seq) AS last_seq
        FROM events WHERE type IN ('admission.refused', 'marker.refused', 'receipt.denied')
        GROUP BY 1, 2, 3, 4 ORDER BY times DESC, last_seq DESC
        """,
        example="gatebook query denials",
    ),
    "endpoint-failures": Query(
        "endpoints by failures: circuits opened, of each reason, dispatch attempts that failed for one, and how they stand",
        """
        SELECT provider, executor, sum(type = 'circuit.opened') AS failures,
            sum(type = 'circuit.opened' AND reason = 'quota') AS quota,
            sum(type = 'circuit.opened' AND reason = 'authentication') AS authentication,
            sum(type = 'circuit.opened' AND reason = 'rate_limit') AS rate_limit,
            sum(type = 'circuit.opened' AND reason = 'provider_unavailable') AS provider_unavailable,
            sum(type = 'dispatch.returned') AS failed_attempts,
            sum(type = 'circuit.probed') AS probes, sum(type = 'circuit.closed') AS recoveries,
            (SELECT e.type FROM events e WHERE e.stream = circuit ORDER BY e.seq DESC LIMIT 1) AS last_event,
            max(recorded_at) AS last
        FROM (SELECT type, stream AS circuit, recorded_at, json_extract(data, '$.provider') AS provider,
                json_extract(data, '$.executor') AS executor, json_extract(data, '$.reason') AS reason
            FROM events WHERE type IN ('circuit.opened', 'circuit.probed', 'circuit.closed', 'circuit.imported')
            UNION ALL
            SELECT r.type, 'circuit/' || json_extract(a.data, '$.provider') || '|' || json_extract(a.data, '$.executor'),
                r.recorded_at, json_extract(a.data, '$.provider'), json_extract(a.data, '$.executor'), json_extract(r.data, '$.reason')
            FROM events r JOIN events a ON a.stream = r.stream AND a.type = 'dispatch.attempted'
                AND json_extract(a.data, '$.attempt') = json_extract(r.data, '$.attempt')
            WHERE r.type = 'dispatch.returned' AND json_extract(r.data, '$.reason')
                IN ('quota', 'authentication', 'rate_limit', 'provider_unavailable'))
        GROUP BY circuit ORDER BY failures DESC, failed_attempts DESC, provider, executor
        """,
        example="gatebook query endpoint-failures",
    ),
    "unfinished-runs": Query(
        "plan runs that were approved or claimed and never finalised, and how far they got",
        """
        SELECT stream, min(recorded_at) AS first, max(recorded_at) AS last,
            sum(type = 'plan.approved') AS approvals, sum(type IN ('marker.claimed', 'marker.resumed')) AS claims,
            sum(type = 'item.handed_off') AS handed_off, sum(type = 'result.recorded') AS results,
            sum(type = 'item.deferred') AS deferred, sum(type = 'marker.recovered') AS recovered
        FROM events WHERE kind = 'run' GROUP BY stream
        HAVING sum(type IN ('plan.approved', 'marker.claimed')) > 0 AND sum(type = 'run.finalized') = 0
        ORDER BY last DESC
        """,
        example="gatebook query unfinished-runs",
    ),
    "delivered-after-drift": Query(
        "sessions delivered after drift was accepted, by whom, and what changed underneath",
        """
        SELECT d.stream AS session, a.seq AS accepted_seq, a.recorded_at AS accepted_at, a.actor,
            json_extract(a.data, '$.reason') AS reason, json_extract(a.data, '$.answered_by') AS answered_by,
            coalesce(json_extract(a.data, '$.principal'), '') AS principal, d.seq AS delivered_seq, d.recorded_at AS delivered_at
        FROM events d JOIN events a ON a.stream = d.stream AND a.type = 'drift.accepted' AND a.seq < d.seq
        WHERE d.type = 'delivery.completed' ORDER BY d.seq, a.seq
        """,
        example="gatebook query delivered-after-drift",
    ),
    "late-work": Query(
        "work done after what allowed it had expired: hand-offs and results of a plan, uses of a receipt, dispatches",
        """
        SELECT seq, recorded_at, type, stream, actor, allowed_by, allowed_type, expired_at,
            round((julianday(recorded_at) - julianday(utc(expired_at))) * 86400, 3) AS seconds_late
        FROM (SELECT w.seq, w.recorded_at, w.type, w.stream, w.actor, g.seq AS allowed_by, g.type AS allowed_type,
                CASE WHEN g.type <> 'plan.proposed' THEN json_extract(g.data, '$.expires_at')
                    WHEN json_valid(g.content) THEN json_extract(g.content, '$.expires_at') END AS expired_at
            FROM (SELECT *,
                    max(CASE WHEN type IN ('plan.approved', 'receipt.issued', 'dispatch.approved') THEN seq END)
                        OVER (PARTITION BY stream ORDER BY seq) AS allowed,
                    max(CASE WHEN type = 'plan.proposed' THEN seq END) OVER (PARTITION BY stream ORDER BY seq) AS planned
                FROM events WHERE type IN ('plan.proposed', 'plan.approved', 'receipt.issued', 'dispatch.approved',
                    'marker.claimed', 'item.handed_off', 'result.recorded', 'receipt.consumed', 'dispatch.attempted')) w
            JOIN events g ON g.seq IN (w.allowed, w.planned) AND g.seq < w.seq
            WHERE w.type NOT IN ('plan.proposed', 'plan.approved', 'receipt.issued', 'dispatch.approved'))
        WHERE julianday(recorded_at) > julianday(utc(expired_at)) ORDER BY seq, allowed_by
        """,
        example="gatebook query late-work",
    ),
    "clock-anomalies": Query(
        "where the clock ran back, stood still for longer, rested over 24 h, or a given time was not the clock's",
        """
        SELECT seq, recorded_at, type, stream, clock_behind / 1000000.0 AS seconds_behind,
            gap / 1000000.0 AS seconds_since_last, coalesce(json_extract(data, '$.at'), '') AS given_at
        FROM (SELECT *, clock_us - lag(clock_us) OVER (ORDER BY seq) AS gap FROM events)
        WHERE clock_behind >= CAST(:least AS REAL) * 1000000 OR gap > 86400000000
            OR kind = 'circuit' AND json_extract(data, '$.at_given') ORDER BY seq
        """,
        params={"least": 1},
        example="gatebook query clock-anomalies --param least=5",
    ),
    "lonely-actors": Query(
        "actors that were seen once: a name mistyped, or somebody who should not have been there",
        """
        SELECT actor, min(seq) AS seq, recorded_at, type, stream, via
        FROM events GROUP BY actor HAVING count(*) <= CAST(:most AS REAL) ORDER BY seq
        """,
        params={"most": 1},
        example="gatebook query lonely-actors --param most=2",
    ),
    "longest-holds": Query(
        "the longest holds of markers and session locks; seconds to the last event where one is still held",
        """
        SELECT stream, seq, type, actor, recorded_at AS taken_at, let_go, let_go IS NULL AS still_held,
            round((julianday(coalesce(let_go, (SELECT recorded_at FROM events ORDER BY seq DESC LIMIT 1)))
                - julianday(recorded_at)) * 86400, 3) AS seconds
        FROM (SELECT *, CASE WHEN voided < coalesce(ended, 'z') THEN voided ELSE ended END AS let_go
            FROM (SELECT *, min(CASE WHEN type NOT IN ('marker.claimed', 'session.locked') THEN recorded_at END) OVER (
                    PARTITION BY stream ORDER BY seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ended,
                    (SELECT min(recorded_at) FROM events r WHERE r.type = 'ledger.restored' AND r.seq > events.seq) AS voided
                FROM events WHERE type IN ('marker.claimed', 'session.locked', 'marker.released', 'marker.recovered',
                    'run.finalized', 'session.unlocked', 'session.lock_recovered')))
        WHERE type IN ('marker.claimed', 'session.locked') ORDER BY seconds DESC LIMIT CAST(:limit AS INTEGER)
        """,
        params={"limit": 20},
        example="gatebook query longest-holds --param limit=5",
    ),
    "attempt-gaps": Query(
        "attempts and hand-offs whose end came late or never, without anything on record in between",
        """
        SELECT a.seq, a.recorded_at, a.type, a.stream, a.actor, r.seq AS ended_seq, r.type AS ended_by,
            round((julianday(r.recorded_at) - julianday(a.recorded_at)) * 86400, 3) AS seconds
        FROM (SELECT *, min(CASE WHEN type NOT IN ('dispatch.attempted', 'item.handed_off', 'round.started') THEN seq END) OVER (
                PARTITION BY stream ORDER BY seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ended
            FROM events WHERE type IN ('dispatch.attempted', 'item.handed_off', 'round.started', 'dispatch.returned',
                'dispatch.concluded', 'result.recorded', 'item.deferred', 'round.executed', 'round.rejected',
                'marker.recovered', 'session.unlocked', 'session.lock_recovered')) a
        LEFT JOIN events r ON r.seq = a.ended
        WHERE (a.type IN ('dispatch.attempted', 'item.handed_off')
                OR a.type = 'round.started' AND json_extract(a.data, '$.executor'))
            AND (r.seq IS NULL OR (julianday(r.recorded_at) - julianday(a.recorded_at)) * 86400 >= CAST(:seconds AS REAL))
        ORDER BY r.seq IS NOT NULL, seconds DESC, a.seq
        """,
        params={"seconds": 600},
        example="gatebook query attempt-gaps --param seconds=60",
    ),
    "minted-stages": Query(
        "every stage minted: for which tree, and whether it stood, or when and why it was lost",
        """
        SELECT m.stream AS session, json_extract(m.data, '$.stage') AS stage, m.seq AS minted_seq,
            m.recorded_at AS minted_at, json_extract(m.data, '$.fingerprint') AS fingerprint, c.seq AS lost_seq,
            c.recorded_at AS lost_at,
            coalesce(json_extract(c.data, '$.reason'), CASE WHEN c.seq IS NULL THEN 'stands' ELSE c.type END) AS outcome
        FROM (SELECT *, min(CASE WHEN type <> 'stage.minted' THEN seq END) OVER (
                PARTITION BY stream ORDER BY seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS lost
            FROM events WHERE type IN ('stage.minted', 'stages.cleared', 'drift.accepted')) m
        LEFT JOIN events c ON c.seq = m.lost WHERE m.type = 'stage.minted' ORDER BY m.seq
        """,
        example="gatebook query minted-stages",
    ),
    "unanswered": Query(
        "what was asked for and never decided: plans without an approval, dispatches without an end, drift without an answer",
        """
        SELECT q.seq, q.recorded_at, q.type, q.stream, q.actor,
            (SELECT e.version FROM events e WHERE e.stream = q.stream ORDER BY e.seq DESC LIMIT 1) - q.version AS events_since
        FROM (SELECT *, min(CASE WHEN type NOT IN ('dispatch.requested', 'drift.detected') THEN seq END) OVER (
                PARTITION BY stream ORDER BY seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS answered
            FROM events WHERE type IN ('plan.proposed', 'plan.approved', 'dispatch.requested', 'dispatch.concluded',
                'dispatch.blocked', 'drift.detected', 'drift.accepted', 'drift.aborted')) q
        WHERE q.answered IS NULL AND q.type IN ('plan.proposed', 'dispatch.requested', 'drift.detected') ORDER BY q.seq
        """,
        example="gatebook query unanswered",
    ),
    "mutations": Query(
        "every use of a receipt: who changed what outside, with which evidence, and what came of it",
        """
        SELECT u.seq, u.recorded_at, u.actor, u.stream AS receipt, json_extract(u.data, '$.action') AS action,
            json_extract(u.data, '$.origin') AS origin, json_extract(u.data, '$.target_type') AS target_type,
            json_extract(u.data, '$.target_id') AS target, json_extract(u.data, '$.count') AS count,
            coalesce(json_extract(u.data, '$.verification'), '') AS verification, r.seq AS result_seq
        FROM events u LEFT JOIN (
            SELECT 'receipt/' || json_extract(data, '$.receipt_id') AS receipt, min(seq) AS seq
            FROM events WHERE type = 'result.recorded' GROUP BY 1) r ON r.receipt = u.stream
        WHERE u.type = 'receipt.consumed' ORDER BY u.seq
        """,
        example="gatebook query mutations",
    ),
    "rejected-reports": Query(
        "reports that counted for nothing, by session, role and reason",
        """
        SELECT stream AS session, json_extract(data, '$.role') AS role, json_extract(data, '$.reason') AS reason, count(*) AS times,
            group_concat(seq, ' ') AS seqs
        FROM events WHERE type = 'round.rejected' GROUP BY 1, 2, 3 ORDER BY times DESC, session
        """,
        example="gatebook query rejected-reports",
    ),
    "blocked-deliveries": Query(
        "deliveries that were blocked, by what, and who let them go on",
        """
        SELECT b.stream AS session, b.seq, b.recorded_at, json_extract(b.data, '$.by') AS blocked_by,
            json_extract(b.data, '$.reason') AS reason, u.seq AS unblocked_seq, u.actor AS unblocked_actor,
            coalesce(json_extract(u.data, '$.answered_by'), '') AS answered_by
        FROM (SELECT *, min(CASE WHEN type = 'delivery.unblocked' THEN seq END) OVER (
                PARTITION BY stream ORDER BY seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS lifted
            FROM events WHERE type IN ('delivery.blocked', 'delivery.unblocked')) b
        LEFT JOIN events u ON u.seq = b.lifted WHERE b.type = 'delivery.blocked' ORDER BY b.seq
        """,
        example="gatebook query blocked-deliveries",
    ),
    "redactions": Query(
        "whose content was erased, what kind of event it was, when and by whom",
        """
        SELECT r.seq AS redaction, r.recorded_at AS erased_at, r.actor, e.seq AS event, e.type, e.stream, e.recorded_at
        FROM events r JOIN events e ON e.redacted AND instr(
            ',' || trim(json_extract(r.data, '$.events'), '[]') || ',', ',' || e.seq || ',')
        WHERE r.type = 'ledger.redacted' ORDER BY r.seq, e.seq
        """,
        example="gatebook query redactions",
    ),
    "recoveries": Query(
        "where somebody took over: markers recovered, locks taken from the dead, restores, adopted files",
        """
        SELECT seq, recorded_at, type, stream, actor,
            coalesce(json_extract(data, '$.answered_by'), json_extract(data, '$.session_id'), json_extract(data, '$.lost_seq'), json_extract(data, '$.file_digest'), '') AS detail
        FROM events WHERE type IN ('marker.recovered', 'session.lock_recovered', 'ledger.restored', 'session.imported',
            'circuit.imported') OR type = 'marker.claimed' AND coalesce(json_extract(data, '$.nonce'), '') = ''
        ORDER BY seq
        """,
        example="gatebook query recoveries",
    ),
}
