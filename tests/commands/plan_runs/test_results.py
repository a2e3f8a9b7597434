"""The rules of a canonical result; drafts of every format that we read."""

import io
import json
import os
import zipfile

import pytest

from commands.plan_runs import validate_result, write_result
from commands.plan_runs.results import Consumption, ResultRuleError, read_result
from commands.plan_runs.run_folder import parse_now
from ledger.errors import Invalid, Refused

KEY = "course-1__assignment-2"
ITEM = {"course_id": 1, "assignment_id": 2}
DRAFT = {"status": "draft_ready", "draft_path": "draft.md"}


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / KEY
    folder.mkdir()
    (folder / "verification.log").write_text("checks ran\nPASS all\n")
    (folder / "draft.md").write_text("# Answer\n\nThe derivative is 2x.\n")
    return folder


def rule(result, work, **more):
    with pytest.raises(ResultRuleError) as broken:
        validate_result(result, str(work), item=ITEM, **more)
    assert str(broken.value).startswith(broken.value.rule)
    return broken.value.rule


def test_a_verified_draft_is_accepted_with_its_evidence(work):
    evidence = validate_result(DRAFT, str(work), item=ITEM)
    assert evidence.draft_name == f"{KEY}/draft.md"
    assert evidence.log_name == f"{KEY}/verification.log"
    assert len(evidence.draft_digest) == len(evidence.log_digest) == 64


@pytest.mark.parametrize(
    "text",
    [
        "[answer needed]",
        "[ANSWER Needed]",
        "[placeholder]",
        "[Todo]",
        "[insert name here]",
        "[insert your answer\nto question 2 here]",
        "[answer\r\n  needed]",
        "unfilled_skeleton",
        "TODO: prove",
        "x TBD",
        "(FIXME)",
    ],
)
def test_an_unresolved_placeholder_is_never_ready(work, text):
    (work / "draft.md").write_text(f"Real words before.\n{text}\n")
    assert rule(DRAFT, work) == "placeholder"


@pytest.mark.parametrize(
    "text",
    [
        "Todo list apps are common.", "todo el mundo", "METHODOLOGY", "inserted [here]", "[1] insert", "[insert a\n\nnew paragraph]",
        "My whole answer.\n\n---\n", "1. Paris\n---\n", "1. An answer | with a bar\n\n|---|\n", "No.", "# Question 1\nYes.\n",
    ],
)  # fmt: skip
def test_ordinary_words_are_no_placeholders(work, text):
    (work / "draft.md").write_text(text)
    validate_result(DRAFT, str(work), item=ITEM)


def test_a_long_hostile_draft_is_judged_in_one_pass(work):
    """Each of these would be looked at for hours if it were looked at again from every place."""
    text = "[insert " * 300_000 + "\n" + "[insert\n" * 50_000 + "\n" + "<!--" * 300_000
    (work / "draft.md").write_text(text)
    validate_result(DRAFT, str(work), item=ITEM)
    (work / "draft.md").write_text(f"{text}\n[insert it]")
    assert rule(DRAFT, work) == "placeholder"


@pytest.mark.parametrize(
    "text",
    [" \n\t\n", "# One\n\n## Two\n", "One\n===\n\nTwo\n---\n", "- \n* \n1. \n- [ ]\n", "| A | B |\n|---|---|\n|   |   |\n", "+--+--+\n|  |  |\n+--+--+\n", "# H\n\n- \n\n---\n", "<!-- words -->\n# H\n", "\ufeff\n", "# H\n\u200b\n", "> \n>\n", "# H\n◦\n▪\n–\n"],
)  # fmt: skip
def test_a_frame_without_words_is_never_ready(work, text):
    (work / "draft.md").write_text(text)
    assert rule(DRAFT, work) == "draft_hollow"


def test_an_empty_missing_linked_or_outside_draft_is_refused(work, tmp_path):
    (work / "draft.md").write_text("")
    assert rule(DRAFT, work) == "draft_empty"
    (work / "draft.md").unlink()
    assert rule(DRAFT, work) == "draft_path"
    (work / "draft.md").symlink_to("/etc/hostname")
    assert rule(DRAFT, work) == "draft_path"
    for path in ("/etc/hostname", "../../x", f"../{KEY}/draft.md", "", None, 3, ["draft.md"]):
        assert rule({**DRAFT, "draft_path": path}, work) == "draft_path"


