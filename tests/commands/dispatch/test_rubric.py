"""Rubrics: every format, every rule, every malformed field, and the cache of what was read."""

import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.dispatch.rubric import active_path, build_rubric, load_reviewed, load_rubric
from ledger.errors import Invalid
from projections.times import DAY, parse_time

ROWS = """models:
  - {name: claude-a, effort: high, provider: anthropic, taste: 10}
  - {name: gpt-b, effort: high, provider: openai, via: codex, taste: 9}
"""
ROUTING = "routing: {orchestrator: gpt-b@high, default: gpt-b@high, taste: claude-a@high, independent: claude-a@high, taste_min: 9}\n"
FALLBACKS = "fallbacks: {taste: [gpt-b@high]}\n"
WHOLE = ROWS + ROUTING + FALLBACKS
NOW = parse_time("2026-12-01T10:00:00Z")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def write(tmp_path):
    def write(text, name="rubric.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def document():
    return {
        "models": [
            {"name": "claude-a", "effort": "high", "provider": "anthropic", "taste": 10},
            {"name": "gpt-b", "effort": "high", "provider": "openai", "via": "codex", "taste": 9},
        ],
        "routing": {
            "orchestrator": "gpt-b@high",
            "default": "gpt-b@high",
            "taste": "claude-a@high",
            "independent": "claude-a@high",
            "taste_min": 9,
        },
        "fallbacks": {"taste": ["gpt-b@high"]},
        "delegation": {"max_children": 2, "max_depth": 1, "default_token_budget": 1000},
        "reviewed": "2026-11-30",
        "seed": False,
    }


def shape(rubric):
    return {route: [row.reference for row in chain] for route, chain in rubric.chains.items()}


def test_yaml_toml_and_json_mean_the_same(write):
    toml = """reviewed = 2026-11-30
[[models]]
name = "claude-a"
effort = "high"
provider = "anthropic"
taste = 10
[[models]]
name = "gpt-b"
effort = "high"
provider = "openai"
via = "codex"
taste = 9
[routing]
orchestrator = "gpt-b@high"
default = "gpt-b@high"
taste = "claude-a@high"
independent = "claude-a@high"
taste_min = 9
[fallbacks]
taste = ["gpt-b@high"]
"""
    rubrics = [
        load_rubric(write(WHOLE + "reviewed: 2026-11-30\n")),
        load_rubric(write(toml, "rubric.toml")),
        load_rubric(write(json.dumps(document()), "rubric.json")),
    ]
    assert [shape(rubric) for rubric in rubrics] == [shape(rubrics[0])] * 3
    assert [rubric.reviewed for rubric in rubrics] == ["2026-11-30"] * 3
    assert shape(rubrics[0])["taste"] == ["claude-a@high", "gpt-b@high"]


def test_keys_that_no_rule_reads_are_left_alone(write):
    text = (
        WHOLE.replace("taste: 10}", "taste: 10, cost: 3, notes: [a, 1.5]}")
        + "comment: {anything: 2026-01-01}\n"
    )
    assert "taste" in load_rubric(write(text)).chains


def test_routing_fallback_authorises_nothing(write):
    rubric = load_rubric(write(WHOLE.replace("taste_min: 9", "taste_min: 9, fallback: gpt-b@high")))
    assert "fallback" not in rubric.chains
    assert shape(rubric)["default"] == ["gpt-b@high"]


def test_a_reference_splits_at_its_last_at_sign(write):
    text = WHOLE.replace("name: gpt-b,", "name: gpt@b,").replace("gpt-b@high", "gpt@b@high")
    assert load_rubric(write(text)).rows["gpt@b@high"].name == "gpt@b"


WRONG = [
    None,
    True,
    0,
    -1,
    1.5,
    float("nan"),
    "",
    "  ",
    "x|y",
    "a\x00b",
    [],
    {},
    ["a"],
    {"a": 1},
    2**53,
    "\ud800",
    "no-reference",
    "@",
    "a@",
    "@b",
]
FIELDS = [
    ("models",), ("models", 0), ("models", 0, "name"), ("models", 0, "effort"), ("models", 0, "provider"), ("models", 1, "via"), ("models", 0, "taste"),
    ("routing",), ("routing", "default"), ("routing", "taste"), ("routing", "independent"), ("routing", "taste_min"), ("routing", "orchestrator"),
    ("fallbacks",), ("fallbacks", "taste"), ("fallbacks", "taste", 0),
    ("delegation",), ("delegation", "max_children"), ("delegation", "max_depth"), ("delegation", "default_token_budget"),
    ("reviewed",), ("seed",),
]  # fmt: skip
# What stands there is lawful all the same: other text is a name, a smaller or larger integer an integer, an empty list no fallback.
LAWFUL = {
    ("models", 0, "name"): [], ("models", 0, "taste"): [2**53 - 1], ("routing", "taste_min"): [0, -1], ("fallbacks",): [{}],
    ("fallbacks", "taste"): [[]], ("reviewed",): [None], ("seed",): [True],
    ("models", 1, "via"): [None, "no-reference", "@", "a@", "@b"], ("models", 0, "provider"): ["no-reference", "@", "a@", "@b"],
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: ".".join(map(str, field)))
def test_every_field_of_a_wrong_type_is_refused_naming_the_place(field):
    for wrong in WRONG:
        if any(
            wrong is fine or (type(wrong) is type(fine) and wrong == fine) for fine in LAWFUL.get(field, [])
        ):
            continue
        broken = document()
        here = broken
        for step in field[:-1]:
            here = here[step]
        here[field[-1]] = wrong
        with pytest.raises(Invalid) as refusal:
            build_rubric(broken)
        named = ".".join(str(part) for part in field).replace(".0", "[0]").replace(".1", "[1]")
        # a model that lost its name or effort is missed where a route names it
        assert any(part in str(refusal.value) for part in (named, *map(str, field[:1]), "routing")), (
            wrong,
            str(refusal.value),
        )


@pytest.mark.parametrize("field", [f for f in FIELDS if f in {("models",), ("routing",), ("models", 0, "name"), ("models", 0, "effort"), ("models", 0, "provider"), ("routing", "taste_min"), ("routing", "orchestrator"), ("delegation", "max_depth"), ("delegation", "max_children"), ("delegation", "default_token_budget")}])  # fmt: skip
def test_a_missing_field_is_refused(field):
    broken = document()
    here = broken
    for step in field[:-1]:
        here = here[step]
    del here[field[-1]]
    with pytest.raises(Invalid, match=str(field[-1])):
        build_rubric(broken)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["models"].append(dict(d["models"][0])), "repeats claude-a@high"),
        (lambda d: d["models"][0].update(effort="a@b"), "must not contain '@'"),
        (lambda d: d["routing"].update(default="gone@high"), "not among the models"),
        (lambda d: d["fallbacks"].update(default=["gone@high"]), "not among the models"),
        (
            lambda d: d["fallbacks"].update(default=["gpt-b@high"]),
            "already has a candidate of provider openai",
        ),
        (lambda d: d["fallbacks"].update(other=["gpt-b@high"]), "no primary"),
        (lambda d: d["fallbacks"].update(other=[]), "no primary"),
        (lambda d: d["fallbacks"].update(taste_min=[]), "no primary"),
        (lambda d: d["fallbacks"].update(fallback=[]), "no primary"),
        (lambda d: d["models"][0].update(taste=8), "claude-a@high is below"),
        (lambda d: d["models"][1].update(taste=8), "gpt-b@high is below"),
        (lambda d: d["models"][1].pop("taste"), "gpt-b@high is below"),
        (lambda d: d["routing"].update(taste_min=10), "gpt-b@high is below"),
        (lambda d: d["routing"].pop("orchestrator"), "needs routing.orchestrator"),
        (lambda d: d["routing"].update(independent="gpt-b@high"), "orchestrator's provider openai"),
        (lambda d: d["fallbacks"].update(independent=["gpt-b@high"]), "orchestrator's provider openai"),
        (lambda d: d.update(routing={"taste_min": 1}, fallbacks={}), "no route"),
        (lambda d: d["models"][0].update(provider="e\u0301"), "NFC"),
        (lambda d: d["models"][0].update(provider="x" * 97), "longer than 96 bytes"),
        (lambda d: d["delegation"].update(max_depth=0), "positive"),
    ],
)
def test_every_rule_of_the_page_refuses_the_whole_rubric(change, reason):
    broken = document()
    change(broken)
    with pytest.raises(Invalid, match=reason):
        build_rubric(broken)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("[]", "must be a mapping"),
        ("text", "must be a mapping"),
        (WHOLE + "routing: {}\n", "'routing' stands twice"),
        (WHOLE.replace("effort: high,", "effort: high, effort: low,", 1), "'effort' stands twice"),
        (WHOLE.replace("models:", "models: &m"), "anchors and aliases"),
        (WHOLE + "again: *m\n", "anchors and aliases"),
        (WHOLE.replace("name: gpt-b,", "name: !!str gpt-b,"), "tags"),
        (WHOLE.replace("name: gpt-b,", "name: !!python/object/apply:os.system [x],"), "tags"),
        (WHOLE.replace("name: gpt-b,", "name: ! gpt-b,"), "tags"),
        (WHOLE + "<<: {a: 1}\n", "merge"),
        (WHOLE + "? [a]\n: 1\n", "a key must be text"),
        (WHOLE + "1: 1\n", "a key must be text"),
        (WHOLE + "---\nseed: false\n", "second document"),
        (WHOLE + "x: 'open\n", "not YAML"),
        (WHOLE + "\tx: 1\n", "not YAML"),
        (WHOLE + "x: 2026-02-31\n", "not a value"),
        (WHOLE + f"x: {'9' * 5000}\n", "not a value"),
        (WHOLE.replace("name: gpt-b,", "name: no,"), "models.1..name must be text"),
        (WHOLE.replace("name: gpt-b,", "name: 2026-01-01,"), "models.1..name must be text"),
        (WHOLE.replace("taste: 9}", "taste: .nan}"), "models.1..taste must be an integer"),
        (WHOLE.replace("taste: 9}", "taste: 9.0}"), "models.1..taste must be an integer"),
        (WHOLE.replace("taste: 9}", "taste: yes}"), "models.1..taste must be an integer"),
        (WHOLE + "reviewed: 2026-11-30T10:00:00Z\n", "reviewed"),
        ("[" * 5000, "nested|not YAML"),
        ("{a: " * 100 + "1" + "}" * 100, "nested deeper"),
        (b"\xff\xfe", "UTF-8"),
        ("a: \x07\n", "not YAML"),
        ("x" * (256 * 1024 + 1), "larger than 256 KiB"),
    ],
)
def test_hostile_yaml_is_refused_in_one_line(write, text, reason):
    with pytest.raises(Invalid, match=reason) as refusal:
        load_rubric(write(text))
    assert "\n" not in str(refusal.value)
    assert "rubric.yaml" in str(refusal.value)


