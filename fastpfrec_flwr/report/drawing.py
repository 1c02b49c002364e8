"""How plots look: readable in print and by the colour-blind, SVG that takes on the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours that stand out on white and on near-black; each variant also has its own marker and line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
INK = "#1b1f24"  # text and axes; inline it becomes the page's text colour

_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may hold a dollar sign
    "svg.hashsalt": "fastpfrec",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Plot:
    """A drawn figure.

    Attributes
    ----------
    key : file name. alt : what it shows, for who cannot see it. svg, png : whole files.
    """

    key: str
    title: str
    caption: str
    alt: str
    svg: str
    png: bytes

    @property
    def inline(self) -> str:
        """The SVG to stand inside a page: without prologue, in the page's colour, its ids its own."""
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        body = re.sub(r'\bid="', f'id="{self.key}-', body)
        body = re.sub(r'(href="#|url\(#)', rf"\g<1>{self.key}-", body)
        body = body.replace(INK, "currentColor")
        return re.sub(
            r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r'<svg \1aria-hidden="true" focusable="false"', body, count=1
        )


def style_of(place: int) -> dict[str, Any]:
    """Colour, marker and line of the variant at a place; all three repeat late and out of step."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": LINES[place % len(LINES)],
    }


def draw(
    key: str, title: str, caption: str, alt: str, size: tuple[float, float], paint: Callable[[Figure], None]
) -> Plot:
    """Draw a figure as SVG and PNG.

    Parameters
    ----------
    size : width and height in inches. paint : puts everything onto the figure.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        paint(figure)
        # Laid out once: it costs as much as drawing, and both files then agree.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return Plot(key, title, caption, alt, svg.getvalue(), png.getvalue())
