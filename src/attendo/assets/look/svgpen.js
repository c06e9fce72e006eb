// @ts-check
// A canvas context that writes SVG instead, so the same code draws the image and the file. It supports only the
// methods that the tree uses.
import { svgEl } from "../shared/dom.js";
import { cssColor } from "./colors.js";

export function svgPen(width, height) {
  const svg = svgEl("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  svg.append(svgEl("rect", { width, height, fill: cssColor("--paper") }));
  const measuring = new OffscreenCanvas(1, 1).getContext("2d");
  const at = (...numbers) => numbers.map((x) => Number(x.toFixed(2))).join(" ");
  let [path, dashes] = ["", []];
  const pen = {
    svg,
    font: "13px sans-serif",
    setLineDash: (some) => (dashes = some),
    beginPath: () => (path = ""),
    moveTo: (x, y) => (path += `M${at(x, y)}`),
    bezierCurveTo: (...points) => (path += `C${at(...points)}`),
    roundRect: (x, y, wide, high, round) => {
      const corner = (dx, dy) => `a${at(round, round)} 0 0 1 ${at(dx * round, dy * round)}`;
      const [across, down] = [wide - 2 * round, high - 2 * round];
      path += `M${at(x + round, y)}h${at(across)}${corner(1, 1)}v${at(down)}${corner(-1, 1)}`;
      path += `h${at(-across)}${corner(-1, -1)}v${at(-down)}${corner(1, -1)}z`;
    },
    fill: () => svg.append(svgEl("path", { d: path, fill: pen.fillStyle })),
    stroke: () => {
      const dashed = dashes.length ? { "stroke-dasharray": at(...dashes) } : {};
      const looks = { fill: "none", stroke: pen.strokeStyle, "stroke-width": pen.lineWidth, ...dashed };
      svg.append(svgEl("path", { d: path, ...looks }));
    },
    measureText: (text) => {
      measuring.font = pen.font;
      return measuring.measureText(text);
    },
    fillText: (text, x, y) => {
      const [, weight, size, family] = /^(\d+ )?([\d.]+)px (.*)$/.exec(pen.font);
      const letters = { "font-size": size, "font-family": family, "font-weight": weight ?? 400 };
      const place = { x: at(x), y: at(y), "text-anchor": "middle", "dominant-baseline": "central" };
      svg.append(svgEl("text", { ...place, ...letters, fill: pen.fillStyle }, text));
    },
  };
  return pen;
}
