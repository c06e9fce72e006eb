// @ts-check
// The view "Search": why the search did not find another text, and the tree of everything that it tried.
import { el } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { makeTree } from "./tree.js";
import { onlyLive } from "./views.js";
import { makeWhy } from "./why.js";

export function makeSearch(app, root) {
  const [why, tree] = [el("section", { id: "view-why" }), el("section", { id: "view-tree" })];
  const title = onlyLive(app, el("h2", {}, say("view-why")));
  root.append(title, why, el("h2", { class: "next-part" }, say("tree-title")), tree);
  makeWhy(app, why);
  makeTree(app, tree);
}
