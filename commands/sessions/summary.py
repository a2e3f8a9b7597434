"""The delivery summary in Simplified Chinese; paths, ids, shas, flags and enums stay as they are (contract, Delivery)."""

from __future__ import annotations

import re

from commands.git import line_path
from commands.sessions.reports import reviewer_issues
from commands.sessions.view import stream_events
from ledger.clock import format_us
from projections.engine import fact_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.writer import Writer
    from projections.fact import Fact
    from projections.session import State

_OUTCOMES = {
    "clean": "通过",
    "written": "已修改",
    "reverted": "已撤回",
    "skipped": "已跳过",
    "discarded": "已作废",
    "unresolved": "仍有问题",
}
_GATE = {"APPROVE": "APPROVE", "REQUEST_CHANGES": "REQUEST_CHANGES", "SKIP": "SKIP"}


def summary_text(writer: Writer, state: State) -> str:
    """The summary as Markdown, from the log alone."""
    from commands.sessions.delivery import listed_paths, session_title

    facts = [
        fact_of(event, writer.ledger.store.artifact) for event in stream_events(writer.ledger, writer.uuid)
    ]
    began, ended = facts[0].clock, facts[-1].clock
    lines = [
        f"# 交付总结：{session_title(writer)}",
        "",
        f"- 状态：已交付（stages：{', '.join(state.stages)}）",
        f"- 会话：{writer.uuid}（plan_source：{state.plan_source}）",
        f"- 审查后端：{writer.config.reviewer}"
        + (f"（{writer.config.reviewer_model}）" if writer.config.reviewer_model else ""),
        f"- 轮次：{state.round}",
        f"- 对抗性审查：{_gate_text(facts)}",
        "",
        "## 质量打磨",
        *_steps(facts, state),
        "",
        "## 审查发现",
        *_findings(facts),
        "",
        "## 变更文件",
        *([f"- `{line_path(path)}`" for path in listed_paths(writer)] or ["- 无"]),
        "",
        "## 自主决定",
        *_decisions(facts),
        "",
        "## 未解决的次要问题",
        *_minors(facts),
        "",
        "## 耗时",
        f"- 开始：{format_us(began)[:19]}Z",
        f"- 合计：{max(0, ended - began) // 1_000_000} 秒",
        "",
        "## 令牌用量",
        "- 未记录：执行者与审查者的程序没有报告用量。",
        "",
        "## 后续步骤",
        *_next_steps(writer, state),
    ]
    return "\n".join(lines) + "\n"


def _gate_text(facts: list[Fact]) -> str:
    returned = [fact.data for fact in facts if fact.type == "gate.returned"]
    if not returned:
        return "未运行"
    return "；".join(f"{_GATE[d.verdict]}" + (f"（reason={d.reason}）" if d.reason else "") for d in returned)


def _steps(facts: list[Fact], state: State) -> list[str]:
    """Each step's last outcome, and how often it ran because of replays."""
    last: dict[tuple[str, str], Fact] = {}
    times: dict[tuple[str, str], int] = {}
    for fact in facts:
        if fact.type == "stage.step_recorded" and fact.data.outcome != "started":
            key = (fact.data.stage, fact.data.step)
            last[key] = fact
            times[key] = times.get(key, 0) + 1
    lines = (
        ["- polish：按配置跳过（skip_quality_polish: true）"]
        if state.pinned and state.pinned.skip_quality_polish
        else []
    )
    for (stage, step), fact in last.items():
        again = f"，共 {times[stage, step]} 次" if times[stage, step] > 1 else ""
        lines.append(f"- {stage} / {step}：{_OUTCOMES[fact.data.outcome]}（agent：{fact.data.agent}{again}）")
    return lines or ["- 无"]


def _findings(facts: list[Fact]) -> list[str]:
    """A row for each finding of each review and of the gate, one for a review without any."""
    rows = ["| 轮次 | 结论 | 级别 | 发现 |", "|---|---|---|---|"]
    for fact in facts:
        if fact.type == "gate.returned":
            head = f"| 对抗性审查 | {fact.data.verdict} "
            rows += [f"{head}| {level} | {what.replace('|', '/')} |" for level, what in _gate_findings(fact)]
        if fact.type != "round.reviewed":
            continue
        issues = reviewer_issues((fact.content or b"").decode("utf-8"))
        head = f"| {fact.data.round} | {fact.data.verdict} "
        rows += [f"{head}| {issue.severity} | {issue.title.replace('|', '/')} |" for issue in issues] or [
            f"{head}| — | 无 |"
        ]
    return rows


def _gate_findings(fact: Fact) -> list[tuple[str, str]]:
    """(severity, text) of each finding that the gate printed."""
    found = re.findall(r"(?m)^- \[(CRITICAL|MINOR)\] (.*)$", (fact.content or b"").decode("utf-8"))
    return [(level, what) for level, what in found]


def _decisions(facts: list[Fact]) -> list[str]:
    lines = []
    for fact in facts:
        data = fact.data
        if fact.type == "drift.accepted":
            lines.append(f"- 接受外部变更并重置基线（reason={data.reason}，答复者：{data.answered_by}）")
        elif fact.type == "session.imported":
            kept = ", ".join(data.stages) or "无"
            lines.append(f"- 从会话文件导入（plan_source={data.plan_source}，沿用的 stages：{kept}）")
        elif fact.type == "session.lock_recovered":
            lines.append(f"- 接管了已失效的锁（答复者：{data.answered_by}）")
        elif fact.type == "delivery.unblocked" and data.answered_by in ("flag", "person"):
            lines.append(f"- 解除阻塞后继续（delivery_blocked_by={data.was}，答复者：{data.answered_by}）")
        elif fact.type == "gate.returned" and data.verdict == "SKIP":
            lines.append(f"- 对抗性审查被跳过（reason={data.reason}）")
        elif fact.type == "stage.step_recorded" and data.outcome == "skipped":
            lines.append(f"- 跳过步骤 {data.stage} / {data.step}（agent：{data.agent}）")
        elif fact.type == "security.scanned" and data.added:
            lines.append(f"- 补充 .gitignore（{', '.join(data.added)}）")
    return list(dict.fromkeys(lines)) or ["- 无"]


def _minors(facts: list[Fact]) -> list[str]:
    """The MINOR findings of the last review, and those that the last gate listed as advisory."""
    minors: list[str] = []
    last = {fact.type: fact for fact in facts}
    if (review := last.get("round.reviewed")) is not None:
        issues = reviewer_issues((review.content or b"").decode("utf-8"))
        minors += [issue.title for issue in issues if issue.severity == "MINOR"]
    if (gate := last.get("gate.returned")) is not None:
        minors += [what for level, what in _gate_findings(gate) if level == "MINOR"]
    return [f"- {minor}" for minor in minors] or ["- 无"]


def _next_steps(writer: Writer, state: State) -> list[str]:
    lines = []
    if state.commit:
        lines.append(f"- 已提交 {state.commit}；未运行仓库的 git hooks，推送前请自行运行检查。")
    elif writer.config.auto_commit:
        lines.append("- 没有执行者列出的文件变更，因此没有提交。")
    else:
        lines.append("- 未自动提交（auto_commit: false）；请检查变更后自行提交。")
    scans = [
        fact_of(event).data.gaps
        for event in stream_events(writer.ledger, writer.uuid)
        if event.type == "security.scanned"
    ]
    if scans and scans[-1]:
        lines.append(f"- .gitignore 尚未覆盖：{', '.join(scans[-1])}（需要人工确认）。")
    return lines
