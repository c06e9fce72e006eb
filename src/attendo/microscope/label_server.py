"""The local page that asks for the labels of texts: HTML forms, which also work without JavaScript."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from html import escape
from typing import get_args
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from attendo.display.i18n import Language, Localized
from attendo.display.local_server import NO_STORE, LocalServer, body_of
from attendo.display.web import FORM_POLICY, STYLES, version
from attendo.errors import AttendoError
from attendo.inference.labeling import Labeling

KEYS = 9
"""The number of labels that have a key."""
SKIP, UNDO = Localized("Skip", "スキップ"), Localized("Undo", "元に戻す")
SUGGESTED = Localized("Suggested: <b>{label}</b> ({share:.0%})", "候補：<b>{label}</b>（{share:.0%}）")
PROGRESS = Localized("{done:,} labeled, {left:,} left", "ラベル付け済み {done:,} 件、残り {left:,} 件")
TITLE = Localized("Which label fits this text?", "このテキストに合うラベルはどれですか")
END = Localized(
    "No text is left. Press Ctrl-C in the terminal to stop the command. To see skipped texts again, start it again.",
    "残りのテキストはありません。終了するには、端末で Ctrl-C を押してください。"
    "スキップしたテキストは、コマンドをもう一度実行すると表示されます。",
)


class LabelServer(LocalServer):
    """A server on 127.0.0.1 for the page that asks for labels.

    A form contains a secret, so that pages of other sites cannot send labels.

    Args:
        labeling: The texts and the file of labels.
        labels: The labels, in the order of the buttons.
        name: The name of the run.
        port: The port to listen on. 0 selects a free port. A port in use raises AttendoError.
        language: The language of the page, unless its address names another.
    """

    def __init__(
        self, labeling: Labeling, labels: Sequence[str], name: str, port: int = 0, language: Language = "en"
    ) -> None:
        self.labeling = labeling
        self.labels = labels
        self.name = name
        self.language: Language = language
        self._secret = secrets.token_urlsafe()
        super().__init__(port)

    def _page(self, request: Request) -> Response:
        """Return the form for the current text."""
        language = self._chosen(request)
        base = f"assets/{version()}/"
        styles = "".join(
            f'<link rel="stylesheet" href="{base}{path}">' for path in (*STYLES, "label/label.css")
        )
        text = (
            f'<!doctype html><html lang="{language}"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<title>{TITLE.text(language)} · attendo</title><link rel="icon" href="data:,">{styles}'
            f'<script type="module" src="{base}label/keys.js"></script></head><body>'
            f"{self._header(language)}{self._main(language)}</body></html>"
        )
        return Response(text, 200, NO_STORE | {"Content-Security-Policy": FORM_POLICY}, "text/html")

    async def _posted(self, request: Request) -> Response:
        """Carry out a button of the form, and return to the page. A form that was sent twice counts once."""
        try:
            fields = parse_qs((await body_of(request)).decode(), strict_parsing=True, max_num_fields=9)
            (secret,), (place,), (action,) = (fields[name] for name in ("secret", "place", "action"))
        except (ValueError, KeyError):
            raise AttendoError("the form is incomplete. Reload the page") from None
        if not secrets.compare_digest(secret.encode(), self._secret.encode()):
            raise AttendoError("the form is from an earlier start of the command. Reload the page")
        name = action.removeprefix("label-")
        if place == str(self.labeling.place):
            if action == "undo":
                self.labeling.undo()
            elif self.labeling.current is not None and action == "skip":
                self.labeling.skip()
            elif self.labeling.current is not None and name in map(str, range(len(self.labels))):
                self.labeling.label(self.labels[int(name)])
        return RedirectResponse(f"/?language={self._chosen(request)}", 303, NO_STORE)

    def _chosen(self, request: Request) -> Language:
        """Return the language in the address of the page."""
        languages = {language: language for language in get_args(Language)}
        return languages.get(request.query_params.get("language"), self.language)

    def _header(self, language: Language) -> str:
        other = Localized("ja", "en").text(language)
        return (
            f'<header class="top"><h1>attendo</h1><span class="note">{escape(self.name)}</span><nav class="end">'
            f'<a class="button quiet" id="language" lang="{other}" href="?language={other}">'
            f"{Localized('日本語', 'English').text(language)}</a></nav></header>"
        )

    def _main(self, language: Language) -> str:
        labeling = self.labeling
        done, left = len(labeling.file.labels), len(labeling.queue) - labeling.place
        progress = PROGRESS.text(language).format(done=done, left=left)
        hidden = f'<input type="hidden" name="secret" value="{self._secret}">'
        hidden += f'<input type="hidden" name="place" value="{labeling.place}">'
        undo = _button("undo", UNDO.text(language), "u", disabled=not labeling.place)
        found = labeling.current
        if found is None:
            body = f"<h2>{END.text(language)}</h2>"
            buttons = f'<div class="bar">{undo}</div>'
        else:
            best, share = next(iter(found.probabilities.items()))  # even below its threshold
            suggested = SUGGESTED.text(language).format(label=escape(best), share=share)
            body = f"<h2>{TITLE.text(language)}</h2>"
            body += f'<p class="text card" dir="auto">{escape(found.text)}</p><p class="note">{suggested}</p>'
            choices = "".join(
                _button(f"label-{i}", label, str(i + 1) if i < KEYS else "", main=label == best)
                for i, label in enumerate(self.labels)
            )
            skip = _button("skip", SKIP.text(language), "s")
            buttons = f'<div class="bar labels">{choices}</div><div class="bar">{skip}{undo}</div>'
        return (
            f'<main><p class="note" id="progress">{progress}</p>'
            f'<progress aria-labelledby="progress" max="{max(1, len(labeling.queue))}" value="{labeling.place}">'
            f'</progress>{body}<form method="post" class="choices">{hidden}{buttons}</form></main>'
        )


def _button(action: str, text: str, key: str, *, main: bool = False, disabled: bool = False) -> str:
    shortcut = f' aria-keyshortcuts="{key}"' if key else ""
    shown = f"<kbd>{key.upper()}</kbd>" if key else ""
    state = (' class="main"' if main else "") + (" disabled" if disabled else "")
    return f'<button name="action" value="{action}"{shortcut}{state}>{shown}{escape(text)}</button>'
