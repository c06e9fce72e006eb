"""The local page that asks for the labels of texts: HTML forms, which also work without JavaScript."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import get_args
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from attendo.display.i18n import Language
from attendo.display.web import FORM_POLICY, page_of
from attendo.errors import AttendoError
from attendo.inference.labeling import Labeling
from attendo.microscope.server import NO_STORE, LocalServer, body_of

KEYS = 9
"""The number of labels that have a key."""


class LabelServer(LocalServer):
    """A server on 127.0.0.1 for the page that asks for labels, whose buttons are in the order of `labels`.

    A form contains a secret, so that pages of other sites cannot send labels. Port 0 selects a free port, and a port in
    use raises AttendoError. The address of the page can name another language than `language`.
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
        found = self.labeling.current
        # the most probable label, even below its threshold
        best, share = ("", 0.0) if found is None else next(iter(found.probabilities.items()))
        page = page_of(
            "label.html",
            self._chosen(request),
            name=self.name,
            labeling=self.labeling,
            labels=self.labels,
            n_keys=KEYS,
            found=found,
            best=best,
            share=share,
            secret=self._secret,
        )
        return Response(str(page), 200, NO_STORE | {"Content-Security-Policy": FORM_POLICY}, "text/html")

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
