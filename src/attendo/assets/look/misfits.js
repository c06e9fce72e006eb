// @ts-check
// Values of an address that this model, this result or this saved page does not support.

// values of an address → replacements of unsupported values
export function misfitsOf({ stacks, effects, vocab_size: vocabulary }, source, values) {
  const layers = stacks.flatMap((stack) => stack.paths);
  /** @type {Record<string, any>} */
  const instead = {};
  const heads = (path) => stacks.find((stack) => stack.paths.includes(path))?.heads ?? 0;
  if (values.layer && !heads(values.layer)) instead.layer = "";
  const most = heads(values.layer) || Math.max(...stacks.map((stack) => stack.heads));
  if (values.head >= most) instead.head = 0;
  for (const name of ["lensStack", "influenceStack"])
    if (values[name] && !stacks.some((stack) => stack.name === values[name])) instead[name] = "";
  const edits = values.edits.filter((edit) => isEdit(edit, layers, effects, heads));
  if (edits.length < values.edits.length) instead.edits = edits;
  if (values.prefix.some((id) => id >= vocabulary)) instead.prefix = [];
  if (!source.live && source.first) Object.assign(instead, otherThan(stateOf(source.first), values));
  return instead;
}

// As above, for values that only a result can check
export function misfitsOfLook(look, layer, valueOf) {
  const instead = {};
  const longest = Math.max(look.source.length, look.target.length);
  const most = { query: layer.q_len, key: layer.k_len, position: longest };
  for (const [name, n] of Object.entries(most)) if (valueOf(name) >= n) instead[name] = null;
  const measures = look.stacks.flatMap((stack) => stack.layers.flatMap((one) => Object.keys(one.measures)));
  if (!["effect", ...measures].includes(valueOf("measure"))) instead.measure = "effect";
  return instead;
}

// The values of the state for a look request
export function stateOf(ask) {
  return {
    text: ask.text,
    search: ask.search,
    beam: ask.beam ?? 0,
    target: ask.target ?? "",
    prefix: ask.prefix_ids,
    max_tokens: ask.max_tokens,
    edits: ask.edits,
  };
}

function otherThan(held, values) {
  return Object.fromEntries(
    Object.entries(held).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(values[name])),
  );
}

function isEdit(edit, layers, effects, heads) {
  if (typeof edit?.path !== "string") return false;
  const { kind, path, head = null, how = "zero", beta = 1, ...more } = edit;
  const whole = kind === "off" && head === null;
  const isHead = (place) => Number.isInteger(head) && head >= 0 && head < heads(place);
  const places = (whole ? effects : layers).filter((one) => one === path || patternOf(path).test(one));
  return (
    places.length > 0 &&
    Object.keys(more).length === 0 &&
    ["off", "beta"].includes(kind) &&
    (head === null || places.every(isHead)) &&
    (how === "zero" || (how === "mean" && effects.includes(path))) &&
    (beta === "inf" || (typeof beta === "number" && beta >= 0))
  );
}

// A shell pattern, as in the option --off of the command
function patternOf(path) {
  const parts = path.split(/(\*|\?|\[[^\]]+\])/).map((part, n) => {
    if (n % 2 === 0) return part.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
    return { "*": ".*", "?": "." }[part] ?? part.replace("[!", "[^").replaceAll("\\", "\\\\");
  });
  try {
    return new RegExp(`^${parts.join("")}$`, "s");
  } catch {
    return /^\b$/; // matches nothing
  }
}
