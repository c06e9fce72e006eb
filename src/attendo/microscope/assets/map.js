"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const layerChoice = document.getElementById("layer");
const headChoice = document.getElementById("head");
const output = document.getElementById("value");
const table = document.getElementById("map");
const cells = [];

function element(name, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  return made;
}

function option(select, value, text) {
  const made = element("option", text);
  made.value = value;
  select.append(made);
}

function mean(heads) {
  return heads[0].map((row, t) => row.map((_, s) => heads.reduce((sum, head) => sum + head[t][s], 0) / heads.length));
}

function weights() {
  const heads = data.weights[Number(layerChoice.value)];
  return headChoice.value === "mean" ? mean(heads) : heads[Number(headChoice.value)];
}

function build() {
  document.getElementById("source").textContent = data.source;
  document.getElementById("target").textContent = data.target;
  data.weights.forEach((_, n) => option(layerChoice, n, `${n + 1}`));
  layerChoice.value = data.layer;
  option(headChoice, "mean", "mean of all");
  data.weights[0].forEach((_, n) => option(headChoice, n, `${n + 1}`));
  const top = element("tr");
  top.append(element("td"));
  top.firstChild.className = "corner";
  data.sourcePieces.forEach((piece) => {
    const head = element("th");
    head.scope = "col";
    head.append(element("span", piece));
    top.append(head);
  });
  table.tHead.append(top);
  data.targetPieces.forEach((piece, t) => {
    const row = element("tr");
    const head = element("th", piece);
    head.scope = "row";
    row.append(head);
    cells.push(data.sourcePieces.map((_, s) => {
      const cell = element("td");
      cell.tabIndex = t + s === 0 ? 0 : -1;
      cell.addEventListener("mouseenter", () => tell(t, s));
      cell.addEventListener("focus", () => tell(t, s));
      cell.addEventListener("keydown", (event) => move(event, t, s));
      row.append(cell);
      return cell;
    }));
    table.tBodies[0].append(row);
  });
}

function draw() {
  weights().forEach((row, t) => row.forEach((weight, s) => {
    cells[t][s].style.setProperty("--weight", weight.toFixed(3));
    cells[t][s].setAttribute("aria-label", `${data.targetPieces[t]} from ${data.sourcePieces[s]}: ${weight.toFixed(4)}`);
  }));
}

function tell(t, s) {
  table.querySelectorAll(".here").forEach((head) => head.classList.remove("here"));
  table.tHead.rows[0].cells[s + 1].classList.add("here");
  table.tBodies[0].rows[t].cells[0].classList.add("here");
  output.textContent = `${data.targetPieces[t]} ← ${data.sourcePieces[s]}  ${weights()[t][s].toFixed(4)}`;
}

function move(event, t, s) {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const step = steps[event.key];
  const next = step && cells[t + step[0]] && cells[t + step[0]][s + step[1]];
  if (!next) return;
  event.preventDefault();
  cells[t][s].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

build();
draw();
layerChoice.addEventListener("change", draw);
headChoice.addEventListener("change", draw);
