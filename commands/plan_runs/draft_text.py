"""The text inside a draft, as lines, so that one rule judges prose, office files, PDF and notebooks alike.

Headings come out as `# …` lines whatever the format. A draft of a known format that cannot be read is `Invalid`.
"""

from __future__ import annotations

from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_INNER_LIMIT = 32 << 20
"""Bytes of one unpacked part; a small archive may unpack to gigabytes."""


def draft_lines(name: str, raw: bytes) -> list[str] | None:
    """The lines of the draft `name` with content `raw`, or None for a format that holds no text of ours to read.

    Known formats (docx, odt, pdf, ipynb, html) are told by extension or by their first bytes; the rest is text
    when it decodes, as UTF-8 or by a byte order mark.
    """
    extension = name.rpartition(".")[2].lower()
    if extension == "pdf" or raw.startswith(b"%PDF-"):
        return _pdf_lines(name, raw)
    if extension in ("docx", "odt") or raw.startswith(b"PK\x03\x04"):
        return _archive_lines(name, extension, raw)
    if extension == "ipynb":
        return _notebook_lines(name, raw)
    text = _decode(raw)
    if text is None:
        return None
    return _html_lines(name, text) if extension in ("html", "htm") else text.splitlines()


def _decode(raw: bytes) -> str | None:
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if raw.startswith(mark):
            try:
                return raw.decode(encoding)
            except UnicodeDecodeError:
                return None
    if b"\0" in raw:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        # Text in an old eight-bit encoding: its ASCII, where placeholders are written, reads the same.
        return raw.decode("latin-1")


def _archive_lines(name: str, extension: str, raw: bytes) -> list[str] | None:
    import io
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            parts = set(archive.namelist())
            if "word/document.xml" in parts:
                styles = _part(archive, "word/styles.xml") if "word/styles.xml" in parts else b""
                beside = _parts(archive, [part for part in sorted(parts) if _is_beside_docx_body(part)])
                return _docx_lines(name, _part(archive, "word/document.xml"), styles, beside)
            if extension == "odt" or (extension != "docx" and _is_odt(archive, parts)):
                styles = _part(archive, "styles.xml") if "styles.xml" in parts else b""
                return _odt_lines(name, _part(archive, "content.xml"), styles)
    except (
        zipfile.BadZipFile,
        KeyError,
        OSError,
        RuntimeError,
        NotImplementedError,
        EOFError,
        ValueError,
        zlib.error,
    ) as error:
        raise Invalid(f"{name}: cannot be read: {error}") from None
    if extension == "docx":
        raise Invalid(f"{name}: cannot be read: it holds no word/document.xml")
    return None


def _is_beside_docx_body(part: str) -> bool:
    """Whether a part holds text that is no answer by itself and may still hold a placeholder: running heads, notes, comments."""
    return part.endswith(".xml") and part.startswith(
        ("word/header", "word/footer", "word/footnotes", "word/endnotes", "word/comments")
    )


def _is_odt(archive: Any, parts: set[str]) -> bool:
    return "mimetype" in parts and _part(archive, "mimetype").startswith(
        b"application/vnd.oasis.opendocument.text"
    )


def _part(archive: Any, part: str) -> bytes:
    with archive.open(part) as stream:
        raw: bytes = stream.read(_INNER_LIMIT + 1)
    if len(raw) > _INNER_LIMIT:
        raise ValueError(f"{part} unpacks to more than {_INNER_LIMIT} bytes")
    return raw


def _parts(archive: Any, names: list[str]) -> list[bytes]:
    """Those parts, all together no larger than one may be: many small ones unpack to gigabytes as well."""
    found: list[bytes] = []
    held = 0
    for name in names:
        found.append(_part(archive, name))
        held += len(found[-1])
        if held > _INNER_LIMIT:
            raise ValueError(f"its heads and notes unpack to more than {_INNER_LIMIT} bytes")
    return found