def test_a_draft_may_lie_deeper_and_be_named_from_the_root(work):
    (work / "out").mkdir()
    (work / "out" / "d.md").write_text("Words.")
    (work / "out" / "verification.log").write_text("PASS\n")
    validate_result({**DRAFT, "draft_path": "out/d.md"}, str(work), item=ITEM)
    validate_result({**DRAFT, "draft_path": str(work / "out" / "d.md")}, str(work), item=ITEM)


def test_a_work_directory_may_be_spelled_from_here(work, monkeypatch):
    monkeypatch.chdir(work.parent.parent)
    for spelled in (f"./{work.parent.name}/{KEY}", f"{work.parent.name}/{KEY}/", work):
        validate_result(DRAFT, spelled, item=ITEM)


def test_a_draft_may_be_named_through_a_link_above_the_run_and_never_through_one_that_leaves_it(
    work, tmp_path
):
    (tmp_path.parent / "spelled").symlink_to(tmp_path)
    try:
        validate_result(
            {**DRAFT, "draft_path": str(tmp_path.parent / "spelled" / KEY / "draft.md")}, str(work), item=ITEM
        )
    finally:
        (tmp_path.parent / "spelled").unlink()
    (work / "away").symlink_to("/etc")
    assert rule({**DRAFT, "draft_path": "away/hostname"}, work) == "draft_path"


@pytest.mark.parametrize("log", ["", "passed\n", " PASS\n", "PASS\nFAIL one\n", "FAILED\nPASS\n"])
def test_the_verification_log_must_pass_and_not_fail(work, log):
    (work / "verification.log").write_text(log)
    assert rule(DRAFT, work) == "verification_log"


def test_the_verification_log_may_lie_elsewhere_in_the_run(work):
    (work / "verification.log").unlink()
    assert rule(DRAFT, work) == "verification_log"
    (work / "checks.log").write_text("PASS\n")
    validate_result({**DRAFT, "verification_log_path": "checks.log"}, str(work), item=ITEM)


def test_a_draft_that_is_the_items_template_is_refused(work):
    (work / "template.md").write_bytes((work / "draft.md").read_bytes())
    with pytest.raises(ResultRuleError, match="draft_is_template"):
        validate_result(DRAFT, str(work), item={**ITEM, "template_path": "template.md"})


def archive(**parts):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as made:
        for name, text in parts.items():
            made.writestr(name.replace("__", "/").replace("_xml", ".xml"), text)
    return held.getvalue()


def docx(body, styles="", **beside):
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    return archive(
        word__document_xml=f"<w:document {space}><w:body>{body}</w:body></w:document>",
        word__styles_xml=f"<w:styles {space}>{styles}</w:styles>",
        **{f"word__{part}_xml": f"<w:x {space}>{text}</w:x>" for part, text in beside.items()},
    )


def anchored(before, box, after):
    runs = [f"<w:r><w:t>{text}</w:t></w:r>" for text in (before, after)]
    return f"<w:p>{runs[0]}<w:r><w:txbxContent>{box}</w:txbxContent></w:r>{runs[1]}</w:p>"


def paragraph(text, style=""):
    mark = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{mark}<w:r><w:t>{text}</w:t></w:r></w:p>"


def odt(body, running=""):
    return archive(
        mimetype="application/vnd.oasis.opendocument.text",
        content_xml=f'<c xmlns:text="t" xmlns:table="x">{body}</c>',
        styles_xml=f'<s xmlns:text="t">{running}</s>',
    )


def pdf(text):
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream), b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]  # fmt: skip
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj%s endobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % table


def notebook(*cells):
    return json.dumps({"cells": [{"cell_type": "markdown", "source": cell} for cell in cells]}).encode()


HEADING_STYLE = '<w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>'


