"""The page of `holdfast report` in a real browser: Debian's chromium, at the width of a desk and of a phone."""

import html
import json
import re
import subprocess
from pathlib import Path

import pytest

from histories import History
from needed import needs
from stores import invoke

WIDTHS = (1440, 390)
PICTURES = Path(__file__).parents[2] / "build/pictures"
# what only a browser knows, written where its dump of the page shows it
MEASURE = """<script>
addEventListener("load", () => setTimeout(() => {
  const page = document.documentElement;
  const wide = [...document.querySelectorAll("body *")]
    .filter((each) => !each.closest(".wide") && each.getBoundingClientRect().right > page.clientWidth + 1);
  const cells = [...document.querySelectorAll(".stacks td")].filter((each) => each.textContent);
  const table = document.querySelector(".attempts").getBoundingClientRect();
  parent.postMessage(JSON.stringify({
    drawn: document.body.dataset.drawn, canvases: document.querySelectorAll("canvas").length,
    inked: [...document.querySelectorAll("canvas")].filter((each) => each.getContext("2d")
      .getImageData(0, 0, each.width, each.height).data.some((value) => value)).length,
    overflow: wide.map((each) => each.tagName + "." + each.className).slice(0, 5),
    cut: cells.filter((each) => each.getBoundingClientRect().right > table.right + 1).length, cells: cells.length,
    idle: [...document.querySelectorAll(".track .idle")].filter((each) => each.clientWidth > 3).length,
    inner: innerWidth, client: page.clientWidth, scroll: page.scrollWidth,
  }), "*");
}, 500));
</script></body>"""
# chromium's own window is never narrower than 500 pixels
FRAME = """<!doctype html><title>nothing was measured</title>
<script>addEventListener("message", (event) => document.title = event.data);</script>
<iframe src="{page}" style="width: {width}px; height: 2000px; border: 0"></iframe>"""


def browse(page, width, *arguments):
    """What chromium prints, with the lines of its console on standard error."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={page.parent / 'profile'}", "--enable-logging=stderr", "--v=0"]
    command += [f"--window-size={width},2400", "--virtual-time-budget=5000", *arguments, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


@needs("chromium")
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_drawn_in_a_browser(tmp_path, width):
    """No error on its console, each chart has ink, and nothing is wider than the window beside its scrollbar."""
    History(tmp_path, 7).write(9, 400)
    page = tmp_path / "report.html"
    assert 0 == invoke("report", tmp_path / "supervisor", "--html", page).exit_code
    measured = tmp_path / "measured.html"
    measured.write_text(page.read_text().replace("</body>", MEASURE))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page=measured.name, width=width))
    shown = browse(frame, 1600, "--dump-dom")
    assert "CONSOLE" not in shown.stderr, shown.stderr
    PICTURES.mkdir(parents=True, exist_ok=True)
    browse(page, width, f"--screenshot={PICTURES / f'report-{width}.png'}")
    (title,) = re.findall(r"<title>(.*?)</title>", shown.stdout)[:1]
    facts = json.loads(html.unescape(title))
    assert width == facts["inner"]
    assert width > facts["client"] == facts["scroll"], "beside a scrollbar"
    assert facts["cells"] > 40
    assert 0 == facts["cut"], "a phone shows what was lost and the advice without a scroll"
    assert facts["idle"]
    assert "2" == facts["drawn"]
    assert facts["canvases"] == facts["inked"] == 2
    assert [] == facts["overflow"]


@needs("chromium")
def test_an_error_of_the_page_would_be_seen(tmp_path):
    """A broken script shows on the console that the test above reads."""
    page = tmp_path / "broken.html"
    page.write_text("<!doctype html><title>x</title><script>nothing.at.all()</script>")
    assert "CONSOLE" in browse(page, 500, "--dump-dom").stderr
