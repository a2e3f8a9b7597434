"""Who we are to a NATS server: NATS' own context and creds files, nothing of our own.

`$NATS_CONTEXT` names a context of `$XDG_CONFIG_HOME/nats/context/NAME.json`; else the selected one is used if its
url names one of the ledger's servers (so that another server never gets its secrets); `$NATS_CREDS` names a creds
file and goes before the context's.
"""

from __future__ import annotations

import os

from ledger.canonical import parse_object
from ledger.errors import Invalid, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

_KNOWN = (
    "user", "password", "token", "creds", "nkey", "cert", "key", "ca", "tls_first", "inbox_prefix", "url",
    "description", "name", "color_scheme", "windows_ca_certs_match",
)  # fmt: skip
_UNSUPPORTED = ("jetstream_domain", "jetstream_api_prefix", "nsc", "socks_proxy", "user_jwt", "user_seed")


class Login:
    """The members of CONNECT and the TLS settings that prove who we are."""

    def __init__(self, context: dict[str, object] | None = None) -> None:
        given = context or {}
        bad = [name for name in _UNSUPPORTED if given.get(name)]
        if bad:
            raise Usage(
                f"NATS context: {bad[0]} is not supported: use user, token, creds, nkey, cert, key, ca"
            )
        self._given = {name: str(given.get(name) or "") for name in _KNOWN}
        self.tls_first = given.get("tls_first") is True
        self.tls = self.tls_first or bool(self._given["cert"] or self._given["ca"])
        self.inbox_prefix = self._given["inbox_prefix"] or "_INBOX"

    def answer(self, nonce: str) -> dict[str, object]:
        """What CONNECT says to a server that sent `nonce` (empty: it asked for no signature).

        Raises:
            Invalid, Usage: a creds or nkey file that is missing or not one.
        """
        creds, nkey = self._given["creds"], self._given["nkey"]
        if creds:
            jwt, seed = _read_creds(_expand(creds))
            return {"jwt": jwt, "sig": sign_nonce(seed, nonce)[0]}
        if nkey:
            sig, public = sign_nonce(_read_text(_expand(nkey)).strip(), nonce)
            return {"nkey": public, "sig": sig}
        if self._given["token"]:
            return {"auth_token": self._given["token"]}
        if self._given["user"]:
            return {"user": self._given["user"], "pass": self._given["password"]}
        return {}

    def secret_files(self) -> list[str]:
        """The files whose content proves who we are: none of them should be readable by others."""
        return [_expand(self._given[name]) for name in ("creds", "nkey", "key") if self._given[name]]

    def tls_context(self) -> ssl.SSLContext:
        """TLS 1.2 or newer that checks the server's name against the context's CA or the system's.

        Raises:
            Usage: a certificate, key or CA file that cannot be used.
        """
        import ssl

        ca, cert, key = (self._given[name] for name in ("ca", "cert", "key"))
        try:
            made = ssl.create_default_context(cafile=_expand(ca) if ca else None)
            if cert:
                made.load_cert_chain(_expand(cert), _expand(key) if key else None)
        except (OSError, ssl.SSLError) as error:
            raise Usage(f"NATS context: TLS files {ca} {cert} {key}: {error}") from None
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        return made


def _expand(path: str) -> str:
    return os.path.expanduser(path)


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(1 << 20)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise Usage(
            f"NATS login: {path}: {why} (named by $NATS_CREDS, $NATS_CONTEXT or the selected context)"
        ) from None


def _section(text: str, mark: str, path: str) -> str:
    _, begin, rest = text.partition(f"BEGIN {mark}-----\n")
    value = rest.partition("\n---")[0].strip()
    if not begin or not value:
        raise Invalid(f"{path}: no {mark} in it: not a NATS creds file")
    return value


def _read_creds(path: str) -> tuple[str, str]:
    text = _read_text(path).replace("\r\n", "\n")
    return _section(text, "NATS USER JWT", path), _section(text, "USER NKEY SEED", path)


def sign_nonce(seed: str, nonce: str) -> tuple[str, str]:
    """(signature of the nonce in base64url without padding, public key) by an nkey seed (`SU…`).

    An nkey seed is base32 of two prefix bytes, 32 bytes of Ed25519 seed and a little-endian CRC-16/XMODEM; the
    public key is base32 of one prefix byte, 32 bytes and the same sum.

    Raises:
        Invalid: not a user's seed; the seed is not repeated in the message.
    """
    from base64 import b32decode, b32encode, urlsafe_b64encode
    from binascii import crc_hqx

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        raw = b32decode(seed + "=" * (-len(seed) % 8))
    except ValueError:
        raw = b""
    if len(raw) != 36 or not seed.startswith("SU") or crc_hqx(raw[:34], 0).to_bytes(2, "little") != raw[34:]:
        raise Invalid("NATS nkey seed: not a user's seed (SU…)")
    key = Ed25519PrivateKey.from_private_bytes(raw[2:34])
    body = bytes([20 << 3]) + key.public_key().public_bytes_raw()
    public = b32encode(body + crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")
    return urlsafe_b64encode(key.sign(nonce.encode())).decode().rstrip("="), public


def _context_dir() -> str:
    root = os.environ.get("XDG_CONFIG_HOME") or ""
    if not os.path.isabs(root):
        root = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(root, "nats")


def _named_context(name: str) -> dict[str, object]:
    if not name or "/" in name or name.startswith("."):
        raise Usage(f"NATS context {name[:60]!r}: not a name")
    path = os.path.join(_context_dir(), "context", f"{name}.json")
    return parse_object(_read_text(path), what=path)


def _selected_context(servers: list[str]) -> dict[str, object]:
    """The selected context when its url names one of `servers`; `{}` otherwise, also when it cannot be read."""
    try:
        with open(os.path.join(_context_dir(), "context.txt"), encoding="utf-8") as file:
            name = file.read(200).strip()
    except (OSError, UnicodeDecodeError):
        return {}
    try:
        found = _named_context(name) if name else {}
    except (Usage, Invalid) as error:
        # Nobody can say any more which servers it was for; it must not stand before all the others.
        from ledger.notice import tell

        tell(f"{error}: the selected NATS context is not used; `nats context select` chooses another")
        return {}
    urls = [
        text.strip().rpartition("//")[2].rpartition("@")[2] for text in str(found.get("url") or "").split(",")
    ]
    return found if any(url in servers for url in urls) else {}


def find_login(servers: list[tuple[str, int]]) -> Login:
    """The login for `servers`, by the rule above.

    Raises:
        Usage, Invalid: a named context that is missing or not one.
    """
    name = os.environ.get("NATS_CONTEXT")
    given = _named_context(name) if name else _selected_context([f"{host}:{port}" for host, port in servers])
    creds = os.environ.get("NATS_CREDS")
    if creds:
        given = {**given, "creds": creds, "nkey": "", "token": "", "user": ""}
    return Login(given)