@pytest.mark.parametrize(
    ("name", "raw", "broken"),
    [
        ("d.docx", docx(paragraph("My answer is 42.")), None),
        ("d.docx", docx(paragraph("[answer needed]")), "placeholder"),
        ("d.docx", docx("<w:p><w:r><w:t>[answer </w:t></w:r><w:r><w:t>needed]</w:t></w:r></w:p>"), "placeholder"),
        ("d.docx", docx(paragraph("Introduction", "berschrift1"), HEADING_STYLE), "draft_hollow"),
        ("d.docx", docx(paragraph("")), "draft_hollow"),
        ("d.docx", docx(paragraph("1 Introduction 3", "TOC1") + paragraph("Introduction", "Heading1")), "draft_hollow"),
        ("d.docx", b"not a zip", "draft_unreadable"),
        ("d.docx", archive(other="x"), "draft_unreadable"),
        ("d.docx", docx("<w:p>"), "draft_unreadable"),
        ("d.docx", docx(paragraph("My answer."), header1=paragraph("[Insert Name]")), "placeholder"),
        ("d.docx", docx(paragraph("My answer."), footnotes=paragraph("TODO")), "placeholder"),
        ("d.docx", docx(paragraph("My answer."), footer1=paragraph("Page 1")), None),
        ("d.docx", docx(paragraph(""), header1=paragraph("Jo Doe")), "draft_hollow"),
        ("d.docx", docx(anchored("[todo] my answer ", paragraph("in a box"), "tail")), "placeholder"),
        ("d.docx", docx(anchored("My answer.", "<w:p/>", "")), None),
        ("hidden.bin", docx(paragraph("TODO")), "placeholder"),
        ("d.odt", odt("<text:p>An answer.</text:p>"), None),
        ("d.odt", odt("<text:h>Only</text:h><text:p/>"), "draft_hollow"),
        ("d.odt", odt("<text:table-of-content><text:p>Only 1</text:p></text:table-of-content><text:h>Only</text:h>"), "draft_hollow"),
        ("d.odt", odt("<text:p>[todo]</text:p>"), "placeholder"),
        ("d.odt", odt("<text:p>x<text:note><text:p>TODO</text:p></text:note></text:p>"), "placeholder"),
        ("d.odt", odt("<text:p>An answer.</text:p>", "<text:p>[Insert Name]</text:p>"), "placeholder"),
        ("d.odt", odt("<text:p/>", "<text:p>Jo Doe</text:p>"), "draft_hollow"),
        ("d.odt", odt("<text:deletion><text:p>TODO</text:p></text:deletion><text:p>Done.</text:p>"), None),
        ("d.odt", archive(content_xml='<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'), "draft_unreadable"),
        ("d.pdf", pdf("An answer in words."), None),
        ("d.pdf", pdf("TODO"), "placeholder"),
        ("d.pdf", pdf(""), "draft_hollow"),
        ("d.pdf", b"%PDF-1.4 nothing more", "draft_unreadable"),
        ("d.ipynb", notebook("# Title", "Words."), None),
        ("d.ipynb", notebook("# Title", ["FIX", "ME"]), "placeholder"),
        ("d.ipynb", notebook("# Title"), "draft_hollow"),
        ("d.ipynb", b"{}", "draft_unreadable"),
        ("d.html", b"<h1>A</h1><p>Words</p>", None),
        ("d.html", b"<title>t</title><h1>A</h1><p></p>", "draft_hollow"),
        ("d.html", b"<p>An answer.</p><![<p>", "draft_unreadable"),
        ("d.txt", "﻿[todo]".encode("utf-16"), "placeholder"),
        ("d.txt", b"caf\xe9 [todo]", "placeholder"),
        ("d.png", b"\x89PNG\r\n\x1a\n\0\0", None),
        ("d.bin", b"\0\0\0", "draft_hollow"),
    ],
)  # fmt: skip
def test_the_text_inside_a_draft_is_judged_whatever_its_format(work, name, raw, broken):
    (work / name).write_bytes(raw)
    result = {**DRAFT, "draft_path": name}
    if broken is None:
        validate_result(result, str(work), item=ITEM)
    else:
        assert rule(result, work) == broken


def test_a_document_that_unpacks_to_gigabytes_is_refused(work):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("word/document.xml", b" " * (40 << 20))
    (work / "d.docx").write_bytes(held.getvalue())
    assert rule({**DRAFT, "draft_path": "d.docx"}, work) == "draft_unreadable"