class _Xml:
    """A walk over XML by expat that knows the open elements; a document type declaration is refused."""

    def __init__(self, name: str) -> None:
        from xml.parsers import expat

        self.name = name
        self.failure = expat.ExpatError
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.text
        self.parser.StartDoctypeDeclHandler = self.doctype

    def walk(self, raw: bytes) -> None:
        try:
            self.parser.Parse(raw, True)
        except self.failure as error:
            raise Invalid(f"{self.name}: cannot be read: {error}") from None

    def doctype(self, *_: Any) -> None:
        raise Invalid(f"{self.name}: cannot be read: its XML declares a document type")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        raise NotImplementedError

    def end(self, tag: str) -> None:
        raise NotImplementedError

    def text(self, data: str) -> None:
        raise NotImplementedError


class _DocxStyles(_Xml):
    """The ids of the styles whose name is a heading's or title's (ids are translated, names are not)."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.headings: set[str] = set()
        self.style = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "w:style":
            self.style = attributes.get("w:styleId", "")
        elif (tag == "w:name" and _is_heading_name(attributes.get("w:val", ""))) or tag == "w:outlineLvl":
            self.headings.add(self.style)

    def end(self, tag: str) -> None:
        pass

    def text(self, data: str) -> None:
        pass


def _is_heading_name(name: str) -> bool:
    """Whether a style is a heading's, a title's, or that of their copies in a table of contents."""
    return name.lower().startswith(("heading", "title", "subtitle", "toc"))


class _DocxBody(_Xml):
    def __init__(self, name: str, headings: set[str]) -> None:
        super().__init__(name)
        self.headings = headings
        self.lines: list[str] = []
        self.words: list[str] = []
        self.is_heading = False
        self.around: list[tuple[list[str], bool]] = []
        """The paragraphs around this one, for a text box stands inside the paragraph that it is anchored in."""
        self.in_header_row = False
        self.in_text = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "w:p":
            self.around.append((self.words, self.is_heading))
            self.words, self.is_heading = [], self.in_header_row
        elif tag == "w:tr":
            self.in_header_row = False
        elif tag == "w:tblHeader":
            self.in_header_row = True
        elif tag == "w:pStyle":
            style = attributes.get("w:val", "")
            self.is_heading = self.is_heading or style in self.headings or _is_heading_name(style)
        elif tag == "w:outlineLvl":
            self.is_heading = True
        elif tag in ("w:t", "m:t"):
            self.in_text = True
        elif tag in ("w:tab", "w:br", "w:cr"):
            self.words.append(" ")
        elif tag in ("w:drawing", "w:object", "w:pict"):
            # A picture is content, though none that we can read.
            self.words.append("[picture]")

    def end(self, tag: str) -> None:
        if tag in ("w:t", "m:t"):
            self.in_text = False
        elif tag == "w:p":
            self.lines.append(_line("".join(self.words), is_heading=self.is_heading))
            self.words, self.is_heading = self.around.pop()

    def text(self, data: str) -> None:
        if self.in_text:
            self.words.append(data)


def _line(text: str, *, is_heading: bool) -> str:
    text = " ".join(text.split())
    return f"# {text}" if is_heading and text else text


def _docx_lines(name: str, body: bytes, styles: bytes, beside: list[bytes]) -> list[str]:
    known = _DocxStyles(name)
    if styles:
        known.walk(styles)
    document = _DocxBody(name, known.headings)
    document.walk(body)
    lines = document.lines
    for part in beside:
        other = _DocxBody(name, known.headings)
        other.walk(part)
        lines += _as_headings(other.lines)
    return lines


def _as_headings(lines: list[str]) -> list[str]:
    """The lines of running heads and the like: looked through for placeholders, never the answer."""
    return ["", *(line if line.startswith("# ") else _line(line, is_heading=True) for line in lines)]


_ODT_HEADINGS = frozenset(("table:table-header-rows", "text:table-of-content"))


class _OdtBody(_Xml):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lines: list[str] = []
        self.words: list[str] = []
        self.depth = 0
        self.is_heading = False
        self.header_rows = 0  # open elements whose paragraphs are headings: header rows, tables of contents
        self.deleted = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "text:deletion":
            self.deleted += 1
        elif self.deleted:
            return
        elif tag in ("text:p", "text:h"):
            self.words.append(" ")  # a note's paragraph stands inside the one that it belongs to
            if self.depth == 0:
                style = attributes.get("text:style-name", "")
                self.words = []
                self.is_heading = tag == "text:h" or self.header_rows > 0 or _is_heading_name(style)
            self.depth += 1
        elif tag in _ODT_HEADINGS:
            self.header_rows += 1
        elif tag in ("text:s", "text:tab", "text:line-break"):
            self.words.append(" ")
        elif tag == "draw:image":
            self.words.append("[picture]")

    def end(self, tag: str) -> None:
        if tag == "text:deletion":
            self.deleted -= 1
        elif self.deleted:
            return
        elif tag in ("text:p", "text:h"):
            self.words.append(" ")
            self.depth -= 1
            if self.depth == 0:
                self.lines.append(_line("".join(self.words), is_heading=self.is_heading))
        elif tag in _ODT_HEADINGS:
            self.header_rows -= 1

    def text(self, data: str) -> None:
        if self.depth:
            self.words.append(data)


def _odt_lines(name: str, content: bytes, styles: bytes) -> list[str]:
    document = _OdtBody(name)
    document.walk(content)
    if not styles:
        return document.lines
    running = _OdtBody(name)  # the page styles hold the running heads
    running.walk(styles)
    return [*document.lines, *_as_headings(running.lines)]


def _pdf_lines(name: str, raw: bytes) -> list[str]:
    import io
    import logging

    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(io.BytesIO(raw), strict=False)
        return [line for page in reader.pages for line in page.extract_text().splitlines()]
    except Exception as error:  # noqa: BLE001 - whatever a broken PDF does to its reader, the draft cannot be read
        raise Invalid(f"{name}: cannot be read: {type(error).__name__}: {error}") from None


def _notebook_lines(name: str, raw: bytes) -> list[str]:
    from commands.plan_runs.documents import parse_document

    notebook = parse_document(raw, name)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise Invalid(f"{name}: cannot be read: it holds no list of cells")
    lines: list[str] = []
    for cell in cells:
        source = cell.get("source", "") if isinstance(cell, dict) else ""
        if isinstance(source, list):
            source = "".join(part for part in source if isinstance(part, str))
        if isinstance(source, str):
            lines += source.splitlines()
    return lines


def _html_lines(name: str, text: str) -> list[str]:
    from html.parser import HTMLParser

    class Page(HTMLParser):
        def __init__(self) -> None:
            super().__init__(convert_charrefs=True)
            self.lines: list[str] = [""]
            self.open_headings = 0
            self.hidden = 0

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            del attrs
            if tag in ("script", "style"):
                self.hidden += 1
            elif tag in _HTML_HEADINGS:
                self.open_headings += 1
            if tag in ("img", "svg", "video", "audio"):
                self.lines.append("[picture]")
            elif tag in _HTML_BREAKS:
                self.lines.append("")

        def handle_endtag(self, tag: str) -> None:
            if tag in ("script", "style"):
                self.hidden = max(0, self.hidden - 1)
            elif tag in _HTML_HEADINGS:
                self.open_headings = max(0, self.open_headings - 1)
            if tag in _HTML_BREAKS:
                self.lines.append("")

        def handle_data(self, data: str) -> None:
            if self.hidden:
                return
            if self.open_headings and data.strip() and not self.lines[-1].startswith("# "):
                self.lines.append("# ")
            self.lines[-1] += " ".join(data.split()) + " "

    page = Page()
    try:
        page.feed(text)
        page.close()
    except AssertionError as error:  # how CPython's parser ends at a `<![` that opens no section
        raise Invalid(f"{name}: cannot be read: {error}") from None
    return page.lines


_HTML_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6", "title", "th"))
_HTML_BREAKS = _HTML_HEADINGS | {"p", "div", "br", "li", "tr", "td", "pre", "section"}