def test_a_billion_laughs_and_ten_megabytes_cost_nothing(write):
    laughs = "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(50))
    with pytest.raises(Invalid, match="anchors"):
        load_rubric(write(laughs))
    with pytest.raises(Invalid, match="256 KiB"):
        load_rubric(write(b"# " + b"x" * 10_000_000))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("r.json", '{"models": [], "models": []}', "stands twice"),
        ("r.json", '{"models": NaN}', "NaN"),
        ("r.json", "{", "property name"),
        ("r.json", "[" * 100_000, "nested"),
        ("r.json", "[" * 100 + "]" * 100, "nested"),
        ("r.toml", "a = 1\na = 2\n", "not TOML"),
        ("r.toml", "[models]\n[models]\n", "not TOML"),
        ("r.toml", "a = " + "[" * 5000, "not TOML"),
        ("r.toml", "models = nan\nrouting = {}", "must be a list"),
        ("r.TOML", "a = ", "not TOML"),
    ],
)
def test_hostile_json_and_toml_are_refused(write, name, text, reason):
    with pytest.raises(Invalid, match=reason):
        load_rubric(write(text, name))


def test_what_is_no_readable_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "gone", tmp_path / "nul\0"):
        with pytest.raises(Invalid, match="cannot read|not a regular"):
            load_rubric(str(path))
    with pytest.raises(Invalid, match=r"odd\\xff.yaml"):
        load_rubric(os.fsdecode(os.fsencode(tmp_path / "odd") + b"\xff.yaml"))


