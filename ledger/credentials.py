"""What is surely a credential: private key blocks, and tokens with a well-known prefix, length and alphabet.

Sure, not suspicious: a refusal here stops somebody's work, so each form is one that its issuer documents and that
ordinary text does not take. No regular expressions: searching for a prefix costs less than importing them.
"""

from __future__ import annotations

from ledger.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_UPPER = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = b"0123456789"
_HEX = b"0123456789abcdef"
_WORD = _UPPER + _UPPER.lower() + _DIGITS
_URL = _WORD + b"-_"

# prefix, alphabet and least length of the rest, whether it may be longer, what to call it.
_TOKENS = (
    (b"ghp_", _WORD, 36, True, "GitHub token"),
    (b"gho_", _WORD, 36, True, "GitHub token"),
    (b"ghu_", _WORD, 36, True, "GitHub token"),
    (b"ghs_", _WORD, 36, True, "GitHub token"),
    (b"ghr_", _WORD, 36, True, "GitHub token"),
    (b"github_pat_", _WORD + b"_", 82, True, "GitHub token"),
    (b"glpat-", _URL, 20, True, "GitLab token"),
    (b"AKIA", _UPPER + b"234567", 16, False, "AWS access key"),
    (b"ASIA", _UPPER + b"234567", 16, False, "AWS access key"),
    (b"AIza", _URL, 35, False, "Google API key"),
    (b"GOCSPX-", _URL, 28, False, "Google client secret"),
    (b"sk-ant-", _URL, 32, True, "Anthropic API key"),
    (b"sk-proj-", _URL, 32, True, "OpenAI API key"),
    (b"sk-svcacct-", _URL, 32, True, "OpenAI API key"),
    (b"sk-admin-", _URL, 32, True, "OpenAI API key"),
    (b"sk-or-v1-", _HEX, 64, False, "OpenRouter API key"),
    (b"sk-", _WORD, 32, True, "API key (sk-)"),
    (b"xai-", _WORD, 70, True, "xAI API key"),
    (b"gsk_", _WORD, 48, True, "Groq API key"),
    (b"pplx-", _WORD, 40, True, "Perplexity API key"),
    (b"hf_", _WORD, 34, True, "Hugging Face token"),
    (b"xoxb-", _WORD + b"-", 40, True, "Slack token"),
    (b"xoxp-", _WORD + b"-", 40, True, "Slack token"),
    (b"xoxa-", _WORD + b"-", 40, True, "Slack token"),
    (b"xoxr-", _WORD + b"-", 40, True, "Slack token"),
    (b"xoxs-", _WORD + b"-", 40, True, "Slack token"),
    (b"xapp-1-", _WORD + b"-", 40, True, "Slack token"),
    (b"sk_live_", _WORD, 24, True, "Stripe key"),
    (b"rk_live_", _WORD, 24, True, "Stripe key"),
    (b"sk_test_", _WORD, 24, True, "Stripe key"),
    (b"npm_", _WORD, 36, False, "npm token"),
    (b"pypi-AgEI", _URL, 50, True, "PyPI token"),
    (b"dop_v1_", _HEX, 64, False, "DigitalOcean token"),
    (b"dckr_pat_", _URL, 27, True, "Docker token"),
    (b"dapi", _HEX, 32, False, "Databricks token"),
    (b"shpat_", _HEX, 32, False, "Shopify token"),
    (b"lin_api_", _WORD, 40, True, "Linear API key"),
    (b"AGE-SECRET-KEY-1", _UPPER + _DIGITS, 58, False, "age secret key"),
)
# The same, with a dot after the prefix, where a word ends.
_DOTTED = ((b"hvs.", _URL, 24, True, "Vault token"), (b"SG.", _URL + b".", 66, True, "SendGrid API key"))
_PREFIXES = tuple(token[0] for token in _TOKENS)
_SHORTEST = min(len(token[0]) + token[2] for token in _TOKENS)
_WORDS = bytes(byte if byte in _URL else 32 for byte in range(256))  # what is in no token becomes a space
_WORD_OR_NOT = bytes(120 if byte in _URL else 32 for byte in range(256))
_LONG_WORD = b"x" * _SHORTEST


def find_credential(raw: bytes) -> str | None:
    """What kind of credential stands in `raw` (text or JSON, UTF-8), None when there is none; never its value."""
    if b"PRIVATE KEY" in raw and _has_private_key(raw):
        return "private key"
    if b"PuTTY-User-Key-File-" in raw and b"Private-Lines:" in raw:
        return "private key"
    if _LONG_WORD not in raw.translate(_WORD_OR_NOT):
        return None
    kind = _token_in(raw)
    if kind is None and b"\\" in raw:  # JSON: the letter of an escape is no part of the word behind it
        kind = _token_in(_without_escapes(raw))
    return kind


def check_credentials(data: bytes, content: bytes | None) -> None:
    """Raise Refused when an event's data or content carries what is surely a credential; names the field, not the value."""
    for field, raw in (("data", data), ("content", content)):
        kind = find_credential(raw) if raw else None
        if kind:
            raise Refused(
                f"{field}: carries what looks like a credential ({kind}): leave it out; a ledger cannot forget data"
            )


def _token_in(raw: bytes) -> str | None:
    for word in raw.translate(_WORDS).split():
        if len(word) >= _SHORTEST and word.startswith(_PREFIXES):
            for token in _TOKENS:
                if word.startswith(token[0]) and _is_token(word[len(token[0]) :], token):
                    return token[4]
    for token in _DOTTED:
        _, found, rest = raw.partition(token[0])
        if found and _is_token(rest, token):
            return token[4]
    return None


def _is_token(rest: bytes, token: tuple[bytes, bytes, int, bool, str]) -> bool:
    _, alphabet, length, longer, _ = token
    if len(rest) < length or rest[:length].translate(None, alphabet):
        return False
    return longer or not rest[length : length + 1].isalnum()


def _without_escapes(raw: bytes) -> bytes:
    for letter in b"nrtbf":
        raw = raw.replace(b"\\%c" % letter, b" ")
    first, *others = raw.split(b"\\u")
    return b" ".join([first, *(other[4:] for other in others)])


def _has_private_key(raw: bytes) -> bool:
    at = raw.find(b"-----BEGIN ")
    while at >= 0:
        label = raw[at + 11 : at + 64].partition(b"-----")[0]
        if label.removesuffix(b" BLOCK").endswith(b"PRIVATE KEY"):
            return True
        at = raw.find(b"-----BEGIN ", at + 11)
    return False


def locate_credential(value: object, at: str = "$") -> tuple[str, str] | None:
    """(place, kind) of the first credential in a JSON value's texts and keys, None when there is none."""
    for place, text in _texts(value, at):
        kind = find_credential(text.encode("utf-8", "surrogatepass"))
        if kind is not None:
            return place, kind
    return None


def _texts(value: object, at: str) -> Iterator[tuple[str, str]]:
    stack = [(at, value)]
    while stack:
        place, here = stack.pop()
        if isinstance(here, str):
            yield place, here
        elif isinstance(here, dict):
            # A key that is itself a credential must not be printed as part of a place: it is named by its parent.
            yield from ((f"a key of {place}", str(name)) for name in here)
            stack.extend((f"{place}.{name}", inner) for name, inner in reversed(here.items()))
        elif isinstance(here, list | tuple):
            stack.extend((f"{place}[{index}]", here[index]) for index in range(len(here) - 1, -1, -1))
