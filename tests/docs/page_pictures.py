"""Pictures of the page for docs/view.md: `python -m tests.docs.page_pictures docs` (`make picture`).

The page of a simulation, so that the same code gives the same page; Chromium draws it, in light and dark.
"""

import contextlib
import io
import sys
from pathlib import Path

from koordpy.cli.main import main
from tests.docs.worked import ROOT
from tests.view.browser import Browser, found

WIDTH, HEIGHT = 1280, 800
INPUTS = ("cluster", "prefer-gather", "must-gather", "pipeline-2x2", "gang-group", "master-workers", "multiples")
LATER = ("elastic", "urgent", "does-not-fit")
SHOWN = "#gang=default/does-not-fit"
NAMES = {"page-light.png": False, "page-dark.png": True}


def page() -> str:
    """The page of the examples, simulated."""
    words = ["simulate", "-o", "html"]
    for name in (*INPUTS, *LATER):
        path = ROOT / "examples" / name
        words += ["-f", str(path if path.is_dir() else path.with_suffix(".yaml"))]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        if main(words):
            raise SystemExit("the examples cannot be simulated")
    return out.getvalue()


def draw(folder: Path) -> None:
    """Writes the pictures."""
    file = ROOT / "build" / "page.html"
    file.parent.mkdir(exist_ok=True)
    file.write_text(page(), encoding="utf-8")
    with Browser() as browser:
        for name, dark in NAMES.items():
            browser.open(f"file://{file}{SHOWN}", width=WIDTH, height=HEIGHT, dark=dark)
            browser.until("performance.getEntriesByName('drawn').length")
            browser.frames()
            browser.picture(folder / name)


if __name__ == "__main__":
    if not found():
        sys.exit("no chromium is here (Debian's package chromium)")
    draw(Path(sys.argv[1]))