@given(st.binary(max_size=60), st.sampled_from(["", ".json", ".toml"]))
def test_no_bytes_at_all_make_a_reader_fall_over(raw, suffix):
    from commands.dispatch.rubric_formats import parse_document

    try:
        build_rubric(parse_document(raw, suffix))
    except Invalid:
        return


def cache_files(tmp_path):
    return sorted((tmp_path / "cache" / "gatebook").glob("rubric-*"))


def test_a_rubric_read_again_needs_no_yaml(write, monkeypatch, tmp_path):
    path = write(WHOLE + "reviewed: 2026-11-30\n")
    first = load_rubric(path)
    [kept] = cache_files(tmp_path)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    monkeypatch.setattr("commands.dispatch.rubric_formats.parse_document", None)
    again = load_rubric(path)
    assert (shape(again), again.reviewed, list(again.chains)) == (
        shape(first),
        first.reviewed,
        list(first.chains),
    )


def test_a_changed_rubric_is_read_anew(write):
    load_rubric(write(WHOLE))
    assert "other" in load_rubric(write(WHOLE.replace("routing: {", "routing: {other: gpt-b@high, "))).chains


def test_a_refused_rubric_is_not_kept(write, tmp_path):
    with pytest.raises(Invalid):
        load_rubric(write(ROWS))
    assert cache_files(tmp_path) == []