def test_a_document_of_many_parts_that_unpack_to_gigabytes_is_refused(work):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("word/document.xml", "<w:document xmlns:w='w'/>")
        for number in range(3):
            made.writestr(f"word/header{number}.xml", b" " * (15 << 20))
    (work / "d.docx").write_bytes(held.getvalue())
    with pytest.raises(ResultRuleError, match="heads and notes"):
        validate_result({**DRAFT, "draft_path": "d.docx"}, str(work), item=ITEM)


SUBMITTED = {
    "status": "submitted", "submitted_at": "2026-11-30T20:00:00Z", "authorization_receipt_id": "r1", "authorization_consumed": True,
    "metadata": {"canvas_workflow_state": "submitted", "readback_verified": True},
}  # fmt: skip


def consumed(**more):
    facts = {"receipt_id": "r1", "course_id": "1", "target_id": "2", "action": "assignment.submit_text", "at": parse_now("2026-11-30T19:59:00Z"), "hands_in": True, **more}  # fmt: skip
    return lambda receipt_id: [Consumption(**facts)] if receipt_id == "r1" else []


def test_a_submission_matches_a_consumption_in_the_log(work):
    validate_result(SUBMITTED, str(work), item=ITEM, consumptions=consumed())


@pytest.mark.parametrize(
    "more",
    [
        {"course_id": "9"},
        {"target_id": "9"},
        {"hands_in": False},
        {"at": parse_now("2026-11-30T20:02:01Z")},
    ],
)
def test_a_submission_that_no_consumption_matches_is_refused(work, more):
    assert rule(SUBMITTED, work, consumptions=consumed(**more)) == "consumption"


@pytest.mark.parametrize(
    ("use", "names", "fits"),
    [
        # A worker's result says whose it is in vain.
        ({"target_id": "3", "action": "quiz.complete"}, {"quiz_id": "3"}, False),
        # A quiz and an assignment may have one number, and are two things.
        ({"target_id": "7", "action": "quiz.complete"}, {"item": {**ITEM, "quiz_id": 7}}, True),
        ({"target_id": "2", "action": "quiz.complete"}, {"item": {**ITEM, "quiz_id": 7}}, False),
        ({"target_id": "7"}, {"item": {**ITEM, "quiz_id": 7}}, False),
        ({}, {"item": {**ITEM, "quiz_id": 7}}, True),
        # Where the item does not say it, the result is believed.
        ({}, {"item": {"name": "Set 3"}, "course_id": 1, "assignment_id": 2}, True),
        ({"target_id": "9"}, {"item": {"name": "Set 3"}, "course_id": 1, "assignment_id": 2}, False),
    ],
)
def test_a_use_hands_in_the_item_it_was_for_and_no_other(work, use, names, fits):
    item = names.get("item", ITEM)
    found = {**SUBMITTED, **{name: value for name, value in names.items() if name != "item"}}
    if fits:
        validate_result(found, str(work), item=item, consumptions=consumed(**use))
    else:
        with pytest.raises(ResultRuleError, match="consumption"):
            validate_result(found, str(work), item=item, consumptions=consumed(**use))


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"metadata": None}, "metadata"),
        (
            {"metadata": {"canvas_workflow_state": "unsubmitted", "readback_verified": True}},
            "canvas_workflow_state",
        ),
        ({"metadata": {"canvas_workflow_state": "graded", "readback_verified": 1}}, "readback_verified"),
        ({"submitted_at": "2026-11-30T20:00:00"}, "submitted_at"),
        ({"authorization_receipt_id": "r2"}, "consumption"),
        ({"authorization_receipt_id": None}, "authorization_receipt_id"),
        ({"authorization_consumed": "true"}, "authorization_consumed"),
        ({"reason_code": "already_submitted"}, "already_submitted"),
        ({"kind": "quiz"}, "kept_score"),
    ],
)
def test_a_submitted_result_breaks_a_named_rule(work, change, broken):
    assert rule({**SUBMITTED, **change}, work, consumptions=consumed()) == broken


def test_a_submission_that_was_found_claims_no_receipt(work):
    found = {**SUBMITTED, "reason_code": "already_submitted"}
    del found["authorization_receipt_id"], found["authorization_consumed"]
    validate_result(found, str(work), item=ITEM)


