"""Write the tables of figures in docs/ from the stored results.

    python benchmarks/pages.py

The other text of a page is written by hand. The text between `<!-- table: NAME -->` and `<!-- end -->` is generated
from results/*.json, figures.toml and the log, by the function NAME in page_tables.py or page_tables_use.py.
"""

import inspect
import re

import page_tables
import page_tables_use
from figure_list import HERE

DOCS = HERE.parent / "docs"
PAGES = {
    DOCS / "benchmarks.md": "en",
    DOCS / "en/decoding.md": "en",
    DOCS / "ja/benchmarks.md": "ja",
    DOCS / "ja/decoding.md": "ja",
}
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def lines_of(name, language):
    """Return the lines of a table by its name in the page."""
    function = name.replace("-", "_")
    made = getattr(page_tables_use, function, None) or getattr(page_tables, function)
    return made(language) if inspect.signature(made).parameters else made()


def written(text, language):
    """Return a page with newly generated tables."""
    return MARKED.sub(lambda found: "\n".join([found[1], *lines_of(found[2], language), "", found[3]]), text)


def main():
    """Write the pages."""
    for path, language in PAGES.items():
        path.write_text(written(path.read_text(encoding="utf-8"), language), encoding="utf-8")


if __name__ == "__main__":
    main()