@pytest.mark.parametrize(
    "junk",
    [b"", b"{", b"[", b'"', b"nonsense", b"null", b"[]", b"{}", b'{"models":1}', b"\xff", b"[" * 100_000],
)
def test_a_damaged_cache_is_ignored(write, tmp_path, junk):
    path = write(WHOLE)
    load_rubric(path)
    [kept] = cache_files(tmp_path)
    kept.write_bytes(junk)
    assert shape(load_rubric(path))["taste"] == ["claude-a@high", "gpt-b@high"]
    assert kept.read_bytes() != junk


def test_a_cache_that_others_may_write_or_that_is_a_link_is_ignored(write, tmp_path):
    path = write(WHOLE)
    load_rubric(path)
    [kept] = cache_files(tmp_path)
    other = kept.read_bytes().replace(b'"default":"gpt-b@high"', b'"default":"claude-a@high"')
    kept.write_bytes(other)
    kept.chmod(0o666)
    assert shape(load_rubric(path))["default"] == ["gpt-b@high"]
    (tmp_path / "planted").write_bytes(other)
    (tmp_path / "planted").chmod(0o600)
    kept.unlink()
    kept.symlink_to(tmp_path / "planted")
    assert shape(load_rubric(path))["default"] == ["gpt-b@high"]


def test_a_cache_that_cannot_be_written_is_no_error(write, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_rubric(write(WHOLE)).chains


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "missing"),
        ("reviewed:\n", "missing"),
        ("reviewed: null\n", "missing"),
        ("reviewed: 2026-11-16\n", "15 days ago"),
        ("reviewed: '2020-01-01'\n", "days ago"),
        ("reviewed: 2026-11-30\nseed: true\n", "seed"),
    ],
)
def test_an_unreviewed_or_seed_rubric_fails_the_check_and_still_loads(write, line, reason):
    path = write(WHOLE + line)
    assert load_rubric(path).chains
    with pytest.raises(Invalid, match=reason) as refusal:
        load_reviewed(path, NOW)
    assert str(refusal.value).startswith(f"rubric {path}: ")  # several files may be the active one


def test_fourteen_days_are_not_too_old(write):
    path = write(WHOLE + "reviewed: 2026-11-17\nseed: false\n")
    load_reviewed(path, NOW)
    load_reviewed(path, parse_time("2026-12-01T23:59:59Z"))
    with pytest.raises(Invalid):
        load_reviewed(path, NOW + DAY)


def test_the_active_rubric_is_the_given_one_then_the_projects_then_the_users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with pytest.raises(Invalid, match="no rubric here"):
        active_path(None)
    user = tmp_path / "config" / "gatebook" / "rubric.yaml"
    user.parent.mkdir(parents=True)
    user.write_text(WHOLE)
    assert active_path(None) == str(user)
    (tmp_path / ".gatebook").mkdir()
    (tmp_path / ".gatebook" / "rubric.yaml").write_text(WHOLE)
    assert active_path(None) == os.path.join(".gatebook", "rubric.yaml")
    assert active_path("x.toml") == "x.toml"
    (tmp_path / ".gatebook" / "rubric.yaml").unlink()
    (tmp_path / ".gatebook" / "rubric.yaml").symlink_to("nowhere.yaml")
    with pytest.raises(Invalid, match="cannot read it"):  # never the user's in its place
        load_rubric(active_path(None))