QUIZ = {
    **SUBMITTED, "kind": "quiz", "kept_score": 9.5, "points_possible": 10, "attempts_used": 1, "allowed_attempts": 2,
    "scoring_policy": "keep_highest", "agent_passes_count": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, None), ({"kept_score": True}, "kept_score"), ({"points_possible": "10"}, "points_possible"), ({"attempts_used": 1.0}, "attempts_used"),
        ({"allowed_attempts": False}, "allowed_attempts"), ({"scoring_policy": "best"}, "scoring_policy"), ({"agent_passes_count": 3}, "agent_passes_count"),
        ({"agent_passes_count": True}, "agent_passes_count"), ({"agent_passes_count": 0, "degraded_method_user_consent": "123456789"}, "agent_passes_count"),
        ({"agent_passes_count": 0, "degraded_method_user_consent": "yes, do it"}, None),
    ],
)  # fmt: skip
def test_a_submitted_quiz_has_its_numbers(work, change, broken):
    if broken is None:
        validate_result({**QUIZ, **change}, str(work), item=ITEM, consumptions=consumed())
    else:
        assert rule({**QUIZ, **change}, work, consumptions=consumed()) == broken


@pytest.mark.parametrize(
    ("result", "broken"),
    [
        ({"status": "skipped", "notes": "The course is closed."}, None),
        ({"status": "skipped"}, "notes"),
        ({"status": "skipped", "notes": "  "}, "notes"),
        ({"status": "error", "notes": "N/A"}, "notes"),
        ({"status": "skipped", "notes": "---"}, "notes"),
        ({"status": "error", "notes": "\u200b"}, "notes"),
        (
            {
                "status": "skipped",
                "notes": "Needs assignment.submit_text on 20.",
                "reason_code": "authorization_required",
            },
            "authorization_required",
        ),
        ({"status": "error", "notes": "The skill crashed.", "draft_path": "draft.md"}, "error_claims_draft"),
        ({"status": "error", "notes": "The skill crashed.", "draft_path": None}, None),
        ({"status": "graded", "notes": "x"}, "status"),
        ({"status": "already_submitted", "notes": "x"}, "status"),
        ({"status": ["error"], "notes": "x"}, "status"),
        ({}, "status"),
        ([], "object"),
        ({"status": "skipped", "notes": "Closed for now.", "assignment_id": 3}, "identity"),
        ({"status": "skipped", "notes": "Closed for now.", "course_id": 1.5}, "identity"),
        ({"status": "skipped", "notes": "Closed for now.", "course_id": True}, "identity"),
        ({"status": "skipped", "notes": "Closed for now.", "assignment_id": [3]}, "identity"),
        (
            {
                "status": "skipped",
                "notes": "Needs assignment.submit_text on 2.",
                "reason_code": "authorization_required",
            },
            None,
        ),
        (
            {"status": "skipped", "notes": "Needs authority.", "reason_code": "authorization_required"},
            "authorization_required",
        ),
    ],
)
def test_other_results_follow_their_rules(work, result, broken):
    if broken is None:
        validate_result(result, str(work), item=ITEM)
    else:
        assert rule(result, work) == broken


def test_a_result_is_written_and_read_back(tmp_path):
    raw = write_result(str(tmp_path), KEY, {"status": "error", "notes": "The tool is missing."}, item=ITEM)
    assert read_result(str(tmp_path), KEY) == (json.loads(raw), raw)
    assert read_result(str(tmp_path), "course-1__assignment-3") is None


@pytest.mark.parametrize("kind", ["link", "folder", "fifo", "big", "utf16", "twice"])
def test_a_result_file_that_is_none_is_refused(work, kind):
    place = work / "result.json"
    good = '{"status":"skipped","notes":"Closed for now."}'
    if kind == "link":
        (work / "real.json").write_text(good)
        place.symlink_to("real.json")
    elif kind == "folder":
        place.mkdir()
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "big":
        with open(place, "wb") as big:
            big.truncate(100 << 20)
    elif kind == "utf16":
        place.write_text(good, "utf-16")
    else:
        place.write_text('{"status":"skipped","status":"error","notes":"Closed."}')
    with pytest.raises((Invalid, Refused)):
        read_result(str(work.parent), KEY)
