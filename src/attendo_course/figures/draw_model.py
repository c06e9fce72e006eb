"""Drawing of the block diagram of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendo.display.i18n import Language, Localized
from attendo_course.book import translated
from attendo_course.figures.model_parts import ModelDiagram, Part, Stack, Sublayer
from attendo_course.figures.sketch import RADIUS, TITLE_SIZE, Point, Sketch, text_width
from attendo_course.figures.style import FAINT, INK, VERMILION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEMORY = VERMILION
"""The color of the arrows from the encoder to the decoder."""


BOX, GAP, STEP = 0.33, 0.28, 0.11  # inches: a box's height, an arrow with its shape beside it, a short arrow
LANE, EDGE = 0.36, 0.3  # room beside a box for its residual arrow, and around everything
HEADER = 0.34  # the line of a frame that says what a block is
TITLE = 0.62
NAME_SIZE, DETAIL_SIZE, SHAPE_SIZE, TIMES_SIZE = 10.5, 9.0, 8.5, 15.0
SHARED = translated("shared")


@dataclass(frozen=True)
class _Column:
    """The place of a stack. `outward` is -1 if its residual arrows are left of the boxes, otherwise 1."""

    x: float
    box: float
    outward: int

    @property
    def frame(self) -> float:
        return self.box + 2 * LANE

    @property
    def lane(self) -> float:
        return self.x + self.outward * (self.box / 2 + LANE / 2)


def draw_model(diagram: ModelDiagram, figure: Figure, language: Language) -> None:
    """Draw the stacks side by side, from bottom to top, with the parameter sums in the free space.

    >>> from matplotlib.figure import Figure
    >>> from attendo.model_config import ModelConfig
    >>> from attendo_course.figures.model_parts import model_diagram
    >>> figure = Figure()
    >>> draw_model(model_diagram(ModelConfig(vocab_size=37_000)), figure, "en")
    >>> [text.get_text() for text in figure.axes[0].texts if text.get_text().startswith("Transformer")]
    ['Transformer: encoder and decoder']
    """
    draftsman = _Draftsman(diagram, language)
    draftsman.draw(figure)


class _Draftsman:
    """The layout and drawing of a diagram in inches."""

    def __init__(self, diagram: ModelDiagram, language: Language):
        self.diagram = diagram
        self.language: Language = language
        self.middle = 0.0  # the height of the middle of the last frame

    def draw(self, figure: Figure) -> None:
        """Draw all parts from left to right, then the title and the parameter sums."""
        columns, width = self.columns()
        title = self.say(self.diagram.title)
        width = max(width, 2 * EDGE + text_width(title, TITLE_SIZE, bold=self.language == "en"))
        height = EDGE + max(map(self.height, self.diagram.stacks)) + TITLE
        self.sketch = Sketch(figure, self.language, width, height)
        memory: Point | None = None
        for stack, column in zip(self.diagram.stacks, columns, strict=True):
            top = self.stack(stack, column, memory)
            memory = (column.x, top)
        self.head(columns[-1], memory[1] if memory else 0.0)
        self.sketch.text((EDGE, height - TITLE / 2 - 0.05), title, TITLE_SIZE, bold=True)
        self.sums(columns, height)

    # ---- sizes

    def columns(self) -> tuple[list[_Column], float]:
        wide = max(map(self.part_width, self.parts()))
        frame = wide + 2 * LANE
        bold = self.language == "en"
        number = 0.12 + max(text_width(f"{s.n_blocks} ×", TIMES_SIZE, bold=bold) for s in self.diagram.stacks)
        left = EDGE + number
        if len(self.diagram.stacks) == 1:
            return [_Column(left + frame / 2, wide, -1)], left + frame + 0.45 + self.sums_width() + EDGE
        memory = 0.5
        second = left + frame + memory
        return (
            [_Column(left + frame / 2, wide, -1), _Column(second + frame / 2, wide, 1)],
            second + frame + number + EDGE,
        )

    def height(self, stack: Stack) -> float:
        """Return the height of a stack from its ids to its end, including the head."""
        norms = sum(part is not None for part in (stack.embedding_norm, stack.last_norm))
        rows = 0.24 + STEP + BOX + (STEP + 2 * RADIUS if stack.positions else 0.0) + norms * (STEP + BOX)
        rows += GAP + HEADER + len(stack.sublayers) * self.layer_height() + GAP
        if stack is self.diagram.stacks[-1]:
            return rows + len(self.diagram.head) * (BOX + GAP) + 0.3
        return rows + 0.5

    def layer_height(self) -> float:
        """Return the height of a sub-layer with its norm, its sum and the arrow before it."""
        return GAP + 2 * BOX + 2 * STEP + 2 * RADIUS

    def parts(self) -> list[Part]:
        found = list(self.diagram.head)
        for stack in self.diagram.stacks:
            found += [part for part in (stack.embedding, stack.embedding_norm, stack.last_norm) if part]
            found += [part for layer in stack.sublayers for part in (layer.part, layer.norm)]
        return found

    def part_width(self, part: Part) -> float:
        bold = self.language == "en"
        name = text_width(self.say(part.name), NAME_SIZE, bold=bold)
        rest = [text_width(text, DETAIL_SIZE) for text in (self.say(part.detail), self.count(part))]
        scale = 0.16 + text_width(self.say(part.scale), DETAIL_SIZE, bold=bold) if part.scale else 0.0
        return 0.12 + name + 0.12 + rest[0] + scale + 0.3 + rest[1] + 0.12

    def say(self, words: Localized) -> str:
        return words.text(self.language)

    def count(self, part: Part) -> str:
        shared = self.say(SHARED)
        if part.parameters == 0:
            return shared if part.shared else ""
        return f"{shared} + {part.parameters:,}" if part.shared else f"{part.parameters:,}"

    # ---- drawing, upwards; each gives the height at which it ends

    def stack(self, stack: Stack, column: _Column, memory: Point | None) -> float:
        x, y = column.x, EDGE
        ids = f"{self.say(stack.ids)} [batch, {stack.length}]"
        self.sketch.text((x, y + 0.1), ids, SHAPE_SIZE + 0.5, ha="center", color=FAINT)
        y = self.step(column, y + 0.24, STEP)
        y = self.box(column, y, stack.embedding)
        if stack.positions is not None:
            y = self.positions(column, self.step(column, y, STEP), stack.positions)
        if stack.embedding_norm is not None:
            y = self.box(column, self.step(column, y, STEP), stack.embedding_norm)
        y = self.step(column, y, GAP, head=False)
        bottom = y
        for layer in stack.sublayers:
            y = self.sublayer(column, y, layer, stack.length, memory)
        y = self.frame(column, bottom, y, stack)
        if stack.last_norm is not None:
            y = self.box(column, self.step(column, y, STEP), stack.last_norm)
        return y

    def frame(self, column: _Column, bottom: float, top: float, stack: Stack) -> float:
        """Draw the frame of a block, with the number of blocks and the parameters of each block."""
        end = top + HEADER
        center = (column.x, (bottom + end) / 2)
        self.middle = center[1]
        self.sketch.rounded(
            center, column.frame, end - bottom, facecolor="#f8f9fb", edgecolor=FAINT, linewidth=1.0, zorder=0
        )
        self.sketch.line([(column.x, top), (column.x, end)], head=False)
        y = end - 0.15
        left, right = column.x - column.frame / 2 + 0.12, column.x + column.frame / 2 - 0.12
        self.sketch.text((left, y), self.say(stack.block), NAME_SIZE, bold=True)
        self.sketch.text((right, y), f"{stack.block_parameters:,}", DETAIL_SIZE, ha="right")
        edge = column.x + column.outward * (column.frame / 2 + 0.1)
        side = "right" if column.outward < 0 else "left"
        self.sketch.text((edge, center[1]), f"{stack.n_blocks} ×", TIMES_SIZE, bold=True, ha=side)
        return end

    def sublayer(self, column: _Column, y: float, layer: Sublayer, length: str, memory: Point | None) -> float:
        """Draw a sub-layer with its residual connection, and the norm before the sub-layer or after the sum."""
        branch = y + GAP * 0.45
        y = self.step(column, y, GAP)
        self.shape(column, y - GAP * 0.45, f"[batch, {length}, {self.diagram.d_model:,}]")
        if layer.norm_first:
            y = self.step(column, self.box(column, y, layer.norm), STEP)
        if layer.reads_memory and memory is not None:
            self.memory(memory, (column.x - column.box / 2, y + BOX / 2))
        y = self.step(column, self.box(column, y, layer.part), STEP)
        plus = y + RADIUS
        self.sketch.plus((column.x, plus))
        edge = column.x + column.outward * RADIUS
        self.sketch.line([(column.x, branch), (column.lane, branch), (column.lane, plus), (edge, plus)])
        y += 2 * RADIUS
        if layer.norm_first:
            return y
        return self.box(column, self.step(column, y, STEP), layer.norm)

    def positions(self, column: _Column, y: float, part: Part) -> float:
        plus = y + RADIUS
        self.sketch.plus((column.x, plus))
        name = " ".join(filter(None, (self.say(part.name), self.count(part))))
        width = text_width(name, DETAIL_SIZE) + 0.2
        near = column.x + column.outward * 0.4
        center = (near + column.outward * width / 2, plus)
        self.sketch.box(center, width, 0.26, "positions")
        self.sketch.text(center, name, DETAIL_SIZE, ha="center")
        self.sketch.line([(near, plus), (column.x + column.outward * RADIUS, plus)])
        return y + 2 * RADIUS

    def head(self, column: _Column, y: float) -> None:
        """Draw the parts after the last stack, and the result."""
        for part, entering in zip(self.diagram.head, self.diagram.head_inputs, strict=True):
            y = self.step(column, y, GAP)
            self.shape(column, y - GAP * 0.5, entering)
            y = self.box(column, y, part)
        y = self.step(column, y, GAP)
        self.sketch.text((column.x, y + 0.12), self.say(self.diagram.result), NAME_SIZE, ha="center")

    def memory(self, start: Point, end: Point) -> None:
        """Draw the path from the end of the encoder to the keys and values of a cross-attention."""
        stack = self.diagram.stacks[0]
        (x, y), turn = start, start[1] + 0.3
        lane = end[0] - LANE - 0.25
        self.sketch.line([(x, y), (x, turn), (lane, turn), (lane, end[1]), end], MEMORY)
        shape = f"[batch, {stack.length}, {self.diagram.d_model:,}]"
        label = translated("memory {shape}", shape=shape)
        self.sketch.text((x + 0.12, turn + 0.12), self.say(label), SHAPE_SIZE + 0.5, color=MEMORY)

    def box(self, column: _Column, y: float, part: Part) -> float:
        middle = y + BOX / 2
        self.sketch.box((column.x, middle), column.box, BOX, part.kind)
        left, right = column.x - column.box / 2 + 0.12, column.x + column.box / 2 - 0.12
        name = self.say(part.name)
        self.sketch.text((left, middle), name, NAME_SIZE, bold=True)
        after = left + text_width(name, NAME_SIZE, bold=self.language == "en") + 0.12
        if detail := self.say(part.detail):
            self.sketch.text((after, middle), detail, DETAIL_SIZE, color=FAINT)
        if part.scale:
            at = after + text_width(detail, DETAIL_SIZE) + 0.16, middle
            color = VERMILION if part.unscaled else FAINT
            self.sketch.text(at, self.say(part.scale), DETAIL_SIZE, bold=part.unscaled, color=color)
        if count := self.count(part):
            self.sketch.text((right, middle), count, DETAIL_SIZE, ha="right", color=INK)
        return y + BOX

    def step(self, column: _Column, y: float, length: float, *, head: bool = True) -> float:
        self.sketch.line([(column.x, y), (column.x, y + length)], head=head)
        return y + length

    def shape(self, column: _Column, y: float, text: str) -> None:
        """Write the shape of the data next to an arrow, on the side opposite the residual arrow."""
        side = "left" if column.outward < 0 else "right"
        self.sketch.text((column.x - column.outward * 0.1, y), text, SHAPE_SIZE, ha=side, color=FAINT)

    def sums_rows(self) -> list[tuple[str, str, int]]:
        blocks = {}
        for stack in self.diagram.stacks:
            extra = f" + {stack.last_norm.parameters:,}" if stack.last_norm else ""
            blocks[stack.name] = f"{stack.n_blocks} × {stack.block_parameters:,}{extra}"
        return [(self.say(name), blocks.get(name, ""), n) for name, n in self.diagram.sums if n]

    def sums_width(self) -> float:
        rows = self.sums_rows()
        widths = [
            max(text_width(text, NAME_SIZE) for text in texts)
            for texts in zip(
                *((name, how, f"{n:,}") for name, how, n in [*rows, ("", "", self.diagram.total)]),
                strict=True,
            )
        ]
        return max(sum(widths) + 0.5, 2.2)

    def sums(self, columns: list[_Column], height: float) -> None:
        """Draw the table of parameters: above the encoder, or next to a single stack."""
        left, y = columns[0].x - columns[0].frame / 2, height - TITLE - 0.25
        if len(columns) == 1:
            left, y = left + columns[0].frame + 0.45, self.middle + 0.14 * (len(self.sums_rows()) + 3)
        right = left + self.sums_width()
        heading = translated("Parameters")
        self.sketch.text((left, y), self.say(heading), NAME_SIZE, bold=True)
        names = max(text_width(name, NAME_SIZE) for name, _, _ in self.sums_rows())
        for name, how, number in self.sums_rows():
            y -= 0.24
            self.sketch.text((left, y), name, NAME_SIZE)
            self.sketch.text((left + names + 0.2, y), how, DETAIL_SIZE, color=FAINT)
            self.sketch.text((right, y), f"{number:,}", NAME_SIZE, ha="right")
        y -= 0.15
        self.sketch.line([(left, y), (right, y)], FAINT, head=False)
        y -= 0.16
        self.sketch.text((left, y), self.say(translated("total")), NAME_SIZE, bold=True)
        self.sketch.text((right, y), f"{self.diagram.total:,}", NAME_SIZE + 1, bold=True, ha="right")
        if any(part.shared for part in self.parts()):
            note = translated("what is shared is counted once")
            self.sketch.text((left, y - 0.24), self.say(note), SHAPE_SIZE, color=FAINT)
